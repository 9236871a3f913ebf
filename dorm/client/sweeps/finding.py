"""Which sweep a user means by a name."""

from __future__ import annotations

import difflib
from itertools import count
from typing import TYPE_CHECKING

from dorm.client.errors import NotFound
from dorm.core.query.sweeps import sweeps

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import App, State


def find_sweep(state: State, name: str, user: str = "") -> list[App]:
    """Return the apps of a sweep, of several of one name those of this user's tenant; `TENANT//NAME` names another's.  Raises
    NotFound, with similar names."""
    found = sweeps(state)
    tenant = state.known.tenant_of(user) if state.known is not None else user
    own = found.get((tenant, name))
    if own is not None:
        return own
    named = {key: apps for key, apps in found.items() if name in (key[1], f"{key[0]}//{key[1]}")}
    if len(named) == 1:
        return next(iter(named.values()))
    if named:
        whose = " or ".join(f"{tenant}//{name}" for tenant, _ in sorted(named)[:5])
        raise NotFound(f"{len(named)} users have a sweep {name!r}; name one as {whose}", code="sweep.ambiguous")
    near = difflib.get_close_matches(name, sorted({key[1] for key in found}), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `dorm sweep list --all` lists them"
    raise NotFound(f"there is no sweep {name!r}{hint}", code="sweep.not_found")


def is_sweep(state: State, name: str, user: str = "") -> bool:
    """Return whether a name is a sweep's and no app's."""
    tenant = state.known.tenant_of(user) if state.known is not None else ""
    if state.find_app(name, tenant) is not None:
        return False
    return any(name in (key[1], f"{key[0]}//{key[1]}") for key in sweeps(state))


def free_name(state: State, user: str, wanted: str, run_of: Callable[[str], str]) -> str:
    """Return the name for a sweep whose user gave it none: the name of the same sweep if it has not ended, else the
    name with the first number that no sweep or app uses.  `run_of` returns the digest of the sweep under a name."""
    tenant = state.known.tenant_of(user) if state.known is not None else user
    found = {name: apps for (owner, name), apps in sweeps(state).items() if owner == tenant}
    taken = {app.name for app in state.apps.values() if app.tenant == tenant}
    for number in count(1):
        name = wanted if number == 1 else f"{wanted}-{number}"
        apps = found.get(name)
        if apps is not None and _still_runs(apps, run_of(name)):
            return name
        if apps is None and name not in taken:
            return name
    raise AssertionError("numbers do not end")


def _still_runs(apps: list[App], run: str) -> bool:
    group = apps[0].spec.group
    return group is not None and group.run == run and (len(apps) < group.count or not all(app.ended for app in apps))
