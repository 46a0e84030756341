"""Occupancy: how many warps of a kernel an SM can hold, from what the kernel uses.

An SM hands out warp slots, registers, shared memory and block slots. A block (one Triton program)
enters only if all four are free for it; the scarcest decides. Source: NVIDIA's
`cuda_occupancy.h` and the table "technical specifications per compute capability" in the CUDA C++
programming guide.
"""

from dataclasses import dataclass

from kernelbook.work import MACHINES, Machine

THREADS_PER_WARP = 32
PARTITIONS = 4  # an SM's register file is four files; a warp lives in one of them
REGISTER_UNIT = 256  # registers are handed out to a warp in units of 256
SHARED_UNIT = 128  # bytes; Turing: 256
RESERVED_SHARED = 1024  # bytes an SM keeps for each block, from sm_80 on


@dataclass(frozen=True)
class Occupancy:
    """blocks and warps resident on an SM, as a fraction of its warp slots, and what limits them."""

    blocks: int
    warps: int
    fraction: float
    limited_by: str


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def machine_of(target: int) -> Machine:
    """The machine whose limits stand for a target such as 90 (sm_90)."""
    for machine in MACHINES.values():
        if machine.capability == divmod(target, 10):
            return machine
    known = sorted({10 * m.capability[0] + m.capability[1] for m in MACHINES.values()})
    raise ValueError(f"target {target} is unknown; the targets with known limits are {known}")


def blocks_by_registers(registers: int, num_warps: int, machine: Machine) -> int:
    """Blocks that the register file holds: whole warps in each of its four partitions."""
    per_warp = round_up(max(registers, 1) * THREADS_PER_WARP, REGISTER_UNIT)
    warps = machine.registers_per_sm // PARTITIONS // per_warp * PARTITIONS
    return warps // num_warps


def blocks_by_shared(shared_bytes: int, machine: Machine) -> int:
    """Blocks that shared memory holds, 0 when one block alone asks for too much."""
    if shared_bytes > machine.shared_bytes_per_block:
        return 0
    ampere = machine.capability >= (8, 0)
    unit, reserved = (SHARED_UNIT, RESERVED_SHARED) if ampere else (256, 0)
    per_block = round_up(shared_bytes + reserved, unit)
    return machine.shared_bytes_per_sm // per_block if per_block else machine.blocks_per_sm


def occupancy(registers: int, shared_bytes: int, num_warps: int, machine: Machine) -> Occupancy:
    """Resident warps of an SM of `machine`, and which limit binds.

    registers     a thread's
    shared_bytes  a block's (one Triton program's)
    num_warps     a block's
    `limited_by` is "warps", "registers", "shared memory" or "blocks": the smallest of the four,
    the first named when they tie (warps at their limit is full occupancy).
    """
    slots = machine.threads_per_sm // THREADS_PER_WARP
    limits = {
        "warps": slots // num_warps,
        "registers": blocks_by_registers(registers, num_warps, machine),
        "shared memory": blocks_by_shared(shared_bytes, machine),
        "blocks": machine.blocks_per_sm,
    }
    limited_by = min(limits, key=limits.get)
    blocks = limits[limited_by]
    return Occupancy(blocks, blocks * num_warps, blocks * num_warps / slots, limited_by)
