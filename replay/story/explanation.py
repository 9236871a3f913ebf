"""The fields of an explanation, and the observer that collects them while a log is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.batches import BatchNow
from dorm.core.state import Promise
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
    PolicyChanged,
    Resized,
    Round,
)
from replay.story.chapters import Cause
from replay.story.settings import SettingsWatch, killed_because, lease_ended_because, lost_because
from replay.story.speed import SpeedCurve

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.state import App, State
    from events.log.records import Record


NAMES = 1000
"""Names of apps that are kept to suggest similar ones."""


class Decided(msgspec.Struct, frozen=True):
    """A decision that took effect, and its place on the log."""

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
    code: str = ""
    """The reason's error code, such as `spec.demand.too_large`; "" in logs of earlier versions."""


class Past(msgspec.Struct, frozen=True):
    """The end of an app that may have left the state since."""

    app: str
    seq: int
    position: str
    time: int
    ended: str
    reason: str


class Witness:
    """Observes a fold for one app, by name or id, and keeps a bounded amount of what explanations need."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.last: Decided | None = None
        self.changed: Decided | None = None
        """The last decision that changed the app."""
        self.refusal: Refusal | None = None
        """The last refusal since the app was accepted."""
        self.past: Past | None = None
        self.batch: Decided | None = None
        """The last decision that gave it a batch size."""
        self.settings: Cause | None = None
        """The latest change of settings that killed containers of the app or lost one of its nodes."""
        self.decided_after: Cause | None = None
        """The change of settings that the decision about its present size or reason was the first to follow."""
        self.reason_since = 0
        """Log time since when the app's reason has had the same code."""
        self.names: dict[str, None] = {}
        """The latest names that were accepted or refused, to suggest similar ones."""
        self._id = self._name = ""
        self._code = ""
        self._sets = SettingsWatch()
        self._decided_seq = self._looked = 0
        """The last decision about it, and the basis of the last decision about any app."""

    def begin(self, state: State, last: Record | None) -> None:
        """Start from a state instead of the log's first record.  `last` is the round of its last decision."""
        self._sets.begin(state)
        app = state.find_app(self.wanted)
        if app is not None:
            self._id, self._name = app.id, app.name
            self._code = app.waiting.code if app.waiting else ""
            self.reason_since = state.time
        event = decode(last) if last is not None else None
        for index, fact in enumerate(event.events) if isinstance(event, Round) else ():
            if last is not None and isinstance(event, Round) and isinstance(fact, Resized):
                self.last = Decided(seq=last.seq, index=index, time=last.time, epoch=event.epoch, fact=fact)

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        if isinstance(event, ContainerExited) and event.app == self._id and folded.outcome != "forbidden":
            self.settings = killed_because(state, event) or self.settings
        if isinstance(event, PolicyChanged) and folded.outcome in ("applied", "refused"):
            self._sets.record(state, event)
        if not isinstance(event, Round) or folded.outcome == "void":
            return
        for index, fact in enumerate(event.events):
            self._fact(state, event, index, fact)
        app = state.apps.get(self._id)
        code = app.waiting.code if app is not None and app.waiting else ""
        if self.last is not None and self.last.seq == state.seq:
            self._decided(state, event, about_it=code != self._code or self.changed is self.last)
        if code != self._code:
            self._code, self.reason_since = code, state.time

    def _decided(self, state: State, event: Round, *, about_it: bool) -> None:
        if about_it:
            self.decided_after = self._sets.before(
                state.time, after=self._decided_seq, basis=event.basis, looked=self._looked
            )
            self._decided_seq = state.seq
        self._looked = event.basis

    def _fact(self, state: State, event: Round, index: int, fact: Any) -> None:
        position = f"{state.seq}.{index}"
        if isinstance(fact, Resized):
            self.last = Decided(seq=state.seq, index=index, time=state.time, epoch=event.epoch, fact=fact)
            if any(change.app == self._id for change in fact.changes):
                self.changed = self.last
            if self._id in fact.batches:
                self.batch = self.last
        elif isinstance(fact, AppAccepted):
            self._keep_name(fact.spec.name)
            if self.wanted in (fact.app, fact.spec.name):
                self._id, self._name, self._code = fact.app, fact.spec.name, ""
                self._decided_seq = state.seq
                self.changed = self.batch = self.refusal = None
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
        # A refused submission has an id of its own, made from its name; a refused update names its target.
        name = fact.app.rsplit("-", 1)[0] if fact.refused == "submission" else fact.app
        self._keep_name(name)
        if self.wanted in (fact.app, name) or (
            fact.refused == "update" and self._id and fact.app in (self._id, self._name)
        ):
            self.refusal = Refusal(
                seq=state.seq,
                position=position,
                time=state.time,
                reason=fact.reason,
                refused=fact.refused,
                code=fact.code,
            )


