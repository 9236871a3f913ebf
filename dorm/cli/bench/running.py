"""How a bench runs in a terminal: quiet logs, progress, and results after an interruption."""

from __future__ import annotations

import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Protocol

from dorm.cli.bench.report import progress, show_report
from dorm.cli.errors import INTERRUPTED, USAGE, Fail
from dorm.cli.output import solver_prints_elsewhere
from dorm.cli.program_logs import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from dorm.bench.report import Report
    from dorm.cli.output import Format


class Done(Protocol):
    """The result of a bench that may be interrupted."""

    @property
    def report(self) -> Report: ...
    @property
    def interrupted(self) -> bool: ...


@contextlib.contextmanager
def measuring(name: str, verbose: int) -> Iterator[Callable[[str], None]]:
    """Keep logs quiet while a bench runs, and show its progress."""
    configure(verbose, False, quiet_level=logging.ERROR, lasts=False)
    with progress(name) as report:
        yield report


def show_measurements(name: str, bench: Callable[[Callable[[str], None]], Done], output: Format, verbose: int) -> None:
    """Run a bench that computes, and show its report; interrupted by Ctrl-C or SIGTERM, it reports its results so
    far."""
    with measuring(name, verbose) as report, solver_prints_elsewhere(), _sigterm_interrupts():
        done = bench(report)
    show_report(done.report, output)
    end_if(done.interrupted)


@contextlib.contextmanager
def wrong_usage() -> Iterator[None]:
    """Report invalid options, known before anything is measured, as wrong usage."""
    from dorm.bench import BenchError

    try:
        yield
    except BenchError as error:
        raise Fail.of(error, USAGE) from None


def end_if(interrupted: bool) -> None:
    """Raise Fail after an interruption, once the figures are shown."""
    if interrupted:
        raise Fail("interrupted; the figures cover what was measured so far", INTERRUPTED, code="interrupted")


async def unless_stopped(work: Coroutine[None, None, Report]) -> Report:
    """Return the report of a bench with a cluster of its own.  A signal ends it cleanly: nothing of its cluster is left when this raises Fail."""
    from dorm.cli.signals import run_until_stopped

    reports: list[Report] = []

    async def keep() -> None:
        reports.append(await work)

    if await run_until_stopped(keep()) or not reports:
        raise Fail("interrupted; everything was stopped", INTERRUPTED, code="interrupted")
    return reports[0]


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt the bench, so that no server and no gigabytes of files are left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
