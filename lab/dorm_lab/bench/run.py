"""From `dorm run` to the first line of the program's output: a project of many files, shipped to a cluster of processes.

Each run is a separate command, as a user types it, so its start, its imports and its connection count.  For comparison,
Python alone runs the same program: `dorm run` adds the difference of the medians.  The first run ships the project; the
others have nothing to send.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench import BenchError
from dorm.bench.cluster import CAPACITY, NODES, attended, bench_cluster
from dorm.bench.report import Report, figure, spread, this_machine

if TYPE_CHECKING:
    from dorm.bench.report import Progress
    from dorm.local.cluster import LocalCluster

GOAL = "<= 1.5"
"""Seconds beyond Python's own start, p50."""
_LINE = b"the first line\n"
_DORM = (sys.executable, "-c", "from dorm.cli.main import main; main()")
_SENT = re.compile(r"in ([0-9]+) of [0-9]+ parts? sent")
_LONGEST_S = 60.0


class _Ran(NamedTuple):
    first_line_s: float
    sent: int
    """Parts of the folder."""


async def bench_run(*, files: int, runs: int, progress: Progress) -> Report:
    """Measure `runs` runs of a project of this many files.  Raises BenchError and what a cluster raises that can't start."""
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="dorm-bench-") as folder:
        project = Path(folder)
        size = await asyncio.to_thread(_write_project, project, files)
        async with bench_cluster("process", None) as cluster:
            alone, first, again = await attended(cluster, _all(cluster, project, runs, progress))
    seconds = [ran.first_line_s for ran in again]
    return Report(
        bench="run",
        machine=machine,
        settings={
            "files": files,
            "project_bytes": size,
            "runs": runs,
            "runtime": "process",
            "nodes": NODES,
            "node_capacity": CAPACITY,
            "clock": "monotonic, of the process that starts both",
        },
        figures={
            **spread("python_first_line", alone),
            "shipping_run_first_line_s": figure(first.first_line_s, "s"),
            "shipping_run_sent_parts_count": figure(first.sent, "count"),
            **spread("run_first_line", seconds),
            "run_beyond_python_p50_s": figure(median(seconds) - median(alone), "s", GOAL),
            "run_sent_parts_count": figure(max(ran.sent for ran in again), "count", "<= 0"),
        },
    )


def _write_project(project: Path, files: int) -> int:
    """Write a project of Python files that look like code, and return its bytes."""
    for number in range(files - 1):
        package = project / f"package{number % 10}"
        package.mkdir(exist_ok=True)
        lines = [f"VALUE_{line} = '{hashlib.sha256(f'{number}.{line}'.encode()).hexdigest()}'\n" for line in range(50)]
        (package / f"module{number}.py").write_text("".join(lines))
    (project / "train.py").write_text(f"print({_LINE.decode().strip()!r}, flush=True)\n")
    return sum(path.stat().st_size for path in project.rglob("*.py"))


async def _all(
    cluster: LocalCluster, project: Path, runs: int, progress: Progress
) -> tuple[list[float], _Ran, list[_Ran]]:
    """Return seconds of Python alone, the run that ships, and those after it."""
    env = {**os.environ, "DORM_URL": cluster.server.url, "DORM_CLUSTER": cluster.options.cluster}
    command = (*_DORM, "run", "--cpu", "250m", "--", sys.executable, "train.py")
    progress("the first run, which ships the project")
    first = await _run(command, project, env)
    alone, again = [], []
    for number in range(runs):
        progress(f"run {number + 1} of {runs}")
        alone.append((await _run((sys.executable, "train.py"), project, env)).first_line_s)
        again.append(await _run(command, project, env))
    return alone, first, again


async def _run(command: tuple[str, ...], project: Path, env: dict[str, str]) -> _Ran:
    loop = asyncio.get_running_loop()
    began = loop.time()
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=project,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_LONGEST_S):
            line = await process.stdout.readline()
            seconds = loop.time() - began
            _, output = await process.communicate()
    except TimeoutError:
        raise BenchError(f"a run took longer than {_LONGEST_S:g} s", code="bench.too_slow") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if line != _LINE or process.returncode:
        raise BenchError(f"a run failed: {output.decode(errors='replace').strip()[-300:]}", code="app.failed")
    sent = _SENT.search(output.decode(errors="replace"))
    return _Ran(seconds, int(sent[1]) if sent else 0)
