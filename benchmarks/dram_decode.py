"""Decode's bytes by the hardware's counters: `work` against DRAM, and what grouped heads save.

- `dram_decode`: split-KV, paged and int8 decode over 1 GiB of KV: is `work` what DRAM moves?
- `decode_gqa`: query heads that share KV, in one program, or in a program each. Programs of the
  second kind ask for the same keys and values several times: does L2 hide it? It depends on when
  they ask, so they run once next to each other and once far apart. Times, and counters.
"""

from functools import partial

from benchmarks import _decode as bench
from benchmarks import _dram_decode_driver as driver
from benchmarks import dram_bytes as dram
from kernelbook import backend, timing

KERNEL = "split_kv_kernel"
SECTOR = 32


def counters(launch: dict) -> dict:
    """DRAM's bytes of a launch, and what L2 served to SMs where the profiler knows it."""
    found = {name: int(launch[name]) for name in ("dram_read", "dram_written")}
    if "sm_sectors_read" in launch:
        found["l2_read"] = SECTOR * int(launch["sm_sectors_read"])
    return found


def facts(case, launch: dict) -> dict:
    work = case.work
    return {"work_read": work.read, "work_written": work.written, **counters(launch)}


def explanation(case, launch: dict, l2: int) -> str:
    """Why DRAM moved more or less than `work`, "" within 10%."""
    sides = {"read": case.work.read, "written": case.work.written}
    why = [
        dram.explanation(KERNEL, side, counted, launch[f"dram_{side}"], l2)
        for side, counted in sides.items()
    ]
    return "; ".join(filter(None, why))


def add_layout(writer, case, launch: dict, l2: int) -> None:
    """A row of `dram_decode`; its time is the profiler's, of one cold run."""
    time = timing.Timing.of([launch["microseconds"]], "profiler, cold L2")
    bench.add(
        writer, case.op, case.shape, case.variant, time, case.work,
        explanation=explanation(case, launch, l2), **facts(case, launch),
    )  # fmt: skip


def timed(group: int) -> dict:
    """The variants of one group size, checked, then in turn."""
    shape = driver.gqa_shape("large", group)
    answers = dict.fromkeys(driver.GQA, bench.expected)
    make, moves = partial(bench.inputs, shape), bench.work_of(shape).bytes
    return bench.in_turn(driver.GQA, make, moves, answers)


def add_grouped(writer, case, launch: dict, time) -> None:
    """A row of `decode_gqa`: its time in a graph, its bytes by the profiler."""
    groups = case.shape["batch"] * case.shape["kv_heads"]
    per_group = case.shape["query_heads"] // case.shape["kv_heads"]
    programs = groups * (1 if case.variant == "packed" else per_group)
    bench.add(
        writer, case.op, case.shape, case.variant, time, case.work,
        splits=1, programs=programs, requested_read=case.requested,
        profiled_us=launch["microseconds"], **facts(case, launch),
    )  # fmt: skip


def matched(cases: list, launches: list[dict]) -> list[tuple]:
    """Each case with its launch: in order, one each. LookupError where they do not fit."""
    names = [launch["kernel"] for launch in launches]
    if len(cases) != len(launches) or set(names) != {KERNEL}:
        raise LookupError(f"{len(cases)} cases, but launches of {names}")
    return list(zip(cases, launches, strict=True))


def run(writer) -> None:
    """Times of grouped heads, then all counters; without a GPU or ncu nothing."""
    if not bench.has_gpu("dram_decode"):
        return
    ncu = dram.find_ncu()
    if ncu is None:
        print("dram_decode: skipped, ncu is not installed")
        return
    times = {group: timed(group) for group in driver.GROUPS}
    launches = dram.profile(ncu, "large", driver.__name__, [KERNEL])
    record(writer, launches, times, backend.machine().l2_bytes)


def record(writer, launches: list[dict], times: dict, l2: int) -> None:
    """All rows; without launches none."""
    for case, launch in matched(driver.cases("large"), launches) if launches else []:
        group = case.shape["query_heads"] // case.shape["kv_heads"]
        if case.op == "dram_decode":
            add_layout(writer, case, launch, l2)
        elif case.variant in times[group]:
            add_grouped(writer, case, launch, times[group][case.variant])
        asked = (case.requested or case.work.read) / 1e9
        read, work = launch["dram_read"] / 1e9, case.work.read / 1e9
        bench.say(
            f"{case.variant:15} group {group}: asked for {asked:.2f} GB, DRAM read {read:.2f}, "
            f"work {work:.2f}"
        )
