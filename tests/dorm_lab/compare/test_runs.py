"""Runs side by side: the same results in any process, and nothing left over after any end."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from dorm_lab.compare.runs import run, run_all
from events.archive.segments import open_archive
from replay.audit.audit import verify
from replay.simulator import SimulationError
from replay.simulator.contenders import parse_all
from replay.simulator.scenario import Outage, Scenario
from replay.whole_file import ExportError
from tests.errors import raises
from tests.simulator.scenarios import app, nodes

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Scenario(
    apps=tuple(app(f"app-{i}", 40.0 * i, 300.0 + 50 * i, n_max=6) for i in range(6)), nodes=nodes(2), progress_s=20
)
CONTENDERS = parse_all(["dorm,static,app-level,task-level"])


def long_scenario() -> Scenario:
    """Apps end in it soon, and there is no end of its records."""
    endless = app("endless", 0.0, 1e9, n_max=2)
    return msgspec.structs.replace(SMALL, apps=(endless, *SMALL.apps), progress_s=0.1)


@pytest.mark.soak
@pytest.mark.slow
def test_parallel_runs_equal_sequential_ones(tmp_path: Path) -> None:
    scenarios = [one.of(SMALL) for one in CONTENDERS]
    told: list[tuple[int, int]] = []
    here, there = ([tmp_path / f"{where}-{i}.dorm" for i in range(4)] for where in ("here", "there"))
    alone = run_all(scenarios, workers=1, progress=lambda done, total: told.append((done, total)), logs=here)
    assert told[-1] == (24, 24)
    assert told == sorted(told)
    told.clear()
    together = run_all(scenarios, workers=2, progress=lambda done, total: told.append((done, total)), logs=there)
    assert together == alone
    assert told[-1] == (24, 24)
    assert len({msgspec.json.encode(one) for one in alone}) == 4, "four policies, four results"
    assert [one.read_bytes() for one in there] == [one.read_bytes() for one in here]
    assert not multiprocessing.active_children()


async def test_a_run_leaves_a_log_that_an_audit_can_check(tmp_path: Path) -> None:
    for contender in CONTENDERS:
        path = tmp_path / f"{contender.label}.dorm"
        result = run(contender.of(SMALL), log=path)
        assert len(result.completions) == 6
        log = await open_archive(path)
        report = await verify(log)
        await log.close()
        assert report.good
        assert report.not_checked == 0
    with raises(ExportError, "file.exists"):
        run(SMALL, log=path)
    before = path.read_bytes()
    run(CONTENDERS[-1].of(SMALL), log=path, force=True)
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.soak
def test_an_error_in_reporting_ends_all_runs_and_leaves_no_file(tmp_path: Path) -> None:
    """As Ctrl-C does, wherever it comes."""

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for workers in (1, 2):
        logs = [tmp_path / "a.dorm", tmp_path / "b.dorm"]
        with pytest.raises(KeyboardInterrupt):
            run_all([long_scenario()] * 2, workers=workers, progress=interrupted, logs=logs)
        assert not multiprocessing.active_children()
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_exception_of_one_run_ends_the_others() -> None:
    wrong = msgspec.structs.replace(SMALL, outages=(Outage("nowhere", 1, 1),))
    with raises(SimulationError, "simulation.outage.unknown_node"):
        run_all([long_scenario(), wrong], workers=2)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_processes_have_one_thread_for_linear_algebra_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    seen: set[tuple[str | None, str | None]] = set()

    def look(done: int, total: int) -> None:
        for child in multiprocessing.active_children() if done else ():
            environ = psutil.Process(child.pid).environ()
            seen.add((environ.get("OMP_NUM_THREADS"), environ.get("OPENBLAS_NUM_THREADS")))
        if seen:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([long_scenario()] * 2, workers=2, progress=look)
    assert seen == {("3", "1")}
    assert "OPENBLAS_NUM_THREADS" not in os.environ


@pytest.mark.slow
def test_processes_end_with_their_killed_parent() -> None:
    code = (
        "from tests.dorm_lab.compare.test_runs import long_scenario\n"
        "from dorm_lab.compare.runs import run_all\n"
        "if __name__ == '__main__':\n"
        "    run_all([long_scenario()] * 2, workers=2, progress=lambda done, _: print(done, flush=True) if done else None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "they run"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.kill()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
