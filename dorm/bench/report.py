"""The form of every bench's results, and statistics of samples."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil

from dorm.bench import BenchError

Progress = Callable[[str], None]
"""Called from time to time with a bench's progress in words."""

_GOAL = r"^(>=|<=) -?[0-9]+(\.[0-9]+)?$"


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measured number."""

    value: float
    unit: str
    goal: Annotated[str, msgspec.Meta(pattern=_GOAL)] | msgspec.UnsetType = msgspec.UNSET
    """Such as `>= 700000`; omitted if none is set."""

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if not self.goal:
            return None
        comparison, _, bound = self.goal.partition(" ")
        return self.value >= float(bound) if comparison == ">=" else self.value <= float(bound)


class Machine(msgspec.Struct, frozen=True):
    """The machine that was measured on."""

    cpu: str
    """The model, as its maker names it."""
    cores: int
    """Cores that this process may use."""
    memory: int
    """Bytes."""
    kernel: str
    python: str
    load: tuple[float, float, float]
    """Averages over 1, 5 and 15 minutes, at the start of the bench: other load makes figures worse."""


class Report(msgspec.Struct, frozen=True):
    """What `dorm bench NAME -o json` prints."""

    bench: str
    machine: Machine
    settings: dict[str, Any]
    figures: dict[Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]*$")], Figure]


def this_machine() -> Machine:
    """Return the machine as it is now."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        load=os.getloadavg(),
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def figure(value: float, unit: str, goal: str | None = None) -> Figure:
    """Return a figure, rounded to six significant digits, beyond the accuracy of any measurement.  Raises BenchError for a
    value that is not finite: then nothing was measured."""
    if not math.isfinite(value):
        raise BenchError(f"the result is {value}, which is not a measurement", code="bench.not_a_number")
    return Figure(float(f"{value:.6g}"), unit, msgspec.UNSET if goal is None else goal)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return a percentile, linear between the closest ranks (type 7 of Hyndman and Fan, Sample Quantiles in Statistical
    Packages, 1996).  Raises BenchError if there are no samples."""
    if not samples:
        raise BenchError("there is not a single sample", code="bench.nothing_measured")
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def spread(name: str, samples: Sequence[float], goal: str | None = None) -> dict[str, Figure]:
    """Return `name_p50_s` and `name_p95_s` of durations in seconds; `goal` is for the first of them."""
    return {
        f"{name}_p50_s": figure(percentile(samples, 50), "s", goal),
        f"{name}_p95_s": figure(percentile(samples, 95), "s"),
    }
