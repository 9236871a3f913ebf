"""How many containers an app may have now: its owner's bounds, reduced by what has failed.

    worked      a generation has worked once it reported progress or a checkpoint; for an app that never reports, once all
                its containers have run for `TRIAL_S`
    failed_trials   an app whose generations have never worked, or whose last two have not, has n_min until one works.  After
                two that have not, no other app is resized for it before it has waited for `ROOM_S`: otherwise, a crash
                loop would restart others twice for each try, which costs them more than the room that it takes
    debt        failures of the app since it last ran stably, which takes `STABLE_S` for each of them.  Once others were
                resized to make room for an app in debt, it gets no more containers until it has run stably.  Once it has
                failed after that, or after others were resized to use the room that it had left, no other app is resized
                for it before it has waited for `ROOM_S`, and it keeps its place through all further failures, because
                others would be restarted to use the place.  The app therefore costs others one round of using its room
                and one of making it again, whatever its retries, its progress and its owner's requests
    settling    a resized app is not resized again before that generation has worked, so that no restart is wasted.  One
                that never reports settles for `TRIAL_S`, one that should report and does not for `SETTLE_S`
    held        if a generation with another number of containers than the last one that worked fails before it has worked,
                the app falls back: to at most that number if it had grown, to at least that number if it had shrunk

    asked       at most what the app itself asked for (`dorm.core.apps.size_requests`)

An app is held until it has run well for `retries.reset` of its spec, until its owner updates it, or until it has waited
for that long, so that it does not wait indefinitely for an earlier size.  n_min and n_max stay the outer bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm.core.apps.size_requests import counts_from, in_words, requested
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import App, Generation, Held

TRIAL_S = 60
"""Longer than an app that fails immediately takes to fail, and short compared with the hours that an app runs."""

ROOM_S = 1800
"""With two restarts of a neighbor in that time, at 20 s each, a crash loop costs others about 2 % of their time."""


STABLE_S = 1800
"""For each failure. Two restarts in that time cost an app that needs 20 s for each about 2 % of its time."""

SETTLE_S = 300
"""Longer than most apps take to load and to make a step; an app that hangs must not keep others waiting for longer."""


class Bounds(NamedTuple):
    """The n_min and n_max for the policy, and why they differ from the owner's ("" if they do not)."""

    n_min: int
    n_max: int
    why: str
    asked: str = ""
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
    asked = requested(app, now)
    if asked is None or asked[0] >= high:
        return Bounds(low, high, "; ".join(why))
    return Bounds(low, max(low, asked[0]), "; ".join(why), in_words(*asked))


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
