"""Explains an app's containers, at any moment: the state holds the situation, the log the decision behind it.

A `Witness` observes the fold (`replay.travel.travel.state_at(…, seen=witness.see)`) and keeps what the state does not: the
last decision, the last one that changed the app, since when its reason has been the same, refusals, and ends of apps that have
left the state.  `explain` combines that with the state.  Void rounds are not decisions and are skipped.

    ExplainError   there is no such app; the message lists similar names
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import name_of
from dorm.core.asking import problem_of
from dorm.core.batches import batch_now
from dorm.core.costs import adjust_s
from dorm.core.gates import closed_gates, closed_since, reason_of
from dorm.core.query.standing import standings
from dorm.core.query.views import adjustment, sizes
from replay import ReplayError
from replay.story.explain_words import paragraph, without_details
from replay.story.explanation import Batch, Change, Decided, Decision, Explanation, Why, Witness
from replay.story.speed import speed_curve

if TYPE_CHECKING:
    from dorm.core.state import App, State

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
    found = [
        submission
        for submission in state.submissions.values()
        if not submission.app and name_of(submission.spec) == wanted
    ]
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
    demand = next((one for one in problem.apps if one.id == app.id), None)
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
    text = paragraph(state, app, found)
    if (cause := found.decided_after) is not None:
        text += f"  What it has was decided after a change of settings: {cause.text} (record {cause.position})."
    if (cause := witness.settings) is not None:
        text += f"  A change of settings disturbed it: {cause.text} (record {cause.position})."
    return msgspec.structs.replace(found, text=text)


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
