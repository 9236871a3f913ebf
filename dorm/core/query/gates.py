"""Why an app does not run although there may be room: its gates, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.apps.gating.awaiting import WORDS
from dorm.core.apps.gating.gates import hold_of, starts_at, still_awaited
from dorm.core.apps.gating.limits import ran_ns
from events.instants import shown
from events.kinds import Waiting
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.gates import Awaited, Hold
    from dorm.core.state import App

MOST_NAMED = 5
"""Apps that a reason names one by one."""


def reason_of(app: App, now: int) -> Waiting | None:
    """Return why a live app waits or has less than its n_max at `now` (UTC ns): its closed gates, otherwise the
    reason of the last decision; None if there is none, and for an ended app."""
    if app.ended:
        return None
    return gate(app, now) or app.waiting


def shown_reason(app: App, now: int) -> tuple[str, str]:
    """Return that reason as a code and a text; of an app that has ended how, with a code only if the master ended it."""
    reason = reason_of(app, now)
    return (reason.code, reason.text) if reason is not None else (app.end_code or "", app.end_reason)


def gate(app: App, now: int) -> Waiting | None:
    """Return the closed gates of an app as a reason, with the code of the first; None if all are open."""
    found = [Waiting(code="hold", text=held(hold))] if (hold := hold_of(app)) is not None else []
    if awaited := still_awaited(app):
        found.append(Waiting(code="after", text=f"waits for {others(awaited)}"))
    if (start := starts_at(app)) > now:
        found.append(Waiting(code="start_after", text=f"starts at {moment(start)} or later"))
    if not found:
        return None
    return Waiting(code=found[0].code, text="; ".join(one.text for one in found))


def held(hold: Hold) -> str:
    """`held by ann: wrong data`"""
    who = f"the operator {hold.by}" if hold.operator else hold.by
    return f"held by {who}" + (f": {hold.reason}" if hold.reason else "")


def others(awaited: Sequence[Awaited]) -> str:
    """`prep to complete, data to end`"""
    named = [f"{one.name} to {WORDS[one.when]}" for one in awaited[:MOST_NAMED]]
    more = len(awaited) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def moment(time: int) -> str:
    """`2026-11-24 08:00:00 UTC`"""
    return shown(time)


def hold_shown(app: App) -> dict[str, Any] | None:
    """Return who holds a live app, since when and why, for people and programs; None if it is not held."""
    hold = hold_of(app) if not app.ended else None
    return None if hold is None else msgspec.to_builtins(hold)


def runtime_shown(app: App, now: int) -> dict[str, float] | None:
    """Return for how long an app has run at `now` (UTC ns) and may run, in seconds; None without a limit."""
    limit_s = app.spec.max_runtime_s
    return None if limit_s is None else {"ran_s": ran_ns(app, now) / SECOND, "max_s": limit_s}
