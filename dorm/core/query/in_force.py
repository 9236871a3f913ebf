"""Settings in words: those in force, those that could be, and those that are assumed.

in force   every parameter of the policy and every time of the master, with default and meaning (`in_force`,
           `words`)
offered    the policies that a cluster can change to, each with the JSON Schema of its parameters, for forms and
           editors.  A schema has types, defaults, meanings and ranges, as far as the policy's class declares them
           (`registry.parameters_of`).  The policy itself has the last word: it checks what it is given
assumed    settings by their names in the log: those of a policy, the master's times, the folder of checkpoints
           (`change_for`)
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dorm.core.settings import TENANT_APPS, WEIGHTS, most_apps, parameters_in_force, times_of
from dorm.core.shared_folder import check_folder
from dorm.core.state import Settings
from dorm.policies.parameters import Parameter
from dorm.policies.registry import names, parameters_of, policy, summary_of
from events.kinds import PolicyChanged
from events.times import SettingRefused, times_after, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.settings import Plugins
    from dorm.core.state import State
    from dorm.policies.parameters import Other


# --- in force ---------------------------------------------------------------------------------------------------------

_NONE: Plugins = {}
POLICY = "policy"
CHECKPOINTS = "checkpoints"
"""The cluster's folder of checkpoints, by the id in its marker."""
SHARES = "weights"
"""Setting of what weights count against; its name in the log as well."""
_MEANS = "scope of weights: apps for all apps, tenants for those of the same tenant, with equal tenants"

APPS = "tenant_apps"
"""Number of apps of a tenant that have not ended at most; its name in the log as well."""
_MOST = "how many apps a tenant may have that have not ended; an open cluster has no tenants"
SUSPECT_AFTER = "suspect_after"
"""Number of different apps after whose failures a node is suspect; its name in the log as well."""
_SUSPECT = "a node is suspect, and takes nothing new, when so many different apps failed there; 0: never"


class Time(NamedTuple):
    """One of the master's times: its name for people, its unit in the log, and its purpose."""

    word: str
    unit: float
    """Unit of the value: seconds."""
    meaning: str


TIMES = {
    "quiet_ms": Time("quiet", 0.001, "how long the log must be quiet before an allocation is computed"),
    "quiet_limit_ms": Time("quiet_limit", 0.001, "the longest time for which a busy log can delay an allocation"),
    "idle_s": Time("idle", 1.0, "how long nothing happens before the allocation is reconsidered"),
    "heartbeat_s": Time("heartbeat", 1.0, "the longest time from one heartbeat of a node to the next"),
    "node_grace_s": Time("node_grace", 1.0, "a node that is silent for longer is lost: nothing new goes there"),
    "node_lease_s": Time("node_lease", 1.0, "a node that is silent for longer has stopped its containers by itself"),
    "suspect_within_s": Time(
        "suspect_within", 1.0, "within which time they fail; also how long an app avoids a node where it failed"
    ),
    "retention_s": Time("retention", 1.0, "how long an ended app, its logs, checkpoints and outputs stay"),
}
"""Times by their names in `PolicyChanged`."""
RETENTION = "retention_s"
_kept = TIMES[RETENTION]


class Setting(msgspec.Struct, frozen=True):
    """One line of `dorm policy show`: values in the units of the log."""

    name: str
    word: str
    """The key in `dorm policy set`."""
    value: Any
    default: Any
    meaning: str


def in_force(settings: Settings, plugins: Plugins = _NONE) -> tuple[list[Setting], list[Setting]]:
    """Return the policy's parameters, and the master's times and other settings. `plugins` are those that the leading
    master announced."""
    defaults = parameters_in_force(Settings(policy=settings.policy), plugins)
    declared = parameters_of(settings.policy)
    parameters = [
        Setting(name, name, value, defaults.get(name), declared[name].meaning if name in declared else "")
        for name, value in parameters_in_force(settings, plugins).items()
    ]
    times = [
        Setting(name, time.word, getattr(settings, name), getattr(Settings(), name), time.meaning)
        for name, time in TIMES.items()
    ]
    times += [
        Setting(
            f"{RETENTION}.{tenant}",
            f"{_kept.word}.{tenant}",
            kept,
            settings.retention_s,
            f"the same for {tenant}'s apps",
        )
        for tenant, kept in settings.tenant_retention_s.items()
    ]
    counted = WEIGHTS[0] if settings.weights is None else settings.weights
    times.append(Setting(SHARES, SHARES, counted, WEIGHTS[0], _MEANS))
    times.append(Setting(APPS, APPS, most_apps(settings), TENANT_APPS, _MOST))
    most = Setting(SUSPECT_AFTER, SUSPECT_AFTER, settings.suspect_after, Settings().suspect_after, _SUSPECT)
    before = next(place for place, setting in enumerate(times) if setting.name == "suspect_within_s")
    return parameters, [*times[:before], most, *times[before:]]


def words(settings: Settings, plugins: Plugins = _NONE) -> list[str]:
    """Return the keys of all settings."""
    parameters, times = in_force(settings, plugins)
    return [POLICY, CHECKPOINTS, *(parameter.word for parameter in parameters), *(time.word for time in times)]


