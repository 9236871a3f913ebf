"""What happened on a cluster, as drawn: for apps and nodes what held from when to when, and what changed it.

`timeline` folds the log once and keeps step functions: a value and the log time from which it held.  So a picture's size
depends on what changed, not on the number of records.  If even that is too much, changes closer together than a *grain* of
time are drawn as one, and a note says so (`Timeline.notes`).  Its renderings are `replay.timeline.png` and
`replay.timeline.trace` (for Perfetto); the dashboard draws what `replay.page.timeline` takes from it.

    Timeline
    ├── AppLane     phases, how many containers in which state, partitions with the phases of their adjustments
    ├── NodeLane    which app has how many containers there, and the node's condition
    ├── Decision    its policy and trigger, what changed, why not more, the figures
    └── Mark        failures and ends, nodes lost, masters elected, settings changed"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from replay import ReplayError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Value = TypeVar("Value")


NOTHING = "nothing happened in this time; choose a longer one"


class TimelineError(ReplayError):
    """There is nothing to draw, or no library to draw it with; one line for people."""

    code = "timeline.empty"


def need(package: str) -> None:
    """Check, before anything is folded, that a package is installed; '' needs none.  Raises TimelineError."""
    if package and find_spec(package) is None:
        raise TimelineError(f"this timeline needs {package}: pip install 'dorm[plots]'", code="package.missing")


class Steps(Generic[Value]):
    """A step function of log time (UTC ns): `values[i]` holds from `times[i]` on, until `times[i + 1]`."""

    __slots__ = ("times", "values")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.values: list[Value] = []

    def __len__(self) -> int:
        return len(self.times)

    @property
    def last(self) -> Value | None:
        return self.values[-1] if self.values else None

    def put(self, time: int, value: Value) -> None:
        """Set the value from `time` on, which is not before the last time; the last value at one time wins."""
        if self.times and self.times[-1] == time:
            self.times.pop()
            self.values.pop()
        if not self.values or self.values[-1] != value:
            self.times.append(time)
            self.values.append(value)

    def at(self, time: int) -> Value | None:
        """Return the value at a time, None before the first."""
        latest = None
        for begin, value in zip(self.times, self.values, strict=True):
            if begin > time:
                break
            latest = value
        return latest

    def spans(self, end: int) -> Iterator[tuple[int, int, Value]]:
        """Yield each value's start, end and value; the last one holds until `end`."""
        ends = [*self.times[1:], end]
        return zip(self.times, ends, self.values, strict=True)

    def thin(self, grain: int) -> None:
        """Keep only the last of several changes within one grain of time."""
        times, values = self.times, self.values
        self.times, self.values = [], []
        for time, value in zip(times, values, strict=True):
            if self.times and len(self.times) > 1 and self.times[-1] // grain == time // grain:
                self.times.pop()
                self.values.pop()
            if not self.values or self.values[-1] != value:
                self.times.append(time)
                self.values.append(value)


class Phase(NamedTuple):
    """An app's phase, in the words of `dorm.core.state.App.phase`, and the record that led to it."""

    phase: str
    generation: int
    code: str
    """Code of the reason why it waits, or has less than it could use."""
    text: str
    cause: str
    """The fact that led to it: its kind and its position on the log."""


class Size(NamedTuple):
    """An app's containers.  Those that start, run and stop take room; `decided` is how many it will have."""

    decided: int
    starting: int
    running: int
    stopping: int

    @property
    def held(self) -> int:
        return self.starting + self.running + self.stopping


class Partition(msgspec.Struct):
    """One generation of an app, with the phases of the adjustment that led to it.  Log times; 0 for a phase not reached.

    stop  `prepared_at` or `decided_at` to `stopped_at`, wait  to `released_at`, start  to `started_at`; it runs until
    `ended_at`.
    """

    number: int
    adjustment: str
    decision: str
    """Position of the decision; only its sequence if the picture starts later."""
    decided_at: int
    containers: int
    nodes: dict[str, int]
    previous: int = 0
    """The generation that was stopped for it, 0 for none."""
    before: int = 0
    """Containers of the previous generation."""
    stopped_at: int = 0
    released_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    void: bool = False
    """Overtaken before it was released."""
    failed: bool = False
    resume: bool = False
    checkpoint: int | None = None
    lost_steps: int = 0
    killed: int = 0
    """Containers of the previous generation that had not ended within their grace time."""
    prepared_at: int = 0
    """Time until which the previous generation worked on, while this one was prepared; 0 if it stopped at the decision."""

    def phases(self, end: int) -> list[tuple[str, int, int]]:
        """Return the phases of its adjustment so far (stop, wait, start), without those that took no time."""
        if self.void and not self.released_at:
            return []
        marks = [self.prepared_at or self.decided_at, self.stopped_at, self.released_at, self.started_at]
        if not self.previous:
            marks[1] = self.decided_at
        result = []
        for name, begin, finish in zip(("stop", "wait", "start"), marks, marks[1:], strict=False):
            if begin and (finish or end) > begin:
                result.append((name, begin, min(finish or self.ended_at or end, end)))
            if not finish:
                break
        return [(name, begin, finish) for name, begin, finish in result if finish > begin]


