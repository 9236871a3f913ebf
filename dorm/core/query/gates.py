"""Why an app does not run though there may be room: its gates, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.apps.awaiting import WORDS
from dorm.core.apps.gates import hold_of, still_awaited
from events.kinds import Waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.gates import Awaited, Hold
    from dorm.core.state import App

CODES = ("after", "hold")
"""Codes of reasons that are gates."""
MOST_NAMED = 5
"""Apps that a reason names one by one."""


def reason_of(app: App, now: int) -> Waiting | None:
    """Return why a live app waits or has less than its n_max at `now` (UTC ns): its closed gates, else the reason of the last
    decision; None where there is none, and for an app that has ended."""
    if app.ended:
        return None
    return gate(app, now) or app.waiting


def gate(app: App, now: int) -> Waiting | None:
    """Return the closed gates of an app as a reason, with the code of the first; None where all are open."""
    found = [Waiting(code="hold", text=held(hold))] if (hold := hold_of(app)) is not None else []
    if awaited := still_awaited(app):
        found.append(Waiting(code="after", text=f"waits for {others(awaited)}"))
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


def hold_shown(app: App) -> dict[str, Any] | None:
    """Return who holds a live app, since when and why, for people and programs; None where nobody does."""
    hold = hold_of(app) if not app.ended else None
    return None if hold is None else msgspec.to_builtins(hold)