def shown(setting: Setting, value: Any) -> str:
    """Format a value as people write it."""
    if (time := TIMES.get(setting.name.partition(".")[0])) is not None:
        return written(value * time.unit)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- policies that can be chosen --------------------------------------------------------------------------------------

_TYPES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "boolean"), ((str,), "string"), ((int, float), "number"), ((list, tuple), "array"), ((dict,), "object"),
)  # fmt: skip


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that the cluster's masters have."""

    name: str
    version: int
    plugin: str
    """The distribution that it comes from; "" for a policy of Dorm itself."""
    gist: str
    """Gist of the policy in a few words."""
    schema: dict[str, Any]
    """The JSON Schema of its parameters."""


def offered(plugins: Plugins) -> list[Offered]:
    """Return Dorm's own policies by name, then the plug-ins that the leading master announced."""
    others = [
        Offered(name=name, version=plugin.version, plugin=plugin.plugin, gist="", schema=_schema("", plugin.defaults))
        for name, plugin in sorted(plugins.items())
    ]
    return [*_own(), *others]


@cache
def _own() -> tuple[Offered, ...]:
    known = ((name, policy(name)) for name in names())
    return tuple(
        Offered(
            name=name,
            version=known_policy.version,
            plugin="",
            gist=summary_of(name),
            schema=_schema(name, known_policy.check_params({})),
        )
        for name, known_policy in known
    )


def _schema(name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    declared = parameters_of(name)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Parameters of {name}" if name else "Parameters",
        "type": "object",
        "properties": {key: _property(value, declared.get(key)) for key, value in defaults.items()},
        "additionalProperties": False,
    }


def _property(default: Any, declared: Parameter | Other | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"default": default}
    if (kind := _type(default)) is not None:
        schema["type"] = kind
    if declared is not None:
        schema["description"] = declared.meaning
    if isinstance(declared, Parameter):
        schema |= {"minimum": declared.least, "maximum": declared.most}
        schema["type"] = "integer" if isinstance(declared.default, int) else "number"
    return schema


def _type(value: Any) -> str | None:
    """Return the JSON type of a default; None for null, which says nothing about other values."""
    return next((name for kinds, name in _TYPES if isinstance(value, kinds)), None)


# --- assumed settings -------------------------------------------------------------------------------------------------


def settings_of(change: PolicyChanged, now: Settings, plugins: Plugins) -> dict[str, Any]:
    """Return what a change sets, by name; a parameter that it returns to its default has that as its value."""
    chosen = change.policy if change.policy is not None else now.policy
    defaults = parameters_in_force(Settings(policy=chosen), plugins)
    values: dict[str, Any] = {} if change.policy is None else {POLICY: change.policy}
    for name, value in {**(change.params or {}), **(change.set_params or {})}.items():
        values[name] = defaults.get(name) if value is None else value
    for name in (*TIMES, CHECKPOINTS, SHARES, APPS, SUSPECT_AFTER):
        if getattr(change, name) is not None:
            values[name] = getattr(change, name)
    return values


def change_for(settings: Mapping[str, Any], state: State) -> tuple[PolicyChanged, list[str]]:
    """Return the change that makes these settings hold, and it in words.  Raises ValueError for an unknown policy, parameter
    or value, and for what the cluster would refuse."""
    now, plugins = state.settings, state.plugins
    chosen = settings.get(POLICY, now.policy)
    others = {name: settings[name] for name in (*TIMES, CHECKPOINTS, SHARES, APPS, SUSPECT_AFTER) if name in settings}
    given = {name: value for name, value in settings.items() if name != POLICY and name not in others}
    same = chosen == now.policy
    known = policy(chosen)
    params = known.check_params({**(now.params if same else {}), **given})
    change = PolicyChanged()
    changes = [] if same else [f"policy {chosen} (now {now.policy})"]
    if given or not same:
        change = msgspec.structs.replace(change, policy=chosen, params=params)
        before = parameters_in_force(now, plugins) if same else known.check_params({})
        which = "now" if same else "default"
        changes += [f"{name} = {value} ({which} {before.get(name)})" for name, value in given.items()]
    if others:
        change = _with(change, others)
        times_after(times_of(now), change)
        check_folder(state, change)
        changes += [_in_words(name, value, now) for name, value in others.items()]
    return change, changes


def _with(change: PolicyChanged, others: Mapping[str, Any]) -> PolicyChanged:
    try:
        return msgspec.convert({**msgspec.structs.asdict(change), **others, "kind": "PolicyChanged"}, PolicyChanged)
    except msgspec.ValidationError as error:
        raise SettingRefused(f"settings: {error}", code="settings.refused") from None


def _in_words(name: str, value: Any, now: Settings) -> str:
    if name == CHECKPOINTS:
        return f"checkpoints = {value or 'by the nodes'} (now {now.checkpoints or 'by the nodes'})"
    if name == SHARES:
        return f"weights = {value} (now {WEIGHTS[0] if now.weights is None else now.weights})"
    if name == APPS:
        return f"{APPS} = {value} (now {most_apps(now)})"
    if name == SUSPECT_AFTER:
        return f"{SUSPECT_AFTER} = {value} (now {now.suspect_after})"
    time = TIMES[name]
    return f"{time.word} = {written(value * time.unit)} (now {written(getattr(now, name) * time.unit)})"
