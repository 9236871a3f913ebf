"""Why an app has what it has, at any moment: the state says how things stand, the log says which decision made it so.

A `Witness` watches the log being folded (`replay.travel.state_at(…, seen=witness.see)`) and keeps what the state does not:
the last decision and the last one that changed the app, since when its reason has been the same, refusals, and ends of apps
that have left the state.  `explain` puts that and the state together.  Void rounds are no decisions and are passed over.

    ExplainError   there is no such app; the message has names that look like it
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import name_of
from dorm.core.asking import problem_of
from dorm.core.costs import adjust_s
from dorm.core.standing import standings
from dorm.core.views import adjustment, sizes
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
from replay import ReplayError
from replay.chapters import Cause
from replay.story_settings import killed_because, lease_ended_because, lost_because
from replay.words import paragraph, without_details

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events.kinds import Event
    from events.log import Record

LATEST = 5
"""Adjustments that are told in full."""
NAMES = 1000
"""Names of apps that are kept for near misses."""


class ExplainError(ReplayError):
    """No such app; one line for people."""


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
    """ŝ_i; see `dorm.core.standing`."""
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
    """Seconds of its work that one adjustment costs, as measured; see `dorm.core.costs`."""
    history: list[dict[str, Any]] = []
    """The latest adjustments, each with its phases; see `dorm.core.views.adjustment`."""
    refusal: Refusal | None = None
    """The last refusal: of the submission; of a live app, that of an update or of a later submission of this name."""
    ended_at: int | None = None
    settings: Cause | None = None
    """The change of settings because of which containers of it were killed, or a node of its was lost, last."""


def explain(state: State, witness: Witness, now: int) -> Explanation:
    """Why the witness's app has what it has.  `now` (UTC ns) is not before the state's own time.  Raises ExplainError."""
    app = state.find_app(witness.wanted)
    if app is not None and not (app.ended and _pending(state, witness.wanted)):
        return _of_app(state, witness, app, now)
    pending = _pending(state, witness.wanted)
    if pending is not None:
        return _without_details(state, witness, now, "pending", pending.id)
    refusal, past = witness.refusal, witness.past
    if past is not None and (refusal is None or refusal.refused == "update" or refusal.seq < past.seq):
        return _without_details(state, witness, now, "gone", past.app)
    if refusal is not None and refusal.refused == "submission":
        return _without_details(state, witness, now, "refused", "")
    raise ExplainError(f"at sequence {state.seq} there was no app {witness.wanted!r}{_near(state, witness)}")


def _pending(state: State, wanted: str) -> Any:
    """A submission of this name that nobody has answered yet."""
    found = [one for one in state.submissions.values() if not one.app and name_of(one.spec) == wanted]
    return found[-1] if found else None


def _near(state: State, witness: Witness) -> str:
    known = sorted({app.name for app in state.apps.values()} | witness.names.keys())
    near = difflib.get_close_matches(witness.wanted, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else "; `dorm state` lists them"


def _without_details(state: State, witness: Witness, now: int, what: str, id: str) -> Explanation:
    text = without_details(witness, what)
    return Explanation(
        name=witness.wanted, id=id, state=what, phase=what, text=text, seq=state.seq, at=now, refusal=witness.refusal
    )


def _of_app(state: State, witness: Witness, app: App, now: int) -> Explanation:
    standing = standings(problem_of(state, now)).apps.get(app.id)
    placed = sizes(app)
    found = Explanation(
        name=app.name,
        id=app.id,
        state="ended" if app.ended else "live",
        phase=app.phase,
        text="",
        seq=state.seq,
        at=now,
        containers=sum(placed.values()),
        n_min=app.n_min,
        n_max=app.n_max,
        weight=app.weight,
        nodes=placed,
        demand=app.demand,
        dominant=standing.dominant if standing else "",
        share=standing.share if standing else None,
        fair_share=standing.fair if standing else None,
        reason=Why(app.waiting.code, app.waiting.text, witness.reason_since) if app.waiting else None,
        waiting_since=app.waiting_since or None if app.current is None else None,
        decision=_decision(witness.last),
        last_change=_change(witness.changed, app),
        adjustments=app.adjustments,
        lost_steps=app.lost_steps,
        adjust_s=adjust_s(app),
        history=[adjustment(app, index) for index in range(max(0, len(app.history) - LATEST), len(app.history))],
        refusal=witness.refusal,
        ended_at=app.ended_at or None,
        settings=witness.settings,
    )
    text = paragraph(state, app, found)
    if (cause := witness.settings) is not None:
        text += f"  It was disturbed by a change of settings: {cause.text} (record {cause.position})."
    return msgspec.structs.replace(found, text=text)


def _decision(decided: Decided | None) -> Decision | None:
    if decided is None:
        return None
    fact = decided.fact
    return Decision(
        position=decided.position,
        time=decided.time,
        epoch=decided.epoch,
        policy=fact.policy,
        params=fact.params,
        changed_apps=len(fact.changes),
        overhead=fact.overhead,
        overhead_budget=fact.overhead_budget,
        utilization=fact.utilization,
        fairness_loss=fact.fairness_loss,
        fairness_budget=fact.fairness_budget,
        excess=fact.excess,
        status=fact.status,
        bound=fact.bound,
        change_cost=fact.change_cost,
        shortage=fact.shortage,
        trigger=fact.trigger,
    )


def _change(decided: Decided | None, app: App) -> Change | None:
    if decided is None:
        return None
    change = next(change for change in decided.fact.changes if change.app == app.id)
    return Change(
        position=decided.position,
        time=decided.time,
        adjustment=change.adjustment,
        containers=len(change.placement),
        generation=change.to_generation,
    )
