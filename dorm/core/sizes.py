"""How many containers an app may have now: its owner's bounds, reduced by what has failed, and by what the app asked for.

    worked          a generation has worked once it reported progress or a checkpoint; for an app that never reports,
                    once all its containers have run for `TRIAL_S`
    failed_trials   an app whose generations have never worked, or whose last two have not, has n_min until one works.
                    After two that have not, no other app is resized for it before it has waited for `ROOM_S`:
                    otherwise, a crash loop would restart others twice for each try, which costs them more than the room
                    that it takes
    debt            failures of the app since it last ran stably, which takes `STABLE_S` for each of them.  Once others
                    were resized to make room for an app in debt (`disturbs`), it gets no more containers until it has
                    run stably.  Once it has failed after that, or after others were resized to use the room that it had
                    left (`room_taken`), it is `barred`: no other app is resized for it before it has waited for
                    `ROOM_S`, and it keeps its place through all further failures, because others would be restarted to
                    use the place.  The app therefore costs others one round of using its room and one of making it
                    again, whatever its retries, its progress and its owner's requests
    settling        a resized app is not resized again before that generation has worked, so that no restart is wasted.
                    One that never reports settles for `TRIAL_S`, one that should report and does not for `SETTLE_S`
    held            if a generation with another number of containers than the last one that worked fails before it has
                    worked, the app falls back: to at most that number if it had grown, to at least that number if it
                    had shrunk
    asked           at most what the app itself asked for (`AppResizeRequested`)

An app is held until it has run well for `retries.reset` of its spec, until its owner updates it, or until it has waited
for that long, so that it does not wait indefinitely for an earlier size.  n_min and n_max stay the outer bounds in
every case.

A request of an app is a hint of its own program, so it can only cost the app itself: it acts as an additional n_max,
within the owner's bounds.  A lower value counts at once.  A higher value, or a withdrawal, counts `RAISE_S` after the
last reduction, because others may be resized to make room again.  An app that alternates therefore causes resizes of
others at most once in that time, and never for more than its fair share.  A request outlives resizes and restarts.  It
ends when the app withdraws it, or when its owner changes the bounds.

Whose room others have used is known only while a decision is folded: it compares, for each app in debt without a place,
how much of its last place was free before and after (`rooms_left`, `note_taken`).  Growing into that room is a restart,
and making it again for the next try is another one, so an app gives up its room once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm.core.state import SizeRequest
from events.limits import clipped
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import App, Generation, Held, State
    from events import kinds as k


# --- an app's own requests --------------------------------------------------------------------------------------------

RAISE_S = 300
"""Time that an app that was resized may take to show that it works (`SETTLE_S`)."""
_LONGEST_REASON = 200
"""Number of characters: it is part of every decision that states the app's reason."""


def counts_at(request: SizeRequest) -> int:
    """Return when its size counts (UTC ns)."""
    return request.lowered_at + RAISE_S * SECOND if request.before else request.at


def requested(app: App, now: int) -> tuple[int, str] | None:
    """Return how many containers the app asked for at most, within its bounds, and its reason; None if it wants n_max."""
    request = app.size_request
    if request is None:
        return None
    early = now < counts_at(request)
    size, reason = (request.before, request.before_reason) if early else (request.containers, request.reason)
    size = max(app.n_min, size) if size else 0
    return (size, reason) if 0 < size < app.n_max else None


def counts_from(app: App) -> Iterator[int]:
    """Yield when (UTC ns) a request begins to count although nothing happens; may be in the past."""
    if app.size_request is not None and app.size_request.before:
        yield counts_at(app.size_request)


def request(app: App, size: int, reason: str, now: int) -> bool:
    """Note a request.  Return False if it repeats the last one."""
    last, reason = app.size_request, clipped(reason, _LONGEST_REASON) if size else ""
    if (size, reason) == ((last.containers, last.reason) if last is not None else (0, "")):
        return False
    now_in_force = requested(app, now)
    if last is None or now_in_force is None:
        app.size_request = SizeRequest(size, reason, now, lowered_at=now) if size else None
        return True
    limit, why = now_in_force
    if 0 < size <= limit:
        lowered_at = now if size < limit else last.lowered_at
        app.size_request = SizeRequest(size, reason, now, lowered_at=lowered_at)
    elif now >= last.lowered_at + RAISE_S * SECOND:
        app.size_request = SizeRequest(size, reason, now, lowered_at=last.lowered_at) if size else None
    else:
        app.size_request = SizeRequest(size, reason, now, last.lowered_at, before=limit, before_reason=why)
    return True


def in_words(size: int, reason: str) -> str:
    """`it asked for 2: the gap shrinks no faster with more`."""
    line = " ".join(reason.split())
    return f"it asked for {size}" + (f": {line}" if line else "")


# --- bounds -----------------------------------------------------------------------------------------------------------

TRIAL_S = 60
"""Time longer than an app that fails immediately takes to fail, and short compared with the hours that an app runs."""

ROOM_S = 1800
"""Time of waiting: with two restarts of a neighbor in it, at 20 s each, a crash loop costs others about 2 % of their time."""


STABLE_S = 1800
"""Time for each failure. Two restarts in that time cost an app that needs 20 s for each about 2 % of its time."""

SETTLE_S = 300
"""Time longer than most apps take to load and to make a step; an app that hangs must not keep others waiting for
longer."""


class Bounds(NamedTuple):
    """The n_min and n_max for the policy, and why they differ from the owner's ("" if they do not)."""

    n_min: int
    n_max: int
    why: str
    request: str = ""
    """The size that the app itself asked for, if that lowers its bounds."""


