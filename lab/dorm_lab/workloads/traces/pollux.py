"""The workloads of Pollux's public simulator (`petuum/adaptdl`, folder `simulator/workloads`), with its profiles.

    name,time,application,num_replicas,batch_size
    cifar10-0,53,cifar10,6,2048

A job has one container for each GPU.  It keeps the batch size of its row or, with `batches=tuned`, accepts every batch size
that was measured.  Its work and its speed are those of its application's profile (`dorm_lab.workloads.profiles`).
Times are seconds from the workload's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from dorm_lab.workloads.pollux import GPUS_PER_NODE, MOST_GPUS, Profiled, curve, profiled
from dorm_lab.workloads.profiles import MOST_NODES, Profile
from dorm_lab.workloads.traces.rows import LATEST_S, BrokenRow, Csv, count, number
from dorm_lab.workloads.tuned import Tuned
from events.spec import SpecError, check_spec
from replay.simulator import SimulationError
from replay.simulator.workload import SimulatedApp, SimulatedNode, Skipped, Workload

if TYPE_CHECKING:
    from pathlib import Path

Bounds = Literal["requested", "rigid", "wide"]
BOUNDS: dict[Bounds, str] = {
    "requested": "from one container up to as many as the job requested",
    "rigid": "exactly as many as the job requested",
    "wide": "from one container up to as many as its profile covers, 64 at most",
}
"""Bounds of the number of containers of an app."""

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
NODES = tuple(SimulatedNode(f"node-{index:02}", {"gpu": GPUS_PER_NODE}) for index in range(MOST_NODES))
"""The testbed of the paper: 16 nodes with 4 GPUs each (Pollux, §5.1)."""


Batches = Literal["fixed", "tuned"]
BATCHES: dict[Batches, str] = {
    "fixed": "Each job keeps the batch size of its row",
    "tuned": "Each job accepts any batch size that was measured, begins with that of its row and reports its gradient noise",
}
"""Ways to treat the batch size of a job."""


class _Known(msgspec.Struct, frozen=True):
    """What jobs of one application and batch size have in common."""

    speed: Profiled | Tuned
    steps: float
    curve: list[tuple[int, float]]
    batch: dict[str, int] | None = None


def read(
    path: Path, profiles: Path, *, bounds: Bounds = "requested", batches: Batches = "fixed", strict: bool = False
) -> Workload:
    """Read a workload.  Invalid rows are skipped and reported, or refused with `strict`.

    Raises SimulationError, also for a file or profiles that cannot be read."""
    for name, given, known in (("bounds", bounds, list(BOUNDS)), ("batches", batches, list(BATCHES))):
        if given not in known:
            *first, last = known
            text = f"{name}={given}: expected {', '.join(first)} or {last}"
            raise SimulationError(text, code="workload.option.malformed")
    table = Csv(path)
    places = [table.column(name) for name in COLUMNS]
    if strict:
        table.refuse_unknown(COLUMNS)
    reader = _Reader(profiles, bounds, batches)
    apps: list[SimulatedApp] = []
    skipped: list[Skipped] = []
    unsorted: list[int] = []
    for line, fields in table.rows():
        try:
            if isinstance(fields, BrokenRow):
                raise fields
            app = reader.app(*(fields[place] for place in places), line=line)
        except BrokenRow as error:
            if strict:
                raise SimulationError(f"{path}:{line}: {error}", code=error.code) from None
            skipped.append(Skipped(line, str(error), error.code))
            continue
        if apps and app.at_s < apps[-1].at_s:
            unsorted.append(line)
        apps.append(app)
    return Workload(
        name=f"pollux {path.stem}",
        apps=tuple(sorted(apps, key=lambda app: app.at_s)),
        nodes=NODES,
        skipped=tuple(skipped),
        rows=len(apps) + len(skipped),
        unsorted=tuple(unsorted),
        assumptions=(
            f"{BATCHES[batches]}, and is done when its progress reaches that of the last measured epoch.",
            f"An app may have {BOUNDS[bounds]}.",
        ),
    )


def bounded(app: SimulatedApp, bounds: Bounds) -> SimulatedApp:
    """Return the same job with other bounds.  What it asked for is its `n_max` as it was read with any but `wide`."""
    requested = app.spec.n_max
    most = app.spec.speed[-1][0] if app.spec.speed else requested
    if isinstance(app.speed, Tuned):
        most = max(most, app.speed.most_containers)
    n_min, n_max = {"requested": (1, requested), "rigid": (requested, requested), "wide": (1, max(requested, most))}[
        bounds
    ]
    return msgspec.structs.replace(app, spec=msgspec.structs.replace(app.spec, n_min=n_min, n_max=n_max))


class _Reader:
    """Reads an application's profile when a job first names it."""

    def __init__(self, profiles: Path, bounds: Bounds, batches: Batches) -> None:
        if not profiles.is_dir():
            text = f"{profiles}: not a folder; profiles=DIR needs one folder for each application"
            raise SimulationError(text, code="profiles.no_folder")
        self._folder = profiles
        self._bounds: Bounds = bounds
        self._batches: Batches = batches
        self._profiles: dict[str, Profile] = {}
        self._known: dict[tuple[str, int], _Known] = {}
        self._names: set[str] = set()

    def app(self, name: str, time: str, application: str, gpus: str, batch_size: str, *, line: int) -> SimulatedApp:
        """Return the app of one row.  Raises BrokenRow."""
        at_s = number(time, "time", most=LATEST_S)
        requested, batch = count(gpus, "num_replicas"), count(batch_size, "batch_size")
        known = self._of(application, batch)
        if requested > len(known.curve):
            text = f"{requested} GPUs are more than a batch of {batch} can be spread over ({len(known.curve)})"
            raise BrokenRow(text, code="trace.value.out_of_range")
        if name in self._names:
            raise BrokenRow(f"a row above has the name {name} already", code="trace.name.given_twice")
        try:
            spec = check_spec(
                {
                    "name": name,
                    "command": ["train", application],
                    "resume": ["train", application, "--resume"],
                    "demand": {"gpu": 1},
                    "n_min": 1,
                    "n_max": requested,
                    "steps": max(1, round(known.steps)),
                    "speed": known.curve,
                    "labels": {"type": application},
                    **({"batch": known.batch} if known.batch else {}),
                }
            )
        except SpecError as error:
            raise BrokenRow(str(error), code=error.code) from None
        self._names.add(name)
        app = SimulatedApp(at_s=at_s, spec=spec, work=known.steps, speed=known.speed, line=line, had=requested)
        if isinstance(known.speed, Tuned):
            work = known.speed.work
            app = msgspec.structs.replace(app, work=work, steps_per_unit=known.steps / work)
        return bounded(app, self._bounds)

    def _of(self, application: str, batch: int) -> _Known:
        if (application, batch) not in self._known:
            profile = self._profile(application)
            if not profile.first_batch <= batch <= profile.last_batch:
                text = f"batch_size {batch} is not between {profile.first_batch} and {profile.last_batch}"
                raise BrokenRow(text, code="trace.value.out_of_range")
            speed = profiled(profile, batch)
            known = _Known(speed, profile.iterations(batch), curve(speed, min(MOST_GPUS, profile.most_gpus(batch))))
            self._known[application, batch] = known if self._batches == "fixed" else _tunable(known, profile, batch)
        return self._known[application, batch]

    def _profile(self, application: str) -> Profile:
        if application not in self._profiles:
            if not application.isidentifier() or not (self._folder / application).is_dir():
                raise BrokenRow(f"there is no profile of application {application!r}", code="profiles.not_found")
            self._profiles[application] = Profile(self._folder / application)
        return self._profiles[application]


def _tunable(known: _Known, profile: Profile, batch: int) -> _Known:
    """Return the same for a job whose batch size may change: steps and speeds are still those of its own batch size."""
    accepts = {
        "initial": batch,
        "least": profile.first_batch,
        "most": profile.last_batch,
        "per_container": profile.most_local,
    }
    return msgspec.structs.replace(known, speed=Tuned(profile.tables, batch), batch=accepts)
