"""The state: the log folded into apps, their generations, nodes and settings at one sequence.

`evolve` is the only writer.  Everything here follows from the records alone, so two folds of one log are equal byte for byte,
and `digest` proves it.  Times are log times (UTC nanoseconds), quantities integers in base units.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.generation import Container, ContainerState, Generation, LiveChange, Pace
from events.kinds import Waiting
from events.spec import AppSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "HISTORY",
    "MOST",
    "REFUSED_CHANGES",
    "SCHEMA",
    "AdjustmentRecord",
    "App",
    "Container",
    "ContainerState",
    "Counters",
    "Ended",
    "Figures",
    "Generation",
    "Held",
    "LiveChange",
    "Node",
    "NodeCondition",
    "Pace",
    "Refused",
    "RefusedChange",
    "Settings",
    "ShortenedTime",
    "SizeRequest",
    "State",
    "Submission",
    "can_be_kept",
    "digest",
]

SCHEMA = 5
"""Counts changes of meaning in this module and `evolve`: digests of different schemas are not comparable."""

_encoder = msgspec.msgpack.Encoder()


class Settings(msgspec.Struct):
    """Settings that `PolicyChanged` sets; see there."""

    policy: str = "dorm"
    params: dict[str, Any] = {}
    quiet_ms: int = 200
    quiet_limit_ms: int = 1000
    idle_s: float = 30.0
    heartbeat_s: float = 5.0
    node_grace_s: float = 15.0
    node_lease_s: float = 300.0
    retention_s: float = 86_400.0
    checkpoints: str = ""
    """The folder that an operator named, "" if none did."""


class RefusedChange(msgspec.Struct, frozen=True):
    """A `PolicyChanged`, or only its policy or folder, that was refused."""

    id: str
    seq: int
    at: int
    by: str
    reason: str
    whole: bool = True
    """False if the times that it sets hold anyway."""
    code: str = ""
    """The stable code of the reason."""


class ShortenedTime(msgspec.Struct, frozen=True):
    """A change that lowered one of the times (seconds)."""

    seq: int
    at: int
    by: str
    before: float
    after: float


REFUSED_CHANGES = 8
"""How many refused changes are kept."""


class Submission(msgspec.Struct):
    """A submission (or a refused update) that the master still has to answer."""

    id: str
    seq: int
    at: int
    by: str
    spec: Any
    size: int
    refused: str = ""
    """Why it is refused already: set where the body was unreadable or the request invalid."""
    refused_code: str = ""
    app: str = ""
    """The app of a refused update, "" for a submission."""
    who: str = ""
    """The sender by the record's subject, which the server's permissions enforce; `by` is the sender's own claim."""


class AdjustmentRecord(msgspec.Struct, gc=False):
    """One finished adjustment, by its phases (log times)."""

    from_generation: int
    to_generation: int
    containers_before: int
    containers_after: int
    decided_at: int
    stopped_at: int
    released_at: int
    started_at: int = 0
    checkpoint: int | None = None
    lost_steps: int = 0
    killed: int = 0
    """Containers that did not exit within their grace time and were killed."""
    prepared_at: int = 0
    """Until when the previous generation worked on, while the new one was prepared; 0 if it stopped at the decision."""
    resumed_at: int = 0
    """When the new generation first reported progress or a checkpoint; 0 before."""
    resumed_step: int = 0
    """The step that it reported then."""
    steps_per_s: float = 0.0
    """How fast the previous generation worked, with `containers_before`; 0 if unknown."""
    live: bool = False
    """It kept its generation: `released_at` is when the membership was announced, `started_at` when it trained.  The next
    four are what its leader reported."""
    warm_up_s: float = 0.0
    barrier_s: float = 0.0
    pause_s: float = 0.0
    bytes_moved: int = 0


class Held(msgspec.Struct, frozen=True, gc=False):
    """An adjustment that failed: the app stays for a while at the count with which it had worked
    (`dorm.core.apps.bounds`)."""

    generation: int
    """The generation that did not start to work."""
    containers: int
    """Its number of containers."""
    worked_with: int
    """How many containers the last generation that worked had."""


class SizeRequest(msgspec.Struct, frozen=True, gc=False):
    """An app's own request to have no more than so many containers (`dorm.core.apps.size_requests`)."""

    containers: int
    """0 if it was withdrawn."""
    reason: str
    at: int
    """Log time (UTC ns)."""
    lowered_at: int
    """When a request last lowered what the app may get."""
    before: int = 0
    """What counts for a while where `containers` is higher; 0 where `containers` counts."""
    before_reason: str = ""


Ended = Literal["", "completed", "failed", "cancelled"]


