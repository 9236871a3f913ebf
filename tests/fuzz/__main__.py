"""`make fuzz`: see the package."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.fuzz.running import Done, Failure, Work, limit_memory, planned, repeat, run, save
from tests.fuzz.targets import TARGETS

FOLDER = Path("build/fuzz")
_PIECE = 1000


def main() -> int:
    options = _options()
    if options.repeat:
        failure = repeat(options.repeat)
        print(
            f"{failure.where}: {failure.error}" if failure else f"{options.repeat}: nothing is wrong with it any more"
        )
        return int(failure is not None)
    began, done = time.monotonic(), list[Done]()
    work = planned(options.inputs, options.seed, options.target or [], _PIECE)
    crashed = _run_all(work, options.jobs, done)
    report = _report(done, crashed, options, time.monotonic() - began)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=2) + "\n")
    _show(report)
    return int(bool(report["failures"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Malformed input, by the million.")
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="try one saved input again")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write the figures there")
    return parser.parse_args()


def _run_all(work: list[Work], jobs: int, done: list[Done]) -> list[Work]:
    """Yield the pieces of work in which a process died, which only a bug in compiled code (or a lack of memory) can cause."""
    tried, total, told = 0, sum(one.count for one in work), 0.0
    waiting, crashed = list(reversed(work)), list[Work]()
    while waiting:
        with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=limit_memory) as pool:
            running: dict[Future[Done], Work] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * jobs:
                        piece = waiting.pop()
                        running[pool.submit(run, piece)] = piece
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        del running[future]
                        done.append(result)
                        tried += result.inputs
                        for failure in result.failures:
                            _say_failure(failure)
                    if time.monotonic() - told > 5:
                        told = time.monotonic()
                        print(f"\r{tried:,} of {total:,} inputs", end="", file=sys.stderr, flush=True)
            except BrokenProcessPool:
                crashed += running.values()
    print(f"\r{tried:,} of {total:,} inputs", file=sys.stderr)
    return crashed


_said: Counter[str] = Counter()


def _say_failure(failure: Failure) -> None:
    """Print the first failures of each place; all of them are counted."""
    _said[failure.where] += 1
    if _said[failure.where] <= 2:
        path = save(FOLDER, failure)
        print(f"\n{failure.target} {failure.name}: {failure.where}: {failure.error}", file=sys.stderr)
        print(f"  again: {Path(sys.executable).name} -m tests.fuzz --repeat {path}", file=sys.stderr)


def _report(done: list[Done], crashed: list[Work], options: argparse.Namespace, wall_s: float) -> dict[str, Any]:
    inputs, failed, cpu = Counter[str](), Counter[str](), Counter[str]()
    for one in done:
        inputs[one.target] += one.inputs
        failed[one.target] += len(one.failures)
        cpu[one.target] += one.cpu_s  # type: ignore[assignment]  # seconds; a counter of floats adds as well
    failed.update({one.target: 1 for one in crashed})
    return {
        "seed": options.seed,
        "inputs": sum(inputs.values()),
        "failures": sum(failed.values()),
        "cpu_s": round(sum(cpu.values()), 1),
        "wall_s": round(wall_s, 1),
        "peak_rss_bytes": max((one.peak_rss for one in done), default=0),
        "crashed": [f"{one.target} {one.seed}/{one.first}, one of {one.count}" for one in crashed],
        "targets": {
            name: {"inputs": inputs[name], "failures": failed[name], "cpu_s": round(cpu[name], 1)}
            for name in sorted(inputs)
        },
    }


def _show(report: dict[str, Any]) -> None:
    for name, one in report["targets"].items():
        print(f"{name:14} {one['inputs']:>10,} inputs {one['failures']:>6} failures {one['cpu_s']:>8.1f} s")
    print(
        f"{'all':14} {report['inputs']:>10,} inputs {report['failures']:>6} failures {report['cpu_s']:>8.1f} s, "
        f"{report['peak_rss_bytes'] >> 20} MiB at most, seed {report['seed']}"
    )


if __name__ == "__main__":
    sys.exit(main())
