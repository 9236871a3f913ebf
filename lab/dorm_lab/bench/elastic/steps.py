"""What workers recorded of their steps, and the pauses between them.

A **pause** is the time from the last completed step before a change to the first completed step after it, less the duration
of an ordinary step (the median of the last steps before).  Live, a step counts as completed once the last of its members,
newcomers among them, has completed it.  By checkpoint and restart a step counts as completed once it is new: work that is done
again after the checkpoint is part of the pause.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench import BenchError
from dorm_lab.bench.elastic.training import FIRST, RECORD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Done", "death_pause", "live_pause", "read", "restart_pause"]

_ORDINARY = 20
"""Steps before a change whose median is an ordinary one."""
_AFTER_DEATH = 3
"""The step that had to wait is one of this many after a death: messages sent before the death may complete one more."""


class Done(NamedTuple):
    """A step that a worker completed."""

    step: int
    at: float
    """Monotonic seconds."""
    cpu_s: float
    """CPU seconds of the worker until then."""
    value: float


Records = dict[tuple[int, int], list[Done]]
"""Steps by generation and slot."""


def read(folder: Path) -> Records:
    """Return the records of all workers, each without the one before its loop."""
    records: Records = {}
    for path in sorted(folder.glob("*-*.steps")):
        data = path.read_bytes()
        data = data[: len(data) - len(data) % RECORD.size]
        generation, _, slot = path.stem.partition("-")
        records[int(generation), int(slot)] = [Done(*fields) for fields in RECORD.iter_unpack(data)]
    return records


def trained(records: Records) -> Records:
    """Return the steps alone, without the record before each worker's loop."""
    return {key: [step for step in steps if step.step != FIRST] for key, steps in records.items()}


def live_pause(records: Records, generation: int, first: int) -> float:
    """Return the pause of a switch after which `first` was the first step.  Raises BenchError."""
    before, after, ordinary = [], [], []
    for (of, _), steps in records.items():
        for step in steps if of == generation else []:
            if step.step == first - 1:
                before.append(step.at)
                ordinary.append(_ordinary([other for other in steps if other.step < first]))
            elif step.step == first:
                after.append(step.at)
    if not before or not after:
        raise BenchError(f"no worker completed the steps before and after {first}", code="bench.nothing_measured")
    return max(0.0, max(after) - max(before) - median(ordinary))


def death_pause(records: Records, generation: int, died_at: float, dead: Sequence[int]) -> float:
    """Return the pause of the survivors of a death.  Raises BenchError."""
    pauses = []
    for (of, slot), steps in records.items():
        if of != generation or slot in dead:
            continue
        before = [step for step in steps if step.at <= died_at]
        after = [step for step in steps if step.at > died_at][:_AFTER_DEATH]
        if len(before) > 1 and after:
            ends = [before[-1].at, *(done.at for done in after)]
            pauses.append(max(b - a for a, b in pairwise(ends)) - _ordinary(before))
    if not pauses:
        raise BenchError("no worker trained before and after a death", code="bench.nothing_measured")
    return max(0.0, *pauses)


def restart_pause(records: Records, generation: int) -> float:
    """Return the pause between this generation and the next.  Raises BenchError."""
    before = _of(records, generation)
    last = max((step.step for step in before), default=None)
    after = [step.at for step in _of(records, generation + 1) if last is not None and step.step > last]
    if last is None or not after:
        raise BenchError(f"generation {generation + 1} made no new step", code="bench.nothing_measured")
    ended_at = min(step.at for step in before if step.step == last)
    return max(0.0, min(after) - ended_at - _ordinary_of_any(records, generation))


def _of(records: Mapping[tuple[int, int], Sequence[Done]], generation: int) -> list[Done]:
    return [step for (of, _), steps in records.items() if of == generation for step in steps]


def _ordinary_of_any(records: Records, generation: int) -> float:
    return median([_ordinary(steps) for (of, _), steps in records.items() if of == generation and len(steps) > 1])


def _ordinary(steps: Sequence[Done]) -> float:
    """Return the median duration of the last of these steps; of a worker that has made only one, 0."""
    ends = [step.at for step in steps[-_ORDINARY - 1 :]]
    return median(b - a for a, b in pairwise(ends)) if len(ends) > 1 else 0.0


def longest_pause(records: Records, since: float) -> float:
    """Return the longest time between two new steps, the later of them after `since` (monotonic seconds), less an ordinary
    step.  For systems that do not report which step was the first after a change.  Raises BenchError."""
    first: dict[int, float] = {}
    for steps in records.values():
        for done in steps:
            first[done.step] = min(done.at, first.get(done.step, done.at))
    ends: list[float] = []
    for step in sorted(first):
        ends.append(max(first[step], ends[-1] if ends else 0.0))
    before = [at for at in ends if at <= since]
    gaps = [b - a for a, b in pairwise(ends) if b > since]
    if not gaps or len(before) < 2:
        raise BenchError("no step was made before and after a change", code="bench.nothing_measured")
    ordinary = median(b - a for a, b in pairwise(before[-_ORDINARY - 1 :]))
    return max(0.0, max(gaps) - ordinary)
