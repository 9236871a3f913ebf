"""Suspect nodes, and pairs of app and node that are avoided, in words: what `nodes`, `ps` and `describe` show of
`dorm.core.apps.faults`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.apps.faults import avoided, brief, probing
from dorm.core.gates import moment

if TYPE_CHECKING:
    from dorm.core.state import App, Node, State

MOST_NAMED = 4
"""Apps whose failures a text names one by one."""


class FailedPair(msgspec.Struct, frozen=True, kw_only=True):
    """A recent failure of an app on a node at its start, or shortly after it."""

    app: str
    name: str
    """Of the app."""
    node: str
    failure: str
    """The cause, as in `GenerationFailed`."""
    why: str
    """The cause in words; "" if it is another tenant's."""
    at: int
    """UTC ns."""
    tries: int
    """How often it failed there in a row."""
    avoided: bool
    """Whether the app is not placed there again for now."""


def failed_where(state: State, app: App, now: int) -> list[FailedPair]:
    """Return where an app failed lately, at `now` (UTC ns)."""
    left_out = avoided(state, app, now) if app.failed_on and not app.ended else []
    return [_pair(state, app, node, node in left_out) for node in sorted(app.failed_on)]


def failed_here(state: State, node: Node, now: int) -> list[FailedPair]:
    """Return which apps failed lately on a node, at `now` (UTC ns); not those that turned out to be broken."""
    found = []
    for app_id in sorted(node.failed):
        app = state.apps.get(app_id)
        if app is not None and node.id in app.failed_on:
            left_out = not app.ended and node.id in avoided(state, app, now)
            found.append(_pair(state, app, node.id, left_out))
    return found


def _pair(state: State, app: App, node: str, left_out: bool) -> FailedPair:
    known = app.failed_on[node]
    return FailedPair(
        app=app.id,
        name=app.name,
        node=node,
        failure=known.failure,
        why=brief(known),
        at=known.at,
        tries=known.tries,
        avoided=left_out,
    )


def suspicion(state: State, node: Node) -> str:
    """Return since when a node is suspect, what failed there, and when it is tried; "" if it is not suspect."""
    suspect = node.suspect
    if suspect is None:
        return ""
    since = f"suspect since {moment(suspect.since)}, so it takes nothing new"
    return f"{since}: {failed_there(state, suspect.apps, suspect.failures)}; {next_probe(state, node)}"


def with_remedy(state: State, node: Node) -> str:
    """Return the same as a sentence that says what to do."""
    text = suspicion(state, node)
    return f"{node.id} is {text}; repair it, and `dorm nodes trust {node.id}` ends this" if text else ""


def failed_there(state: State, apps: list[str], failures: list[str]) -> str:
    """`train failed (no such file) and eval failed (exit code 1)`; a reason that is withheld is left out."""
    named = []
    for app_id, why in zip(apps[:MOST_NAMED], [*failures, *[""] * len(apps)], strict=False):
        app = state.apps.get(app_id)
        said = f" ({why})" if why and not why.startswith("(") else ""
        named.append(f"{app.name if app is not None else app_id} failed{said}")
    more = len(apps) - len(named)
    if more > 0:
        return f"{', '.join(named)}, and {more} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named) or "apps failed there"


def next_probe(state: State, node: Node) -> str:
    """Return when one app is tried on a suspect node."""
    suspect = node.suspect
    if suspect is None:
        return ""
    tries = f" after {suspect.failed_probes} that failed" if suspect.failed_probes else ""
    if (app := probing(state, node)) is not None:
        return f"{app.name} is tried there now{tries}"
    return f"one app is tried there{tries} at {moment(suspect.probe_at)} or later"


def avoiding(state: State, app: App, now: int) -> str:
    """Return which nodes an app avoids at `now` (UTC ns), and why; "" for none."""
    if app.ended or not app.failed_on:
        return ""
    nodes = avoided(state, app, now)
    return ", ".join(f"{node} ({brief(app.failed_on[node])})" for node in nodes)
