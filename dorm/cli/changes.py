"""Settings of a cluster as people write them, `theta2=0.2 quiet=500ms`, and the `PolicyChanged` that requests them."""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from dorm.cli.settings import parse_pairs
from dorm.core.query.in_force import (
    APPS,
    CHECKPOINTS,
    POLICY,
    RETENTION,
    SHARES,
    SUSPECT_AFTER,
    TIMES,
    in_force,
    settings_of,
    words,
)
from dorm.core.settings import TENANT_APPS, WEIGHTS, policy_after
from dorm.core.state import Settings
from dorm.local.spec_files import parse
from dorm.policies.registry import built_in, installed, policy
from events.errors import DormError
from events.kinds import PolicyChanged
from events.quantities import duration
from events.spec import SpecError
from events.times import SettingRefused, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.settings import Plugins
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from replay.moments import Moment

_NONE: Plugins = {}
DEFAULT = "default"
"""The value that resets a parameter or a setting."""


def change_of(pairs: list[str], settings: Settings, plugins: Plugins = _NONE) -> PolicyChanged:
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
    kept = [key for key in given if key.startswith(f"{TIMES[RETENTION].word}.")]
    if kept:
        change["tenant_retention_s"] = {key.partition(".")[2]: _retention(given.pop(key)) for key in kept}
    if CHECKPOINTS in given:
        change["checkpoints"] = _folder(given.pop(CHECKPOINTS))
    if SHARES in given:
        change[SHARES] = _counted(given.pop(SHARES))
    if APPS in given:
        change[APPS] = _apps(given.pop(APPS))
    if SUSPECT_AFTER in given:
        change[SUSPECT_AFTER] = _failures(given.pop(SUSPECT_AFTER))
    if chosen is not None and chosen != settings.policy:
        change["policy"] = chosen
    requested = PolicyChanged(**change)
    if chosen is not None:
        _checked(settings, requested, plugins)
    _refuse_unknown(given, msgspec.structs.replace(settings, policy=chosen or settings.policy, params={}), plugins)
    if given:
        params = {key: None if value == DEFAULT else _value(key, value) for key, value in given.items()}
        requested = msgspec.structs.replace(requested, set_params=params)
        _checked(settings, requested, plugins)
    return requested


def _checked(settings: Settings, change: PolicyChanged, plugins: Plugins) -> None:
    try:
        name, params = policy_after(settings, change, plugins)
        if built_in(name):
            policy(name)  # It may be of the laboratory, and not installed.
        elif installed(name):  # A plug-in's parameters can only be checked if it is installed.
            policy(name).check_params(params)
    except SettingRefused as error:
        if error.code == "policy.unknown" and change.policy is not None and installed(change.policy):
            text = (
                f"policy {change.policy!r} is installed here, and the leading master has not announced it; "
                "install it where the masters run, and restart them"
            )
            raise SpecError(text, code="policy.not_at_master") from None
        raise SpecError(str(error), code=error.code) from None
    except DormError as error:
        raise SpecError(str(error), code=error.code) from None


def _refuse_unknown(given: Mapping[str, str], settings: Settings, plugins: Plugins) -> None:
    parameters, times = in_force(settings, plugins)
    names = sorted(parameter.name for parameter in parameters)
    unknown = [key for key in given if key not in names]
    if unknown:
        near = difflib.get_close_matches(unknown[0], words(settings, plugins), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SpecError(
            f"unknown setting {unknown[0]!r}; {hint}policy {settings.policy} has "
            f"{', '.join(names) or 'no parameters'}, and there are also policy, checkpoints, {', '.join(time.word for time in times)}",
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


def _counted(text: str) -> str:
    """Return what weights count against.  Raises SpecError."""
    value = WEIGHTS[0] if text == DEFAULT else text
    if value not in WEIGHTS:
        raise SpecError(
            f"weights: {text[:80]!r} is not one of {' and '.join(WEIGHTS)}", code="settings.weights.unknown"
        )
    return value


def _apps(text: str) -> int:
    """Return how many apps a tenant may have.  Raises SpecError."""
    if text == DEFAULT:
        return TENANT_APPS
    if (number := _whole(APPS, text)) is None:
        raise SpecError(_no_number(APPS, text), code="settings.tenant_apps.malformed")
    return number


def _failures(text: str) -> int:
    """Return after the failures of how many apps a node is suspect.  Raises SpecError."""
    if text == DEFAULT:
        return Settings().suspect_after
    if (number := _whole(SUSPECT_AFTER, text)) is None:
        raise SpecError(_no_number(SUSPECT_AFTER, text), code="settings.suspect_after.malformed")
    return number


def _whole(name: str, text: str) -> int | None:
    low, high, _ = _range(name)
    digits = text.isascii() and text.isdigit()
    return int(text) if digits and low <= int(text[:20]) <= high else None


def _no_number(name: str, text: str) -> str:
    low, high, _ = _range(name)
    return f"{name}: {text[:80]!r} is not a whole number from {low:,.0f} to {high:,.0f}"


def _retention(text: str) -> float | None:
    """Return a tenant's retention in seconds; None for the cluster's.  Raises SpecError."""
    return None if text == DEFAULT else _time(RETENTION, TIMES[RETENTION].word, text)


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
    number = next(type_ for type_ in field.types if isinstance(type_, inspect.IntType | inspect.FloatType))
    return float(number.ge or 0), float(number.le or math.inf), isinstance(number, inspect.IntType)


_RANGES = {name: _range(name) for name in TIMES}


def settings_in(state: State, pairs: list[str]) -> dict[str, Any]:
    """Return what these `key=value` of `dorm policy set` would set in a state.  Raises SpecError, and WrongUsage."""
    change = change_of(pairs, state.settings, state.policy_plugins)
    return settings_of(change, state.settings, state.policy_plugins)


async def settings_at(log: ReadableLog, moment: Moment | None, pairs: list[str]) -> dict[str, Any]:
    """The same at a moment of a log.  Also raises as `replay.travel.travel.state_at`."""
    from replay.travel.travel import state_at

    return settings_in(await state_at(log, moment), pairs)