class AppLane(msgspec.Struct):
    """An app within the time of the picture."""

    id: str
    name: str
    user: str
    submitted_at: int
    n_min: int
    n_max: int
    phases: Steps[Phase] = msgspec.field(default_factory=Steps)
    """Phases without a gap from its submission, or the picture's start, to its end; the last is how it ended."""
    sizes: Steps[Size] = msgspec.field(default_factory=Steps)
    partitions: dict[int, Partition] = {}
    """Partitions by generation."""
    seq: int = 0
    """Sequence of its submission: the order of arrival."""
    ended: str = ""
    ended_at: int = 0
    end_reason: str = ""
    failures: int = 0
    """Failed generations within the picture."""
    lost_steps: int = 0
    """Steps done twice within the picture."""

    @property
    def adjustments(self) -> list[Partition]:
        """Partitions that replaced a running one, and were released."""
        return [
            partition
            for partition in self.partitions.values()
            if partition.adjustment == "restart" and partition.released_at
        ]

    @property
    def peak(self) -> int:
        """The most containers that it had or was to have at once."""
        return max((max(size.held, size.decided) for size in self.sizes.values), default=0)


class NodeLane(msgspec.Struct):
    """A node: its condition (`up`, `draining`, `maintenance`, `suspect`, `lost`, `left`), and how many containers of each app
    may run there."""

    id: str
    capacity: dict[str, int]
    conditions: Steps[str] = msgspec.field(default_factory=Steps)
    held: dict[str, Steps[int]] = {}
    """Containers by the app's id."""

    def held_at(self, time: int) -> dict[str, int]:
        """Return the containers by app, without apps that have none."""
        held = {app: steps.at(time) or 0 for app, steps in self.held.items()}
        return {app: count for app, count in held.items() if count}


class Change(NamedTuple):
    """A decision's change of one app."""

    app: str
    name: str
    before: int
    after: int
    adjustment: str
    generation: int
    void: bool


class Reason(NamedTuple):
    """Why an app waits or has less than it could use."""

    app: str
    name: str
    code: str
    text: str


class Decision(msgspec.Struct):
    """One `Resized` that took effect.  `changes` and `reasons` hold the first few, the numbers count all."""

    time: int
    position: str
    epoch: int
    policy: str
    policy_version: int
    solver: str
    status: str
    trigger: str
    utilization: float
    bound: float
    fairness_loss: float
    fairness_budget: float
    excess: float
    overhead: int
    overhead_budget: int
    change_cost: float
    short: int
    """Apps that wait for n_min."""
    changes: list[Change]
    all_changes: int
    reasons: list[Reason]
    all_reasons: int
    stands_for: int = 1
    """Number of decisions that this one stands for, if a grain of time held several: it is the one with the most changes."""


class Mark(msgspec.Struct):
    """Something at one moment.  Kinds: `failed` (a container or a generation), `ended`, `node`, `cluster`,
    `live` and `asked` (sizes), `note` (of a person)."""

    time: int
    position: str
    kind: str
    what: str
    """A few words."""
    text: str
    app: str = ""
    """The ids of the app and the node that it is about, if any."""
    node: str = ""
    weight: int = 1
    """Within one grain, the most important mark is kept."""
    stands_for: int = 1


