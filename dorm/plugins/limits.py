"""How long a policy may take for one answer before the process of a plug-in is killed, or the answer of one of Dorm's own
policies is given up."""

from __future__ import annotations

import os

from dorm.plugins.finding import PluginError
from events.quantities import QuantityError, duration

USUAL_S = 60.0
"""Seconds that a plug-in usually has."""
LOAD_S = 30.0
"""The minimum time allowed for its import: on a busy machine, NumPy alone takes seconds."""
VARIABLE = "DORM_POLICY_LIMIT"
_given: list[float] = []


def set_limit(seconds: float) -> None:
    """Set the limit for this program."""
    _given[:] = [seconds]


def limit_s(usual_s: float = USUAL_S) -> float:
    """Return the limit in seconds: what the program set, else the environment's, else the usual one.  Raises PluginError."""
    if _given:
        return _given[0]
    text = os.environ.get(VARIABLE, "")
    if not text:
        return usual_s
    try:
        return checked(text)
    except QuantityError as error:
        raise PluginError(f"{VARIABLE}: {error}", code="policy.limit.malformed") from None


def checked(text: str) -> float:
    """Parse a limit such as `30s`.  Raises QuantityError."""
    seconds = duration(text)
    if seconds <= 0:
        raise QuantityError(f"{text!r} is not a time; write 30s, for example")
    return seconds
