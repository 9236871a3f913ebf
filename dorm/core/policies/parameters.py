"""Parameters of policies: names, defaults, ranges, and one clear line for whatever is wrong with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def refuse_unknown(policy: str, params: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises `ValueError` for names that the policy does not have."""
    names = sorted(known)
    unknown = sorted(str(name) for name in params if name not in names)
    if unknown:
        raise ValueError(f"policy {policy}: unknown parameter {', '.join(unknown)} (it has {', '.join(names)})")


def read_numbers(
    policy: str, params: Mapping[str, Any], known: Mapping[str, tuple[float, float, float]]
) -> dict[str, float]:
    """Every known parameter, from `params` or by default; `known` gives (default, least, most) of each."""
    refuse_unknown(policy, params, known)
    settings = {}
    for name, (default, least, most) in known.items():
        value = params.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"policy {policy}: {name} has to be a number, not {value!r}")
        if not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"policy {policy}: {name} has to be between {least:g} and {most:g}, not {value!r}")
        settings[name] = float(value)
    return settings
