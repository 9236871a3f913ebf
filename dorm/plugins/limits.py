"""How long a plug-in may take for one answer before its process is killed."""

from __future__ import annotations

import os

from dorm.plugins.finding import PluginError
from events.quantities import QuantityError, duration

USUAL_S = 60.0
LOAD_S = 30.0
"""At least this long may it take to be imported: a busy machine takes seconds for NumPy alone."""
VARIABLE = "DORM_POLICY_LIMIT"
_given: list[float] = []


def set_limit(seconds: float) -> None:
    """Set the limit for this program."""
    _given[:] = [seconds]


def limit_s() -> float:
    """Return the limit in seconds: what the program set, else the environment's, else `USUAL_S`.  Raises PluginError."""
    if _given:
        return _given[0]
    text = os.environ.get(VARIABLE, "")
    if not text:
        return USUAL_S
    try:
        return checked(text)
    except QuantityError as error:
        raise PluginError(f"{VARIABLE}: {error}", code="policy.limit.malformed") from None


def checked(text: str) -> float:
    """Parse a limit such as `30s`.  Raises QuantityError."""
    seconds = duration(text)
    if seconds <= 0:
        raise QuantityError(f"{text!r} is no time; write 30s, for example")
    return seconds
