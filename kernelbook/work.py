"""What a computation must do, from its shapes: FLOPs, bytes, and the roofline's answer."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Machine:
    """A GPU's ceilings: HBM in bytes/s, matrix units in FLOP/s by dtype (dense), memory in bytes.

    Datasheet values, except where `measured` says so. Source: the vendor's datasheets.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    hbm_bytes_per_s: float
    flops_per_s: dict[str, float] = field(hash=False)
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    registers_per_sm: int = 65536
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    measured: bool = False

    def ridge(self, dtype: str = "bf16") -> float:
        """Arithmetic intensity (FLOP/byte) above which this machine is bound by compute."""
        return self.flops_per_s[dtype] / self.hbm_bytes_per_s


KIB, MIB = 1024, 1024 * 1024


def _machine(name, capability, sms, tb_s, tflops, l2_mib, sm_kib, block_kib, **more) -> Machine:
    rates = {dtype: rate * 1e12 for dtype, rate in tflops.items()}
    memory = (l2_mib * MIB, sm_kib * KIB, block_kib * KIB)
    return Machine(name, capability, sms, tb_s * 1e12, rates, *memory, **more)


HOPPER = {"bf16": 989, "fp16": 989, "fp8": 1979, "fp32": 67}
AMPERE = {"bf16": 312, "fp16": 312, "fp32": 19.5}
ADA = {"bf16": 121, "fp16": 121, "fp8": 242, "fp32": 30.3}
TURING = {"fp16": 65, "fp32": 8.1}

#   name, capability, SMs, HBM TB/s, TFLOP/s, L2 MiB, shared KiB an SM, shared KiB a block
MACHINES = {
    machine.name: machine
    for machine in [
        _machine("H200", (9, 0), 132, 4.8, HOPPER, 60, 228, 227),
        _machine("H100", (9, 0), 132, 3.35, HOPPER, 50, 228, 227),
        _machine("A100", (8, 0), 108, 2.039, AMPERE, 40, 164, 163),
        _machine("L4", (8, 9), 58, 0.3, ADA, 48, 100, 99, threads_per_sm=1536, blocks_per_sm=24),
        _machine("T4", (7, 5), 40, 0.32, TURING, 4, 64, 64, threads_per_sm=1024, blocks_per_sm=16),
    ]
}

_SHORT = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


def short(dtype: torch.dtype | str) -> str:
    """The field's short name of a dtype: torch.bfloat16 -> "bf16"."""
    return dtype if isinstance(dtype, str) else _SHORT.get(dtype, str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Work:
    """Useful work of one call.

    flops   FLOPs of its matrix products (2 m n k each) where it has any, else element
            arithmetic, one FLOP an element and operation.
    read    bytes that must come from HBM: each input once.
    written bytes that must go to HBM: each output once.
    """

    flops: int
    read: int
    written: int

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/byte."""
        return self.flops / self.bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.read + other.read, self.written + other.written)

    def __mul__(self, times: int) -> "Work":
        return Work(self.flops * times, self.read * times, self.written * times)

    __rmul__ = __mul__

    def compute_seconds(self, machine: Machine, dtype="bf16") -> float:
        return self.flops / machine.flops_per_s[short(dtype)]

    def hbm_seconds(self, machine: Machine) -> float:
        return self.bytes / machine.hbm_bytes_per_s

    def seconds(self, machine: Machine, dtype="bf16") -> float:
        """The roofline's lower bound: max(FLOPs / rate, bytes / bandwidth), in seconds."""
        return max(self.compute_seconds(machine, dtype), self.hbm_seconds(machine))

    def bound(self, machine: Machine, dtype="bf16") -> str:
        """Which ceiling binds: "HBM" or "compute"."""
        compute = self.compute_seconds(machine, dtype)
        return "compute" if compute > self.hbm_seconds(machine) else "HBM"


def attainable(intensity: float, machine: Machine, dtype="bf16") -> float:
    """The roofline: min(peak FLOP/s, intensity × bandwidth), in FLOP/s."""
    return min(machine.flops_per_s[short(dtype)], intensity * machine.hbm_bytes_per_s)
