"""Counted bytes beside the hardware's counters: is `work` what DRAM moves, and when not, why?

Runs `_dram_driver` under Nsight Compute. Large cases compare `work` with DRAM's counters, small
ones the bytes that programs request (the meter's count) with the sectors that L2 serves.
"""

import csv
import glob
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import _dram_driver as driver
from kernelbook import backend, meter, timing
from kernelbook.kernels import matmul
from kernelbook.work import Work

ROOT = Path(__file__).resolve().parents[1]
METRICS = {
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "l2_sectors_read": "lts__t_sectors_op_read.sum",
    "l2_sectors_written": "lts__t_sectors_op_write.sum",
    "microseconds": "gpu__time_duration.sum",
}
# The same sectors, only those asked for by the SMs: without the traffic between L2's halves.
FROM_SMS = {
    "sm_sectors_read": "lts__t_sectors_srcunit_tex_op_read.sum",
    "sm_sectors_written": "lts__t_sectors_srcunit_tex_op_write.sum",
}
UNITS = {
    "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 1, "": 1,
    "ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3,
    "s": 1e6, "second": 1e6,
}  # fmt: skip


def find_ncu() -> str | None:
    """Path of Nsight Compute's command line, or None."""
    places = ["/usr/local/cuda/bin/ncu", *sorted(glob.glob("/opt/nvidia/nsight-compute/*/ncu"))]
    return shutil.which("ncu") or next(filter(shutil.which, places), None)


def stem(kernel: str) -> str:
    """A kernel's name as far as its twins for other GPUs share it."""
    return kernel.removesuffix("_kernel") + ("" if kernel.startswith("attention") else "_kernel")


def of_kernel(launches: list[dict], kernel: str) -> dict:
    """The launch of a kernel or of its twin; each runs once. LookupError where it is missing."""
    for launch in launches:
        if launch["kernel"].startswith(stem(kernel)):
            return launch
    raise LookupError(f"no launch of {kernel}, only of {[one['kernel'] for one in launches]}")


def kernels_of(size: str) -> list[str]:
    return [name for case in driver.cases(size) for name in case.work]


def command(
    ncu: str, size: str, program: str, kernels: list[str], metrics: dict, processes: str
) -> list[str]:
    """The profiler's command line: our kernels alone, caches flushed before each, clocks as is."""
    names = "|".join(rf"{stem(name)}\w*" for name in kernels)
    options = ["--clock-control", "none", "--csv", "--print-units", "base"]
    options += ["--target-processes", processes, "--kernel-name", f"regex:^({names})$"]
    options += ["--metrics", ",".join(metrics.values())]
    return [ncu, *options, sys.executable, "-m", program, size]


def _value(text: str, unit: str) -> float:
    return float(text.replace(",", "")) * UNITS[unit.strip()]


