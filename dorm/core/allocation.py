"""From a state to one decision: the problem for the policy, its answer, and the plan of slots and ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import scipy

from dorm.core.asking import ask, reasons_in_words
from dorm.core.bounds import bounds
from dorm.core.policies import policy
from dorm.core.state import digest
from dorm.core.timing import tick_is_due, trigger
from events.kinds import IdleTicked, Placed, Resize, Resized, Waiting

if TYPE_CHECKING:
    from dorm.core.policies.problem import Allocation, AppDemand, Problem
    from dorm.core.state import Generation, Node, State
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
    asked = ask(chosen, state, params, now)
    answer = asked.answer
    changes, without_port = plan(state, asked.problem, answer)
    reasons = _with_held({**reasons_in_words(state, asked), **without_port}, state, asked.problem, answer, now)
    ticks = tick_is_due(state, now)
    news = bool(changes) or _reasons_changed(state, asked.problem, reasons)
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
        app = state.apps[demand.id]
        if demand.pinned or wanted == _has(demand):
            continue
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
            for node, count in (answer.counts.get(app.id, {}) if app.id in changing else _has(app)).items():
                for name, amount in app.demand.items():
                    if node in free:
                        free[node][name] = free[node].get(name, 0) - amount * count
        full = [node for node, room in free.items() if min(room.values(), default=0) < 0]
        grows = [
            app.id
            for app in problem.apps
            if app.id in changing and any(answer.counts[app.id].get(node, 0) > _has(app).get(node, 0) for node in full)
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
    return "restart" if _has(demand) else "start"


def _has(demand: AppDemand) -> dict[str, int]:
    """Where its containers are: a claim is none yet."""
    return {} if demand.absent else demand.current


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
