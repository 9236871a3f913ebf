"""What an explanation holds, and the observer that collects it while a log is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from events.codec import decode
from events.kinds import (
    AppAccepted,
    AppCancelled,
    AppCompleted,
    AppFailed,
    AppRejected,
    ContainerExited,
    NodeLeaseEnded,
    NodeLost,
    Resized,
    Round,
)
from replay.story.chapters import Cause
from replay.story.settings import killed_because, lease_ended_because, lost_because

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events.kinds import Event
    from events.log.records import Record


NAMES = 1000
"""Names of apps that are kept for near misses."""


class Decided(msgspec.Struct, frozen=True):
    """One decision that took effect, and where on the log it is."""

    seq: int
    index: int
    time: int
    """Log time (UTC ns)."""
    epoch: int
    fact: Resized

    @property
    def position(self) -> str:
        return f"{self.seq}.{self.index}"


class Refusal(msgspec.Struct, frozen=True):
    """A submission or an update that was refused."""

    seq: int
    position: str
    time: int
    reason: str
    refused: str
    """`submission` or `update`."""


class Past(msgspec.Struct, frozen=True):
    """The end of an app that may have left the state since."""

    app: str
    seq: int
    position: str
    time: int
    ended: str
    reason: str


class Witness:
    """Watches a fold for what will be asked about one app, by name or id.  Keeps a bounded amount of it."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.last: Decided | None = None
        self.changed: Decided | None = None
        """The last one that changed the app."""
        self.refusal: Refusal | None = None
        """The last one since the app was accepted."""
        self.past: Past | None = None
        self.settings: Cause | None = None
        """The change of settings by which containers of the app were killed, or a node of its was lost, last."""
        self.reason_since = 0
        """Log time since when the app's reason has had the same code."""
        self.names: dict[str, None] = {}
        """Names that were accepted or refused, the latest ones, for near misses."""
        self._id = self._name = ""
        self._code = ""
        self._void = 0

    def begin(self, state: State, last: Record | None) -> None:
        """Where the fold begins with a state, and not with the log's first record.  `last` is the round of its last
        decision."""
        self._void = state.counters.void_rounds
        app = state.find_app(self.wanted)
        if app is not None:
            self._id, self._name = app.id, app.name
            self._code = app.waiting.code if app.waiting else ""
            self.reason_since = state.time
        event = decode(last) if last is not None else None
        for index, fact in enumerate(event.events) if isinstance(event, Round) else ():
            if last is not None and isinstance(event, Round) and isinstance(fact, Resized):
                self.last = Decided(seq=last.seq, index=index, time=last.time, epoch=event.epoch, fact=fact)

    def see(self, state: State, record: Record, event: Event) -> None:
        """After each record was folded."""
        if isinstance(event, ContainerExited) and event.app == self._id:
            self.settings = killed_because(state, event) or self.settings
        if not isinstance(event, Round):
            return
        void, self._void = state.counters.void_rounds > self._void, state.counters.void_rounds
        if void:
            return
        for index, fact in enumerate(event.events):
            self._fact(state, event, index, fact)
        app = state.apps.get(self._id)
        code = app.waiting.code if app is not None and app.waiting else ""
        if code != self._code:
            self._code, self.reason_since = code, state.time

    def _fact(self, state: State, event: Round, index: int, fact: Any) -> None:
        position = f"{state.seq}.{index}"
        if isinstance(fact, Resized):
            self.last = Decided(seq=state.seq, index=index, time=state.time, epoch=event.epoch, fact=fact)
            if any(change.app == self._id for change in fact.changes):
                self.changed = self.last
        elif isinstance(fact, AppAccepted):
            self._keep_name(fact.spec.name)
            if self.wanted in (fact.app, fact.spec.name):
                self._id, self._name, self._code = fact.app, fact.spec.name, ""
                self.changed = self.refusal = None
        elif isinstance(fact, NodeLost | NodeLeaseEnded):
            app = state.apps.get(self._id)
            if app is not None and _has_part_on(app, fact.node):
                because = lost_because(state, fact) if isinstance(fact, NodeLost) else lease_ended_because(state, fact)
                self.settings = because or self.settings
        elif isinstance(fact, AppRejected):
            self._refused(state, position, fact)
        elif isinstance(fact, AppCompleted | AppFailed | AppCancelled) and fact.app == self._id:
            self.past = Past(
                app=fact.app,
                seq=state.seq,
                position=position,
                time=state.time,
                ended=type(fact).__name__.removeprefix("App").lower(),
                reason=getattr(fact, "reason", ""),
            )

    def _keep_name(self, name: str) -> None:
        if name:
            self.names.pop(name, None)
            self.names[name] = None
            if len(self.names) > NAMES:
                del self.names[next(iter(self.names))]

    def _refused(self, state: State, position: str, fact: AppRejected) -> None:
        # A refused submission has an id of its own, made of its name; a refused update names what it was sent to.
        name = fact.app.rsplit("-", 1)[0] if fact.refused == "submission" else fact.app
        self._keep_name(name)
        if self.wanted in (fact.app, name) or (
            fact.refused == "update" and self._id and fact.app in (self._id, self._name)
        ):
            self.refusal = Refusal(
                seq=state.seq, position=position, time=state.time, reason=fact.reason, refused=fact.refused
            )


