"""The CPU time of each test: `pytest --cpu-times 100` prints the 100 most expensive tests, and the sums of files and folders.

Wall time says little about a test: most tests wait for others, on machines that are busy or not.  CPU time is what a test
costs on any machine.  A test's time is that of its setup, call and teardown together, in this process and in all processes
that it started, whether they have ended or still run; those that still run count in the teardown.  What a fixture of a session
or a module costs is counted for the test that needs it first.  Containers are not counted, because a Docker engine starts
them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest.terminal import TerminalReporter

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name of the command, which may hold spaces.
_STARTED_AT = 19
_TIMES = slice(11, 15)  # user and system time, own and of children that were waited for


class Meter:
    """CPU time of this process and of all processes below it, in seconds.

    A process that loses its parent is no longer below this one, and the process that waits for it gets its time.  Therefore,
    such processes are remembered, and each that is gone counts with its last known time.
    """

    def __init__(self) -> None:
        self._orphans: dict[tuple[int, int], float] = {}  # by process id and start
        self._known: set[tuple[int, int]] = set()
        self._others = 0.0

    def read(self) -> float:
        """What was used until now, without what reading takes."""
        own = sum(os.times()[:4])
        self._others = self._read_others()
        return own + self._others

    def read_quickly(self) -> float:
        """The same, but other processes that still run count as they did at the last reading."""
        return sum(os.times()[:4]) + self._others

    def _read_others(self) -> float:
        running = _running()
        below = {pid: key for pid, (key, _parent, _seconds) in running.items() if key in self._known}
        while more := {
            pid: key
            for pid, (key, parent, _seconds) in running.items()
            if pid not in below and (parent == os.getpid() or parent in below)
        }:
            below.update(more)
        self._known = set(below.values())
        for pid, key in below.items():
            _key, parent, seconds = running[pid]
            if key in self._orphans or (parent != os.getpid() and parent not in below):
                self._orphans[key] = seconds
        with_parents = (running[pid][2] for pid, key in below.items() if key not in self._orphans)
        return sum(with_parents) + sum(self._orphans.values())


def _running() -> dict[int, tuple[tuple[int, int], int, float]]:
    """By process id: process id and start, parent, seconds."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seconds = sum(map(int, fields[_TIMES])) / _TICKS_A_SECOND
            found[int(name)] = ((int(name), int(fields[_STARTED_AT])), int(fields[1]), seconds)
    return found


class CpuTimes:
    """The plugin, in the workers, which measure, and in the process that prints."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._meter = Meter()
        self._read = 0.0
        self._spent: dict[str, dict[str, float]] = defaultdict(dict)
        self._before: list[float] = []

    @pytest.hookimpl
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if (
            not hasattr(session.config.option, "tx") or not session.config.option.tx
        ):  # no process that only shares tests out
            self._read = self._meter.read()
            self._before.append(self._read)
            if hasattr(session.config, "workeroutput"):
                session.config.workeroutput["cpu_s"] = self._read

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._before.append(getattr(node, "workeroutput", {}).get("cpu_s", 0.0))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        read = self._meter.read() if report.when == "teardown" else self._meter.read_quickly()
        report.cpu_s = read - self._read  # type: ignore[attr-defined]  # reaches the process that prints, as all attributes do
        self._read = self._meter.read_quickly()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._spent[report.nodeid][report.when or ""] = getattr(report, "cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter, config: pytest.Config) -> None:
        if hasattr(config, "workerinput"):
            return
        tests = {test: sum(spent.values()) for test, spent in self._spent.items()}
        write = terminalreporter.write_line
        terminalreporter.section("CPU seconds")
        write(f"{sum(tests.values()):9.1f}  {len(tests)} tests")
        write(f"{sum(self._before):9.1f}  imports and collection, in {len(self._before)} processes")
        for title, sums in (
            ("folders", _summed(tests, lambda file: str(Path(file).parent))),
            ("files", _summed(tests, str)),
        ):
            terminalreporter.section(f"CPU seconds of {title}", sep="-")
            for name, seconds in _most(sums, self._shown):
                write(f"{seconds:9.1f}  {name}")
        terminalreporter.section("CPU seconds of tests: sum, setup, call, teardown", sep="-")
        for test, seconds in _most(tests, self._shown):
            parts = " ".join(f"{self._spent[test].get(when, 0.0):6.1f}" for when in ("setup", "call", "teardown"))
            write(f"{seconds:9.1f} {parts}  {test}")


def _summed(tests: dict[str, float], of: Any) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        sums[of(test.partition("::")[0])] += seconds
    return sums


def _most(sums: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(sums.items(), key=lambda each: -each[1])[:count]
