"""Settings of a cluster as people write them, `theta2=0.2 quiet=500ms`, and the `PolicyChanged` that requests them."""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import inspect

from dorm.cli.settings import parse_pairs
from dorm.core.settings import parameters_in_force, policy_after
from dorm.core.state import Settings
from dorm.local.spec_files import parse
from dorm.policies.parameters import OPTIMIZER, SPEED
from events.kinds import PolicyChanged
from events.quantities import duration
from events.spec import SpecError
from events.times import SettingRefused, written

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT = "default"
"""The value that resets a parameter or a setting."""
POLICY = "policy"
CHECKPOINTS = "checkpoints"
"""The cluster's folder of checkpoints, by the id in its marker."""


class Time(NamedTuple):
    """One of the master's times: its name for people, its unit in the log, and its purpose."""

    word: str
    unit: float
    """Seconds."""
    meaning: str


TIMES = {
    "quiet_ms": Time("quiet", 0.001, "how long the log must be quiet before an allocation is computed"),
    "quiet_limit_ms": Time("quiet_limit", 0.001, "the longest time for which a busy log can delay an allocation"),
    "idle_s": Time("idle", 1.0, "how long nothing happens before the allocation is reconsidered"),
    "heartbeat_s": Time("heartbeat", 1.0, "the longest time from one heartbeat of a node to the next"),
    "node_grace_s": Time("node_grace", 1.0, "a node that is silent for longer is lost: nothing new goes there"),
    "node_lease_s": Time("node_lease", 1.0, "a node that is silent for longer has stopped its containers by itself"),
    "retention_s": Time("retention", 1.0, "how long an ended app, its containers and logs stay"),
}
"""By their names in `PolicyChanged`."""

_OTHERS = {
    "count": "containers of an app that has no entry in counts",
    "counts": "containers by app id; a key that ends in * stands for all ids that start with it",
    "backfill": "whether a later app may start while an earlier one waits for room",
    "thresholds": "attained service (container-seconds) at which an app leaves one queue for the next",
    "assumed_s": "seconds of work, on one container, assumed for an app that does not report it",
    "grow": "whether apps that run take further offers, each of which restarts them",
    "probes": "nodes that are probed for each task",
    "fairness_knob": "f: only the part 1 - f of the apps that is worst off takes part in an auction",
    "lease_s": "seconds for which an app holds what it has won in an auction",
}
"""Parameters of the other policies."""
_GISTS = {
    "dorm": "all of the cluster used, as far as fairness and few changes allow, at any size",
    "dorm-exact": "the same goals solved exactly: the reference, up to some 30 apps on 20 nodes",
    "dorm-speed": "the promises of dorm, and containers where they finish most work, by the speed of each app",
    "app-level": "room is offered to one app after the other, and an app keeps what it takes, as in Mesos with DRF",
    "task-level": "containers are slots for short tasks, shared out again by each decision, as in Sparrow",
    "drf": "one container after the other goes to the app with the lowest weighted dominant share, as in DRF",
    "fifo": "the app that came first starts first, with all that it asks for, and is never resized or stopped",
    "gavel": "fair parts of time on types of nodes that are not equally fast, in rounds with preemption, as in Gavel",
    "market": "apps bid for nodes with their weights as budgets, and get the part of a node that they bid of all bids",
    "optimus": "each container goes where it shortens the remaining time most, as in Optimus: needs steps and speed",
    "srtf": "the app that ends soonest goes first, with all that it asks for, and preempts others",
    "themis": "apps that are furthest behind their fair finish time win containers at auctions, and hold them for a lease",
    "tiresias": "the app with the least attained service goes first and preempts others, as in Tiresias",
    "static": "a fixed number of containers per app, first come first served, never resized",
}


class Setting(msgspec.Struct, frozen=True):
    """One line of `dorm policy show`: values in the units of the log."""

    name: str
    word: str
    """The key in `dorm policy set`."""
    value: Any
    default: Any
    meaning: str


def in_force(settings: Settings) -> tuple[list[Setting], list[Setting]]:
    """Return the policy's parameters, and the master's times."""
    defaults = parameters_in_force(Settings(policy=settings.policy))
    parameters = [
        Setting(name, name, value, defaults[name], meaning_of(name))
        for name, value in parameters_in_force(settings).items()
    ]
    times = [
        Setting(name, time.word, getattr(settings, name), getattr(Settings(), name), time.meaning)
        for name, time in TIMES.items()
    ]
    return parameters, times


def meaning_of(parameter: str) -> str:
    """Return the meaning of a policy's parameter in a few words; '' if it has no description."""
    known = OPTIMIZER | {name: given for name, given in SPEED.items() if name not in OPTIMIZER}
    return known[parameter].meaning if parameter in known else _OTHERS.get(parameter, "")


