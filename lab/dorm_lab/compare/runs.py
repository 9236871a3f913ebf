"""Runs scenarios: one here, or many over several processes, each measured alike, and each with its log on request.

A run is bound by computing, and one process uses one core.  Processes are spawned (`spawn`), so they share no threads or loops
with this one, and a script that calls `run_all` needs the usual `if __name__ == "__main__":`.  No process outlives the run:
they check a flag while they run, and exit when the process that started them is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from multiprocessing.connection import wait as wait_for
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.snapshot import dump
from events import kinds as k
from events.archive.blocks import Header
from events.archive.segments import SegmentWriter
from replay.frames import EVERY, build
from replay.simulator import SimulationError
from replay.simulator.measures import EVERY_S, Measures
from replay.simulator.simulation import Simulation
from replay.whole_file import whole_file_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.records import Record
    from replay import Progress
    from replay.simulator.measures import Run
    from replay.simulator.scenario import Scenario

    Done = Callable[[int, Run], None]
    Ended = Callable[[int], None]
    """Called now and then with the number of a run's apps that have ended."""

_REPORT_EVERY = 200
"""Records between two checks of whether the caller still wants the run."""
_POLL_S = 0.2
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which users limit the threads of a process; they have precedence."""
_ENDS = (k.AppCompleted, k.AppFailed, k.AppCancelled, k.AppRejected)


class Stopped(SimulationError):
    """The caller no longer wants this run."""

    code = "simulation.stopped"


def run(
    scenario: Scenario,
    *,
    every_s: float = EVERY_S,
    log: Path | None = None,
    force: bool = False,
    ended: Ended | None = None,
    timed: bool = False,
) -> Run:
    """Run one scenario in this thread, which it keeps busy.  Utilization and fairness are sampled every `every_s` virtual
    seconds.  `log` is written as an archive, which appears only once it is complete; `force` replaces an existing file.
    If `timed`, the result has the CPU time of each decision, the only figure that differs from run to run.

    Raises SimulationError, ExportError, LogRefused, and what `ended` raises, which ends the run."""
    simulation = Simulation(scenario)
    simulation.master.clock = time.thread_time if timed else None
    measures = Measures.of(simulation, every_s)
    if ended is not None:
        simulation.observe(_EndedApps(ended).count)
    with contextlib.ExitStack() as stack:
        if log is not None:
            file = stack.enter_context(whole_file_now(log, force=force))
            header = Header(cluster=scenario.cluster, made_by=f"dorm {version('dorm')}")
            writer = _LogWriter(SegmentWriter(file, header), simulation)
            simulation.observe(writer.see)
        simulation.run()
        if log is not None:
            writer.finish()
    result = measures.result(simulation.agenda.now)
    return msgspec.structs.replace(result, decided_s=tuple(simulation.master.decided_s))


class _EndedApps:
    """Reports how many apps have ended."""

    def __init__(self, report: Ended) -> None:
        self._report = report
        self._ended = 0

    def count(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        if isinstance(event, k.Round):
            self._ended += sum(isinstance(fact, _ENDS) for fact in event.events)
        if record.seq % _REPORT_EVERY == 0:
            self._report(self._ended)


class _LogWriter:
    """Writes the records of a run as an archive, with snapshots of its state between them."""

    def __init__(self, writer: SegmentWriter, simulation: Simulation) -> None:
        self._writer = writer
        self._simulation = simulation
        self._waiting: list[Record] = []

    def see(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        self._waiting.append(record)
        due = record.seq % EVERY == 0
        if due or len(self._waiting) == _REPORT_EVERY:
            self._flush()
        if due:
            self._writer.snapshot(*dump(self._simulation.state, build=build()))

    def _flush(self) -> None:
        self._writer.add(self._waiting)
        self._waiting = []

    def finish(self) -> None:
        self._flush()
        self._writer.finish()


def run_all(
    scenarios: Sequence[Scenario],
    *,
    every_s: float = EVERY_S,
    workers: int | None = None,
    progress: Progress | None = None,
    logs: Sequence[Path | None] | None = None,
    force: bool = False,
    timed: bool = False,
    done: Done | None = None,
) -> list[Run]:
    """Run all scenarios, at most `workers` at once (default: one for each core); return results in the order of the scenarios.

    `done` is called in this thread with the place and the result of each run as it ends; its exceptions end the others.

    `progress` is called several times a second with the number of ended apps and the total; an exception in it (a Ctrl-C,
    say) ends all runs and propagates.  A process needs memory only for its one run.  Raises as `run` does, for the
    first failure."""
    files = list(logs) if logs is not None else [None] * len(scenarios)
    total = sum(len(scenario.apps) for scenario in scenarios)
    count = min(workers or os.cpu_count() or 1, len(scenarios))
    if count <= 1:
        return _sequentially(
            scenarios, files, total, every_s=every_s, progress=progress, force=force, timed=timed, done=done
        )
    context = multiprocessing.get_context("spawn")
    ended: ctypes.Array[ctypes.c_longlong] = context.RawArray(ctypes.c_longlong, len(scenarios) + 1)
    jobs = [(index, scenario, every_s, files[index], force, timed) for index, scenario in enumerate(scenarios)]
    with ProcessPoolExecutor(count, context, initializer=_begin, initargs=(ended,)) as pool:
        results: dict[int, Run] = {}
        try:
            _work_off(pool, jobs, count, results, lambda: _report(progress, ended, total), done)
        except BaseException:
            ended[-1] = 1  # Leaving the pool waits for its processes, which this flag stops.
            raise
    return [results[index] for index in range(len(scenarios))]


def _sequentially(
    scenarios: Sequence[Scenario],
    files: Sequence[Path | None],
    total: int,
    *,
    every_s: float,
    progress: Progress | None,
    force: bool,
    timed: bool,
    done: Done | None,
) -> list[Run]:
    results: list[Run] = []
    before = 0
    for scenario, file in zip(scenarios, files, strict=True):

        def report(ended: int, before: int = before) -> None:
            if progress is not None:
                progress(before + ended, total)

        results.append(run(scenario, every_s=every_s, log=file, force=force, ended=report, timed=timed))
        if done is not None:
            done(len(results) - 1, results[-1])
        before += len(scenario.apps)
        report(0, before)
    return results


def _work_off(
    pool: ProcessPoolExecutor,
    jobs: Sequence[tuple[Any, ...]],
    count: int,
    results: dict[int, Run],
    poll: Callable[[], None],
    on_done: Done | None,
) -> None:
    """Send no more jobs than there are processes, so that scenarios are not copied long before they run."""
    left = iter(jobs)
    running: dict[Future[Run], int] = {}

    def send() -> None:
        for job in left:
            with _no_interrupts(), _one_thread():
                running[pool.submit(_job, *job)] = job[0]
            return

    for _ in range(count):
        send()
    while running:
        done, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            index = running.pop(future)
            try:
                results[index] = future.result()
            except BrokenProcessPool:
                text = "a process of the simulation was killed; run fewer at once (--workers)"
                raise SimulationError(text, code="simulation.process_killed") from None
            if on_done is not None:
                on_done(index, results[index])
            send()
        poll()


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block SIGINT in processes that start meanwhile: Ctrl-C goes to all processes of a terminal, and this one decides about
    the others.  A SIGINT that arrives here meanwhile is only delayed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Give processes that start meanwhile one thread for linear algebra: the matrices are small, and on cores that other runs
    use, threads wait for each other for up to a hundred times as long as they save."""
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


def _report(progress: Progress | None, ended: ctypes.Array[ctypes.c_longlong], total: int) -> None:
    if progress is not None:
        progress(sum(ended[:-1]), total)


_ended: ctypes.Array[ctypes.c_longlong] | None = None
"""Number of ended apps by run, in a process of `run_all`; the last entry is the flag to stop."""


def _begin(ended: ctypes.Array[ctypes.c_longlong]) -> None:
    """Initialize a process."""
    global _ended
    _ended = ended
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _job(index: int, scenario: Scenario, every_s: float, log: Path | None, force: bool, timed: bool) -> Run:
    def report(ended: int) -> None:
        assert _ended is not None
        _ended[index] = ended
        if _ended[-1]:
            raise Stopped("stopped")

    result = run(scenario, every_s=every_s, log=log, force=force, ended=report, timed=timed)
    report(len(scenario.apps))
    return result
