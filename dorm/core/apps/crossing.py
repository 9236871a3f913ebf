"""Live changes that would wait for each other's room without end.

A member of a live app leaves when the app trains without it, and where it moves, its successor has to train first.  So
two apps that each move into the other's room would both keep what they have, and neither could be changed again.  One of
them is restarted instead: a restart frees its room first.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dorm.core.state import State
    from events.kinds import Resize


def crossing(state: State, changes: list[Resize]) -> str | None:
    """Return a live app of these changes that moves into room which others leave only once its own is free: all of them
    would wait forever, because members leave only once their successors train.  A restart of it frees its room first.
    None if every change comes to its end."""
    moves = _moves(state, changes)
    decided = {change.app for change in changes if change.adjustment == "live"}
    if len(moves) < 2 or not decided & moves.keys():
        return None
    free = _free(state, {change.app: change for change in changes}, moves)
    while moves:
        app_id = next((app_id for app_id, move in sorted(moves.items()) if _has_room(free, move)), None)
        if app_id is None:
            stuck = decided & moves.keys()
            return min(stuck, key=lambda app_id: (sum(moves[app_id].joining.values()), app_id)) if stuck else None
        move = moves.pop(app_id)
        for nodes, amounts, sign in ((move.joining, move.takes, -1), (move.leaving, move.gives, 1)):
            for node, count in nodes.items():
                for kind, amount in amounts.items() if node in free else ():
                    free[node][kind] += sign * count * amount
    return None


def _free(state: State, changes: Mapping[str, Resize], moves: Collection[str]) -> dict[str, Counter[str]]:
    """Return the free room on each node once all members have left that wait for no room."""
    free = {node.id: Counter(node.capacity) for node in state.nodes.values()}
    for app in state.live_apps():
        generation, change = app.current, changes.get(app.id)
        if generation is None or not generation.released or app.cancel_requested:
            continue
        if change is not None and change.adjustment != "live":
            continue
        stay = None if change is None or app.id in moves else {placed.slot for placed in change.placement}
        for slot, one in generation.containers.items():
            if one.state != "exited" and one.node in free and (stay is None or slot in stay):
                free[one.node].subtract(app.needs(generation))
    return free


class _Move(NamedTuple):
    """A live change with newcomers and leavers: how many on each node, and what each takes and gives back."""

    joining: Counter[str]
    takes: Mapping[str, int]
    leaving: Counter[str]
    gives: Mapping[str, int]


def _moves(state: State, changes: list[Resize]) -> dict[str, _Move]:
    """Return the live changes that wait for room and keep some, of this decision and of earlier ones, by app."""
    found = {}
    by_app = {change.app: change for change in changes}
    for app in state.live_apps():
        generation, change = app.current, by_app.get(app.id)
        if generation is None or app.spec.elastic != "live":
            continue
        if change is not None and change.adjustment == "live":
            joining = Counter(one.node for one in change.placement if one.slot not in generation.containers)
            stay = {one.slot for one in change.placement}
        elif change is None and generation.change is not None and not generation.change.released_at:
            joining = Counter(one.node for one in generation.change.newcomers.values())
            stay = set(generation.change.stay)
        else:
            continue
        leaving = Counter(
            one.node for slot, one in generation.containers.items() if slot not in stay and one.state != "exited"
        )
        if joining and leaving:
            found[app.id] = _Move(joining, app.demand, leaving, app.needs(generation))
    return found


def _has_room(free: Mapping[str, Mapping[str, int]], move: _Move) -> bool:
    return all(
        free[node].get(kind, 0) >= amount * count
        for node, count in move.joining.items()
        if node in free
        for kind, amount in move.takes.items()
    )
