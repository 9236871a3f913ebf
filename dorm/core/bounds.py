"""How many containers an app may have now: what its owner said, less what it has shown that it can't do.

    worked      a generation has worked once it told of progress or of a checkpoint; of an app that never tells anything,
                once all its containers have run for `TRIAL_S`
    fruitless   an app of which no generation has worked yet, or the last two have not, has n_min only until one does; and
                after two that have not, nobody who runs is resized for it before it has waited for `ROOM_S`: otherwise a
                crash loop would restart others twice for each try, which costs them more than the room that it takes
    held        where a generation with other containers than the last one that worked fails before it has worked, the app
                falls back: no more than that one had, where it had grown; no fewer, where it had shrunk

An app is held until it has run well for `retries.reset` of its spec, or its owner updates it; or, so that nobody waits for
ever for a shape that does not come back, has waited for that long.  n_min and n_max stay the outer bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import App, Generation, Held

SECOND = 1_000_000_000
TRIAL_S = 60
"""Longer than what breaks at once takes to break, and nothing against the hours that an app runs."""

ROOM_S = 1800
"""With two restarts of somebody in that time, at 20 s each, a crash loop costs others some 2 % of their time."""


class Bounds(NamedTuple):
    """What a policy is given as n_min and n_max, and why that is not what the owner said ("" where it is)."""

    n_min: int
    n_max: int
    why: str


def bounds(app: App, now: int) -> Bounds:
    """At `now` (UTC ns)."""
    low, high, why = app.n_min, app.n_max, []
    for held in (app.held_most, app.held_least):
        if held is not None and not _let_go(app, held, now):
            if held.containers > held.worked_with:
                high = max(low, min(high, held.worked_with))
            else:
                low = min(high, max(low, held.worked_with))
            why.append(_words(held))
    if _on_trial(app, now):
        high = low
        failed = "1 generation has" if app.fruitless == 1 else f"{app.fruitless} generations have"
        why.append(f"held at {low} until it works: {failed} failed before they did")
    if takes_free_room_only(app, now):
        why.append(f"nobody is resized for it before it has waited for {ROOM_S // 60} min")
    return Bounds(low, high, "; ".join(why))


def _words(held: Held) -> str:
    bound = "most" if held.containers > held.worked_with else "least"
    size = "1 container" if held.containers == 1 else f"{held.containers} containers"
    return f"held at {bound} {held.worked_with}: generation {held.generation} with {size} did not start to work"


def takes_free_room_only(app: App, now: int) -> bool:
    """Whether nobody is resized for its sake at `now` (UTC ns)."""
    return app.fruitless > 1 and app.current is None and now < app.waiting_since + ROOM_S * SECOND


def has_worked(app: App, generation: Generation, now: int) -> bool:
    """By `now` (UTC ns), whether or not that is noted already."""
    if generation.worked or not generation.started_at or generation.exited or _only_by_signs(app):
        return generation.worked
    return now - generation.started_at >= TRIAL_S * SECOND


def _only_by_signs(app: App) -> bool:
    """An app that is known to tell of its work and does not may hang."""
    return app.tells or app.spec.deadlines.progress_s is not None


def ran_ns(app: App, until: int) -> int:
    """How long all containers of its generations have run by then (UTC ns), since the last failure of its own."""
    total = app.ran_ns
    for generation in app.generations.values():
        if generation.started_at and not generation.exited and not generation.failed:
            total += max(0, until - generation.started_at)
    return total


def ran_well(app: App, until: int) -> bool:
    """Whether it has for so long that its earlier failures are forgotten."""
    return ran_ns(app, until) >= int(app.spec.retries.reset_s * SECOND)


def changes_at(app: App) -> Iterator[int]:
    """When (UTC ns) its bounds change though nothing happens; may be in the past."""
    current = app.current
    if app.fruitless and current is not None and current.started_at and not current.exited:
        yield current.started_at + TRIAL_S * SECOND
    if app.fruitless > 1 and current is None and app.waiting_since:
        yield app.waiting_since + ROOM_S * SECOND
    if app.held_most is None and app.held_least is None:
        return
    reset = int(app.spec.retries.reset_s * SECOND)
    if current is not None and current.started_at and not current.exited:
        yield current.started_at + max(0, reset - app.ran_ns)
    if app.waiting_since and app.held_least is not None:
        yield app.waiting_since + reset


def _on_trial(app: App, now: int) -> bool:
    if not app.fruitless or (app.worked_with and app.fruitless < 2):
        return False
    current = app.current
    return current is None or not has_worked(app, current, now)


def _let_go(app: App, held: Held, now: int) -> bool:
    if ran_well(app, now):
        return True
    waits = held.containers < held.worked_with and app.waiting_since and app.current is None
    return bool(waits) and now - app.waiting_since >= int(app.spec.retries.reset_s * SECOND)
