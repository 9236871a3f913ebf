"""What the log says, folded: apps, their generations, nodes and settings at one sequence.

`evolve` is the only writer.  Everything here follows from the records alone, so two folds of one log are equal byte for
byte and `digest` proves it.  Times are log times (UTC nanoseconds), quantities integers in base units.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from events.kinds import Waiting
from events.spec import AppSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = 5
"""Counts changes of meaning in this module and `evolve`: a digest by another schema can't be compared."""

_encoder = msgspec.msgpack.Encoder()


class Settings(msgspec.Struct):
    """What `PolicyChanged` sets; see there."""

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
    """The folder that an operator named, "" where nobody did."""


class RefusedChange(msgspec.Struct, frozen=True):
    """A `PolicyChanged`, or its policy or folder alone, that does not hold."""

    id: str
    seq: int
    at: int
    by: str
    reason: str
    whole: bool = True
    """False where the times that it sets hold all the same."""


class ShortenedTime(msgspec.Struct, frozen=True):
    """A change that lowered one of the times (seconds)."""

    seq: int
    at: int
    by: str
    before: float
    after: float


REFUSED_CHANGES = 8
"""How many of them are remembered."""


class Submission(msgspec.Struct):
    """A submission (or a refused update) that the master still has to answer."""

    id: str
    seq: int
    at: int
    by: str
    spec: Any
    size: int
    refused: str = ""
    """Why it is refused already, where the body could not even be read."""
    app: str = ""
    """Set where this is a refused update of that app."""
    who: str = ""
    """Whose subject it came on: what a server's permissions go by, where `by` is the sender's own word."""


class Pace(msgspec.Struct, gc=False):
    """How fast a generation works, from the first and the last progress it told of: log times and steps."""

    first_at: int
    first_step: int
    last_at: int
    last_step: int

    @property
    def steps_per_s(self) -> float:
        """0 where it can't be known yet."""
        steps, time = self.last_step - self.first_step, self.last_at - self.first_at
        return steps * 1e9 / time if steps > 0 and time > 0 else 0.0


ContainerState = Literal["desired", "running", "exited"]


class Container(msgspec.Struct, gc=False):
    """One slot of a generation, as far as the log knows."""

    slot: int
    node: str
    address: str
    port: int
    state: ContainerState = "desired"
    started_at: int = 0
    exited_at: int = 0
    exit_code: int | None = None
    asked: bool = False
    killed: bool = False
    """It had not ended within its grace time."""
    reason: str = ""
    message: str = ""


