"""Live adjustments in a story: announcements, memberships that trained, and losses on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import SECOND, humanize
from replay.words import containers, failure_cost, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import App
    from events import kinds as k

WHY = {
    "members_stay": "it trains on meanwhile",
    "no_member_stays": "by a restart, since no member of it would stay",
    "missed_deadline": "by a restart, since it missed the deadline of its last live resize",
}
"""By `Resize.why`."""


def slots(numbers: Sequence[int]) -> str:
    """`slot 3`, `slots 3, 4 and 2 more`."""
    shown = ", ".join(map(str, numbers[:4])) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    return f"slot{'' if len(numbers) == 1 else 's'} {shown}"


def released(fact: k.MembersReleased) -> str:
    parts = [f"membership {fact.membership} is announced"]
    if fact.newcomers:
        waited = f", after waiting {span(fact.wait_s)} for room" if fact.wait_s >= 0.05 else ""
        parts.append(f"{slots(fact.newcomers)} may start{waited}")
    if fact.leavers:
        parts.append(f"{slots(fact.leavers)} {'leaves' if len(fact.leavers) == 1 else 'leave'}")
    return "; ".join(parts)


def trains(app: App, event: k.MembershipChanged, at: int) -> str:
    """Describe a membership that trains; `at` is the log time (UTC ns)."""
    if event.change == "death":
        what = f"{slots(event.lost)} no longer answer{'s' if len(event.lost) == 1 else ''} its peers"
        step = "; the step in flight was repeated" if event.repeated else ""
        return f"{what}, and {containers(len(event.members))} went on at step {event.step}{_pause(event)}{step}"
    text = f"membership {event.membership} trains, with {containers(len(event.members))}, from step {event.step}"
    last = app.history[-1] if app.history else None
    if last is not None and last.live and last.started_at == at:
        text += f", {span((at - last.decided_at) / SECOND)} after the decision"
    return text + _pause(event)


def _pause(event: k.MembershipChanged) -> str:
    parts = [f"it paused for {event.pause_s * 1e3:.3g} ms"] if event.pause_s or event.change != "start" else []
    parts += [f"newcomers warmed up for {span(event.warm_up_s)}"] if event.warm_up_s else []
    parts += [f"{humanize('memory', event.bytes_moved)} moved"] if event.bytes_moved else []
    return "".join(f"; {part}" for part in parts)


def lost(fact: k.MembersLost) -> str:
    cost = failure_cost(fact.fault, f"retry {fact.retries} of {fact.limit}" if fact.counted else "")
    left = containers(len(fact.members))
    goes = "goes" if len(fact.members) == 1 else "go"
    return f"{slots(fact.lost)} lost: {fact.reason}; {left} {goes} on, as membership {fact.membership} ({cost})"


def failed(fact: k.LiveResizeFailed) -> str:
    size = len(fact.restart.placement)
    then = f"restarted with {containers(size)}" if size else "stopped, and placed again"
    return f"{fact.reason}, so it is {then} instead"