def _has_part_on(app: App, node: str) -> bool:
    return any(one.node == node for generation in app.generations.values() for one in generation.containers.values())


class Decision(msgspec.Struct, frozen=True):
    """What a reader of a decision needs of it.  Times are log times (UTC ns)."""

    position: str
    """`seq.index` on the log."""
    time: int
    epoch: int
    policy: str
    params: dict[str, Any]
    changed_apps: int
    """Resizes in it, forced ones and starts among them."""
    overhead: int
    """Running apps that it changed of its own will."""
    overhead_budget: int
    """At most so many; -1 where the policy has no such budget."""
    utilization: float
    fairness_loss: float
    fairness_budget: float
    """-1 where the policy has none."""
    excess: float
    status: str
    bound: float
    change_cost: float
    """What its changes were priced at, in units of utilization."""
    shortage: dict[str, int]
    """How many containers each app lacks that waits for n_min."""
    trigger: str
    """`events`, `idle` or `deadline`; see `events.kinds.Resized`."""


class Change(msgspec.Struct, frozen=True):
    """How the last decision that changed the app did."""

    position: str
    time: int
    adjustment: str
    containers: int
    """After it."""
    generation: int


class Why(msgspec.Struct, frozen=True):
    """A reason: a code for programs, a sentence for people, and since when (UTC ns) the code has been this one."""

    code: str
    text: str
    since: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What `dorm explain -o json` prints.  Times are UTC nanoseconds, lengths seconds; None is unknown or not so.

    `state` says what is known of the app: `live`, `ended`, `pending` (submitted, not answered yet), `refused`, `gone` (ended
    so long ago that its details are dropped).  Of the last three only the first fields say anything.
    """

    name: str
    id: str
    state: str
    phase: str
    text: str
    """The explanation in words, one paragraph."""
    seq: int
    """Of the log, where this holds."""
    at: int
    """The moment that is explained."""
    containers: int = 0
    n_min: int = 0
    n_max: int = 0
    weight: float = 0.0
    nodes: dict[str, int] = {}
    """Containers by node."""
    demand: dict[str, int] = {}
    """Of one container, in base units."""
    dominant: str = ""
    """The resource of which it holds the largest part of the cluster."""
    share: float | None = None
    """That part, s_i."""
    fair_share: float | None = None
    """ŝ_i; see `dorm.core.query.standing`."""
    reason: Why | None = None
    """What keeps it from n_max, as the last decision said."""
    waiting_since: int | None = None
    """Since when it has no containers."""
    decision: Decision | None = None
    """The last one of the cluster, whether or not it changed this app."""
    last_change: Change | None = None
    adjustments: int = 0
    lost_steps: int = 0
    adjust_s: float | None = None
    """Seconds of its work that one adjustment costs, as measured; see `dorm.core.apps.costs`."""
    history: list[dict[str, Any]] = []
    """The latest adjustments, each with its phases; see `dorm.core.query.views.adjustment`."""
    refusal: Refusal | None = None
    """The last refusal: of the submission; of a live app, that of an update or of a later submission of this name."""
    ended_at: int | None = None
    settings: Cause | None = None
    """The change of settings because of which containers of it were killed, or a node of its was lost, last."""
