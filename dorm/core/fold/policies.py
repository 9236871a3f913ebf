"""A state's data about policies: whether the one in force works, when it was asked, and the plug-ins of the master."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.effects import request_rebalance
from dorm.core.state import FailedPolicy, can_be_kept

if TYPE_CHECKING:
    from dorm.core.state import State
    from events import kinds as k


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
    plugins = {one.name: one for one in event.policies if can_be_kept(one)}
    state.plugins = plugins or msgspec.UNSET


def policy_failed(state: State, event: k.PolicyFailed) -> None:
    """Nothing changes; an idle tick tries again, each time after twice the time (`dorm.core.decide.timing`)."""
    before, since, ticks = state.policy_failure, state.time, 0
    if isinstance(before, FailedPolicy) and (before.policy, before.code) == (event.policy, event.code):
        since, ticks = before.since, before.ticks + (event.trigger == "idle")
    state.policy_failure = FailedPolicy(
        event.policy, event.policy_version, event.code, event.reason, since, state.seq, state.time, ticks
    )
    request_rebalance(state)


def policy_works(state: State) -> None:
    """It has answered with a decision, or nothing is known of it yet."""
    if state.policy_failure is not msgspec.UNSET:
        state.policy_failure = msgspec.UNSET
