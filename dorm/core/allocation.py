"""From a state to one decision: the problem for the policy and its answer; slots and ports are `placement`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import scipy

from dorm.core.bounds import bounds, takes_free_room_only
from dorm.core.costs import adjust_s
from dorm.core.fitting import (
    LARGEST_REST,
    MOST_CONTAINERS,
    PUT_OFF,
    UNSAID,
    changes_that_fit,
    reasons_that_fit,
    shortage_that_fits,
    size,
)
from dorm.core.placement import arrange, with_ports
from dorm.core.policies import policy
from dorm.core.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.core.state import digest
from dorm.core.timing import SECOND, tick_is_due, trigger
from events.kinds import IdleTicked, Resize, Resized, Waiting
from events.limits import LARGEST_FACTS

if TYPE_CHECKING:
    from dorm.core.policies.problem import Policy
    from dorm.core.state import App, Generation, State

SOLVER = f"scipy {scipy.__version__}"


def allocate_now(state: State, now: int) -> list[IdleTicked | Resized]:
    """Ask the policy in force.

    A `Resized` where anything changes, places or reasons; before it an `IdleTicked` where the allocation is looked at again
    though nothing had happened, which is said even if nothing came of it: no further look is due then.
    """
    settings = state.settings
    chosen = policy(settings.policy)
    params = chosen.check_params(settings.params)
    problem = problem_of(state, now)
    answer, planned, without_port = arrange(
        state, with_ports(state, problem), lambda asked: _answer(chosen, state, asked, params, now)
    )
    changes = changes_that_fit(problem, answer, planned)
    fitting = {change.app for change in changes}
    put_off = {change.app: PUT_OFF for change in planned if change.app not in fitting}
    reasons = _with_held({**_reasons(state, answer), **without_port, **put_off}, state, problem, answer, now)
    room = LARGEST_FACTS - LARGEST_REST - sum(map(size, changes))
    in_turn = [app.id for app in problem.apps]
    said, meant = reasons_that_fit(reasons, in_turn, room - room // 4)
    ticks = tick_is_due(state, now)
    news = bool(changes) or _reasons_changed(state, problem, meant)
    if not ticks and not news:
        return []
    basis: dict[str, Any] = {
        "policy": chosen.name,
        "policy_version": chosen.version,
        "solver": SOLVER,
        "status": answer.status,
        "digest": digest(state),
    }
    facts: list[IdleTicked | Resized] = [IdleTicked(**basis)] if ticks else []
    if news:
        decided = _resized(answer, changes, said, params=params, trigger=trigger(state, now), **basis)
        short = shortage_that_fits(answer.shortage, in_turn, room // 4)
        facts.append(
            msgspec.structs.replace(decided, shortage=short, unsaid=len(meant) - len(said), put_off=len(put_off))
        )
    return facts


def _answer(chosen: Policy, state: State, problem: Problem, params: dict[str, Any], now: int) -> Allocation:
    """The policy's, in which no running app is resized for one that fails again and again: where that would have to be,
    those are left out."""
    answer = chosen.allocate(problem, params)
    looping = {app.id for app in problem.apps if takes_free_room_only(state.apps[app.id], now)}
    if answer.overhead and any(answer.counts.get(app_id) for app_id in sorted(looping)):
        others = tuple(app for app in problem.apps if app.id not in looping)
        return chosen.allocate(msgspec.structs.replace(problem, apps=others), params)
    return answer


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


def _reasons(state: State, answer: Allocation) -> dict[str, Waiting]:
    """By app.  One in the middle of an adjustment keeps the reason it had, so that its going through the phases is no news
    and the log gets a decision only where there is some."""
    reasons: dict[str, Waiting] = {}
    for app, reason in sorted(answer.reasons.items()):
        before = state.apps[app].waiting
        if reason.code != "adjusting":
            reasons[app] = Waiting(code=reason.code, text=reason.text)
        elif before is not None:
            reasons[app] = before
    return reasons


def _with_held(
    reasons: dict[str, Waiting], state: State, problem: Problem, answer: Allocation, now: int
) -> dict[str, Waiting]:
    """Where an app is given less than its owner allows, or waits, because of what it has shown: that as well."""
    found = dict(reasons)
    for demand in problem.apps:
        app = state.apps[demand.id]
        why = "" if demand.pinned else bounds(app, now).why
        if not why or sum(answer.counts.get(app.id, {}).values()) >= app.n_max:
            continue
        reason = reasons.get(app.id)
        found[app.id] = (
            Waiting(code="held", text=why)
            if reason is None
            else Waiting(code=reason.code, text=f"{reason.text} ({why})")
        )
    return dict(sorted(found.items()))


def _reasons_changed(state: State, problem: Problem, reasons: dict[str, Waiting]) -> bool:
    """Whether an owner would read something new.  Only the code counts: figures in the text move all the time."""
    some_unsaid = UNSAID in reasons.values()
    for app in problem.apps:
        old, new = state.apps[app.id].waiting, reasons.get(app.id)
        if some_unsaid and new is None and old == UNSAID:
            continue  # The fold can't tell it from those whose reason is left out.
        if (old.code if old else "") != (new.code if new else ""):
            return True
    return False


def problem_of(state: State, now: int) -> Problem:
    """Nodes that are up (those that are drained are marked, so that reasons can name them), and every live app that may
    hold containers now.

    An app is pinned while an adjustment of it is under way, while a part of it has ended, and while one of its nodes is
    lost: unreachable is not failed, so nothing of it is moved before the node's lease has ended.
    """
    apps = []
    for app in state.live_apps():
        if app.cancel_requested or app.retry_at > now:
            continue
        current = app.current
        if current is None and any(g.failed and not g.ended for g in app.generations.values()):
            continue
        may_have = bounds(app, now)
        apps.append(
            AppDemand(
                id=app.id,
                demand=app.demand,
                weight=app.weight,
                n_min=may_have.n_min,
                n_max=min(may_have.n_max, MOST_CONTAINERS - MOST_CONTAINERS % app.spec.gang),
                current=current.by_node() if current else {},
                pinned=current is not None and not (app.settled and _nodes_heard(state, current)),
                require=app.spec.require,
                placement=app.spec.placement,
                gang=app.spec.gang,
                waited_s=_waited_s(app, now),
                adjust_s=adjust_s(app),
                served_s=app.served_until(now) / SECOND,
                remaining_steps=float(max(0, app.spec.steps - app.step)) if app.spec.steps else None,
                speed=tuple(app.spec.speed),
            )
        )
    nodes = tuple(
        NodeRoom(
            id=node.id,
            capacity=node.capacity,
            labels=node.labels,
            drained=bool(node.draining) or node.foreign,
            unmounted=node.foreign,
        )
        for node in sorted(state.nodes.values(), key=lambda node: node.id)
        if node.condition == "up"
    )
    return Problem(nodes=nodes, apps=tuple(apps))


def _waited_s(app: App, now: int) -> float:
    """How long nothing has been released to it, in whole seconds; 0 while it has a place."""
    if app.current is not None or not app.waiting_since:
        return 0.0
    return float(max(0, now - app.waiting_since) // SECOND)


def _nodes_heard(state: State, generation: Generation) -> bool:
    return all(
        (node := state.nodes.get(container.node)) is not None and node.condition != "lost"
        for container in generation.containers.values()
    )
