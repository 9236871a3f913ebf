"""Consequences for an app that is resized while it runs: its members' releases, their ends, and what became of each
change.

Pure, like all decisions.  `dorm.core.fold.membership` folds these facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core import deadlines
from dorm.core.apps import failures
from dorm.core.apps.faults import Fault
from dorm.core.decide.placement import restarted
from events.kinds import (
    AppFailed,
    LiveResizeFailed,
    MembershipCommitted,
    MembersLost,
    MembersReleased,
    Placed,
    Resize,
)
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import App, Container, Generation, LiveChange, State
    from events.kinds import GenerationFailed


def committed(app: App, generation: Generation) -> list[MembershipCommitted]:
    """Tell agents of a membership that trains."""
    if not generation.untold:
        return []
    return [MembershipCommitted(app=app.id, generation=generation.number, membership=generation.untold)]


# --- releases -----------------------------------------------------------------------------------------------------------


def to_release(state: State, app: App) -> LiveChange | None:
    """Return the change that waits only for room: no member failed, and every member is informed."""
    current = app.current
    change = current.change if current is not None and current.released else None
    if current is None or change is None or change.released_at or _dead(current):
        return None
    stays = (current.containers[slot].node for slot in change.stay if slot in current.containers)
    heard = all(node in state.nodes and state.nodes[node].condition == "up" for node in stays)
    return change if heard else None


def release(state: State, app: App, generation: Generation, change: LiveChange, now: int) -> MembersReleased:
    return MembersReleased(
        app=app.id,
        generation=generation.number,
        membership=change.membership,
        members=_placed(generation.planned.values()),
        newcomers=sorted(change.newcomers),
        leavers=sorted(slot for slot in generation.containers if slot not in change.stay),
        wait_s=max(0, now - change.decided_at) / SECOND,
        checkpoints=state.checkpoints,
    )


def _placed(containers: Iterable[Container]) -> list[Placed]:
    members = sorted(containers, key=lambda one: one.slot)
    return [Placed(slot=one.slot, node=one.node, address=one.address, port=one.port) for one in members]


# --- ends ---------------------------------------------------------------------------------------------------------------


def members_lost(state: State, app: App, generation: Generation, now: int) -> MembersLost | AppFailed | None:
    """Return the facts that follow from members that ended without a request, if the app can continue without them;
    None if there are none, or too few members are left."""
    dead = _dead(generation)
    if app.spec.elastic != "live" or not dead or not generation.started_at:
        return None
    joining = not any(slot in generation.containers for slot in dead)
    least = max(1, app.n_min)
    keep = _whole_gangs(app, [one for one in _target(generation) if one.slot not in dead and one.state != "exited"])
    if _training(generation, keep) < least and joining:
        # A move whose new members died: no member has left yet, so the members stay as they are.
        keep = _whole_gangs(app, [one for _, one in sorted(generation.containers.items()) if one.state != "exited"])
    if _training(generation, keep) < least:
        return None
    slots = {one.slot for one in keep}
    found = _fault(state, generation)
    follows = failures.consequence(state, app, generation, found, now)
    if isinstance(follows, AppFailed) and not joining:
        return follows
    leave = (
        s for s, one in generation.containers.items() if s not in slots and s not in dead and one.state != "exited"
    )
    return MembersLost(
        app=app.id,
        generation=generation.number,
        membership=generation.announced + 1,
        members=_placed(keep),
        lost=dead,
        leavers=sorted(leave),
        reason=found.reason,
        failure=found.failure,
        node=found.node,
        fault=follows.fault,
        **_cost(app, follows, now, joining=joining),
    )


def _training(generation: Generation, keep: list[Container]) -> int:
    """How many of these are members that run."""
    return sum(one.slot in generation.containers and one.state == "running" for one in keep)


def _cost(app: App, follows: GenerationFailed | AppFailed, now: int, *, joining: bool) -> dict[str, Any]:
    """Return the cost of the failure.  Newcomers that never joined cost no retry, and never end an app whose members
    train: the app stays at the size that works (`dorm.core.sizes`)."""
    if isinstance(follows, AppFailed) or joining:
        return {"counted": False, "resize_at": now + int(app.spec.retries.longest_s * SECOND)}
    return {
        "counted": follows.counted,
        "port": follows.port,
        "retries": follows.retries,
        "limit": follows.limit,
        "anew": follows.anew,
        "resize_at": follows.retry_at,
    }


def _dead(generation: Generation) -> list[int]:
    """Slots of members, and of newcomers that were released, that ended without being done, or are gone for their peers."""
    dead = {*generation.accused, *(one.slot for one in failures.ended_badly(generation))}
    return sorted(dead)


def _target(generation: Generation) -> list[Container]:
    """The membership that was announced last."""
    released = generation.change is not None and generation.change.released_at
    members = generation.planned if released else generation.containers
    return [one for _, one in sorted(members.items())]


def _whole_gangs(app: App, members: list[Container]) -> list[Container]:
    """Of each node, as many as are whole gangs, lowest slots first."""
    gang = max(app.spec.gang, 1)
    by_node: dict[str, list[Container]] = {}
    for one in members:
        by_node.setdefault(one.node, []).append(one)
    return [one for there in by_node.values() for one in there[: len(there) - len(there) % gang]]


def fault(state: State, app: App, generation: Generation, now: int) -> Fault | None:
    """Return the fault that fails the whole generation."""
    dead = _dead(generation) if app.spec.elastic == "live" else []
    return _fault(state, generation) if dead else failures.fault(state, app, generation, now)


def _fault(state: State, generation: Generation) -> Fault:
    ended = failures.ended_badly(generation)
    if ended and not (generation.accused and all(one.follows_another for one in ended)):
        return failures.fault_of(state, generation, ended)
    slot = generation.accused[0]
    container = generation.containers[slot]
    node = state.nodes.get(container.node)
    heard = node is not None and node.condition == "up"
    reason = f"slot {slot} on {container.node} does not answer its peers"
    ran_s = max(0, state.time - container.started_at) / SECOND
    return Fault("stalled" if heard else "lost", reason, state.time, node=container.node, ran_s=ran_s)


# --- deadlines ----------------------------------------------------------------------------------------------------------


def missed(state: State, app: App, generation: Generation, now: int) -> LiveResizeFailed | None:
    """Return the restart of an app whose announced membership does not train by now."""
    due, change = deadlines.live_due_at(state, app), generation.change
    if due is None or due > now or change is None or generation is not app.current:
        return None
    target = [one for one in _target(generation) if one.state != "exited" and _usable(state, one)]
    keep = _whole_gangs(app, target)
    given = restarted(state, app, [(one.slot, one.node) for one in keep]) if len(keep) >= app.n_min else None
    placement, master_port = given or ([], 0)
    limit = app.spec.deadlines.live
    allowed = limit if isinstance(limit, str) else f"{limit:g} s"
    return LiveResizeFailed(
        app=app.id,
        generation=generation.number,
        membership=change.membership,
        reason=f"membership {change.membership} did not train within {allowed} of its announcement",
        restart=Resize(
            app=app.id,
            from_generation=generation.number,
            to_generation=generation.number + 1,
            placement=placement,
            adjustment="restart" if placement else "stop",
            master_port=master_port,
            why="missed_deadline",
        ),
    )


def _usable(state: State, container: Container) -> bool:
    node = state.nodes.get(container.node)
    return node is not None and node.usable
