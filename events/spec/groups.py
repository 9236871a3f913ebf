"""Groups of apps: the apps of a sweep or an array, and how many of them may run at once.

Each app's spec says to which group it belongs, so a group needs no separate record: it exists as long as its apps do,
even if the client that submitted them ends. The master enforces the limit (`dorm.core.gates`).

A group's variables are part of `env` in every checked spec, so that agents of any release give them to the containers.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Annotated

import msgspec

from events.quantities import short
from events.spec.faults import SpecError

LONGEST_NAME = 42
"""Characters of a group's name: the names of its apps have a number after it."""
MOST_APPS = 100_000
MOST_WHOLE = 2**53
Setting = bool | Annotated[int, msgspec.Meta(ge=-MOST_WHOLE, le=MOST_WHOLE)] | float | str
"""A parameter's value."""
_LONGEST = 4096
_WHOLE = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
GroupName = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^[a-z0-9]([a-z0-9-]{{0,{LONGEST_NAME - 2}}}[a-z0-9])?$",
        description=f"lower-case letters, digits and dashes, at most {LONGEST_NAME}; each tenant has groups of its own",
    ),
]
ParameterName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """The group that an app belongs to, as `dorm sweep run` makes it."""

    name: GroupName
    run: Annotated[
        str,
        msgspec.Meta(pattern="^[0-9a-f]{0,32}$", description="distinguishes successive groups of this name"),
    ] = ""
    index: Annotated[int, msgspec.Meta(ge=0, le=MOST_APPS - 1, description="its number in the group, from 0")] = 0
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_APPS, description="the number of apps in the group")] = 1
    parallel: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=MOST_APPS,
            description="at most this many apps of the group are placed at a time; 0: no limit",
        ),
    ] = 0
    parameters: Annotated[
        dict[ParameterName, Setting],
        msgspec.Meta(
            max_length=64, description="the parameters that distinguish it from the others", examples=[{"lr": 0.1}]
        ),
    ] = {}

    def variables(self) -> dict[str, str]:
        """Return what its containers find in their environment."""
        parameters = {f"DORM_PARAM_{name.upper()}": as_text(value) for name, value in self.parameters.items()}
        return {
            "DORM_SWEEP": self.name,
            "DORM_ARRAY_INDEX": str(self.index),
            "DORM_ARRAY_COUNT": str(self.count),
            **parameters,
        }


def as_text(value: Setting) -> str:
    """Return a parameter's value as commands and environments have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def setting(text: str) -> Setting:
    """Return the value of a parameter that was typed: a number, true or false only if `as_text` gives the same text back."""
    if text in ("true", "false"):
        return text == "true"
    if len(text) > 40 or not _NUMBER.fullmatch(text):
        return text
    value = int(text) if _WHOLE.fullmatch(text) else float(text)
    return text if _unusable(value) or as_text(value) != text else value


def number(value: Setting) -> float | None:
    """Return a parameter's value as a number, to sort and compare it; None if it is none."""
    if isinstance(value, str):
        return float(value) if len(value) <= 400 and _NUMBER.fullmatch(value) else None
    return float(value)


def written(group: Group | None, env: dict[str, str]) -> dict[str, str]:
    """Return what the author of a spec wrote into `env`: without the group's own variables, if they have the values that
    they must have.  Others of these names stay, and are refused as reserved."""
    own = group.variables() if group is not None else {}
    return {name: value for name, value in env.items() if own.get(name) != value} if own else env


def completed(group: Group | None, env: dict[str, str]) -> dict[str, str]:
    """Return `env` with the group's own variables."""
    return {**env, **group.variables()} if group is not None else env


def check_group(group: Group | None) -> None:
    """Refuse an index beyond the count, and parameters that an environment can't hold.  Raises SpecError."""
    if group is None:
        return
    if group.name.endswith("\n") or group.run.endswith("\n"):
        raise SpecError("group.name: can't hold a line end", code="spec.group.name.malformed")
    if group.index >= group.count:
        text = f"group.index: {group.index} is beyond group.count, which is {group.count}; the first app has 0"
        raise SpecError(text, code="spec.group.index_beyond")
    seen: dict[str, str] = {}
    for name, value in group.parameters.items():
        other = seen.setdefault(name.upper(), name)
        if other != name:
            text = f"group.parameters: {other} and {name} would be one variable, DORM_PARAM_{name.upper()}; rename one"
            raise SpecError(text, code="spec.group.parameters.ambiguous")
        if name.endswith("\n") or _unusable(value):
            text = (
                f"group.parameters.{name.strip()}: {short(value)} is no value of a parameter: write a finite number up to "
                f"2^53, true, false, or at most {_LONGEST} characters"
            )
            raise SpecError(text, code="spec.group.parameters.malformed")


def _unusable(value: Setting) -> bool:
    """Return whether a value is not finite or huge, or a text with a NUL or with broken characters."""
    if isinstance(value, float | int):
        return not isfinite(value) if isinstance(value, float) else abs(value) > MOST_WHOLE
    try:
        return len(value) > _LONGEST or "\x00" in value.encode().decode()
    except UnicodeEncodeError:
        return True
