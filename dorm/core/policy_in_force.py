"""The policy in force: the changes of settings that choose it, whether it works, the check of its answers, and the plug-ins
of the leading master.

A change of settings (`PolicyChanged`) holds in parts: harmful times refuse all of it, here as on every agent, while an
unknown policy, refused parameters or a folder that no node has leave only these as they were (`policy_changed`).

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

from dorm.core.effects import drop_ended, mark_dirty, request_rebalance
from dorm.core.folded import APPLIED, Effect, ignored
from dorm.core.promises import forget_plans
from dorm.core.settings import (
    TIMES,
    policy_after,
    suspicion_after,
    tenant_apps_after,
    tenant_retention_after,
    times_of,
    weights_after,
)
from dorm.core.shared_folder import check_folder, settle_folder
from dorm.core.state import REFUSED_CHANGES, FailedPolicy, RefusedChange, ShortenedTime, can_be_kept
from dorm.policies.checking import in_words, infeasible, nonsense
from dorm.policies.problem import PolicyFailure
from dorm.policies.registry import UnknownPolicy, built_in, policy
from events.kinds import PolicyPlugin
from events.limits import clipped
from events.times import HarmfulTimes, SettingRefused, times_after

if TYPE_CHECKING:
    from dorm.core.state import State
    from dorm.policies.problem import Allocation, Policy, Problem
    from events import kinds as k
    from events.errors import DormError
    from events.log.records import Record


# --- the fold ---------------------------------------------------------------------------------------------------------


_SETTINGS = Effect(everything=True, parts="all")
_REFUSED_SETTINGS = Effect("refused", everything=True, parts="all")
"""Effect of a change that is refused in part at least: the times that it sets may hold."""


def policy_changed(state: State, event: k.PolicyChanged, record: Record) -> Effect:
    """Harmful times refuse the whole change, here as on every agent.  An unknown policy or refused parameters leave the old
    ones in force, and so does a folder of checkpoints that no node has.  The times hold even then: agents know neither
    policies nor other nodes."""
    settings = state.settings
    try:
        times = times_after(times_of(settings), event)
    except HarmfulTimes as refused:
        effect = _refuse_change(state, event, refused, whole=True)
        for node in state.nodes.values():
            if not node.identity:  # Its agent is older than 0.6.0, and adopts such a lease anyway.
                node.lease_s = max(node.lease_s, event.node_lease_s or 0.0)
        return effect
    effect, decided_by = _SETTINGS, settings.policy
    try:
        choose_policy(state, *policy_after(settings, event, state.plugins))
    except SettingRefused as refused:
        effect = _refuse_change(state, event, refused, whole=False)
    if settings.policy != decided_by:
        forget_plans(state)
    for name in ("node_grace_s", "node_lease_s"):
        before, after = getattr(settings, name), getattr(times, name)
        if after < before:
            state.shortened[name] = ShortenedTime(state.seq, state.time, event.by, before, after)
    for name in TIMES:
        setattr(settings, name, getattr(times, name))
    settings.tenant_retention_s = tenant_retention_after(settings, event)
    settings.weights = weights_after(settings, event)
    settings.tenant_apps = tenant_apps_after(settings, event)
    settings.suspect_after, settings.suspect_within_s = suspicion_after(settings, event)
    try:
        check_folder(state, event)
    except SettingRefused as refused:
        effect = _refuse_change(state, event, refused, whole=False)
    else:
        if event.checkpoints is not None:
            settings.checkpoints = event.checkpoints
            settle_folder(state)
    for node in state.nodes.values():
        node.lease_s = max(node.lease_s, settings.node_lease_s)
    if event.retention_s is not None or event.tenant_retention_s:
        drop_ended(state)
    mark_dirty(state)
    return effect


def _refuse_change(state: State, event: k.PolicyChanged, error: DormError, *, whole: bool) -> Effect:
    ignored(state)
    refused = RefusedChange(
        id=event.id,
        seq=state.seq,
        at=state.time,
        by=event.by,
        reason=clipped(str(error)),
        whole=whole,
        code=error.code,
    )
    state.refused_changes = [*state.refused_changes, refused][-REFUSED_CHANGES:]
    return _REFUSED_SETTINGS


def idle_ticked(state: State, basis: int) -> Effect:
    """It ends the looking again, unless something has happened that it could not know, or a `Resized` follows."""
    state.ticked_at = state.time
    if state.dirty_seq <= basis:
        state.rebalance_from = 0
    return APPLIED


def choose_policy(state: State, policy: str, params: dict[str, Any]) -> None:
    """These are in force from here on.  Earlier failures do not concern them."""
    settings = state.settings
    if (policy, params) != (settings.policy, settings.params):
        policy_works(state)
    settings.policy, settings.params = policy, params


def note_plugins(state: State, event: k.MasterElected) -> None:
    """Those of the master that leads from here on replace those of the last one."""
    state.plugins = {plugin.name: plugin for plugin in event.policies if can_be_kept(plugin)}


def policy_failed(state: State, event: k.PolicyFailed) -> Effect:
    """Nothing changes; an idle tick tries again, each time after twice the time (`dorm.core.timing`)."""
    before, since, ticks = state.policy_failure, state.time, 0
    if before is not None and (before.policy, before.code) == (event.policy, event.code):
        since, ticks = before.since, before.ticks + (event.trigger == "idle")
    state.policy_failure = FailedPolicy(
        event.policy, event.policy_version, event.code, event.reason, since, state.seq, state.time, ticks
    )
    request_rebalance(state)
    return APPLIED


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
    guarded = Guarded(policy(name))
    return (PolicyPlugin(name, guarded.version, guarded.plugin, guarded.check_params({})),)


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
