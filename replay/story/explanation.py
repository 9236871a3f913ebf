"""Explains an app's containers, at any moment: the state holds the situation, the log the decision behind it.

A `Witness` observes the fold (`replay.travel.state_at(…, seen=witness.see)`) and keeps what the state does not: the last
decision, the last one that changed the app, since when its reason has been the same, refusals, and ends of apps that have left
the state.  Void rounds are not decisions and are skipped.  `explain` combines that with the state to an `Explanation`, and
`paragraph` puts it into words for people.

    ExplainError   there is no such app; the message lists similar names
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import name_of
from dorm.core.asking import problem_of
from dorm.core.batches import BatchNow, batch_now
from dorm.core.costs import adjust_s
from dorm.core.delays import delay_shown
from dorm.core.faults import avoiding, keeps
from dorm.core.gates import closed_gates, closed_since, reason_of
from dorm.core.progress import doubt_shown
from dorm.core.query.standing import standings
from dorm.core.query.views import adjustment, sizes
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
from events.quantities import SECOND
from replay import ReplayError
from replay.story.chapters import Cause
from replay.story.known_speed import SpeedCurve, speed_curve
from replay.story.settings_causes import SettingsWatch, killed_because, lease_ended_because, lost_because
from replay.story.story_words import paused
from replay.words import containers, moment, span

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.generation import LiveChange
    from dorm.core.state import App, State
    from events.log.records import Record


# --- the fields, and the observer -------------------------------------------------------------------------------------

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
    """Number of containers that each app lacks that waits for n_min."""
    trigger: str
    """`events`, `idle` or `deadline`; see `events.kinds.Resized`."""


class Change(msgspec.Struct, frozen=True):
    """The last decision's change of the app."""

    position: str
    time: int
    adjustment: str
    containers: int
    """Number after the change."""
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
    """Position of the decision that gave it this size; "" for its initial one, or if this reading of the log starts later."""
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
    """Part of that resource, s_i."""
    fair_share: float | None = None
    """ŝ_i; see `dorm.core.query.standing`."""
    reason: Why | None = None
    """Reason why it has less than n_max, by the last decision."""
    waiting_since: int | None = None
    """Time since which it has no containers."""
    decision: Decision | None = None
    """The cluster's last decision, whether or not it changed this app."""
    last_change: Change | None = None
    adjustments: int = 0
    lost_steps: int = 0
    reports_progress: bool = True
    """Whether it has ever reported any; otherwise, lost work is unknown."""
    revision: int = 1
    """Number of its specs: the submitted one is 1 (`dorm edit`)."""
    revision_running: int | None = None
    """The revision that its containers run with; None while it has none."""
    adjust_s: float | None = None
    """Measured seconds of its work that one adjustment costs; see `dorm.core.costs`."""
    speed: SpeedCurve | None = None
    """Known speed; None for an app that has ended or pauses."""
    batch: Batch | None = None
    """Batch size, and why; None for an app that chooses its own batch size."""
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


# --- the reason -------------------------------------------------------------------------------------------------------

LATEST = 5
"""Adjustments that are reported in full."""


class ExplainError(ReplayError):
    """No such app; one line for people."""

    code = "app.not_found"


def explain(state: State, witness: Witness, now: int) -> Explanation:
    """Explain the witness's app.  `now` (UTC ns) is not before the state's own time.  Raises ExplainError."""
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
    raise ExplainError(f"there was no app {witness.wanted!r} at sequence {state.seq}{_near(state, witness)}")


def _pending(state: State, wanted: str) -> Any:
    """Return the latest unanswered submission of this name."""
    pending = [
        submission
        for submission in state.submissions.values()
        if not submission.app and name_of(submission.spec) == wanted
    ]
    return pending[-1] if pending else None


