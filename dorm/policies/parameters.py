"""Parameters of policies: how a policy's class declares them, and one clear line for any error in what it is given.

A policy of Dorm's own has a dict `parameters` of `Parameter` and `Other` by name.  `dorm policy show`, the API's schemas and
`check_params` follow from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from events.errors import DormError
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Range(NamedTuple):
    """What a numeric parameter accepts."""

    default: float
    """An int if only whole numbers are valid."""
    least: float
    most: float


class Parameter(NamedTuple):
    """A numeric parameter of a policy: its range, and what it means to people."""

    default: float
    """An int if only whole numbers are valid."""
    least: float
    most: float
    meaning: str


class Other(NamedTuple):
    """A parameter that is not one number in a range, which its policy checks itself."""

    default: Any
    meaning: str


RESTS_FROM_S = 5.0
"""An app whose changes stop it for less than this does not rest after one."""


class ParameterError(DormError, ValueError):
    """A policy does not accept these parameters; the message is one line with those that it accepts."""

    code = "policy.parameter.wrong_type"


def refuse_unknown(policy: str, params: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises `ParameterError` for names that the policy does not have."""
    names = sorted(known)
    unknown = sorted(str(name) for name in params if name not in names)
    if unknown:
        raise ParameterError(
            f"policy {policy}: unknown parameter {', '.join(unknown)} (it has {', '.join(names) or 'none'})",
            code="policy.parameter.unknown",
        )


def read_numbers(policy: str, params: Mapping[str, Any], known: Mapping[str, Parameter | Range]) -> dict[str, float]:
    """Return every known parameter, from `params` or by default."""
    refuse_unknown(policy, params, known)
    settings = {}
    for name, parameter in known.items():
        default, least, most = parameter.default, parameter.least, parameter.most
        value = params.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ParameterError(f"policy {policy}: {name} has to be a number, not {short(value)}")
        if not least <= value <= most:  # This also refuses NaN and numbers out of range.
            raise ParameterError(
                f"policy {policy}: {name} has to be between {least:g} and {most:g}, not {short(value)}",
                code="policy.parameter.out_of_range",
            )
        if isinstance(default, int) and value != int(value):
            raise ParameterError(f"policy {policy}: {name} has to be a whole number, not {short(value)}")
        settings[name] = type(default)(value)
    return settings