class Generation(msgspec.Struct):
    """One partition of an app, from the decision to its last container's end."""

    number: int
    containers: dict[int, Container]
    """By slot."""
    adjustment: str
    decided_at: int
    decided_seq: int
    master_port: int = 0
    void: bool = False
    """Overtaken between its basis and its decision: it is never released, another decision follows."""
    released_at: int = 0
    started_at: int = 0
    """When the last of its containers had started."""
    resume: bool = False
    failed: bool = False
    """`GenerationFailed` was said of it."""
    stopped_at: int = 0
    """When its last container had ended."""
    running: int = 0
    exited: int = 0
    """How many containers are in these states: counted along, since every start and exit asks for it."""
    pace: Pace | None = None
    checkpointed_at: int = 0
    """When it last told of a checkpoint."""
    folder: str = ""
    """The cluster's folder of checkpoints when it was released."""
    worked: bool = False
    """Whether it has worked (`dorm.core.apps.bounds`)."""

    @property
    def released(self) -> bool:
        return self.released_at > 0

    @property
    def ended(self) -> bool:
        """Nothing of it may still run: never released, or every container has exited."""
        return self.released_at <= 0 or self.exited == len(self.containers)

    def by_node(self) -> dict[str, int]:
        """How many containers it has on each node, sorted by node."""
        counts: dict[str, int] = {}
        for container in self.containers.values():
            counts[container.node] = counts.get(container.node, 0) + 1
        return dict(sorted(counts.items()))


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
    """Containers that had not ended within their grace time and were killed."""
    resumed_at: int = 0
    """When the new generation first told of progress or of a checkpoint; 0 before."""
    resumed_step: int = 0
    """Which step that was."""
    steps_per_s: float = 0.0
    """How fast the generation before it worked, with `containers_before`; 0 where that was not seen."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """An adjustment that failed: the app stays at the count with which it had worked, for a while
    (`dorm.core.apps.bounds`)."""

    generation: int
    """Which one did not start to work."""
    containers: int
    """With so many."""
    worked_with: int
    """How many containers the last one had that worked."""


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
    """Of its submission: the order of arrival."""
    accepted_at: int = 0
    changed_seq: int = 0
    """Last record that overtakes a decision whose basis is before it."""
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
    """Of all its generations, those that were its own fault."""
    port_failures: int = 0
    """Generations that ended because a port was taken: no fault of the app's, until there are too many of them."""
    retries_used: dict[str, int] = {}
    """By what they count against (`dorm.core.apps.failures`); forgotten, like the next two, once it has worked for long."""
    failures_in_a_row: int = 0
    """Of any kind: what the next pause follows from."""
    ran_ns: int = 0
    """How long all containers of its generations have run since the last failure that was its own fault, without the
    generation that runs now."""
    retry_at: int = 0
    tells: bool = False
    """Whether it has ever told of progress or of a checkpoint."""
    worked_with: int = 0
    """How many containers the last generation had that worked; 0 where none ever did."""
    fruitless: int = 0
    """How many generations since then have failed by its own fault without having worked."""
    debt: int = 0
    """Failures that no node's loss excuses, since it last ran stably (`dorm.core.apps.bounds`)."""
    disturbs: bool = False
    """Others were resized to make room for it while it was in debt."""
    room_taken: bool = False
    """Others were resized to use the room that it had left while it was in debt."""
    barred: bool = False
    """It has failed again after either, so it keeps its place, and nobody is resized for it."""
    interrupted_at: int = 0
    """When it lost its partition though nothing was wrong with it: its nodes went away.  0 once it runs again."""
    held_most: Held | None = None
    held_least: Held | None = None
    checkpoint: int | None = None
    """Step of the last checkpoint that the app reported."""
    checkpoint_in: str = ""
    """In which folder of checkpoints that was, "" where its node had announced none."""
    step: int = 0
    loss: float | None = None
    samples_per_s: float | None = None
    waiting: Waiting | None = None
    """Why it waits or is below its n_max, in the words of the last decision."""
    waiting_since: int = 0
    """When it was accepted, or lost its partition (after a failure: when its pause is over).  A place that is taken back
    before anything was released to it does not start the wait anew.  0 while a partition is released to it."""
    steps_per_s: float = 0.0
    """Of the last generation of which it could be measured; 0 before."""
    adjustments: int = 0
    """How often a running partition was resized."""
    lost_steps: int = 0
    served_ns: int = 0
    """What it has got: container-nanoseconds, by log times, of its containers that have started and exited."""
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
        return current is not None and len(self.generations) == 1 and current.running == len(current.containers)

    def served_until(self, now: int) -> int:
        """`served_ns`, and what its containers that run have got by `now` (UTC ns)."""
        total = self.served_ns
        for generation in self.generations.values():
            if generation.running:
                for container in generation.containers.values():
                    if container.state == "running":
                        total += max(0, now - container.started_at)
        return total

    @property
    def phase(self) -> str:
        """One word for people: queued states first, then the ways of a generation, then the end."""
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
        if not current.exited:
            return "running" if current.started_at else "starting"
        return "ending"


HISTORY = 50
MOST = 2**62
"""Beyond this, what only ever grows does so no more: all integers of a state have to fit into 64 bits."""

