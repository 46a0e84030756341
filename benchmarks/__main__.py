"""`python -m benchmarks [name ...]`: measure side by side on this GPU and write the records.

Each module in this folder has `run(writer)`. An operator's new rows take the place of its older
ones in the file as soon as its benchmark is done; a benchmark that fails changes nothing.
"""

import argparse
import importlib
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

import benchmarks


def names() -> list[str]:
    """Names of all benchmarks, in order."""
    files = Path(benchmarks.__path__[0]).glob("[!_]*.py")
    return sorted(f.stem for f in files if re.search(r"^def run\(", f.read_text(), re.M))


def arguments(argv) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", help="which to run; all without a name")
    parser.add_argument("--out", type=Path, help="file to update, else data/records/<gpu>.jsonl")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.name) - set(names()))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}")
    return options


def run_one(name: str, info: dict, out: Path) -> int:
    """Run one benchmark and put its rows into `out`; how many there were."""
    from kernelbook import records

    with tempfile.TemporaryDirectory() as folder:
        with records.Writer(Path(folder) / "rows.jsonl", info) as writer:
            importlib.import_module(f"benchmarks.{name}").run(writer)
        if writer.rows:
            records.merge(out, info, writer.rows)
    return len(writer.rows)


def run_all(wanted: list[str], info: dict, out: Path) -> dict[str, str]:
    """Run benchmarks one after another; the failed ones with their reasons."""
    failures = {}
    for i, name in enumerate(wanted, 1):
        print(f"[{i}/{len(wanted)}] {name} ... ", end="", flush=True)
        began = time.perf_counter()
        try:
            rows = run_one(name, info, out)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"
            print(f"FAILED after {time.perf_counter() - began:.0f} s: {failures[name]}", flush=True)
            traceback.print_exc()
            if "CUDA error" in str(error):  # the process cannot use the GPU any more
                failures |= {later: "not run after a CUDA error" for later in wanted[i:]}
                break
        else:
            print(f"{rows} rows in {time.perf_counter() - began:.0f} s", flush=True)
    return failures


def main(argv=None) -> int:
    options = arguments(argv)
    if options.list:
        print("\n".join(names()))
        return 0
    from kernelbook import records
    from kernelbook.run_info import gpu_slug, new_run

    try:
        info = new_run()
    except RuntimeError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    out = options.out or records.path_of(gpu_slug(info["gpu"]))
    failures = run_all(options.name or names(), info, out)
    for name, reason in failures.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    print(f"records: {records.shown(out)}, run {info['run']}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
