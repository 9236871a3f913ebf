"""`dorm policy set --dry-run`: which values would change, whether the constraints hold, and what the change would affect."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from dorm.cli.output import Format, console, counted, show_document, solver_prints_elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.client.client import Client
    from dorm.core.query.trying import ResizedApp, Touched
    from dorm.core.state import State
    from events.kinds import PolicyChanged

_NAMED = 8


async def dry_run(
    connected: Client, state: State, change: PolicyChanged, output: Format, differences: list[str]
) -> bool:
    """Show it; return whether the change would be accepted.  `differences` are the values that it would change, in words."""
    from dorm.core.query.trying import document, resized, touched

    now = max(state.time, time.time_ns())
    found = touched(state, change, await _heard(connected, state), now)
    with solver_prints_elsewhere():
        apps = [] if found.refused else resized(state, change, found.unmounted, now)
    if output in (Format.json, Format.yaml):
        show_document(document(found, differences, apps), output)
    else:
        for line in _lines(found, differences, apps):
            console.print(Text(line))
    return not found.refused


async def _heard(connected: Client, state: State) -> dict[str, int]:
    """Return when each node was last heard (UTC ns), by its stored heartbeats."""
    heard = {}
    for name, node in state.nodes.items():
        if node.condition == "up":
            heard[name] = max(node.up_at, await connected.last_heard(name))
    return heard


def _lines(found: Touched, differences: list[str], resized: list[ResizedApp]) -> list[str]:
    lines = [f"refused: {found.refused}"] if found.refused else ["accepted; nothing has been changed"]
    lines += [f"  {line}" for line in differences]
    lines.append("constraints:")
    lines += [f"  {'holds ' if rule.holds else 'BROKEN'}  {rule.text}" for rule in found.rules]
    lines.append("whom it touches:")
    touches = []
    if found.leases:
        touches.append(f"  {_named(found.leases, 'node')}: another lease from the next heartbeat on")
    if found.lost:
        verb = "has" if len(found.lost) == 1 else "have"
        touches.append(f"  {_named(found.lost, 'node')}: {verb} been silent for longer than the new node_grace")
    if found.unmounted:
        touches.append(f"  {_named(found.unmounted, 'node')}: another folder of checkpoints, so no containers any more")
    if found.ended:
        touches.append(f"  {_named(found.ended, 'ended app')}: dropped at once, with logs and checkpoints")
    touches += [
        f"  {app.name}: {app.then} containers after the next decision, instead of {app.otherwise} (now {app.now})"
        for app in resized
    ]
    return [*lines, *(touches or ["  nobody right now"])]


def _named(names: Sequence[str], what: str) -> str:
    """Return `2 nodes (a, b)`."""
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{counted(len(names), what)} ({', '.join(names[:_NAMED])}{more})"