NodeCondition = Literal["up", "lost", "left"]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Another machine that asked for a node's name and did not get it."""

    identity: str
    address: str
    at: int
    """Log time of the last time it asked."""


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
    """The longest lease that its agent may believe in: what was in force since it joined."""
    changed_seq: int = 0
    checkpoints: str = ""
    """Id of its folder of checkpoints, as it announced it."""
    foreign: bool = False
    """That is another one than the cluster's (`dorm.core.fold.shared_folder`)."""
    foreign_at: int = 0
    """Since when it is, 0 while it is not."""
    port_cursor: int = 0
    """The last port that was given away here."""
    identity: str = ""
    """Of the agent that holds the name (`events.holders`); "" where that is older than 0.5.1."""
    refused: Refused | None = None
    """Who else asked for the name while this one holds it."""

    @property
    def gone(self) -> bool:
        """Nothing of it can run any more: it has left in good order, or its lease has ended."""
        return self.condition == "left" or self.lease_ended

    @property
    def usable(self) -> bool:
        """Whether new containers may go there."""
        return self.condition == "up" and not self.draining and not self.foreign


class Counters(msgspec.Struct):
    """What the fold saw and did not act on; never silent, never fatal."""

    unreadable: int = 0
    unknown: int = 0
    ignored: int = 0
    """Facts about things that the state doesn't know, or that change nothing: repeats among them."""
    void_rounds: int = 0


class Figures(msgspec.Struct):
    """Of the last decision, for views."""

    seq: int = 0
    utilization: float = 0.0
    fairness_loss: float = 0.0
    overhead: int = 0
    decisions: int = 0


class State(msgspec.Struct):
    """The whole cluster at sequence `seq`."""

    seq: int = 0
    time: int = 0
    """Log time, which never goes back here."""
    epoch: int = 0
    leader: str = ""
    """Name of the master that was elected last."""
    elected_at: int = 0
    """When it was: what was heard before, it can't know."""
    round_seq: int = 0
    """Sequence of the last round: what the next one is fenced by."""
    stirred_seq: int = 0
    """The last record that could change the allocation."""
    stirred_at: int = 0
    """Its log time."""
    loose_at: int = 0
    """When there last was a cause to look at the allocation again once nothing happens; 0 where no look is due."""
    ticked_at: int = 0
    """When the allocation was last looked at for that."""
    settings: Settings = msgspec.field(default_factory=Settings)
    refused_changes: list[RefusedChange] = []
    """The last changes of settings that were refused, at most `REFUSED_CHANGES`."""
    shortened: dict[str, ShortenedTime] = {}
    """By the name of a time (`node_grace_s`, `node_lease_s`), the last change that lowered it."""
    nodes: dict[str, Node] = {}
    apps: dict[str, App] = {}
    checkpoints: str = ""
    """Id of the cluster's folder of checkpoints, "" as long as no node has announced one."""
    names: dict[str, str] = {}
    """Names of apps that have not ended, to their ids."""
    submissions: dict[str, Submission] = {}
    figures: Figures = msgspec.field(default_factory=Figures)
    counters: Counters = msgspec.field(default_factory=Counters)
    next_drop_at: int = 0
    """When the first ended app leaves the state; 0 for none."""

    def live_apps(self) -> Iterator[App]:
        """Apps that have not ended, in order of arrival."""
        return iter(sorted((app for app in self.apps.values() if not app.ended), key=lambda app: (app.seq, app.id)))

    def find_app(self, name_or_id: str) -> App | None:
        """By id, by the name of a live app, else the latest ended app of that name."""
        if name_or_id in self.apps:
            return self.apps[name_or_id]
        if name_or_id in self.names:
            return self.apps[self.names[name_or_id]]
        ended = [app for app in self.apps.values() if app.name == name_or_id]
        return max(ended, key=lambda app: app.seq, default=None)


def can_be_kept(value: Any) -> bool:
    """Whether a stranger's document can be part of a state that has a digest (integers beyond 64 bits can't)."""
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return False
    return True


def digest(state: State) -> str:
    """32 hex digits that are equal for equal states and no others.

    Maps are taken in the order in which the fold filled them, which is the log's own and so part of the state."""
    return hashlib.blake2b(_encoder.encode(state), digest_size=16).hexdigest()