def _has_part_on(app: App, node: str) -> bool:
    return any(
        container.node == node
        for generation in app.generations.values()
        for container in generation.containers.values()
    )


class Decision(msgspec.Struct, frozen=True):
    """The data that a reader of a decision needs.  Times are log times (UTC ns)."""

    position: str
    """`seq.index` on the log."""
    time: int
    epoch: int
    policy: str
    params: dict[str, Any]
    changed_apps: int
    """Resizes in it, with forced ones and starts."""
    overhead: int
    """Running apps that it changed without being forced to."""
    overhead_budget: int
    """The most such apps; -1 if the policy has no such budget."""
    utilization: float
    fairness_loss: float
    fairness_budget: float
    """-1 if the policy has none."""
    excess: float
    status: str
    bound: float
    change_cost: float
    """The price of its changes, in units of utilization."""
    shortage: dict[str, int]
    """How many containers each app that waits for n_min lacks."""
    trigger: str
    """`events`, `idle` or `deadline`; see `events.kinds.Resized`."""


class Change(msgspec.Struct, frozen=True):
    """The last decision's change of the app."""

    position: str
    time: int
    adjustment: str
    containers: int
    """After the change."""
    generation: int
    lost_s: float = 0.0
    """Seconds of work that it undid, because the app had reported no checkpoint."""


class Why(msgspec.Struct, frozen=True):
    """A reason: a code for programs, a sentence for people, and since when (UTC ns) the code has been the same."""

    code: str
    text: str
    since: int


class Batch(msgspec.Struct, frozen=True):
    """The batch size that an app has, of those that it accepts."""

    now: BatchNow
    position: str
    """Of the decision that gave it this size; "" for its initial one, or if this reading of the log starts later."""
    time: int
    policy: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dorm explain -o json`.  Times are UTC nanoseconds, durations seconds; None: unknown or not applicable.

    `state` is `live`, `ended`, `pending` (submitted, not answered yet), `refused` or `gone` (ended so long ago that its
    details are dropped).  For the last three only the first fields are set.
    """

    name: str
    id: str
    state: str
    phase: str
    text: str
    """The explanation in words, one paragraph."""
    seq: int
    """The log's sequence where this holds."""
    at: int
    """The moment that is explained."""
    containers: int = 0
    n_min: int = 0
    n_max: int = 0
    weight: float = 0.0
    nodes: dict[str, int] = {}
    """Containers by node."""
    demand: dict[str, int] = {}
    """One container's demand, in base units."""
    dominant: str = ""
    """The resource of which it holds the largest fraction of the cluster."""
    share: float | None = None
    """That part, s_i."""
    fair_share: float | None = None
    """ŝ_i; see `dorm.core.query.standing`."""
    reason: Why | None = None
    """Why it has less than n_max, by the last decision."""
    waiting_since: int | None = None
    """Since when it has no containers."""
    decision: Decision | None = None
    """The cluster's last decision, whether or not it changed this app."""
    last_change: Change | None = None
    adjustments: int = 0
    lost_steps: int = 0
    reports_progress: bool = True
    """Whether it has ever reported any; otherwise, lost work is unknown."""
    revision: int = 1
    """Counts its specs: the submitted one is 1 (`dorm edit`)."""
    revision_running: int | None = None
    """The revision that its containers run with; None while it has none."""
    adjust_s: float | None = None
    """Measured seconds of its work that one adjustment costs; see `dorm.core.costs`."""
    speed: SpeedCurve | None = None
    """Its known speed; None for an app that has ended or pauses."""
    batch: Batch | None = None
    """Its batch size, and why; None for an app that chooses its own batch size."""
    history: list[dict[str, Any]] = []
    """The latest adjustments, each with its phases; see `dorm.core.query.views.adjustment`."""
    refusal: Refusal | None = None
    """The last refusal: of the submission; for a live app, of an update or of a later submission of this name."""
    ended_at: int | None = None
    plan: Promise | None = None
    """The promise of a policy that plans ahead."""
    settings: Cause | None = None
    """The latest change of settings that killed containers of it or lost one of its nodes."""
    decided_after: Cause | None = None
    """The change of settings that the decision about its present size or reason was the first to follow."""
