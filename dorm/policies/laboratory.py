"""The policies of the laboratory as far as logs need them: their names, and which parameters they accept.

They were Dorm's own until the laboratory became the distribution `dorm-lab`, and any log may name them.  What a record changes
must not depend on installed packages, so the fold accepts these names as Dorm's own and checks their parameters here.  The
policies use the same checks.  Only a decision needs the policy itself: `registry.policy` finds it if `dorm-lab` is installed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dorm.policies.parameters import Parameter, ParameterError, read_numbers, refuse_unknown
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOUR = 3600.0
_ASSUMED = Parameter(
    3600.0, 0.0, 31_536_000.0, "seconds of work, on one container, that are assumed of an app which doesn't say"
)
_RESTART = Parameter(30.0, 0.0, 86_400.0, "seconds that a restart costs if none was measured")

PARAMETERS: Mapping[str, Mapping[str, Parameter]] = {
    "market": {},
    "oasis": {
        "slot_s": Parameter(600.0, 1.0, 86_400.0, "seconds of a slot: counts change only between slots"),
        "slots": Parameter(
            144, 2, 1_000, "the horizon: an app is admitted only if it can be done within this many slots"
        ),
        "assumed_s": Parameter(
            3600.0, 1.0, 31_536_000.0, "seconds of work, on one worker, that are assumed for an app that declares none"
        ),
    },
    "optimus": {"assumed_s": _ASSUMED},
    "pollux": {
        "p": Parameter(-1.0, -10.0, 1.0, "exponent of the mean of speed-ups: the smaller, the fairer"),
        "adjust_s": _RESTART,
        "population": Parameter(100, 4, 1_000, "allocations that the search keeps"),
        "generations": Parameter(100, 0, 10_000, "generations of the search, at most"),
    },
    "shockwave": {
        "round_s": Parameter(120.0, 1.0, 86_400.0, "seconds of one round of the window"),
        "rounds": Parameter(20, 1, 100, "rounds of the window for which it plans"),
        "power": Parameter(
            12.0, 0.0, 20.0, "how much an app's lateness counts: its budget is its weight times ρ to this power"
        ),
        "regularizer": Parameter(
            1e-9, 0.0, 1e5, "what a second of the makespan costs, against the mean of log progress"
        ),
        "assumed_s": _ASSUMED,
    },
    "sia": {
        "p": Parameter(-0.5, -10.0, 10.0, "exponent of normalized goodputs: the smaller, the fairer; not 0"),
        "lambda": Parameter(
            1.1, 0.0, 1000.0, "penalty for an app that gets nothing; a smallest configuration is worth 1"
        ),
        "adjust_s": _RESTART,
    },
    "task-level": {"probes": Parameter(2, 1, 1000, "nodes that are probed for each task")},
    "themis": {
        "fairness_knob": Parameter(
            0.8, 0.0, 1.0, "f: only the part 1 - f of the apps that is worst off takes part in an auction"
        ),
        "lease_s": Parameter(1200.0, 0.0, 31_536_000.0, "seconds for which an app holds what it has won"),
        "assumed_s": _ASSUMED,
    },
}
"""The numeric parameters of the policies that have only these; `shockwave` has counts as well."""


def check_params(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of a policy of the laboratory, from `params` or by default.  Raises `ParameterError`."""
    check = _OTHERS.get(name)
    return dict(read_numbers(name, params, PARAMETERS[name])) if check is None else check(name, params)


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

    numbers = PARAMETERS[name]
    refuse_unknown(name, params, (*fixed_counts.NAMES, *numbers))
    counts = {key: value for key, value in params.items() if key in fixed_counts.NAMES}
    others = {key: value for key, value in params.items() if key not in fixed_counts.NAMES}
    return {**fixed_counts.check(name, counts, fixed_counts.MOST), **read_numbers(name, others, numbers)}


def _sia(name: str, params: dict[str, Any]) -> dict[str, Any]:
    numbers = read_numbers(name, params, PARAMETERS[name])
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
