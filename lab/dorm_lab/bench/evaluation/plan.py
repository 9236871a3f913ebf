"""The plan of an evaluation: what it runs."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from dorm_lab.bench.evaluation.paper import Variation
from dorm_lab.bench.evaluation.parts import Part
from dorm_lab.bench.evaluation.sweeps import Sweep


class Plan(msgspec.Struct, frozen=True):
    paper: Part
    variations: tuple[Variation, ...]
    traces: tuple[Part, ...] = ()
    missing: tuple[str, ...] = ()
    """Traces that were not found, or not requested."""
    crash_loop: Part | None = None
    sweeps: tuple[Sweep, ...] = ()
    left_out: tuple[str, ...] = ()
    """Parts and contenders that were not requested."""

    @property
    def digest(self) -> str:
        """Return a value that is equal for plans of the same runs: their labels and apps, part by part."""
        apps = [
            (part.key, job.label, [app.spec.name for app in job.scenario.apps])
            for part in self.parts
            for job in part.jobs
        ]
        return blake2b(repr(apps).encode(), digest_size=8).hexdigest()

    @property
    def parts(self) -> tuple[Part, ...]:
        crash_loop = (self.crash_loop,) if self.crash_loop is not None else ()
        sweeps = (sweep.part for sweep in self.sweeps)
        return (self.paper, *(variation.part for variation in self.variations), *crash_loop, *self.traces, *sweeps)
