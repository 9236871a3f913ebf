"""From the jobs of a trace to apps: sorted, cut to the request, with bounds and names."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm_lab.workloads.draws import Draws
from dorm_lab.workloads.traces.rows import MOST_CONTAINERS, BrokenRow, LeftOutRow, is_calendar, moment
from events.quantities import Quantity, duration, short
from events.spec import SpecError, check_spec
from replay.simulator import SimulationError
from replay.simulator.speed import Amdahl, Linear
from replay.simulator.workload import SimulatedApp, Skipped, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dorm_lab.workloads.options import Options
    from events.spec import AppSpec
    from replay.simulator.speed import Speed
    from replay.simulator.workload import SimulatedNode

BOUNDS = ("elastic", "half", "rigid")
_LONGEST_NAME = 48
_NO_NAME = re.compile(r"[^a-z0-9]+")
_NO_USER = re.compile(r"[^A-Za-z0-9_@+-]+", re.ASCII)


class Job(NamedTuple):
    """One valid row."""

    at: float
    """Time of its submission, in seconds: since 1970 if the trace has dates, else on its own clock."""
    duration_s: float
    """Seconds for which it ran, with the containers that it had."""
    containers: int
    demand: tuple[tuple[str, Quantity], ...]
    """Demand of one container."""
    name: str = ""
    """'' for a name from its line."""
    user: str = ""
    weight: float = 1.0
    n_min: int = 0
    """0: by the rule `bounds`."""
    n_max: int = 0
    require: str = ""


class Rules(NamedTuple):
    """The requested part of a trace, and how its jobs become apps."""

    begin: str | None
    end: str | None
    sample: float
    scale: float
    limit: int | None
    bounds: str
    grow: float
    speed: Speed

    @classmethod
    def of(cls, options: Options) -> Rules:
        """Return the rules from the options of all traces:

        `from`, `to`      jobs submitted from then on and before then: a date (UTC), or 5d, 12h from the trace's start
        `sample` (1)      the random part of them that is taken
        `scale` (1)       how much faster they come: 2 puts the submissions twice as close together
        `limit`           the first so many of what is left
        `bounds` (elastic) n_min..n_max of a job that had n containers: elastic 1..n·grow, half n/2..n·grow, rigid n..n
        `grow` (2)
        `speed` (linear)  of an app by containers; with those that it had, a job takes as long as it did, with any speed
        """
        return cls(
            begin=options.text("from"),
            end=options.text("to"),
            sample=options.number("sample", 1.0, above=0, most=1),
            scale=options.number("scale", 1.0, above=0, most=1e6),
            limit=options.whole("limit", None, least=1, most=10**9),
            bounds=options.choice("bounds", BOUNDS, BOUNDS[0]),
            grow=options.number("grow", 2.0, above=0, most=1000),
            speed=options.speed(),
        )

    def bounds_of(self, job: Job) -> tuple[int, int]:
        n = job.containers
        low = {"elastic": 1, "half": math.ceil(n / 2)}.get(self.bounds, n)
        high = n if self.bounds == "rigid" else min(MOST_CONTAINERS, max(n, int(n * self.grow)))
        low, high = job.n_min or low, job.n_max or high
        if low > high:
            raise BrokenRow(f"n_min is {low}, more than n_max, which is {high}", code="spec.n_min.above_n_max")
        return low, high

    def assumptions(self) -> list[str]:
        """Return the assumptions about the trace, each a sentence."""
        bounds = {
            "elastic": f"a job that had n containers may have 1 to {self.grow:g}n",
            "half": f"a job that had n containers may have n/2 to {self.grow:g}n",
            "rigid": "a job has exactly the containers that it had",
        }[self.bounds]
        parts = [f"The trace does not say how far jobs can be resized: {bounds}."]
        if self.bounds != "rigid":
            speed = _in_words(self.speed)
            parts.append(
                f"Nor does it say how fast they are then: assumed {speed}, so a job takes as long as it did with as many."
            )
        if self.sample < 1:
            parts.append(f"A random sample of {self.sample:g} of the jobs.")
        if self.scale != 1:
            parts.append(f"Jobs arrive {self.scale:g} times as fast as they did.")
        return parts


def _in_words(speed: Speed) -> str:
    if isinstance(speed, Amdahl):
        return f"by Amdahl's law with a parallel part of {speed.parallel:g}"
    return "in proportion to containers" if isinstance(speed, Linear) else "by a table of rates"


class Collected:
    """The jobs read so far from one file."""

    def __init__(self, path: Path, rules: Rules, *, strict: bool) -> None:
        self.path = path
        self.jobs: list[tuple[Job, int, AppSpec]] = []
        """Jobs with their lines, and with specs that lack only their names."""
        self.skipped: list[Skipped] = []
        self._rules = rules
        self._strict = strict
        self._specs: dict[object, AppSpec | SpecError] = {}

    def read(self, rows: Iterable[tuple[int, list[str] | BrokenRow]], job_of: Callable[[list[str]], Job]) -> None:
        """Read rows.  Raises SimulationError at the first broken row if these are refused."""
        for line, fields in rows:
            try:
                if isinstance(fields, BrokenRow):
                    raise fields
                job = job_of(fields)
                self.jobs.append((job, line, self._spec(job)))
            except BrokenRow as error:
                if self._strict:
                    raise SimulationError(f"{self.path}:{line}: {error}", code=error.code) from None
                self.skipped.append(Skipped(line, str(error), error.code))
            except LeftOutRow as error:
                self.skipped.append(Skipped(line, str(error), error.code, broken=False))

    def _spec(self, job: Job) -> AppSpec:
        """Return a job's spec, checked once for all alike jobs: a trace has few kinds and many rows."""
        key = (job.demand, job.containers, job.n_min, job.n_max, job.user, job.weight, job.require)
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = self._checked(job)
        if isinstance(spec, SpecError):
            raise BrokenRow(str(spec), code=spec.code)
        return spec

    def _checked(self, job: Job) -> AppSpec | SpecError:
        n_min, n_max = self._rules.bounds_of(job)
        document = {
            "name": "job",
            "command": ["train"],
            "resume": ["train", "--resume"],
            "demand": dict(job.demand),
            "n_min": n_min,
            "n_max": n_max,
            "weight": job.weight,
            "require": job.require,
            "user": _NO_USER.sub("_", job.user)[:64].lstrip("@+-") or "anonymous",
        }
        try:
            return check_spec(document)
        except SpecError as error:
            return error

    def workload(
        self,
        name: str,
        seed: int,
        *,
        nodes: tuple[SimulatedNode, ...] = (),
        assumptions: Iterable[str] = (),
        ordered: bool = True,
    ) -> Workload:
        """Return the workload.  `ordered`: whether the format promises order by submission.  Raises SimulationError."""
        unsorted = self._unsorted()
        if unsorted and ordered and self._strict:
            raise out_of_order(self.path, unsorted[0])
        jobs = sorted(self.jobs, key=lambda entry: (entry[0].at, entry[1]))
        begin, chosen = self._chosen(jobs, seed)
        if not chosen:
            raise SimulationError(self._nothing_left(len(jobs)), code="trace.no_jobs")
        names = _Names()
        rules = self._rules
        apps = tuple(
            SimulatedApp(
                at_s=round((job.at - begin) / rules.scale, 3),
                spec=msgspec.structs.replace(spec, name=names.own(job.name or f"job-{line}")),
                work=job.duration_s * rules.speed.rate((job.containers,)),
                speed=rules.speed,
                line=line,
                had=job.containers,
            )
            for job, line, spec in chosen
        )
        notes = [*assumptions, *rules.assumptions()]
        if names.renamed:
            notes.append(f"{names.renamed} jobs had a name that was taken, and got a number after it.")
        return Workload(
            name=name,
            apps=apps,
            nodes=nodes,
            skipped=tuple(self.skipped),
            rows=len(jobs) + len(self.skipped),
            cut=len(jobs) - len(apps),
            unsorted=unsorted,
            assumptions=tuple(notes),
        )

    def _unsorted(self) -> tuple[int, ...]:
        lines, before = [], -math.inf
        for job, line, _ in self.jobs:
            if job.at < before:
                lines.append(line)
            before = job.at
        return tuple(lines)

    def _chosen(self, jobs: list[tuple[Job, int, AppSpec]], seed: int) -> tuple[float, list[tuple[Job, int, AppSpec]]]:
        """Return the workload's start on the trace's clock, and the requested jobs."""
        rules = self._rules
        first = jobs[0][0].at if jobs else 0.0
        begin = self._clock(rules.begin, "from", first)
        end = self._clock(rules.end, "to", first)
        if begin is not None and end is not None and begin >= end:
            text = f"{self.path}: from={rules.begin} is not before to={rules.end}"
            raise SimulationError(text, code="workload.window.empty")
        jobs = [j for j in jobs if (begin is None or j[0].at >= begin) and (end is None or j[0].at < end)]
        if rules.sample < 1:
            draws = Draws(seed, "sample")
            jobs = [job for job in jobs if draws.uniform(0, 1) < rules.sample]
        return first if begin is None else begin, jobs[: rules.limit]

    def _clock(self, text: str | None, name: str, first: float) -> float | None:
        if text is None:
            return None
        try:
            if is_calendar(text):
                if first < _CALENDAR_FROM:
                    text = f"{self.path}: the trace has no dates; write {name}=5d, counted from its start"
                    raise SimulationError(text, code="workload.window.no_dates")
                return moment(text, name)
            return duration(text) + (first if first >= _CALENDAR_FROM else 0.0)
        except ValueError:
            message = f"{name}: {short(text)} is neither a date such as 2017-10-01 nor a time such as 5d or 12h"
            raise SimulationError(f"{self.path}: {message}", code="workload.window.malformed") from None

    def _nothing_left(self, good: int) -> str:
        first = f"; the first, line {self.skipped[0].line}: {self.skipped[0].reason}" if self.skipped else ""
        counts = f"{good:,} rows are valid but outside the selection, {len(self.skipped):,} are skipped"
        return f"{self.path}: no job is left: {counts}{first}"


def out_of_order(path: Path, line: int) -> SimulationError:
    text = f"{path}:{line}: submitted before the row above; rows must be in order of submission"
    return SimulationError(text, code="trace.not_in_order")


_CALENDAR_FROM = 3e8
"""A trace that starts later (seconds; 1979) counts from 1970, an earlier one from its own start."""


class _Names:
    """Names that the core accepts, each used once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        self.renamed = 0

    def own(self, name: str) -> str:
        base = own = _NO_NAME.sub("-", name.lower())[:_LONGEST_NAME].strip("-") or "job"
        if base in self._taken:
            self.renamed += 1
        while own in self._taken:
            number = self._next[base] = self._next.get(base, 1) + 1
            own = f"{base[: _LONGEST_NAME - len(str(number)) - 1].rstrip('-')}-{number}"
        self._taken.add(own)
        return own