def parse(text: str, metrics: dict) -> list[dict]:
    """[{"kernel": name, "dram_read": ..., ...}] a launch, in order, from ncu's CSV of either form.

    One form has a row for each metric, the other a column for each and a row of units first.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    launches: dict[str, dict] = {}
    names = {metric: name for name, metric in metrics.items()}
    units = {} if rows and "Metric Name" in rows[0] else rows.pop(0) if rows else {}
    for row in rows:
        launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"].split("(")[0]})
        if "Metric Name" in row:
            found = [(row["Metric Name"], row["Metric Value"], row["Metric Unit"])]
        else:
            found = [(metric, row[metric], units[metric]) for metric in names if metric in row]
        for metric, value, unit in found:
            if metric in names and value not in ("", "n/a"):
                launch[names[metric]] = _value(value, unit)
    return list(launches.values())


def profile(ncu: str, size: str, program: str, kernels: list[str]) -> list[dict]:
    """Counters of each launch of these kernels that `python -m program size` makes, in order.

    Tries less where this ncu knows less.
    """
    for metrics in (METRICS | FROM_SMS, METRICS):
        for processes in ("application-only", "all"):
            run = subprocess.run(
                command(ncu, size, program, kernels, metrics, processes),
                cwd=ROOT, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            launches = parse(run.stdout, metrics)
            if launches and all(set(METRICS) < set(launch) for launch in launches):
                return launches
            if "find metric" in run.stdout + run.stderr:
                break  # the same metrics will be missing again
    print("ncu gave no counters:", (run.stdout + run.stderr)[-800:])
    return []


def bands_of_tiles() -> str:
    """How often the large matrix product reads b, from its shape and tiles."""
    m, n, k = driver.PRODUCT["large"]
    bands = -(-m // (matmul.GROUP * matmul.config(m, n, driver.HALF).block_m))
    a, b = (size * k * driver.HALF.itemsize / 1e6 for size in (m, n))
    return (
        f"each of {bands} bands of tiles reads all of b ({b:.1f} MB), gone from L2 since the band "
        f"before: {bands} x {b:.1f} + {a:.1f} = {bands * b + a:.0f} MB"
    )


def explanation(kernel: str, side: str, counted: int, measured: float, l2: int) -> str:
    """Why DRAM moved more or less than counted, where the difference is above 10%; else ""."""
    if abs(measured - counted) <= 0.1 * counted:
        return ""
    if counted < 2 * l2 and abs(measured - counted) < l2:
        return f"{side}: {counted / 1e6:.1f} MB is too little against an L2 of {l2 / 1e6:.0f} MB"
    if side == "written":
        more = "lines were written back more than once" if measured > counted else ""
        return f"written: {more or 'a rest is still in L2 when the kernel ends'}"
    if measured < counted:
        return "read: part was found in L2"
    if kernel == "matmul_kernel":
        return f"read: {bands_of_tiles()}"
    return "read: programs share inputs, and some left L2 before the last of them asked"


def add_dram_rows(writer, launches, l2: int) -> None:
    """A row a kernel of the large cases: `work` against DRAM's counters."""
    for case in driver.cases("large"):
        for kernel, work in case.work.items():
            launch = of_kernel(launches, kernel)
            sides = {
                "read": (work.read, launch["dram_read"]),
                "written": (work.written, launch["dram_written"]),
            }
            why = [explanation(kernel, side, *pair, l2) for side, pair in sides.items()]
            add(
                writer, "dram_bytes", kernel, case, launch, work,
                dram_read=int(launch["dram_read"]),
                dram_written=int(launch["dram_written"]),
                explanation="; ".join(filter(None, why)),
            )  # fmt: skip


def l2_explanation(side: str, asked: int, sectors: dict) -> str:
    """Why L2 served more or less than programs requested, where it is above 10%; else ""."""
    from_sms = f"sm_sectors_{side}" in sectors
    served = 32 * sectors[f"sm_sectors_{side}" if from_sms else f"l2_sectors_{side}"]
    if abs(served - asked) <= 0.1 * asked:
        return ""
    if served < asked:
        return f"{side}: requests for the same lines were merged on their way to L2, or found in L1"
    if not from_sms:
        return f"{side}: traffic between the halves of L2 is counted too"
    return f"{side}: whole sectors of 32 bytes move where fewer bytes were asked for"


def add_l2_rows(writer, launches) -> None:
    """A row a kernel of the small cases: bytes requested by programs against L2's sectors."""
    for case in driver.cases("small"):
        for counts in meter.count(case.call, *case.tensors("cpu")).kernels:
            launch = of_kernel(launches, counts.name)
            sectors = {name: int(launch[name]) for name in launch if "sectors" in name}
            asked = {"read": counts.requested_read, "written": counts.requested_written}
            why = [l2_explanation(side, amount, sectors) for side, amount in asked.items()]
            add(
                writer, "l2_sectors", counts.name, case, launch, case.work[counts.name],
                requested_read=counts.requested_read,
                requested_written=counts.requested_written,
                explanation="; ".join(filter(None, why)),
                **sectors,
            )  # fmt: skip


def add(writer, op: str, kernel: str, case, launch: dict, work: Work, **extra) -> None:
    """One row; the time is ncu's, of one cold run, and not to be compared with other records."""
    us = launch["microseconds"]
    writer.add(
        op=op, variant=kernel, peer=False, shape={"case": case.name, **case.shape}, dtype="fp16",
        timing=timing.Timing.of([us], "profiler, cold L2"), work=work,
        work_read=work.read, work_written=work.written, **extra,
    )  # fmt: skip


def run(writer) -> None:
    """Profile both sizes and write a row a kernel; without a GPU or ncu, say so and write none."""
    ncu = find_ncu()
    if not backend.GPU or ncu is None:
        print("dram_bytes: skipped,", "ncu is not installed" if backend.GPU else "no GPU")
        return
    if launches := profile(ncu, "large", driver.__name__, kernels_of("large")):
        add_dram_rows(writer, launches, backend.machine().l2_bytes)
    if launches := profile(ncu, "small", driver.__name__, kernels_of("small")):
        add_l2_rows(writer, launches)