class Timeline(msgspec.Struct):
    """The picture.  Times are log times (UTC ns), sequences are the log's."""

    start: int = 0
    end: int = 0
    first: int = 0
    """The sequence before its first record."""
    last: int = 0
    apps: dict[str, AppLane] = {}
    """Apps by id, in order of arrival."""
    nodes: dict[str, NodeLane] = {}
    """Nodes by name, sorted."""
    decisions: list[Decision] = []
    marks: list[Mark] = []
    decided: dict[str, Steps[float]] = {}
    """Parts by resource: the part given to apps, of the capacity of nodes that are usable or hold their containers."""
    held: dict[str, Steps[float]] = {}
    """Parts by resource: the part taken by containers that may run."""
    fairness_loss: Steps[float] = msgspec.field(default_factory=Steps)
    fairness_budget: Steps[float] = msgspec.field(default_factory=Steps)
    """-1 while the policy has none."""
    waiting: Steps[int] = msgspec.field(default_factory=Steps)
    """Apps without a partition that wait for one."""
    grain: int = 0
    """Changes closer together than this (ns) may be drawn as one; 0: everything is drawn."""
    notes: list[str] = []
    """The omissions of the picture, in sentences."""

    @property
    def empty(self) -> bool:
        """Whether nothing happened, or no time passed in which it could have."""
        return self.end <= self.start or not (self.apps or self.nodes or self.decisions or self.marks)

    def all_steps(self) -> Iterator[Steps[Any]]:
        """Return every step function in the picture."""
        for app in self.apps.values():
            yield app.phases
            yield app.sizes
        for node in self.nodes.values():
            yield node.conditions
            yield from node.held.values()
        yield from self.decided.values()
        yield from self.held.values()
        yield from (self.fairness_loss, self.fairness_budget, self.waiting)

    def nodes_of(self, app: str) -> list[str]:
        """Return the nodes where an app had containers."""
        return [node.id for node in self.nodes.values() if app in node.held and any(node.held[app].values)]


def find_apps(picture: Timeline, wanted: Collection[str]) -> set[str]:
    """Return the ids of apps with these names or ids."""
    return {lane.id for lane in picture.apps.values() if lane.id in wanted or lane.name in wanted}


def only(picture: Timeline, apps: Collection[str] = (), nodes: Collection[str] = ()) -> Timeline:
    """Return the part that concerns these apps (names or ids) and nodes; the cluster's figures stay.

    Nodes alone select themselves and the apps that had containers there.  Apps alone select themselves and the nodes where
    they had containers.  Raises TimelineError if one is not in the picture.
    """
    known = {name for lane in picture.apps.values() for name in (lane.id, lane.name)}
    for name in [*(app for app in apps if app not in known), *(node for node in nodes if node not in picture.nodes)]:
        some = list(dict.fromkeys([lane.name for lane in picture.apps.values()])) if name in apps else [*picture.nodes]
        what = "app" if name in apps else "node"
        raise TimelineError(
            f"there was no {what} {name!r} in this time" + (f"; there were {', '.join(some[:10])}" if some else ""),
            code=f"{what}.not_found",
        )
    if not apps and not nodes:
        return picture
    here = {name: node for name, node in picture.nodes.items() if name in nodes or not nodes}
    shown = find_apps(picture, apps) or {
        app for node in here.values() for app, steps in node.held.items() if any(steps.values)
    }
    if not nodes:
        here = {name: node for name, node in here.items() if any(name in picture.nodes_of(app) for app in shown)}
    part = msgspec.structs.replace(
        picture,
        apps={name: lane for name, lane in picture.apps.items() if name in shown},
        nodes=here,
        decisions=[decision for decision in picture.decisions if any(change.app in shown for change in decision.changes)
                   or any(reason.app in shown for reason in decision.reasons)],
        marks=[mark for mark in picture.marks
               if mark.kind == "cluster" or mark.app in shown or (mark.node in here and not mark.app)],
    )  # fmt: skip
    note = f"Only {', '.join(sorted([*apps, *nodes]))}; utilization, fairness loss and waits are the whole cluster's."
    return msgspec.structs.replace(part, notes=[*picture.notes, note])


def most_affected(picture: Timeline, apps: int, nodes: int) -> Timeline:
    """Keep this many lanes at most, those with the most failures, adjustments and changes, in their order; add a note."""
    notes = list(picture.notes)
    chosen_apps, chosen_nodes = picture.apps, picture.nodes
    if len(picture.apps) > apps:
        ranked = sorted(picture.apps.values(), key=_troubles, reverse=True)[:apps]
        keep = {lane.id for lane in ranked}
        chosen_apps = {name: lane for name, lane in picture.apps.items() if name in keep}
        notes.append(f"The {apps} most affected of {len(picture.apps)} apps are shown; --app shows others.")
    if len(picture.nodes) > nodes:
        busiest = sorted(picture.nodes.values(), key=_extent, reverse=True)[:nodes]
        keep = {lane.id for lane in busiest}
        chosen_nodes = {name: lane for name, lane in picture.nodes.items() if name in keep}
        notes.append(f"The {nodes} most affected of {len(picture.nodes)} nodes are shown; --node shows others.")
    return msgspec.structs.replace(picture, apps=chosen_apps, nodes=chosen_nodes, notes=notes)


def _troubles(lane: AppLane) -> tuple[int, int, int]:
    return lane.failures + (lane.ended == "failed"), len(lane.adjustments), len(lane.phases)


def _extent(lane: NodeLane) -> tuple[int, int]:
    return len(lane.conditions), sum(map(len, lane.held.values()))
