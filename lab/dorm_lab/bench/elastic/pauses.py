"""How long training pauses when workers join, leave or die: live, and the same app by checkpoint and restart.

Real workers on this machine, with announcements by file as an agent makes them, and nothing else of the control plane.  At
each size n, in turns: n → n/2 workers, back to n, and a death.  By checkpoint and restart, workers that are asked to stop save
and end, and the new number of workers starts at once; after a death, the others are killed too, and the app starts again from
its last checkpoint, as on a cluster.  Neither waits for a decision, which would cost both the same.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from dorm.elastic import ledger
from dorm_lab.bench.elastic import steps
from dorm_lab.bench.elastic.training import RECORD
from dorm_lab.bench.elastic.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dorm.bench.report import Progress

__all__ = ["DEVICE_S", "FROZEN", "Pause", "Proven", "newest", "no_torch", "pauses", "script"]

DEVICE_S = 0.02
"""Seconds that each step waits, as if for an accelerator, so that eight workers do not compete for two cores."""
_SAVE_EVERY_S = 0.5
_STEPS = 25
"""Steps between two changes."""
_LONGEST_S = 120.0
FROZEN = "frozen"
"""The cause of a pause after a member freezes without ending."""


class Pause(NamedTuple):
    """One pause."""

    library: str
    """numpy, torch, or another system."""
    how: str
    """live or restart; "" for another system."""
    workers: int
    cause: str
    seconds: float


class Proven(NamedTuple):
    """The ledgers of a job's epochs."""

    epochs: int
    wrong: int


def no_torch() -> str:
    """Return why PyTorch cannot be measured, "" if it can."""
    return "" if find_spec("torch") is not None else "PyTorch is not installed: pip install 'dorm[torch]'"


def pauses(
    library: str, how: str, sizes: Sequence[int], cycles: int, folder: Path, data: Path, progress: Progress
) -> Iterator[Pause | Proven]:
    """Yield the pauses of each size, and the ledgers of the job.  Raises BenchError."""
    for size in sizes:
        progress(f"{library}, {how}: {size} workers")
        with running(library, folder / f"{library}-{how}-{size}", data, save=how == "restart") as job:
            yield from (_live if how == "live" else _restarts)(job, library, size, cycles)
            if how == "live" and library == "numpy" and size == max(s for s in sizes if s <= 4 or s == min(sizes)):
                yield Pause(library, how, size, FROZEN, job.freeze())
            yield job.proven()


def script(name: str) -> str:
    from dorm_lab.bench.elastic import training

    return os.path.join(os.path.dirname(training.__file__), name)


