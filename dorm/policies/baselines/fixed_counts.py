"""Containers that an operator fixes for each app, for policies that don't choose counts themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies.parameters import Other, ParameterError
from events.quantities import short

if TYPE_CHECKING:
    from dorm.policies.integer import Instance, Ints

NAMES = ("count", "counts")
"""`count`, and `counts`: a key that ends in `*` matches all ids with that prefix, and the longest match wins."""
MEANINGS = {
    "count": "containers of an app that has no entry in counts",
    "counts": "containers by app id; a key that ends in * stands for all ids that start with it",
}
DEFAULT = 2
MOST = 1_000_000
"""The largest count: each app gets its n_max."""


def parameters(default: int = DEFAULT) -> dict[str, Other]:
    """Return both as a policy's class declares them."""
    return {"count": Other(default, MEANINGS["count"]), "counts": Other({}, MEANINGS["counts"])}


def check(policy: str, params: dict[str, Any], default: int = DEFAULT) -> dict[str, Any]:
    """Return both, given or by default.  Raises `ParameterError`."""
    count, counts = params.get("count", default), params.get("counts", {})
    _check_count(policy, "count", count)
    if not isinstance(counts, dict):
        raise ParameterError(f"policy {policy}: counts has to be a map of app ids to numbers, not {short(counts)}")
    for key, value in counts.items():
        if not isinstance(key, str) or not key:
            raise ParameterError(f"policy {policy}: counts has the key {short(key)}, which is not an app id")
        _check_count(policy, f"counts[{key}]", value)
    return {"count": count, "counts": dict(sorted(counts.items()))}


def _check_count(policy: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ParameterError(
            f"policy {policy}: {name} has to be a whole number from 1 to {MOST}, not {short(value)}",
            code="policy.parameter.out_of_range",
        )


def wanted(instance: Instance, settings: dict[str, Any]) -> Ints:
    """Return each app's target in gangs, clipped to n_min..n_max and to the number that an empty cluster would hold."""
    default, counts = settings["count"], settings["counts"]
    return np.array([_wanted(instance, row, default, counts) for row in range(len(instance.apps))], np.int64)


def _wanted(instance: Instance, row: int, default: int, counts: dict[str, int]) -> int:
    app = instance.apps[row]
    patterns = [key for key in counts if key.endswith("*") and app.id.startswith(key[:-1])]
    count = counts.get(app.id, counts[max(patterns, key=len)] if patterns else default)
    gangs = -(-count // int(instance.gang[row]))
    return max(min(gangs, int(instance.n_max[row]), int(instance.fits_empty[row])), int(instance.n_min[row]))