class App(msgspec.Struct):
    """An accepted app."""

    id: str
    name: str
    user: str
    spec: AppSpec
    demand: dict[str, int]
    weight: float
    n_min: int
    n_max: int
    submission: str
    submitted_at: int
    seq: int
    """Sequence of its submission: the order of arrival."""
    accepted_at: int = 0
    changed_seq: int = 0
    """The last record that overtakes decisions with an earlier basis."""
    generation: int = 0
    """Number of the latest generation, 0 before the first."""
    generations: dict[int, Generation] = {}
    """The latest, and earlier ones that may still have containers."""
    cancel_requested: bool = False
    cancel_reason: str = ""
    ended: Ended = ""
    ended_at: int = 0
    end_reason: str = ""
    failures: int = 0
    """Failures of its generations that were its own fault."""
    port_failures: int = 0
    """Generations that ended because a port was taken: not the app's fault, until there are too many of them."""
    retries_used: dict[str, int] = {}
    """By what they count against (`dorm.core.apps.failures`); reset, like the next two, once it has worked for long."""
    failures_in_a_row: int = 0
    """Of any kind: determines the next pause."""
    ran_ns: int = 0
    """How long all containers of its generations have run since the last failure that was its own fault, excluding the
    generation that runs now."""
    retry_at: int = 0
    reports_progress: bool = False
    """Whether it has ever reported progress or a checkpoint."""
    worked_with: int = 0
    """How many containers the last generation that worked had; 0 if none ever did."""
    failed_trials: int = 0
    """How many generations since then have failed by the app's own fault without having worked."""
    debt: int = 0
    """Failures not excused by a node's loss, since it last ran stably (`dorm.core.apps.bounds`)."""
    disturbs: bool = False
    """Others were resized to make room for it while it was in debt."""
    room_taken: bool = False
    """Others were resized to use the room that it had left while it was in debt."""
    barred: bool = False
    """It has failed again after either, so it keeps its place and no app is resized for it."""
    interrupted_at: int = 0
    """When it lost its partition through no fault of its own: its nodes went away.  0 once it runs again."""
    held_most: Held | None = None
    held_least: Held | None = None
    checkpoint: int | None = None
    """Step of the last checkpoint that the app reported."""
    checkpoint_in: str = ""
    """The folder of that checkpoint, "" if its node had announced none."""
    step: int = 0
    loss: float | None = None
    samples_per_s: float | None = None
    waiting: Waiting | None = None
    """Why it waits or is below its n_max, as the last decision states it."""
    waiting_since: int = 0
    """When it was accepted, or lost its partition (after a failure: when its pause is over).  A place that is revoked before
    anything was released to it does not restart the wait.  0 while a partition is released to it."""
    steps_per_s: float = 0.0
    """Of the last generation for which it could be measured; 0 before."""
    adjustments: int = 0
    """How often a running partition was resized."""
    lost_steps: int = 0
    served_ns: int = 0
    """Its attained service: container-nanoseconds, by log times, of its containers that have started and exited."""
    served_on: dict[str, int] = {}
    """Of these, the ones on nodes that had a type, by type."""
    epoch: int = 0
    """The last epoch of data that a live app completed."""
    missed_live: bool = False
    """Its last live resize missed its deadline, and it has not reported a membership since: it is restarted instead."""
    size_request: SizeRequest | None = None
    """What it asked for last; None for n_max (`dorm.core.apps.size_requests`)."""
    history: list[AdjustmentRecord] = []
    """The latest adjustments, at most `HISTORY`."""

    @property
    def current(self) -> Generation | None:
        """The latest generation, where it has a place (neither void nor empty nor failed)."""
        generation = self.generations.get(self.generation)
        if generation is None or generation.void or generation.failed or not generation.containers:
            return None
        return generation

    @property
    def settled(self) -> bool:
        """Runs as decided: every container of the latest generation is up and nothing earlier is left."""
        current = self.current
        return current is not None and len(self.generations) == 1 and current.settled

    def served_until(self, now: int) -> int:
        """Return `served_ns` plus the service of its running containers up to `now` (UTC ns)."""
        return self.served_ns + sum(max(0, now - container.started_at) for container in self.running_containers())

    def running_containers(self) -> Iterator[Container]:
        for generation in self.generations.values():
            if generation.running or generation.leaving or generation.change is not None:
                for container in generation.all_containers():
                    if container.state == "running":
                        yield container

    @property
    def phase(self) -> str:
        """One word for people: queued states first, then the phases of a generation, then the end."""
        if self.ended:
            return self.ended
        current = self.current
        stopping = any(not g.ended for g in self.generations.values() if g is not current)
        if current is None:
            if stopping:
                return "stopping"
            return "retrying" if self.retry_at else "waiting"
        if not current.released:
            return "adjusting" if stopping or current.adjustment == "restart" else "starting"
        if current.change is not None:
            return "adjusting"
        if not current.exited:
            return "running" if current.started_at else "starting"
        return "ending"


HISTORY = 50
MOST = 2**62
"""Monotonic counters stop here: all integers of a state have to fit into 64 bits."""