class _Job:
    """A job of real workers, with the records of its steps."""

    def __init__(self, workers: Workers, log: Path, samples: int) -> None:
        self.workers = workers
        self.log = log
        self._samples = samples
        self._fresh = 0

    def slots(self, count: int) -> list[int]:
        """Return this many slots that have never been used."""
        self._fresh += count
        return list(range(self._fresh - count, self._fresh))

    def records(self) -> steps.Records:
        return steps.trained(steps.read(self.log))

    def trains(self, more: int = _STEPS) -> None:
        """Wait until every member of this generation has made this many more steps."""
        generation = self.workers.generation
        wanted = newest(self.log, generation) + more
        self.workers.until(lambda: newest(self.log, generation) >= wanted, timeout=_LONGEST_S)

    def changed(self, cause: str, slots: Sequence[int], known: int) -> int:
        """Wait until the members are these for this cause; return the first step in which they are.  `known` is how many
        changes there were before."""

        wanted = sorted(slots)

        def found() -> list[int]:
            changes = self.workers.changes()
            return [c["step"] for c in changes[known:] if c["cause"] == cause and c["members"] == wanted]

        self.workers.until(found, timeout=_LONGEST_S)
        return max(found())

    def resize(self, cause: str, slots: Sequence[int]) -> float:
        """Announce these members and return the pause of the switch."""
        known = len(self.workers.changes())
        self.workers.announce(*slots)
        first = self.changed(cause, slots, known)
        self.trains(3)
        pause = steps.live_pause(self.records(), self.workers.generation, first)
        self.trains()
        return pause

    def kill(self, victim: int) -> float:
        """Kill a member and return the pause of the others."""
        left = [slot for slot in self.workers.members if slot != victim]
        known = len(self.workers.changes())
        self.workers.signal(victim, signal.SIGKILL)
        died_at = time.monotonic()
        self.changed("death", left, known)
        self.trains(3)
        pause = steps.death_pause(self.records(), self.workers.generation, died_at, [victim])
        self.workers.announce(*left)
        self.trains()
        return pause

    def freeze(self) -> float:
        """Freeze the member that joined last, and return the pause of the others."""
        if len(self.workers.members) < 2:
            self.resize("grow", [*self.workers.members, *self.slots(1)])
        victim = max(self.workers.members)
        left = [slot for slot in self.workers.members if slot != victim]
        known = len(self.workers.changes())
        self.workers.signal(victim, signal.SIGSTOP)
        died_at = time.monotonic()
        self.changed("death", left, known)
        self.trains(3)
        return steps.death_pause(self.records(), self.workers.generation, died_at, [victim])

    def restart(self, slots: Sequence[int], *, victim: int | None = None) -> float:
        """Stop all workers, or kill them after a death, start these, and return the pause."""
        generation = self.workers.generation
        if victim is not None:
            self.workers.signal(victim, signal.SIGKILL)
        for slot, process in self.workers.processes.items():
            if process.poll() is None:
                self.workers.signal(slot, signal.SIGTERM if victim is None else signal.SIGKILL)
        last = newest(self.log, generation)
        self.workers.restart(*slots)
        # Some steps are repeated after a death.
        self.workers.until(lambda: newest(self.log, generation + 1) > last + 3, timeout=_LONGEST_S)
        pause = steps.restart_pause(self.records(), generation)
        self.trains()
        return pause

    def proven(self) -> Proven:
        digests = self.workers.epochs().values()
        expected = ledger.expected(self._samples).digest
        return Proven(len(digests), sum(digest != expected for digest in digests))


@contextmanager
def running(library: str, folder: Path, data: Path, *, save: bool) -> Iterator[_Job]:
    """Yield a job whose workers end with the block."""
    import numpy as np

    log = folder / "log"
    log.mkdir(parents=True)
    arguments = ["network" if library == "numpy" else library, "--data", str(data), "--records", str(log)]
    arguments += ["--device-s", str(DEVICE_S), *(["--save-every", str(_SAVE_EVERY_S)] if save else [])]
    workers = Workers(folder, script("training.py"), *arguments)
    with np.load(data) as arrays:
        samples = len(arrays["classes"])
    try:
        yield _Job(workers, log, samples)
    finally:
        workers.close()


def _live(job: _Job, library: str, size: int, cycles: int) -> Iterator[Pause]:
    members = job.slots(size)
    job.workers.announce(*members)
    job.trains()
    for cycle in range(cycles):
        if len(members) < size:
            members = [*members, *job.slots(size - len(members))]
            yield Pause(library, "live", size, "grow", job.resize("grow", members))
        members = members[: size // 2]
        yield Pause(library, "live", size, "shrink", job.resize("shrink", members))
        members = [*members, *job.slots(size - len(members))]
        yield Pause(library, "live", size, "grow", job.resize("grow", members))
        victim = members[0 if cycle % 2 else -1]
        members = [slot for slot in members if slot != victim]
        yield Pause(library, "live", size, "death", job.kill(victim))


def _restarts(job: _Job, library: str, size: int, cycles: int) -> Iterator[Pause]:
    job.workers.announce(*range(size))
    job.trains()
    for _ in range(cycles):
        if len(job.workers.members) < size:
            yield Pause(library, "restart", size, "grow", job.restart(range(size)))
        yield Pause(library, "restart", size, "shrink", job.restart(range(size // 2)))
        yield Pause(library, "restart", size, "grow", job.restart(range(size)))
        yield Pause(library, "restart", size, "death", job.restart(range(size - 1), victim=size - 1))


def newest(log: Path, generation: int) -> int:
    """Return the newest step that a worker of this generation has completed, -1 before the first."""
    step = -1
    for path in log.glob(f"{generation}-*.steps"):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size >= RECORD.size:
                file.seek((size // RECORD.size - 1) * RECORD.size)
                step = max(step, RECORD.unpack(file.read(RECORD.size))[0])
    return step
