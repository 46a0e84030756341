"""GPU or interpreter: decided once, before Triton is imported.

A kernel runs where its tensors are: CUDA tensors run compiled, CPU tensors run in Triton's
interpreter, on a machine with a GPU too. Without a usable GPU everything is interpreted.
"""

import os
import platform
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import torch

if "triton" in sys.modules and not torch.cuda.is_available() and not os.getenv("TRITON_INTERPRET"):
    raise ImportError(
        "Triton was imported before kernelbook, so it cannot be switched to its interpreter any "
        "more. Import kernelbook first, or restart the kernel."
    )

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"

if GPU:
    # Kernels are compiled; the interpreter still runs those that get CPU tensors.
    os.environ.pop("TRITON_INTERPRET", None)
else:
    os.environ["TRITON_INTERPRET"] = "1"

# What offline questions are asked about when there is no GPU: the machine of our records.
_assumed = {"sms": 132, "capability": (9, 0)}
_override: dict = {}


@dataclass(frozen=True)
class Facts:
    """The machine as found: memory in bytes, shared memory per SM's largest block in bytes."""

    name: str
    capability: tuple[int, int]
    sms: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes_per_block: int
    driver: str
    torch: str
    triton: str
    python: str


def capability(device: torch.device | None = None) -> tuple[int, int]:
    """Compute capability to choose configurations for: assumed, the GPU's, or the H200's.

    Given a `device`, its own: on the CPU, in the interpreter, the H200's on every machine, so that
    what is counted there does not depend on the GPU beside it.
    """
    if "capability" in _override:
        return _override["capability"]
    on_gpu = GPU and (device is None or device.type == "cuda")
    return torch.cuda.get_device_capability() if on_gpu else _assumed["capability"]


def sms(device: torch.device | None = None) -> int:
    """Number of streaming multiprocessors: assumed, the GPU's, or the H200's 132.

    Given a `device`, its own: on the CPU the H200's on every machine, as for `capability`.
    """
    if "sms" in _override:
        return _override["sms"]
    if not GPU or (device is not None and device.type != "cuda"):
        return _assumed["sms"]
    return torch.cuda.get_device_properties(0).multi_processor_count


@contextmanager
def assume(**facts):
    """Answer `sms()` and `capability()` as on another GPU: `with assume(capability=(8, 0)):`."""
    unknown = facts.keys() - _assumed.keys()
    if unknown:
        raise ValueError(f"assume takes {sorted(_assumed)}, got {sorted(unknown)}")
    before = dict(_override)
    _override.update(facts)
    try:
        yield
    finally:
        _override.clear()
        _override.update(before)


def pick(*, gpu, cpu, bytes: int = 0):
    """`gpu` on a GPU with at least `bytes` of free memory, else `cpu` (and says so)."""
    if not GPU:
        return cpu
    free, _ = torch.cuda.mem_get_info()
    if bytes > free:
        print(f"size {gpu} needs {bytes / 2**30:.1f} GiB, {free / 2**30:.1f} are free: using {cpu}")
        return cpu
    return gpu


def same_device(**tensors: torch.Tensor) -> torch.device:
    """The one device all tensors are on; ValueError naming each tensor's device otherwise."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) != 1:
        found = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"all tensors must be on one device, got {found}; move them with .to()")
    device = next(iter(devices.values()))
    if device.type == "cpu" or (GPU and device.type == "cuda"):
        return device
    raise ValueError(f"tensors must be on cpu or cuda, got {device}")


def unusable_gpu() -> str | None:
    """Why an NVIDIA card that is in this machine cannot be used, or None."""
    hidden = os.getenv("CUDA_VISIBLE_DEVICES") in ("", "-1")
    present = os.path.exists("/dev/nvidia0") or os.path.exists("/proc/driver/nvidia/version")
    if GPU or hidden or not (present or shutil.which("nvidia-smi")):
        return None
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is a CPU build: reinstall with `make clean lab`"
    return (
        f"torch {torch.__version__} was built for CUDA {torch.version.cuda} and cannot open the "
        "card: is the driver too old? compare with the version nvidia-smi prints"
    )


def _driver() -> str:
    try:
        with open("/proc/driver/nvidia/version") as version:
            found = re.search(r"\d+\.\d+(\.\d+)?", version.readline())
    except OSError:
        found = None
    return found.group() if found else "unknown"


def machine() -> Facts | None:
    """Facts of the GPU in this machine, or None where kernels are interpreted."""
    if not GPU:
        return None
    import triton

    properties = torch.cuda.get_device_properties(0)
    return Facts(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sms=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        memory_bytes=properties.total_memory,
        shared_bytes_per_block=properties.shared_memory_per_block_optin,
        driver=_driver(),
        torch=torch.__version__,
        triton=triton.__version__,
        python=platform.python_version(),
    )


def describe() -> str:
    """One line for the reader: which machine this is and how kernels will run on it."""
    facts = machine()
    if facts is None:
        reason = unusable_gpu()
        where = f"an NVIDIA card that torch cannot use ({reason})" if reason else "no GPU"
        return f"{where}: kernels run in Triton's interpreter, charts show recorded measurements"
    line = (
        f"{facts.name}: {facts.sms} SMs, {facts.memory_bytes / 2**30:.0f} GiB, "
        f"{facts.l2_bytes / 2**20:.0f} MiB L2, driver {facts.driver}, "
        f"torch {facts.torch}, triton {facts.triton}"
    )
    if facts.capability < (8, 0):
        line += "; older than sm_80: no bf16 tensor cores, kernels run right but slowly"
    return line
