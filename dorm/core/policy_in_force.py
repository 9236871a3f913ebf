"""The policy in force: whether it works, the check of its answers, and the plug-ins of the leading master.

The core asks no policy without the check (`Guarded`): a policy may come from anyone, so any error is its failure and
none of the master's.  A failure keeps every place.  It is recorded once (`PolicyFailed`); then idle ticks ask again,
each time after twice the time (`dorm.core.timing`).  A policy that took too long is asked on ticks only, because
nothing else is published while it computes.  Another policy, or other parameters, start without failures.

This module has no clock, so it does not limit a policy's time: a plug-in runs in a separate process, and asking it
raises the same failure when its time is over (`dorm.plugins`).  Which plug-ins there are is the leading master's to
say; those of the last one are forgotten at an election, for the new master may not have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.effects import request_rebalance
from dorm.core.state import FailedPolicy, can_be_kept
from dorm.policies.checking import in_words, infeasible, nonsense
from dorm.policies.problem import PolicyFailure
from dorm.policies.registry import UnknownPolicy, built_in, policy
from events.kinds import PolicyPlugin
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import State
    from dorm.policies.problem import Allocation, Policy, Problem
    from events import kinds as k


# --- the fold ---------------------------------------------------------------------------------------------------------


def idle_ticked(state: State, basis: int) -> None:
    """It ends the looking again, unless something has happened that it could not know, or a `Resized` follows."""
    state.ticked_at = state.time
    if state.dirty_seq <= basis:
        state.rebalance_from = 0


def choose_policy(state: State, policy: str, params: dict[str, Any]) -> None:
    """These are in force from here on.  Earlier failures do not concern them."""
    settings = state.settings
    if (policy, params) != (settings.policy, settings.params):
        policy_works(state)
    settings.policy, settings.params = policy, params


def note_plugins(state: State, event: k.MasterElected) -> None:
    """Those of the master that leads from here on replace those of the last one."""
    state.plugins = {one.name: one for one in event.policies if can_be_kept(one)}


def policy_failed(state: State, event: k.PolicyFailed) -> None:
    """Nothing changes; an idle tick tries again, each time after twice the time (`dorm.core.timing`)."""
    before, since, ticks = state.policy_failure, state.time, 0
    if before is not None and (before.policy, before.code) == (event.policy, event.code):
        since, ticks = before.since, before.ticks + (event.trigger == "idle")
    state.policy_failure = FailedPolicy(
        event.policy, event.policy_version, event.code, event.reason, since, state.seq, state.time, ticks
    )
    request_rebalance(state)


def policy_works(state: State) -> None:
    """It has answered with a decision, or nothing is known of it yet."""
    state.policy_failure = None


# --- the check of answers ---------------------------------------------------------------------------------------------


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