NodeCondition = Literal["up", "lost", "left"]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Another machine that requested a node's name and was refused."""

    identity: str
    address: str
    at: int
    """Log time of its last request."""


class Node(msgspec.Struct):
    """A machine with an agent on it."""

    id: str
    address: str
    capacity: dict[str, int]
    labels: dict[str, str]
    ports: tuple[int, int]
    runtime: str
    condition: NodeCondition = "up"
    draining: Literal["", "operator", "shutdown"] = ""
    joined_at: int = 0
    up_at: int = 0
    """Since when it has been heard: when it joined or recovered."""
    lease_ended: bool = False
    lease_s: float = 300.0
    """The longest lease that its agent may assume: the maximum in force since it joined."""
    changed_seq: int = 0
    checkpoints: str = ""
    """Id of its folder of checkpoints, as it announced it."""
    foreign: bool = False
    """Its folder differs from the cluster's (`dorm.core.fold.shared_folder`)."""
    foreign_at: int = 0
    """Since when it differs, 0 while it does not."""
    port_cursor: int = 0
    """The last port that was assigned here."""
    identity: str = ""
    """Of the agent that holds the name (`events.holders`); "" for agents older than 0.5.1."""
    refused: Refused | None = None
    """Another machine that requested the name while this one holds it."""
    prepares: bool = False
    """Whether its agent reports what it has prepared ahead."""

    @property
    def type(self) -> str:
        """Nodes of one type are equally fast: the value of the label `type`; "" where there is none."""
        return self.labels.get("type", "")

    @property
    def gone(self) -> bool:
        """Nothing of it can run any more: it has left cleanly, or its lease has ended."""
        return self.condition == "left" or self.lease_ended

    @property
    def usable(self) -> bool:
        """Whether new containers may go there."""
        return self.condition == "up" and not self.draining and not self.foreign


class Counters(msgspec.Struct):
    """Records that the fold saw and did not act on; never silent, never fatal."""

    unreadable: int = 0
    unknown: int = 0
    ignored: int = 0
    """Facts about unknown things, or that change nothing, such as repeats."""
    void_rounds: int = 0


class Figures(msgspec.Struct):
    """Figures of the last decision, for views."""

    seq: int = 0
    utilization: float = 0.0
    fairness_loss: float = 0.0
    overhead: int = 0
    decisions: int = 0


class State(msgspec.Struct):
    """The whole cluster at sequence `seq`."""

    seq: int = 0
    time: int = 0
    """Log time; never goes back here."""
    epoch: int = 0
    leader: str = ""
    """Name of the last elected master."""
    elected_at: int = 0
    """When it was elected: it can't know what earlier masters heard."""
    round_seq: int = 0
    """Sequence of the last round, which fences the next one."""
    dirty_seq: int = 0
    """The last record that could change the allocation."""
    dirty_at: int = 0
    """Its log time."""
    rebalance_from: int = 0
    """Time of the latest cause for an idle tick; 0 while none is due."""
    ticked_at: int = 0
    """Time of the last idle tick."""
    settings: Settings = msgspec.field(default_factory=Settings)
    refused_changes: list[RefusedChange] = []
    """The latest refused changes of settings, at most `REFUSED_CHANGES`."""
    shortened: dict[str, ShortenedTime] = {}
    """By the name of a time (`node_grace_s`, `node_lease_s`), the last change that lowered it."""
    nodes: dict[str, Node] = {}
    apps: dict[str, App] = {}
    checkpoints: str = ""
    """Id of the cluster's folder of checkpoints, "" until a node has announced one."""
    names: dict[str, str] = {}
    """Names of apps that have not ended, with their ids."""
    submissions: dict[str, Submission] = {}
    figures: Figures = msgspec.field(default_factory=Figures)
    counters: Counters = msgspec.field(default_factory=Counters)
    next_drop_at: int = 0
    """When the first ended app leaves the state; 0 for none."""

    def live_apps(self) -> Iterator[App]:
        """Apps that have not ended, in order of arrival."""
        return iter(sorted((app for app in self.apps.values() if not app.ended), key=lambda app: (app.seq, app.id)))

    def find_app(self, name_or_id: str) -> App | None:
        """Return an app by id, by the name of a live app, else the latest ended app of that name; None for none."""
        if name_or_id in self.apps:
            return self.apps[name_or_id]
        if name_or_id in self.names:
            return self.apps[self.names[name_or_id]]
        ended = [app for app in self.apps.values() if app.name == name_or_id]
        return max(ended, key=lambda app: app.seq, default=None)


def can_be_kept(value: Any) -> bool:
    """Return whether an untrusted document can be part of a state that has a digest (integers beyond 64 bits can't)."""
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return False
    return True


def digest(state: State) -> str:
    """Return 32 hex digits that are equal for equal states only.

    Maps are encoded in the order in which the fold filled them, which follows from the log and is part of the state."""
    return hashlib.blake2b(_encoder.encode(state), digest_size=16).hexdigest()
