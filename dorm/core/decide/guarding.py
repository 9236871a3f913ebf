"""A policy whose answers are checked: the core asks no other.

Any error becomes a `PolicyFailure`; `allocation` then writes a `PolicyFailed` and keeps every place. This module has
no clock, so it does not limit a policy's time: a plug-in runs in a separate process, and asking it raises the same
failure when its time is over (`dorm.plugins`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.policies.checking import in_words, infeasible, nonsense
from dorm.policies.problem import PolicyFailure
from dorm.policies.registry import UnknownPolicy, built_in, policy
from events.kinds import PolicyPlugin
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import State
    from dorm.policies.problem import Allocation, Policy, Problem


class Guarded:
    """Asks a policy, and checks every answer. `allocate` raises only `PolicyFailure`."""

    def __init__(self, chosen: Policy) -> None:
        self._chosen = chosen
        self.name = chosen.name
        self.version = chosen.version
        self.plugin: str = getattr(chosen, "plugin", "")
        """The distribution of a plug-in, as events name it."""

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._chosen.check_params(params)
        except PolicyFailure:
            raise
        except Exception as error:
            raise PolicyFailure(f"it refuses its parameters: {_words(error)}") from error

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        try:
            answer = self._chosen.allocate(problem, params)
        except PolicyFailure:
            raise
        # A policy may come from anyone, so any exception is its failure and none of the master's.
        except Exception as error:
            raise PolicyFailure(_words(error)) from error
        if wrong := nonsense(problem, answer):
            raise PolicyFailure(in_words(wrong), code="policy.nonsense")
        if wrong := infeasible(problem, answer):
            raise PolicyFailure(in_words(wrong), code="policy.infeasible")
        return answer


def announced(name: str) -> tuple[PolicyPlugin, ...]:
    """Return what a master says of this policy at its election: nothing for Dorm's own policies.  Raises UnknownPolicy,
    PolicyFailure."""
    if built_in(name):
        return ()
    one = Guarded(policy(name))
    return (PolicyPlugin(name, one.version, one.plugin, one.check_params({})),)


def in_force(state: State) -> Guarded:
    """Return the policy that the state's settings name. Raises PolicyFailure if it is not installed or does not
    load."""
    name = state.settings.policy
    try:
        return Guarded(policy(name))
    except UnknownPolicy as error:
        raise PolicyFailure(str(error), code="policy.not_installed") from None


def _words(error: Exception) -> str:
    """Return an exception in one line, with the place that raised it."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
        place, trace = f" ({file}:{trace.tb_lineno})", trace.tb_next
    return clipped(" ".join(f"{type(error).__name__}: {error}".split())) + place