def bounds(app: App, now: int, claimed: int = 0) -> Bounds:
    """At `now` (UTC ns); `claimed` is the number of containers that an app without a place has a claim to."""
    low, high, why = app.n_min, app.n_max, []
    keeps_place = app.barred and in_debt(app, now)
    for held in (None if keeps_place else app.held_most, app.held_least):
        if held is not None and not _let_go(app, held, now):
            if held.containers > held.worked_with:
                high = max(low, min(high, held.worked_with))
            else:
                low = min(high, max(low, held.worked_with))
            why.append(_words(held))
    if _on_trial(app, now) and not keeps_place:
        high = low
        failed = "1 generation has" if app.failed_trials == 1 else f"{app.failed_trials} generations have"
        why.append(f"held at {low} until it works: {failed} failed before they did")
    if in_debt(app, now) and app.disturbs:
        high = max(low, min(high, len(app.current.planned) if app.current is not None else claimed))
        failed = "1 failure" if app.debt == 1 else f"{app.debt} failures"
        least = app.debt * STABLE_S // 60
        why.append(f"others made room for it after {failed}: gets no more before it has run for {least} min")
    if takes_free_room_only(app, now):
        why.append(f"nobody is resized for it before it has waited for {ROOM_S // 60} min")
    wish = requested(app, now)
    if wish is None or wish[0] >= high:
        return Bounds(low, high, "; ".join(why))
    return Bounds(low, max(low, wish[0]), "; ".join(why), in_words(*wish))


def _words(held: Held) -> str:
    bound = "most" if held.containers > held.worked_with else "least"
    size = "1 container" if held.containers == 1 else f"{held.containers} containers"
    return f"held at {bound} {held.worked_with}: generation {held.generation} with {size} did not start to work"


def takes_free_room_only(app: App, now: int) -> bool:
    """Whether no other app is resized for it at `now` (UTC ns)."""
    loops = app.failed_trials > 1 or (app.barred and in_debt(app, now))
    return loops and app.current is None and now < app.waiting_since + ROOM_S * SECOND


def in_debt(app: App, now: int) -> bool:
    """Whether at `now` (UTC ns) it has failed and not run stably since, in proportion to how often."""
    return app.debt > 0 and ran_ns(app, now) < app.debt * STABLE_S * SECOND


def settles_until(app: App, now: int) -> int:
    """Until when (UTC ns) it is not resized again although it runs undisturbed; 0 if it may be at `now`."""
    current = app.current
    if current is None or current.adjustment != "restart" or not current.started_at or current.exited or current.worked:
        return 0
    until = current.started_at + (SETTLE_S if _only_by_signs(app) else TRIAL_S) * SECOND
    return until if until > now else 0


def has_worked(app: App, generation: Generation, now: int) -> bool:
    """By `now` (UTC ns), whether or not that is noted already."""
    if generation.worked or not generation.started_at or generation.exited or _only_by_signs(app):
        return generation.worked
    return now - generation.started_at >= TRIAL_S * SECOND


def _only_by_signs(app: App) -> bool:
    """An app that usually reports its work and does not may hang."""
    return app.reports_progress or app.spec.deadlines.progress_s is not None


def ran_ns(app: App, until: int) -> int:
    """How long all containers of its generations have run by then (UTC ns), since the last failure of its own."""
    total = app.ran_ns
    for generation in app.generations.values():
        if generation.started_at and not generation.exited and not generation.failed:
            total += max(0, until - generation.started_at)
    return total


def ran_well(app: App, until: int) -> bool:
    """Whether it has run long enough for its earlier failures to be forgotten."""
    return ran_ns(app, until) >= int(app.spec.retries.reset_s * SECOND)


def changes_at(app: App) -> Iterator[int]:
    """When (UTC ns) its bounds change although nothing happens; may be in the past."""
    current = app.current
    if app.failed_trials and current is not None and current.started_at and not current.exited:
        yield current.started_at + TRIAL_S * SECOND
    if (app.failed_trials > 1 or app.barred) and current is None and app.waiting_since:
        yield app.waiting_since + ROOM_S * SECOND
    if app.disturbs and current is not None and current.started_at and not current.exited:
        yield current.started_at + max(0, app.debt * STABLE_S * SECOND - app.ran_ns)
    if settles := settles_until(app, 0):
        yield settles
    yield from counts_from(app)
    if app.held_most is None and app.held_least is None:
        return
    reset = int(app.spec.retries.reset_s * SECOND)
    if current is not None and current.started_at and not current.exited:
        yield current.started_at + max(0, reset - app.ran_ns)
    if app.waiting_since and app.held_least is not None:
        yield app.waiting_since + reset


def _on_trial(app: App, now: int) -> bool:
    if not app.failed_trials or (app.worked_with and app.failed_trials < 2):
        return False
    current = app.current
    return current is None or not has_worked(app, current, now)


def _let_go(app: App, held: Held, now: int) -> bool:
    if ran_well(app, now):
        return True
    waits = held.containers < held.worked_with and app.waiting_since and app.current is None
    return bool(waits) and now - app.waiting_since >= int(app.spec.retries.reset_s * SECOND)


# --- the room of apps that failed -------------------------------------------------------------------------------------


class RoomsLeft(NamedTuple):
    """Before a decision."""

    grown: dict[str, None]
    """Nodes on which it gives more containers to apps that run."""
    rooms: dict[str, dict[str, int]]
    """Number of its containers that could be back, by app and by node of its last place."""


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
    back: dict[str, dict[str, int]] = {}
    for app_id, place in places.items():
        needs = [(kind, need) for kind, need in state.apps[app_id].demand.items() if need > 0]
        back[app_id] = {
            node: max(0, min([count, *(free[node].get(kind, 0) // need for kind, need in needs)]))
            for node, count in place.items()
            if node in free
        }
    return back
