"""Apps that have no running containers but a claim to a place, as the policy sees them.

    pausing       an app that has failed and is to be tried again within `KEPT_S` (or whenever that is, if others had to
                  make room for it before: `barred`).  Its place counts as held, so that nobody grows into it and shrinks
                  again a moment later.  An app that waits may start there: that restarts nobody
                  One that failed twice without having worked holds nothing: it takes what is free (`dorm.core.sizes`)
    returning     one whose pause has ended: it goes back to its place while that is free, and has no claim after the
                  decision that looks at it
    interrupted   one whose nodes went away, or that was stopped without a request.  It comes back before apps that never ran,
                  to its old place if it can.  Apps that never ran do not start before it for `HOLD_S`, since nodes join one
                  after another; its precedence ends after `FIRST_S`, and from then on it waits like any other app, with its
                  whole wait counted (`patience_s`)

The last two times count from when it was interrupted, or, if all nodes had gone, from when the first of them is back.
A failure of its own ends an app's claim as interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm.core.faults import avoided
from dorm.core.gates import closed
from dorm.core.offers import labels_of, require_of
from dorm.core.sizes import bounds, in_debt
from dorm.policies.matching import satisfies
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import App, Generation, Node, State

KEPT_S = 300
"""About ten restarts of 30 s: in a shorter pause, growing and shrinking again costs more than the room gains."""
HOLD_S = 60
"""Time within which nodes of one cluster that start together have joined."""
FIRST_S = 600
NO_NODE = ""
"""Name that stands for a present node without room left for the containers that ran there; no node has this name."""


class Claim(NamedTuple):
    """The place that an app has a claim to."""

    place: dict[str, int]
    """Containers by node; nodes that are gone among them for an app that was interrupted."""
    n_max: int
    pausing: bool
    """Whether it can't start yet."""
    interrupted: bool


def claims(state: State, now: int) -> dict[str, Claim]:
    """By app, in order of arrival, at `now` (UTC ns).  Places never overlap with each other's or with what runs."""
    asking = [app for app in state.live_apps() if _may_claim(app) and not closed(app, now)]
    if not asking:
        return {}
    free = _free(state)
    by_app = {}
    for app in asking:
        last = last_of(app)
        if last is None:
            continue
        claim = (
            _interrupted(state, app, last, free, now)
            if app.interrupted_at
            else _after_failure(state, app, last, free, now)
        )
        if claim is not None:
            by_app[app.id] = claim
    return by_app


def _may_claim(app: App) -> bool:
    return app.current is None and not app.cancel_requested and bool(app.interrupted_at or app.retry_at)


def last_of(app: App) -> Generation | None:
    """The last generation that ran, if it is still known."""
    return max((g for g in app.generations.values() if g.released), key=lambda g: g.number, default=None)


def pausing(app: App, now: int) -> bool:
    """Whether it can't be placed at `now` (UTC ns): its pause is not over, or containers of the failed generation have
    not ended."""
    return app.retry_at > now or (
        app.current is None and any(g.failed and not g.ended for g in app.generations.values())
    )


def first_until(state: State, app: App, for_s: int) -> int | None:
    """When (UTC ns) a right of an interrupted app that lasts this many seconds ends; None if it has none, or no node
    is available."""
    if not app.interrupted_at or app.current is not None:
        return None  # Nearly all apps: looking at all nodes for each would take most of a decision.
    up = min((node.up_at for node in state.nodes.values() if node.usable), default=None)
    return None if up is None else max(app.interrupted_at, up) + for_s * SECOND


def held_back_for(state: State, placed: dict[str, dict[str, int]], now: int) -> App | None:
    """The first interrupted app that has to wait in an answer; apps that never ran wait for it too."""
    for app in state.live_apps():
        may = not app.cancel_requested and not closed(app, now)
        until = first_until(state, app, HOLD_S) if may else None
        if until is not None and now < until and not placed.get(app.id):
            return app
    return None


def claims_end_at(state: State, app: App) -> Iterator[int]:
    """When (UTC ns) an interrupted app's claim changes although nothing happens; may be in the past."""
    if app.interrupted_at and app.current is None:
        for seconds in (HOLD_S, FIRST_S):
            if (until := first_until(state, app, seconds)) is not None:
                yield until


class _Room(NamedTuple):
    node: Node
    free: dict[str, int]


def _free(state: State) -> dict[str, _Room]:
    """Room on nodes that take new containers and that no placed app occupies."""
    rooms = {node.id: _Room(node, dict(node.capacity)) for node in state.nodes.values() if node.takes_new}
    for app in state.apps.values():
        current = app.current if not app.ended else None
        if current is None:
            continue
        for node, count in current.by_node().items():
            if node in rooms:
                _take(rooms[node].free, app.demand, count)
    return rooms


def _take(free: dict[str, int], demand: dict[str, int], count: int) -> None:
    for name, amount in demand.items():
        free[name] = free.get(name, 0) - amount * count


def _fitting(state: State, app: App, last: Generation, rooms: dict[str, _Room], most: int, now: int) -> dict[str, int]:
    """The part of its last place that is still free and that it does not avoid: at most this many containers, in whole
    gangs."""
    left_out = avoided(state, app, now) if app.failed_on else []
    place: dict[str, int] = {}
    left, gang = most, max(app.spec.gang, 1)
    for name, count in last.by_node().items():
        room = rooms.get(name)
        if room is None or name in left_out or not _may_use(app, room.node):
            continue
        here = min(count, left, *(room.free.get(kind, 0) // need for kind, need in app.demand.items() if need > 0))
        here -= here % gang
        if here > 0:
            place[name] = here
            left -= here
    return place


def _may_use(app: App, node: Node) -> bool:
    required = require_of(app)
    return not required or satisfies(required, labels_of(node))


def _hold(app: App, place: dict[str, int], rooms: dict[str, _Room]) -> None:
    for name, count in place.items():
        if name in rooms:
            _take(rooms[name].free, app.demand, count)


def _after_failure(state: State, app: App, last: Generation, rooms: dict[str, _Room], now: int) -> Claim | None:
    barred = app.barred and in_debt(app, now)
    gives_room = app.retry_at > now + KEPT_S * SECOND or app.failed_trials > 1
    if not last.failed or (gives_room and not barred):
        return None
    may_have = bounds(app, now, len(last.containers))
    place = _fitting(state, app, last, rooms, may_have.n_max, now)
    held = sum(place.values())
    if held < may_have.n_min:
        return None
    _hold(app, place, rooms)
    waits = pausing(app, now)
    return Claim(place, held if waits else may_have.n_max, pausing=waits, interrupted=False)


def _interrupted(state: State, app: App, last: Generation, rooms: dict[str, _Room], now: int) -> Claim | None:
    until = first_until(state, app, FIRST_S)
    if until is None or now >= until:
        return None
    may_have = bounds(app, now)
    place = _fitting(state, app, last, rooms, may_have.n_max, now)
    held = sum(place.values())
    if pausing(app, now):
        if held < may_have.n_min:
            return None
        _hold(app, place, rooms)
        return Claim(place, held, pausing=True, interrupted=True)
    _hold(app, place, rooms)
    gone: dict[str, int] = {}
    for name, count in last.by_node().items():
        if missing := count - place.get(name, 0):
            node = state.nodes.get(name)
            suspect = node is not None and node.suspect is not None
            where = NO_NODE if suspect or name in rooms else name
            gone[where] = gone.get(where, 0) + missing
    return Claim({**place, **gone}, may_have.n_max, pausing=False, interrupted=True)
