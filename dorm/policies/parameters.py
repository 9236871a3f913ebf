"""Parameters of policies: names, defaults and ranges, and one clear line for any error in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from events.errors import DormError
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Parameter(NamedTuple):
    """A numeric parameter of a policy."""

    default: float
    """An int if only whole numbers are valid."""
    least: float
    most: float
    meaning: str


OPTIMIZER = {
    "theta1": Parameter(0.1, 0.0, 1.0, "fairness loss at most this part of its maximum, 2 per kind of resource"),
    "theta2": Parameter(
        0.1, 0.0, 1.0, "at most this part of the running apps, rounded up, changes in one round; 0: none"
    ),
    "max_changes": Parameter(50, 0, 1_000_000, "and never more running apps than this in one round"),
    "floor": Parameter(0.5, 0.0, 1.0, "each app should have at least this part of its theoretical share"),
    "adjust_s": Parameter(30.0, 0.0, 86_400.0, "seconds of work that adjusting an app costs if none was measured"),
    "horizon_s": Parameter(
        1500.0, 1.0, 604_800.0, "seconds that a decision is expected to last: sets what a change costs"
    ),
    "patience_s": Parameter(600.0, 0.0, 31_536_000.0, "seconds after which a waiting app precedes younger ones"),
}
"""Parameters of `dorm` and `dorm-exact`."""

SPEED = {
    "theta1": OPTIMIZER["theta1"]._replace(default=0.3),
    "theta2": Parameter(
        0.1, 0.0, 1.0, "restarts in one round: at most this part of the running apps, rounded up; 0: none"
    ),
    "max_changes": Parameter(50, 0, 1_000_000, "and never more restarts than this in one round"),
    "floor": OPTIMIZER["floor"],
    "rho": Parameter(
        1e6,
        1.0,
        1e6,
        "an app should take at most this many times as long as with its fair share all the time; 1e6: no bound",
    ),
    "adjust_s": Parameter(
        30.0,
        0.0,
        86_400.0,
        "seconds that an app pauses at a change, if no pause of any app was measured",
    ),
    "caution": Parameter(8.0, 0.0, 1000.0, "a change must save the app this many times the pause that it costs"),
    "rest": Parameter(
        0.0,
        0.0,
        1000.0,
        "after a change, an app keeps its containers for this many times its measured pause; 0: no rest",
    ),
    "full_pause_s": Parameter(
        30.0, 0.001, 86_400.0, "seconds of pause that count as one restart; a shorter pause counts in proportion"
    ),
    "power": Parameter(
        0.5, 0.1, 1.0, "how much a short remaining time counts: 1 favors short apps most, less is fairer"
    ),
    "patience_s": OPTIMIZER["patience_s"]._replace(
        meaning="seconds, or its own length if that is more, after which a waiting app precedes all others"
    ),
}
"""Parameters of `dorm-speed`."""
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


def read_numbers(policy: str, params: Mapping[str, Any], known: Mapping[str, Parameter]) -> dict[str, float]:
    """Return every known parameter, from `params` or by default."""
    refuse_unknown(policy, params, known)
    settings = {}
    for name, (default, least, most, _) in known.items():
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
