"""From a state to one decision: poses the policy's problem and records its answer; `placement` assigns slots and ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import scipy

from dorm.core.asking import answered, ask, question, reasons_in_words
from dorm.core.batches import batches_of
from dorm.core.gates import stops
from dorm.core.placement import arrange, with_ports
from dorm.core.policy_in_force import in_force
from dorm.core.promises import promises
from dorm.core.resizable import undone_s
from dorm.core.round_size import (
    LARGEST_REST,
    PUT_OFF,
    UNSAID,
    changes_that_fit,
    reasons_that_fit,
    shortage_that_fits,
    size,
)
from dorm.core.sizes import bounds
from dorm.core.state import digest
from dorm.core.timing import tick_is_due, trigger
from dorm.policies.problem import PolicyFailure
from dorm.policies.registry import built_in, version_of
from events.kinds import AppPlanned, IdleTicked, PolicyFailed, Resize, Resized, Waiting
from events.limits import LARGEST_FACTS, clipped

if TYPE_CHECKING:
    from collections.abc import Collection

    from dorm.core.asking import Question
    from dorm.core.placement import Arranged
    from dorm.core.state import State
    from dorm.policies.problem import Allocation, Policy, Problem

TOO_SLOW = "policy.too_slow"
FAILED = "failed"
"""The status of an idle tick whose policy failed."""
SOLVER = f"scipy {scipy.__version__}"

Decided = IdleTicked | PolicyFailed | Resized | AppPlanned


def allocate_now(state: State, now: int) -> list[Decided]:
    """Run the policy in force.

    Return a `Resized` if anything changes, places, reasons or plans, and the new plans after it; before it an
    `IdleTicked` if this is an idle tick, which is recorded even if it changes nothing: no further tick is due then.
    A failing policy changes nothing either, which is recorded unless the log already says so. A policy that took too
    long is asked only on ticks: nothing else is published while it computes, so it must not be asked after each
    event. While scheduling is paused, nothing is decided.
    """
    if state.paused or _waits_for_a_tick(state, now):
        return []
    try:
        return _allocate(state, now)
    except PolicyFailure as failure:
        return _failed(state, now, failure)


def gave_up(state: State, now: int, why: str) -> list[Decided]:
    """Return what follows if the caller waits no longer for `allocate_now`: the policy took too long."""
    return (
        [] if state.paused or _waits_for_a_tick(state, now) else _failed(state, now, PolicyFailure(why, code=TOO_SLOW))
    )


def _waits_for_a_tick(state: State, now: int) -> bool:
    failed = state.policy_failure
    return failed is not None and failed.code == TOO_SLOW and not tick_is_due(state, now)


def _failed(state: State, now: int, failure: PolicyFailure) -> list[Decided]:
    name = state.settings.policy
    known = state.plugins.get(name)
    version, plugin = (known.version, known.plugin) if known is not None else (0, "")
    if built_in(name):
        version = version_of(name) or 0
    before = state.policy_failure
    known_already = before is not None and (before.policy, before.code) == (name, failure.code)
    ticks = tick_is_due(state, now)
    if known_already and not ticks:
        return []
    basis: dict[str, Any] = {"policy": name, "policy_version": version, "plugin": plugin, "digest": digest(state)}
    reason = clipped(" ".join(str(failure).split()))
    failed = PolicyFailed(code=failure.code, reason=reason, trigger=trigger(state, now), **basis)
    return [IdleTicked(solver=SOLVER, status=FAILED, **basis), failed] if ticks else [failed]


def _allocate(state: State, now: int) -> list[Decided]:
    settings = state.settings
    chosen = in_force(state)
    params = chosen.check_params(settings.params)
    stopped = stops(state, now)
    question_asked, (answer, planned, without_port) = _answered(
        chosen, state, params, [change.app for change in stopped.changes], now
    )
    problem = question_asked.decided
    plans, without_plan = promises(problem, answer)
    possible = [change for change in planned if change.app not in without_plan]
    by_answer = changes_that_fit(problem, answer, possible, reserved=stopped.size)
    fitting = {change.app for change in by_answer}
    changes = [_priced(state, change, now) for change in (*stopped.changes, *by_answer)]
    put_off = {change.app: PUT_OFF for change in planned if change.app not in fitting}
    in_words = {**reasons_in_words(state, question_asked, answer), **without_port, **put_off}
    reasons = _with_held(in_words, state, problem, answer, now)
    room = LARGEST_FACTS - LARGEST_REST - sum(map(size, changes)) - sum(map(size, plans))
    in_turn = [app.id for app in problem.apps]
    stated, complete = reasons_that_fit(reasons, in_turn, room - room // 4)
    batches = batches_of(state, problem, answer, fitting)
    ticks = tick_is_due(state, now)
    news = (
        bool(changes or plans or batches)
        or _reasons_changed(state, problem, complete)
        or state.policy_failure is not None
    )
    if not ticks and not news:
        return []
    basis: dict[str, Any] = {
        "policy": chosen.name,
        "policy_version": chosen.version,
        "solver": SOLVER,
        "status": answer.status,
        "digest": digest(state),
        "plugin": chosen.plugin,
    }
    facts: list[Decided] = [IdleTicked(**basis)] if ticks else []
    if news:
        decided = _resized(answer, changes, stated, params=params, trigger=trigger(state, now), **basis)
        short = shortage_that_fits(answer.shortage, in_turn, room // 4)
        facts.append(
            msgspec.structs.replace(
                decided,
                shortage=short,
                unsaid=len(complete) - len(stated),
                put_off=len(put_off) + stopped.put_off,
                batches=batches,
            )
        )
        facts += plans
    return facts


def _answered(
    chosen: Policy, state: State, params: dict[str, Any], stopped: list[str], now: int
) -> tuple[Question, Arranged]:
    """Ask the policy.  If it finds no place for an app that is to be tried on a suspect node, ask again with that app as any
    other: it must not wait for that node alone."""
    query, arranged = _answered_at_once(chosen, state, params, stopped, now)
    placed = {change.app for change in arranged[1] if change.placement}
    left = [app_id for app_id in query.where.probes.values() if app_id not in placed]
    return _answered_at_once(chosen, state, params, stopped, now, left) if left else (query, arranged)


def _answered_at_once(
    chosen: Policy,
    state: State,
    params: dict[str, Any],
    stopped: list[str],
    now: int,
    passed_over: Collection[str] = (),
) -> tuple[Question, Arranged]:
    """Ask the policy; again, with less that is kept whole, if that leaves an app short and another answer helps it."""

    query = question(state, now, passed_over)

    def answer_to(problem: Problem) -> Arranged:
        return arrange(
            state,
            with_ports(state, problem),
            lambda within: ask(chosen, state, query, within, params, now),
            kept=query.kept,
            stopped=stopped,
        )

    problem, arranged = answered(state, query.problem, query.whole, now, answer_to)
    return query._replace(problem=problem), arranged


def _priced(state: State, change: Resize, now: int) -> Resize:
    """Return a change of an app that has reported no checkpoint with the work that it undoes."""
    lost_s = undone_s(state.apps[change.app], now) if change.adjustment in ("restart", "stop") else 0.0
    return msgspec.structs.replace(change, lost_s=lost_s) if lost_s else change


def _resized(answer: Allocation, changes: list[Resize], reasons: dict[str, Waiting], **fields: Any) -> Resized:
    return Resized(
        changes=changes,
        reasons=reasons,
        utilization=answer.utilization,
        fairness_loss=answer.fairness_loss,
        fairness_budget=answer.fairness_budget,
        excess=answer.excess,
        overhead=answer.overhead,
        overhead_budget=answer.overhead_budget,
        bound=answer.bound,
        change_cost=answer.change_cost,
        shortage=answer.shortage,
        **fields,
    )


def _with_held(
    reasons: dict[str, Waiting], state: State, problem: Problem, answer: Allocation, now: int
) -> dict[str, Waiting]:
    """Add the reason if an app gets less than its owner allows, or waits, because of its earlier failures or because
    it asked for less."""
    complete = dict(reasons)
    for demand in problem.apps:
        app = state.apps[demand.id]
        given = None if demand.pinned else bounds(app, now)
        why = "; ".join(cause for cause in (given.why, given.request) if cause) if given is not None else ""
        if given is None or not why or sum(answer.counts.get(app.id, {}).values()) >= app.n_max:
            continue
        reason = reasons.get(app.id)
        complete[app.id] = (
            Waiting(code="held" if given.why else "asked", text=why)
            if reason is None
            else Waiting(code=reason.code, text=f"{reason.text} ({why})")
        )
    return dict(sorted(complete.items()))


def _reasons_changed(state: State, problem: Problem, reasons: dict[str, Waiting]) -> bool:
    """Return whether an owner would read something new.  Only the code counts: figures in the text change all the time."""
    some_unsaid = UNSAID in reasons.values()
    for app in problem.apps:
        old, new = state.apps[app.id].waiting, reasons.get(app.id)
        if some_unsaid and new is None and old == UNSAID:
            continue  # The fold can't distinguish it from apps whose reason is left out.
        if (old.code if old else "") != (new.code if new else ""):
            return True
    return False
