"""Settings that are assumed: those of a policy, the master's times, the folder of checkpoints, by their names in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.query.in_force import APPS, CHECKPOINTS, POLICY, SHARES, SUSPECT_AFTER, TIMES
from dorm.core.settings import WEIGHTS, most_apps, parameters_in_force, times_of
from dorm.core.shared_folder import check_folder
from dorm.core.state import Settings
from dorm.policies.registry import policy
from events.kinds import PolicyChanged
from events.times import SettingRefused, times_after, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.settings import Plugins
    from dorm.core.state import State


def settings_of(change: PolicyChanged, now: Settings, plugins: Plugins) -> dict[str, Any]:
    """Return what a change sets, by name; a parameter that it returns to its default has that as its value."""
    chosen = change.policy if change.policy is not None else now.policy
    defaults = parameters_in_force(Settings(policy=chosen), plugins)
    found: dict[str, Any] = {} if change.policy is None else {POLICY: change.policy}
    for name, value in {**(change.params or {}), **(change.set_params or {})}.items():
        found[name] = defaults.get(name) if value is None else value
    for name in (*TIMES, CHECKPOINTS, SHARES, APPS, SUSPECT_AFTER):
        if getattr(change, name) is not None:
            found[name] = getattr(change, name)
    return found


def change_for(settings: Mapping[str, Any], state: State) -> tuple[PolicyChanged, list[str]]:
    """Return the change that makes these settings hold, and it in words.  Raises ValueError for an unknown policy, parameter
    or value, and for what the cluster would refuse."""
    now, plugins = state.settings, state.policy_plugins
    chosen = settings.get(POLICY, now.policy)
    others = {name: settings[name] for name in (*TIMES, CHECKPOINTS, SHARES, APPS, SUSPECT_AFTER) if name in settings}
    given = {name: value for name, value in settings.items() if name != POLICY and name not in others}
    same = chosen == now.policy
    known = policy(chosen)
    params = known.check_params({**(now.params if same else {}), **given})
    change = PolicyChanged()
    words = [] if same else [f"policy {chosen} (now {now.policy})"]
    if given or not same:
        change = msgspec.structs.replace(change, policy=chosen, params=params)
        before = parameters_in_force(now, plugins) if same else known.check_params({})
        which = "now" if same else "default"
        words += [f"{name} = {value} ({which} {before.get(name)})" for name, value in given.items()]
    if others:
        change = _with(change, others)
        times_after(times_of(now), change)
        check_folder(state, change)
        words += [_in_words(name, value, now) for name, value in others.items()]
    return change, words


def _with(change: PolicyChanged, others: Mapping[str, Any]) -> PolicyChanged:
    try:
        return msgspec.convert({**msgspec.structs.asdict(change), **others, "kind": "PolicyChanged"}, PolicyChanged)
    except msgspec.ValidationError as error:
        raise SettingRefused(f"settings: {error}", code="settings.refused") from None


def _in_words(name: str, value: Any, now: Settings) -> str:
    if name == CHECKPOINTS:
        return f"checkpoints = {value or 'by the nodes'} (now {now.checkpoints or 'by the nodes'})"
    if name == SHARES:
        return f"weights = {value} (now {WEIGHTS[0] if isinstance(now.weights, msgspec.UnsetType) else now.weights})"
    if name == APPS:
        return f"{APPS} = {value} (now {most_apps(now)})"
    if name == SUSPECT_AFTER:
        return f"{SUSPECT_AFTER} = {value} (now {now.suspect_after})"
    time = TIMES[name]
    return f"{time.word} = {written(value * time.unit)} (now {written(getattr(now, name) * time.unit)})"
