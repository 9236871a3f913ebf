"""The lines of a progress file: what of one can be used, and why not.

Apps write them by any means, so numbers may be in strings, and the non-finite losses that Python's `json` writes
(`NaN`, `Infinity`) are read although they are not JSON: a training that diverges still works, and has to be seen to
diverge.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from events.kinds import LossIs

_LARGEST_STEP = 2**53
_LONGEST_NUMBER = 64
"""Characters of a string that is read as a number."""
_HOLDS_SOMETHING = ("checkpoint", "request_size", "membership", "epoch")
FORM = 'write one JSON object per line, such as {"step": 120, "loss": 0.31}'


def decoded(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if it holds none."""
    try:
        words: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            words = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return words if isinstance(words, dict) else None


def step_of(value: object) -> int | None:
    """Return a step, also from a string or a float that is whole; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_NUMBER:
        value = int(value)
    elif isinstance(value, float | str):
        number = _float(value)
        value = int(number) if number is not None and number.is_integer() else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_STEP:
        return value
    return None


def number_of(value: object) -> float | None:
    """Return a finite number, also from a string; None for anything else."""
    number = _float(value)
    return number if number is not None and math.isfinite(number) else None


def loss_of(value: object) -> tuple[float | None, LossIs]:
    """Return a loss, or which number it is that is not finite."""
    number = _float(value)
    if number is None or math.isfinite(number):
        return number, ""
    if math.isnan(number):
        return None, "nan"
    return None, "inf" if number > 0 else "-inf"


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > _LONGEST_NUMBER:
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):
        return None


def fault_of(line: bytes) -> str:
    """Return why a line, or a part of it, can't be used, and a usable form; "" for a usable or an empty line."""
    if not line.strip():
        return ""
    words = decoded(line)
    if words is None:
        return f"this is not a JSON object; {FORM}"
    if "step" in words and step_of(words["step"]) is None and not {"membership", "epoch"} & words.keys():
        return "its step is not a whole number from 0 to 2^53"
    if words.get("checkpoint") is not None and step_of(words["checkpoint"]) is None:
        return "its checkpoint is not a step, which is a whole number from 0 to 2^53"
    for name in ("loss", "samples_per_s", "noise"):
        if words.get(name) is not None and _float(words[name]) is None:
            return f"its {name} is not a number"
    if "step" not in words and not any(name in words for name in _HOLDS_SOMETHING):
        return f"it has no step, no checkpoint and no request_size; {FORM}"
    return ""
