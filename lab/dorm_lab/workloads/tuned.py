"""The speed of a training job whose batch size may change: goodput, as Pollux defines it (OSDI 2021, §3).

Work is progress in steps of the model's first batch size.  In one epoch a job makes

    gain(batch, epoch) / step time(placement, batch)

of it per second: larger batches are processed faster, but each sample teaches less, and less so early in the training than
late.  So the speed changes from epoch to epoch without a decision; a `Course` has its stretches.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from dorm_lab.workloads.pollux import MOST_GPUS, StepTime, fitted, rotated
from dorm_lab.workloads.profiles import Batch, Profile, Tables
from replay.simulator.speed import seconds_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.simulator.speed import Course


class Tuned(msgspec.Struct, frozen=True, dict=True, tag="tuned"):
    """The speed of a job by placement, batch size and epoch."""

    tables: Tables
    batch: int
    """Batch size of the app until another one is decided."""

    @cached_property
    def profile(self) -> Profile:
        return Profile(self.tables)

    @cached_property
    def _model(self) -> StepTime:
        return fitted(self.profile, self.batch)

    @cached_property
    def _courses(self) -> dict[tuple[tuple[int, ...], int], Course]:
        """A cache: many jobs share one speed, and sizes and placements recur."""
        return {}

    @property
    def work(self) -> float:
        """Its whole work."""
        return self.profile.progress[-1]

    @property
    def most_containers(self) -> int:
        """The number of containers over which its largest batch can be spread."""
        return min(MOST_GPUS, self.profile.most_gpus(self.profile.last_batch))

    def rate(self, placement: Sequence[int]) -> float:
        """Return the mean units per second over the whole training, with its own batch size."""
        course = self.course(placement, self.batch)
        return self.work / seconds_until(course, 0.0, self.work) if course else 0.0

    def course(self, placement: Sequence[int], batch: int) -> Course:
        """Return its course with these containers and this batch size; empty without containers."""
        key = tuple(placement), batch
        if key not in self._courses:
            self._courses[key] = self._course(*key) if placement else ()
        return self._courses[key]

    def _course(self, placement: tuple[int, ...], batch: int) -> Course:
        profile = self.profile
        spread = Batch(batch, sum(placement), profile)
        step_s = self._step_s(placement, spread)
        ends = (*profile.progress[:-1], math.inf)
        return tuple((end, profile.gain(spread.size, epoch) / step_s) for epoch, end in enumerate(ends))

    def noise(self, done: float, batch: int) -> float:
        """Return the gradient noise scale that it measures with this batch size, after so much work."""
        ends = self.profile.progress[:-1]
        return self.profile.noise(batch, sum(end <= done for end in ends))

    def _step_s(self, placement: Sequence[int], spread: Batch) -> float:
        gpus, name = sum(placement), rotated(placement)
        if name in self.tables.placed:
            return self.profile.step_s(name, spread)
        times = self.profile.step_between_s(len(placement), {gpus: spread})
        if gpus in times:
            return times[gpus]
        return 1 / msgspec.structs.replace(self._model, batch=spread.size).rate(placement)