def _near(state: State, witness: Witness) -> str:
    known = sorted({app.name for app in state.apps.values()} | witness.names.keys())
    near = difflib.get_close_matches(witness.wanted, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else "; `dorm state` lists them"


def _without_details(state: State, witness: Witness, now: int, what: str, id: str) -> Explanation:
    text = without_details(witness, what)
    return Explanation(
        name=witness.wanted, id=id, state=what, phase=what, text=text, seq=state.seq, at=now, refusal=witness.refusal
    )


def _batch(witness: Witness, app: App, state: State) -> Batch | None:
    now = batch_now(app, state)
    if now is None or app.ended:
        return None
    decided = witness.batch
    if decided is None or decided.fact.batches[app.id] != now.now:
        return Batch(now, "", 0, "")
    return Batch(now, decided.position, decided.time, decided.fact.policy)


def _of_app(state: State, witness: Witness, app: App, now: int) -> Explanation:
    problem = problem_of(state, now)
    standing = standings(problem).apps.get(app.id)
    demand = next((asking for asking in problem.apps if asking.id == app.id), None)
    placed = sizes(app)
    explanation = Explanation(
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
        reason=_reason(witness, app, now),
        waiting_since=app.waiting_since or None if app.current is None else None,
        decision=_decision(witness.last),
        last_change=_change(witness.changed, app),
        adjustments=app.adjustments,
        lost_steps=app.lost_steps,
        reports_progress=app.reports_progress,
        revision=app.revision,
        revision_running=_running(app),
        adjust_s=adjust_s(app),
        speed=speed_curve(demand, problem.nodes) if demand is not None else None,
        batch=_batch(witness, app, state),
        history=[adjustment(app, index) for index in range(max(0, len(app.history) - LATEST), len(app.history))],
        refusal=witness.refusal,
        ended_at=app.ended_at or None,
        settings=witness.settings,
        decided_after=None if app.ended else witness.decided_after,
        plan=app.plan,
    )
    text = paragraph(state, app, explanation)
    if (cause := explanation.decided_after) is not None:
        text += f"  What it has was decided after a change of settings: {cause.text} (record {cause.position})."
    if (cause := witness.settings) is not None:
        text += f"  A change of settings disturbed it: {cause.text} (record {cause.position})."
    return msgspec.structs.replace(explanation, text=text)


def _reason(witness: Witness, app: App, now: int) -> Why | None:
    reason, closed = reason_of(app, now), closed_gates(app, now)
    if reason is None:
        return None
    return Why(reason.code, reason.text, closed_since(app) if closed is not None else witness.reason_since)


def _running(app: App) -> int | None:
    """Return the revision of the spec that its containers run with; None while it has none."""
    return app.current.revision if app.current is not None and not app.ended else None


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
        lost_s=change.lost_s,
    )


# --- in words ---------------------------------------------------------------------------------------------------------

MOST_CHANGES = 3
"""Changes of a plan that are named one by one."""


def without_details(witness: Witness, what: str) -> str:
    """Describe an app that the state does not hold: `pending`, `refused`, `gone`."""
    name = witness.wanted
    if what == "pending":
        return f"{name} is submitted, and no master has answered yet; it is accepted or refused once a master runs."
    if what == "gone":
        past = witness.past
        assert past is not None
        why = f": {past.reason}" if past.reason else ""
        return (
            f"{name} {past.ended} at {past.position} ({moment(past.time)}){why}.  Ended apps are not kept for so "
            f"long; an earlier moment (`--at {past.position.split('.')[0]}`) shows more."
        )
    refusal = witness.refusal
    assert refusal is not None
    return f"{name} was refused at {refusal.position} ({moment(refusal.time)}): {refusal.reason}."


def paragraph(state: State, app: App, explanation: Explanation) -> str:
    """Describe an app that the state holds."""
    if app.ended:
        sentences = [_ending(app, explanation)]
    else:
        sentences = [
            _size(state, app, explanation),
            *_why_not_more(app, explanation),
            *_paused(state, explanation),
            *_by_plan(app, explanation),
            *_on_its_way(state, app),
            *_delayed(app, explanation),
            *_around_nodes(state, app, explanation),
        ]
    sentences += _cost(app, explanation)
    doubt = doubt_shown(app)
    if doubt is not None:
        advice = f" ({doubt['advice']})" if doubt["advice"] else ""
        sentences.append(f"Its checkpoint is doubtful: {doubt['text']}{advice}.")
    refusal = explanation.refusal
    if refusal is not None:
        what = "An update" if refusal.refused == "update" else "A later submission of this name"
        sentences.append(f"{what} was refused at {refusal.position}: {refusal.reason}.")
    return "  ".join(sentences)


