"""Which app a user means by a name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from dorm.client.errors import NotFound

if TYPE_CHECKING:
    from dorm.core.state import App, State

_MOST = 5


def find_app(state: State, name_or_id: str, user: str = "") -> App:
    """Return an app by name or id; if several have the name, the app of this user's tenant.  Raises NotFound, with
    similar names, or with all apps of this name if other tenants share it."""
    tenant = state.known.tenant_of(user) if state.known is not None else ""
    app = state.find_app(name_or_id, tenant)
    if app is None:
        if any(app.spec.group is not None and app.spec.group.name == name_or_id for app in state.apps.values()):
            raise NotFound(f"{name_or_id} is a sweep; `dorm sweep show {name_or_id}` lists its apps")
        near = difflib.get_close_matches(name_or_id, sorted({a.name for a in state.apps.values()}), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `dorm ps --all` lists them"
        raise NotFound(f"there is no app {name_or_id!r}{hint}")
    if state.known is not None and app.tenant != tenant:
        check_one(state, name_or_id)
    return app


def no_rank(app: App, where: str, rank: int, count: int) -> NotFound:
    """Return the error for a rank that `where` does not have.  A rank is one container, in which torchrun and mpirun may start
    several processes with ranks of their own."""
    text = f"{where} has no rank {rank}; " + (f"name one of 0 to {count - 1}" if count > 1 else "its only one is 0")
    options = app.spec.engine_options
    processes = options.processes
    if processes > 1 and options.rendezvous == "static" and rank < count * processes:
        text += (
            f": ranks are those of containers, each with {processes} processes; the process of rank {rank} "
            f"is in {app.name}/{rank // processes}"
        )
    return NotFound(text, code="rank.not_found")


def check_one(state: State, name: str) -> None:
    """Raises NotFound if several tenants have an app of this name."""
    namesakes = state.namesakes(name)
    if len(namesakes) > 1:
        named = ", ".join(f"{app.id} of {app.tenant}" for app in namesakes[:_MOST])
        more = f" and {len(namesakes) - _MOST} more" if len(namesakes) > _MOST else ""
        raise NotFound(
            f"{len(namesakes)} tenants have an app {name!r}: {named}{more}; name one by its id", code="app.ambiguous"
        )
