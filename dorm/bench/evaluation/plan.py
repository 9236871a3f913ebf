"""The plan of an evaluation: what it runs."""

from __future__ import annotations

import msgspec

from dorm.bench.evaluation.paper import Variation
from dorm.bench.evaluation.parts import Part
from dorm.bench.evaluation.sweeps import Sweep


class Plan(msgspec.Struct, frozen=True):
    paper: Part
    variations: tuple[Variation, ...]
    traces: tuple[Part, ...] = ()
    missing: tuple[str, ...] = ()
    """Traces that were not found, or not requested."""
    crash_loop: Part | None = None
    sweeps: tuple[Sweep, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        crash_loop = (self.crash_loop,) if self.crash_loop is not None else ()
        sweeps = (sweep.part for sweep in self.sweeps)
        return (self.paper, *(variation.part for variation in self.variations), *crash_loop, *self.traces, *sweeps)