def _ending(app: App, explanation: Explanation) -> str:
    why = f": {app.end_reason}" if app.end_reason else ""
    return f"{app.name} {app.ended} at {moment(app.ended_at)}, {_ago(app.ended_at, explanation)}{why}."


def _ago(time: int, explanation: Explanation) -> str:
    return f"{span(max(0, explanation.at - time) / SECOND)} ago"


def _size(state: State, app: App, explanation: Explanation) -> str:
    share = ""
    if explanation.fair_share is not None and explanation.share is not None and explanation.dominant:
        share = (
            f"; that is {_part(explanation.share)} of all {explanation.dominant}, and a perfectly fair cluster would give it "
            f"{_part(explanation.fair_share)}"
        )
    if explanation.containers == 0:
        since = explanation.waiting_since or app.accepted_at
        return (
            f"{app.name} is {app.phase} and has had no containers for {span(max(0, explanation.at - since) / SECOND)}; "
            f"it needs at least {explanation.n_min} and can use {explanation.n_max}{share}."
        )
    places = ", ".join(_place(state, node, count) for node, count in explanation.nodes.items())
    of = "all" if explanation.containers == explanation.n_max else f"{explanation.containers} of at most"
    return f"{app.name} is {app.phase} with {of} {containers(explanation.n_max)}, on {places}{share}."


def _part(share: float) -> str:
    return f"{share * 100:.3g}%"


def _place(state: State, node: str, count: int) -> str:
    known = state.nodes.get(node)
    if known is None or known.takes_new:
        return f"{node} ({count})"
    if known.condition != "up":
        return f"{node} ({count}, {known.condition})"
    return f"{node} ({count}, {known.shown if known.shown in ('unfit', 'suspect') else 'drained'})"


def _why_not_more(app: App, explanation: Explanation) -> list[str]:
    decision, reason = explanation.decision, explanation.reason
    by = f"decision {decision.position} ({_ago(decision.time, explanation)})" if decision else ""
    if app.retry_at:
        why = f": {reason.text}" if reason else ""
        return [f"It failed{why}.  It is retried at {moment(app.retry_at)}."]
    if reason is not None and closed_gates(app, explanation.at) is not None:
        return [_gated(app, reason, explanation)]
    if reason is None:
        if explanation.containers >= explanation.n_max:
            return []
        return [
            f"The last one, {by}, gave no reason; the next one considers it." if by else "There is no decision yet."
        ]
    have = "is below its n_max" if explanation.containers else "waits"
    since = f"first given {_ago(reason.since, explanation)}, and last by {by}"
    return [f"It {have} because {reason.text} ({reason.code}).  This reason was {since}."]


def _gated(app: App, reason: Why, explanation: Explanation) -> str:
    """Describe an app that may not run, even if there is room."""
    is_held = reason.code == "hold"
    since = f"for {span(max(0, explanation.at - reason.since) / SECOND)} now"
    text = f"It {'is ' if is_held else ''}{reason.text} ({reason.code}), {since}"
    text += f"; `dorm release {app.name}` ends that." if is_held else "."
    return text + ("  It gives its containers back." if explanation.containers else "")


def _paused(state: State, explanation: Explanation) -> list[str]:
    pause = state.paused
    if pause is None or explanation.containers >= explanation.n_max:
        return []
    text = paused(pause)
    return [f"{text[0].upper()}{text[1:]}."]


