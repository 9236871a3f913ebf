"""Whether a slow worker delays the others: four workers, one of them at half speed.

A worker's part of a step takes a fixed time for each of its samples, so the ideal split is known: every worker in proportion
to its speed, and a step of (samples · seconds of one sample) / (sum of speeds).  The library knows nothing of the speeds; it
measures them and moves chunks.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench import BenchError
from dorm_lab.bench.elastic import steps
from dorm_lab.bench.elastic.pauses import script
from dorm_lab.bench.elastic.workers import Workers

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WORKERS", "Balanced", "balance"]

WORKERS = 4
_SAMPLE_S = 0.0008
_BATCH, _CHUNKS = 512, 128
_STEPS = 70
_SETTLED = 45
"""Steps after which chunks have moved: the library looks every 20 steps."""
_BEFORE = 15
"""Steps before it looks for the first time."""
_LONGEST_S = 120.0


class Balanced(NamedTuple):
    """Durations of a step in seconds: the ideal one, and medians before and after chunks have moved."""

    ideal_s: float
    before_s: float
    after_s: float


def balance(folder: Path, data: Path) -> Balanced:
    """Run until chunks have moved.  Raises BenchError."""
    log = folder / "log"
    log.mkdir(parents=True)
    arguments = ["uneven", "--data", str(data), "--records", str(log), "--batch", str(_BATCH), "--chunks", str(_CHUNKS)]
    slow = WORKERS - 1
    workers = Workers(folder, script("training.py"), *arguments, "--sample-s", str(_SAMPLE_S), "--slow", str(slow))
    try:
        workers.announce(*range(WORKERS))
        workers.until(lambda: len(_leader(log)) > _STEPS, timeout=_LONGEST_S)
    finally:
        workers.close()
    done = _leader(log)
    # The last step of an epoch (one in four with the digits) is smaller; the median is that of a whole batch.
    ends = [(after.step, after.at - before.at) for before, after in pairwise(done)]
    if len(ends) < _STEPS:
        raise BenchError("the uneven workers made too few steps", code="bench.nothing_measured")
    ideal = _BATCH * _SAMPLE_S / (WORKERS - 1 + 0.5)
    return Balanced(
        ideal_s=ideal,
        before_s=median(seconds for step, seconds in ends if step < _BEFORE),
        after_s=median(seconds for step, seconds in ends if step >= _SETTLED),
    )


def _leader(log: Path) -> list[steps.Done]:
    return steps.trained(steps.read(log)).get((1, 0), [])