def gist_of(policy: str) -> str:
    """Return what a policy does in a few words; '' if it has no description."""
    return _GISTS.get(policy, "")


def words(settings: Settings) -> list[str]:
    """Return the keys of all settings."""
    parameters, times = in_force(settings)
    return [POLICY, CHECKPOINTS, *(one.word for one in parameters), *(one.word for one in times)]


def shown(setting: Setting, value: Any) -> str:
    """Format a value as people write it."""
    if setting.name in TIMES:
        return written(value * TIMES[setting.name].unit)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def change_of(pairs: list[str], settings: Settings) -> PolicyChanged:
    """Return the change for these `key=value`, checked against the settings in force.

    Keys are parameters of the policy (of the one that `policy=NAME` names, if given), the times' words, and the times' names
    in the log.  Only named settings change.  Raises SpecError, and WrongUsage for an invalid pair.
    """
    if len({pair.partition("=")[0] for pair in pairs}) < len(pairs):
        raise SpecError("a setting is given twice", code="settings.given_twice")
    given = parse_pairs(pairs, "setting")
    chosen = given.pop(POLICY, None)
    change: dict[str, Any] = {}
    by_word = {time.word: name for name, time in TIMES.items()}
    for key in [key for key in given if key in by_word or key in TIMES]:
        name = by_word.get(key, key)
        if name in change:
            raise SpecError(f"{TIMES[name].word} is given twice", code="settings.given_twice")
        change[name] = _time(name, key, given.pop(key))
    if CHECKPOINTS in given:
        change["checkpoints"] = _folder(given.pop(CHECKPOINTS))
    if chosen is not None and chosen != settings.policy:
        change["policy"] = chosen
    asked = PolicyChanged(**change)
    if chosen is not None:
        _checked(settings, asked)
    _refuse_unknown(given, msgspec.structs.replace(settings, policy=chosen or settings.policy, params={}))
    if given:
        params = {key: None if value == DEFAULT else _value(key, value) for key, value in given.items()}
        asked = msgspec.structs.replace(asked, set_params=params)
        _checked(settings, asked)
    return asked


def _checked(settings: Settings, change: PolicyChanged) -> None:
    try:
        policy_after(settings, change)
    except SettingRefused as error:
        raise SpecError(str(error), code=error.code) from None


def _refuse_unknown(given: Mapping[str, str], settings: Settings) -> None:
    parameters, times = in_force(settings)
    names = sorted(one.name for one in parameters)
    unknown = [key for key in given if key not in names]
    if unknown:
        near = difflib.get_close_matches(unknown[0], words(settings), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SpecError(
            f"unknown setting {unknown[0]!r}; {hint}policy {settings.policy} has "
            f"{', '.join(names) or 'no parameters'}, and there are also policy, checkpoints, {', '.join(one.word for one in times)}",
            code="settings.unknown",
        )


def _value(key: str, text: str) -> Any:
    """Parse a value as YAML.  Raises SpecError."""
    try:
        return parse(text)
    except SpecError as error:
        raise error.within(key) from None


def _folder(text: str) -> str:
    """Return the folder's id, "" for the default.  Raises SpecError."""
    if text == DEFAULT:
        return ""
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise SpecError(
            f"checkpoints: {text!r} is not the id of a folder; `dorm nodes -o wide` shows those of all nodes",
            code="settings.checkpoints.malformed",
        )
    return text


def _time(name: str, key: str, text: str) -> float | int:
    """Return a time in the unit of the log: `500ms` under the word, a plain number under the name in the log.  Raises
    SpecError."""
    time = TIMES[name]
    if text == DEFAULT:
        value: float = getattr(Settings(), name)
    else:
        try:
            value = duration(text) / time.unit if key == time.word else float(text)
        except ValueError as error:
            reason = str(error) if key == time.word else f"{text!r} is not a number"
            raise SpecError(f"{key}: {reason}", code=f"settings.{time.word}.malformed") from None
    low, high, whole = _RANGES[name]
    if not math.isfinite(value) or not low <= value <= high:
        reason = f"{key}: {text} is not between {written(low * time.unit)} and {written(high * time.unit)}"
        raise SpecError(reason, code=f"settings.{time.word}.out_of_range")
    return round(value) if whole else value


def _range(name: str) -> tuple[float, float, bool]:
    """Return the range of a time in `PolicyChanged`: least, most, and whether only whole numbers."""
    kind = inspect.type_info(PolicyChanged)
    assert isinstance(kind, inspect.StructType)
    (field,) = (field.type for field in kind.fields if field.name == name)
    assert isinstance(field, inspect.UnionType)
    number = next(one for one in field.types if isinstance(one, inspect.IntType | inspect.FloatType))
    return float(number.ge or 0), float(number.le or math.inf), isinstance(number, inspect.IntType)


_RANGES = {name: _range(name) for name in TIMES}
