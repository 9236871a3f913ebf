"""Edits of gates: which apps an edited app waits for, and which gates an edit must not open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.app import Gates
from dorm.core.apps.gating.awaiting import awaited_apps
from dorm.core.apps.gating.gates import hold_of
from events.spec import SpecError
from events.spec.gates import awaited

if TYPE_CHECKING:
    from dorm.core.state import App, State, Submission
    from events.spec import AppSpec


def has_started(app: App) -> bool:
    """Return whether containers of it were ever to start, or it has ended: its gates mean nothing any more."""
    return bool(app.ended) or any(generation.released for generation in app.generations.values())


def check_release(app: App, before: AppSpec, after: AppSpec) -> None:
    """Refuse an edit that would end an operator's hold.  Raises SpecError."""
    hold = hold_of(app)
    if before.hold and not after.hold and hold is not None and hold.operator:
        text = f"hold: an operator ({hold.by[:64]}) holds {app.name}, and only operators release it (`dorm release`)"
        raise SpecError(text, code="app.held_by_operator")


def edited_links(
    state: State, app: App, before: AppSpec, after: AppSpec, request: Submission, taken: dict[str, str]
) -> list[str]:
    """Return the ids of the apps that an edit has it wait for in addition, in the order of its spec.

    `taken` notes them for later answers of the same round.  Raises SpecError for an app that is unknown or has ended
    otherwise, and for an app that itself waits for this one."""
    known = awaited(before)
    added = [one for one in awaited(after) if one not in known]
    if not added:
        return []
    asked = msgspec.structs.replace(request, id=app.submission)
    ids = awaited_apps(state, msgspec.structs.replace(after, after=added), asked, {})
    for one, id in zip(added, ids, strict=True):
        if id == app.id or _waits_for(state, id, app.id, taken):
            text = f"after: {one.app} waits for {app.name}, so neither would ever run; leave one of the two out"
            raise SpecError(text, code="edit.after.cycle")
    taken[_links(app.id)] = " ".join(ids)
    return ids


def _waits_for(state: State, app: str, other: str, taken: dict[str, str]) -> bool:
    """Return whether an app waits for another, directly or by way of others."""
    seen, left = dict[str, None](), [app]
    while left:
        one = left.pop()
        if one == other:
            return True
        if one in seen:
            continue
        seen[one] = None
        found = state.apps.get(one)
        gates = found.gates if found is not None else None
        left += [link.app for link in gates.after if link.app] if isinstance(gates, Gates) else []
        left += taken.get(_links(one), "").split()
    return False


def _links(app: str) -> str:
    return f"{app} after"
