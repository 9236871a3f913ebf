"""From a state to one decision: the problem for the policy, its answer, and the plan of slots and ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import scipy

from dorm.core.bounds import bounds, takes_free_room_only
from dorm.core.costs import adjust_s
from dorm.core.policies import policy
from dorm.core.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.core.state import digest
from dorm.core.timing import SECOND, tick_is_due, trigger
from events.kinds import IdleTicked, Placed, Resize, Resized, Waiting

if TYPE_CHECKING:
    from dorm.core.policies.problem import Policy
    from dorm.core.state import App, Generation, Node, State
    from events.kinds import Adjustment

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
    answer = _answer(chosen, state, problem, params, now)
    changes, without_port = plan(state, problem, answer)
    reasons = _with_held({**_reasons(state, answer), **without_port}, state, problem, answer, now)
    ticks = tick_is_due(state, now)
    news = bool(changes) or _reasons_changed(state, problem, reasons)
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
        facts.append(_resized(answer, changes, reasons, params=params, trigger=trigger(state, now), **basis))
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
    for app in problem.apps:
        old, new = state.apps[app.id].waiting, reasons.get(app.id)
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
                n_max=may_have.n_max,
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


def plan(state: State, problem: Problem, answer: Allocation) -> tuple[list[Resize], dict[str, Waiting]]:
    """Slots and ports for every app whose containers change, and reasons where no port was left.

    Slots stay with their node where they can; new ones take the lowest free numbers.  Ports go round each node's range
    and skip those of generations that may still run, so a generation's ports are its own.
    """
    ports = _Ports(state)
    changes: list[Resize] = []
    without_port: dict[str, Waiting] = {}
    for demand in sorted(problem.apps, key=lambda app: app.id):
        wanted = answer.counts.get(demand.id, {})
        if demand.pinned or wanted == demand.current:
            continue
        app = state.apps[demand.id]
        given = ports.place(state.nodes, _slots(app.current, wanted))
        if given is None:
            without_port[app.id] = Waiting(code="ports", text="a node has no free port left in its range")
            continue
        placement, master_port = given
        changes.append(
            Resize(
                app=app.id,
                from_generation=app.generation,
                to_generation=app.generation + 1,
                placement=placement,
                adjustment=_adjustment(demand, wanted),
                master_port=master_port,
            )
        )
    return _with_room(problem, answer, changes, without_port), without_port


def _with_room(
    problem: Problem, answer: Allocation, changes: list[Resize], without_port: dict[str, Waiting]
) -> list[Resize]:
    """The changes that still fit together when some app has to stay where it is for want of a port: its room was
    counted on by others, who would stop and then wait for it in vain."""
    if not without_port:
        return changes
    changing = {change.app for change in changes}
    while True:
        free = {node.id: dict(node.capacity) for node in problem.nodes}
        for app in problem.apps:
            for node, count in (answer.counts.get(app.id, {}) if app.id in changing else app.current).items():
                for name, amount in app.demand.items():
                    if node in free:
                        free[node][name] = free[node].get(name, 0) - amount * count
        full = [node for node, room in free.items() if min(room.values(), default=0) < 0]
        grows = [
            app.id
            for app in problem.apps
            if app.id in changing
            and any(answer.counts[app.id].get(node, 0) > app.current.get(node, 0) for node in full)
        ]
        if not grows:
            return [change for change in changes if change.app in changing]
        for app_id in grows:
            changing.discard(app_id)
            without_port[app_id] = Waiting(
                code="ports", text="another app can't make room: a node has no free port left"
            )


def _adjustment(demand: AppDemand, wanted: dict[str, int]) -> Adjustment:
    if not wanted:
        return "stop"
    return "restart" if demand.current else "start"


def _slots(current: Generation | None, wanted: dict[str, int]) -> list[tuple[int, str]]:
    """(slot, node) for each container, by slot."""
    kept: list[tuple[int, str]] = []
    left = dict(wanted)
    for slot, container in sorted(current.containers.items()) if current else []:
        if left.get(container.node, 0) > 0:
            left[container.node] -= 1
            kept.append((slot, container.node))
    used = {slot for slot, _ in kept}
    free = (slot for slot in range(sum(wanted.values()) + len(used) + 1) if slot not in used)
    new = [(next(free), node) for node in sorted(left) for _ in range(left[node])]
    return sorted(kept + new)


class _Ports:
    """Which ports may be given away in this decision: by address, which several nodes may share."""

    def __init__(self, state: State) -> None:
        self._taken: dict[str, set[int]] = {}
        self._cursor = {node.id: node.port_cursor for node in state.nodes.values()}
        for app in state.apps.values():
            for generation in app.generations.values():
                if not generation.void and not (generation.released and generation.ended):
                    self._note(generation)

    def _note(self, generation: Generation) -> None:
        first = True
        for container in generation.containers.values():
            ports = self._taken.setdefault(container.address, set())
            ports.add(container.port)
            if first and generation.master_port:
                ports.add(generation.master_port)
            first = False

    def _take(self, node: Node) -> int | None:
        """The next free port of this node after the last one given away; None when all are in use."""
        low, high = node.ports
        size = high - low + 1
        taken = self._taken.setdefault(node.address, set())
        start = self._cursor[node.id]
        start = start if low <= start <= high else high
        for step in range(1, size + 1):
            port = low + (start - low + step) % size
            if port not in taken:
                taken.add(port)
                self._cursor[node.id] = port
                return port
        return None

    def place(self, nodes: dict[str, Node], slots: list[tuple[int, str]]) -> tuple[list[Placed], int] | None:
        """A port for each slot and one for the rendezvous on the first slot's node (0 without slots); None where one
        of them can't be had."""
        placement = []
        for slot, node in slots:
            port = self._take(nodes[node])
            if port is None:
                return None
            placement.append(Placed(slot=slot, node=node, address=nodes[node].address, port=port))
        master_port = self._take(nodes[placement[0].node]) if placement else 0
        return None if master_port is None else (placement, master_port)
