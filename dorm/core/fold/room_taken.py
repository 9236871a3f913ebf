"""Whose room others were resized to use, of the apps in debt that have no place after a failure (`dorm.core.apps.bounds`).

Growing into that room is a restart, and making it again for the next try is another one, so an app gives up its room once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm.core.apps.bounds import in_debt

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from events import kinds as k


class RoomsLeft(NamedTuple):
    """Before a decision."""

    grown: dict[str, None]
    """Nodes on which it gives more containers to apps that run."""
    rooms: dict[str, dict[str, int]]
    """By app, and by node of its last place: how many of its containers could be back there."""


def rooms_left(state: State, event: k.Resized, debtors: list[App]) -> RoomsLeft:
    """Return no rooms if the decision resizes no app that could use one.  `debtors` are all live apps with a debt."""
    grown: dict[str, None] = {}
    for change in event.changes:
        app = state.apps.get(change.app)
        if change.adjustment in ("restart", "live") and app is not None:
            had = app.current.by_node() if app.current is not None else {}
            has: dict[str, int] = {}
            for placed in change.placement:
                has[placed.node] = has.get(placed.node, 0) + 1
            grown.update((node, None) for node, count in has.items() if count > had.get(node, 0))
    places = {}
    for app in debtors if grown else ():
        place = _left(state, app)
        if any(node in grown for node in place):
            places[app.id] = place
    return RoomsLeft(grown, _could_be_back(state, places))


def note_taken(state: State, left: RoomsLeft) -> None:
    """After the decision."""
    for app_id, rooms in _could_be_back(state, left.rooms).items():
        if any(node in left.grown and count < left.rooms[app_id][node] for node, count in rooms.items()):
            state.apps[app_id].room_taken = True


def _left(state: State, app: App) -> dict[str, int]:
    """By node, the place that it left by failing and has not come back to."""
    if app.current is not None or app.room_taken or app.interrupted_at or not in_debt(app, state.time):
        return {}
    last = max((g for g in app.generations.values() if g.released), key=lambda g: g.number, default=None)
    return last.by_node() if last is not None and last.failed else {}


def _could_be_back(state: State, places: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """How much of each app's place is free, as if no other app were to come back."""
    if not places:
        return {}
    free = {node.id: dict(node.capacity) for node in state.nodes.values()}
    for app_id in state.names.values():
        app = state.apps[app_id]
        for node, count in app.current.by_node().items() if app.current is not None else ():
            if node in free:
                for kind, amount in app.demand.items():
                    free[node][kind] = free[node].get(kind, 0) - amount * count
    found: dict[str, dict[str, int]] = {}
    for app_id, place in places.items():
        needs = [(kind, need) for kind, need in state.apps[app_id].demand.items() if need > 0]
        found[app_id] = {
            node: max(0, min([count, *(free[node].get(kind, 0) // need for kind, need in needs)]))
            for node, count in place.items()
            if node in free
        }
    return found
