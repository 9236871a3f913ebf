"""The policies of the laboratory as far as logs need them: which parameters they accept, with which values.

They were Dorm's own until the laboratory became the distribution `dorm-lab`, and any log may name them.  What a record changes
must not depend on installed packages, so the fold accepts their names as Dorm's own and checks their parameters here.  The
policies use the same checks.

What a policy does and what its parameters mean is for people alone, so its class in `dorm_lab.policies` declares it, with the
ranges from here (`declared`).  Only a decision needs the policy itself: `registry.policy` finds it if `dorm-lab` is installed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dorm.policies.parameters import Other, Parameter, ParameterError, Range, read_numbers, refuse_unknown
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOUR = 3600.0
_ASSUMED = Range(3600.0, 0.0, 31_536_000.0)
_RESTART = Range(30.0, 0.0, 86_400.0)

RANGES: Mapping[str, Mapping[str, Range]] = {
    "market": {},
    "oasis": {
        "slot_s": Range(600.0, 1.0, 86_400.0),
        "slots": Range(144, 2, 1_000),
        "assumed_s": Range(3600.0, 1.0, 31_536_000.0),
    },
    "optimus": {"assumed_s": _ASSUMED},
    "pollux": {
        "p": Range(-1.0, -10.0, 1.0),
        "adjust_s": _RESTART,
        "population": Range(100, 4, 1_000),
        "generations": Range(100, 0, 10_000),
    },
    "shockwave": {
        "round_s": Range(120.0, 1.0, 86_400.0),
        "rounds": Range(20, 1, 100),
        "power": Range(12.0, 0.0, 20.0),
        "regularizer": Range(1e-9, 0.0, 1e5),
        "assumed_s": _ASSUMED,
    },
    "sia": {
        "p": Range(-0.5, -10.0, 10.0),
        "lambda": Range(1.1, 0.0, 1000.0),
        "adjust_s": _RESTART,
    },
    "task-level": {"probes": Range(2, 1, 1000)},
    "themis": {
        "fairness_knob": Range(0.8, 0.0, 1.0),
        "lease_s": Range(1200.0, 0.0, 31_536_000.0),
        "assumed_s": _ASSUMED,
    },
}
"""The numeric parameters of the policies that have only these; `shockwave` has counts as well."""


def check_params(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of a policy of the laboratory, from `params` or by default.  Raises `ParameterError`."""
    check = _OTHERS.get(name)
    return dict(read_numbers(name, params, RANGES[name])) if check is None else check(name, params)


def declared(name: str, meanings: Mapping[str, str]) -> dict[str, Parameter | Other]:
    """Return the parameters of a policy as its class declares them: their ranges from here, each with its meaning."""
    ranges, defaults = RANGES.get(name, {}), check_params(name, {})
    if meanings.keys() != defaults.keys():
        raise TypeError(f"policy {name} has the parameters {', '.join(defaults)}, not {', '.join(meanings)}")
    return {
        key: Parameter(*ranges[key], meaning) if key in ranges else Other(defaults[key], meaning)
        for key, meaning in meanings.items()
    }


def _app_level(name: str, params: dict[str, Any]) -> dict[str, Any]:
    refuse_unknown(name, params, ("grow",))
    grow = params.get("grow", False)
    if not isinstance(grow, bool):
        raise ParameterError(f"policy app-level: grow has to be true or false, not {short(grow)}")
    return {"grow": grow}


def _counts(name: str, params: dict[str, Any]) -> dict[str, Any]:
    from dorm.policies.baselines import fixed_counts

    refuse_unknown(name, params, fixed_counts.NAMES)
    return fixed_counts.check(name, params, fixed_counts.MOST)


def _shockwave(name: str, params: dict[str, Any]) -> dict[str, Any]:
    from dorm.policies.baselines import fixed_counts

    numbers = RANGES[name]
    refuse_unknown(name, params, (*fixed_counts.NAMES, *numbers))
    counts = {key: value for key, value in params.items() if key in fixed_counts.NAMES}
    others = {key: value for key, value in params.items() if key not in fixed_counts.NAMES}
    return {**fixed_counts.check(name, counts, fixed_counts.MOST), **read_numbers(name, others, numbers)}


def _sia(name: str, params: dict[str, Any]) -> dict[str, Any]:
    numbers = read_numbers(name, params, RANGES[name])
    if numbers["p"] == 0:
        text = "policy sia: p must not be 0, with which all goodputs are alike; -0.5 is the paper's"
        raise ParameterError(text, code="policy.parameter.out_of_range")
    return dict(numbers)


def _tiresias(name: str, params: dict[str, Any]) -> dict[str, Any]:
    from dorm.policies.baselines import fixed_counts

    refuse_unknown(name, params, (*fixed_counts.NAMES, "thresholds"))
    counts, thresholds = fixed_counts.check(name, params), params.get("thresholds", [16 * HOUR])
    if not isinstance(thresholds, list) or not all(_is_time(each) for each in thresholds):
        raise ParameterError(f"policy tiresias: thresholds has to be a list of seconds, not {short(thresholds)}")
    if any(later <= earlier for earlier, later in pairwise(thresholds)):
        raise ParameterError(
            f"policy tiresias: thresholds have to ascend, not {short(thresholds)}",
            code="policy.parameter.not_ascending",
        )
    return {**counts, "thresholds": [float(each) for each in thresholds]}


def _is_time(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value) and value >= 0


_OTHERS: Mapping[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "app-level": _app_level,
    "gavel": _counts,
    "shockwave": _shockwave,
    "sia": _sia,
    "srtf": _counts,
    "tiresias": _tiresias,
}