def _by_plan(app: App, explanation: Explanation) -> list[str]:
    if app.plan is None:
        return []
    to_come = [slot for slot in app.plan.slots if slot.at > explanation.at]
    changes = [f"{sum(slot.containers.values())} from {moment(slot.at)}" for slot in to_come[:-1][:MOST_CHANGES]]
    more = len(to_come) - 1 - len(changes)
    steps = f"It has {', '.join(changes)}{f', and {more} more changes' if more > 0 else ''}.  " if changes else ""
    return [
        f"Its plan, made at {app.plan.seq} ({_ago(app.plan.at, explanation)}), is done at {moment(app.plan.slots[-1].at)}: "
        f"worth {app.plan.worth:.3g} at a cost of {app.plan.cost:.3g}.  {steps}".rstrip()
    ]


def _delayed(app: App, explanation: Explanation) -> list[str]:
    text = delay_shown(app, explanation.at)
    return [f"It is delayed: {text}."] if text else []


def _on_its_way(state: State, app: App) -> list[str]:
    current = app.current
    if current is not None and current.change is not None:
        return [_changing(current.change, len(current.planned))]
    if current is None or current.started_at:
        return []
    size = containers(len(current.containers))
    if current.released:
        return [f"{current.running} of {size} have started."]
    left = [c for g in app.generations.values() if g is not current and g.released for c in g.containers.values()]
    running = [c for c in left if c.state != "exited"]
    if running and current.preparing and state.time < current.prepare_until:
        nodes = ", ".join(current.preparing)
        return [
            f"It gets {size}, and works on until {nodes} prepared them, at most until {moment(current.prepare_until)}."
        ]
    if running:
        lost = sorted({c.node for c in running if c.node in state.nodes and state.nodes[c.node].condition == "lost"})
        unheard = f"; {', '.join(lost)} is not heard, so its lease must end first" if lost else ""
        return [f"It gets {size} as soon as {len(running)} of the previous {len(left)} have stopped{unheard}."]
    return [f"Its {size} start as soon as their room is free."]


def _around_nodes(state: State, app: App, explanation: Explanation) -> list[str]:
    """Describe which nodes the app avoids, and whether it stays as it is because a node of it is suspect."""
    sentences = (
        [f"It avoids {text}, because it failed there."] if (text := avoiding(state, app, explanation.at)) else []
    )
    if app.current is not None and keeps(state, app, app.current):
        suspect = [
            node for node in app.current.by_node() if node in state.nodes and state.nodes[node].suspect is not None
        ]
        sentences.append(f"It is not resized while {', '.join(sorted(suspect))} is suspect.")
    return sentences


def _changing(change: LiveChange, count: int) -> str:
    if not change.released_at:
        return f"It is resized live to {containers(count)} as soon as their room is free, and trains on meanwhile."
    started = sum(1 for newcomer in change.newcomers.values() if newcomer.state == "running")
    joining = f"; {started} of {len(change.newcomers)} newcomers have started" if change.newcomers else ""
    return f"It is resized live to {containers(count)}, as membership {change.membership}{joining}."


def _cost(app: App, explanation: Explanation) -> list[str]:
    if not explanation.history:
        return []
    last = explanation.history[-1]
    if last["live"]:
        paused = f"{last['pause_s'] * 1e3:.3g} ms"
        return [f"Its last adjustment ({containers(last['containers'])}) was live: it paused for {paused}."]
    total = f"took {span(last['total_s'])}" if last["total_s"] is not None else "has not ended yet"
    lost = last["lost_steps"]
    redone = f", and {lost} step{' was' if lost == 1 else 's were'} repeated" if lost else ", and no work was lost"
    if not app.step and app.checkpoint is None:
        redone = "; whether work was lost is unknown, since it reports no progress"
    if explanation.last_change is not None and explanation.last_change.lost_s:
        lost_s = span(explanation.last_change.lost_s)
        redone = f"; it restarted from the beginning, since it had reported no checkpoint: {lost_s} of work lost"
    cut = f"; {last['killed']} had to be killed at the end of the grace time" if last["killed"] else ""
    return [f"Its last adjustment ({containers(last['containers'])}) {total}{redone}{cut}."]
