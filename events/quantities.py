"""Resource quantities and durations: as people write them, and as integers in base units.

A spec may say `cpu: 500m`, `cpu: 2`, `memory: 1GiB`, `gpu: 1`, `licences: 3`; they resolve to milli-cores, bytes, whole
devices and counts.  Agents and the master write base units only.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Mapping

Quantity = int | float | str

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
"""Nanoseconds: the unit of all times on the log and in the state."""

CPU = "cpu"
MEMORY = "memory"
GPU = "gpu"

LARGEST = 2**60
"""The largest quantity.  Sums over a hundred thousand containers are still exact in Python's integers, and MessagePack can
carry one container's demand."""

LONGEST_S = 366 * 86400.0
"""The longest duration, in seconds."""

_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}


class QuantityError(DormError, ValueError):
    """A text or number is not a quantity; the message is one line that says what to write."""

    code = "quantity.malformed"


_NUMBER = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]{0,3})\s*")
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def resource(name: str, quantity: Quantity) -> int:
    """Return one quantity in base units, rounded up to a whole unit.

    Raises QuantityError, with a sentence for people that starts with the resource's name, for a value that is negative, not
    finite, absurdly large, or not a quantity.
    """
    value = _base_units(name, quantity)
    if not value >= 0:  # Also refuses NaN, for which every comparison is false.
        raise QuantityError(
            f"{name}: expected a quantity of at least 0, got {short(quantity)}", code="quantity.negative"
        )
    if value > LARGEST:
        raise QuantityError(f"{name}: {short(quantity)} is more than any cluster has", code="quantity.too_large")
    # 0.1 cores are 100 milli-cores, though the product of the two floats is a little more.
    return value if isinstance(value, int) else math.ceil(value - 1e-9 * max(1.0, value * 1e-6))


def _base_units(name: str, quantity: Quantity) -> int | float:
    if isinstance(quantity, str):
        return _cached_units(name, quantity) if len(quantity) <= _LONGEST_CACHED else _units_of_text(name, quantity)
    if isinstance(quantity, bool) or not isinstance(quantity, int | float):
        raise QuantityError(f"{name}: {short(quantity)} is not a quantity; write {example(name)}")
    return quantity * 1000 if name == CPU else quantity


def _units_of_text(name: str, text: str) -> int | float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise QuantityError(f"{name}: {short(text)} is not a quantity; write {example(name)}")
    number, suffix = int(match[1]) if match[1].isdigit() else float(match[1]), match[2]
    if name == CPU:
        if suffix not in ("", "m"):
            raise QuantityError(
                f"cpu: {short(text)} is not a number of cores; write {example(name)}", code="quantity.unknown_unit"
            )
        return number if suffix == "m" else number * 1000
    suffix = suffix.removesuffix("B")
    if suffix not in _SUFFIXES:
        raise QuantityError(
            f"{name}: {short(text)} has an unknown unit; write {example(name)}", code="quantity.unknown_unit"
        )
    return number * _SUFFIXES[suffix]


_cached_units = lru_cache(maxsize=4096)(_units_of_text)
"""The specs of a cluster repeat a few texts, and the fold reads all of them."""
_LONGEST_CACHED = 80
"""Characters.  White space is allowed in any length, so longer texts would let a client fill the cache's memory."""


def example(name: str) -> str:
    """Return an example quantity of this resource, for messages."""
    return {CPU: "2, 0.5 or 500m", MEMORY: "512MiB or 2GiB"}.get(name, "a whole number")


def short(value: object) -> str:
    """Return a value as messages quote it: on one line and short."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def resources(quantities: Mapping[str, Quantity]) -> dict[str, int]:
    """Return all quantities in base units, sorted by name, without zeros.  Raises QuantityError as `resource` does."""
    resolved = {name: resource(name, quantities[name]) for name in sorted(quantities)}
    return {name: amount for name, amount in resolved.items() if amount}


def capacity(text: str) -> dict[str, int]:
    """Parse `cpu=4,memory=8GiB,gpu=1` into base units.  Raises QuantityError with a sentence for people."""
    quantities: dict[str, Quantity] = {}
    for part in text.split(","):
        name, separator, amount = part.partition("=")
        if not separator or not name.strip().isprintable() or not name.strip():
            raise QuantityError(f"{part!r}: write name=amount, such as cpu=4,memory=8GiB,gpu=1")
        quantities[name.strip()] = amount.strip()
    return resources(quantities)


def duration(text: Quantity) -> float:
    """Return the seconds of `10s`, `500ms`, `2m`, `1.5h` or a plain number.  Raises QuantityError for anything else."""
    seconds: int | float
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = text
    else:
        match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match[2] or "s") not in _DURATIONS:
            raise QuantityError(f"{short(text)} is not a duration; write 10s, 500ms, 2m or 1h")
        seconds = float(match[1]) * _DURATIONS[match[2] or "s"]
    if not 0 <= seconds <= LONGEST_S:
        raise QuantityError(f"{short(text)} is not a duration between 0 and a year", code="quantity.out_of_range")
    return float(seconds)


def humanize(name: str, amount: int) -> str:
    """Format an amount in base units for people: `1.5 cores`, `2.0 GiB`, `3 gpu`."""
    if name == CPU:
        cores = amount / 1000
        return f"{cores:g} core" if cores == 1 else f"{cores:g} cores"
    if name == MEMORY:
        for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if amount >= size:
                return f"{amount / size:.4g} {unit}"
        return f"{amount} B"
    return f"{amount} {name}"
