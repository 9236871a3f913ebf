"""The fold of plans: promises of a policy that plans ahead (`AppPlanned`).

A plan is kept until the policy makes another or withdraws it, or until another policy is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.effects import mark_dirty
from dorm.core.state import Promise

if TYPE_CHECKING:
    from dorm.core.state import State
    from events import kinds as k

MOST_SLOTS = 1002
"""Slots of one plan: the longest horizon of any policy, and its end."""
MOST_PLACES = 20_000
"""Nodes named in one plan, over all its slots."""


def app_planned(state: State, event: k.AppPlanned) -> None:
    app = state.apps.get(event.app)
    places = sum(len(slot.containers) for slot in event.slots)
    ascending = all(one.at < other.at for one, other in zip(event.slots, event.slots[1:], strict=False))
    if app is None or app.ended or len(event.slots) > MOST_SLOTS or places > MOST_PLACES or not ascending:
        state.counters.ignored += 1
        return
    app.plan = Promise(event.slots, event.worth, event.cost, state.seq, state.time) if event.slots else None
    if event.more:
        mark_dirty(state)


def forget_plans(state: State) -> None:
    """Another policy decides from here on."""
    for app_id in state.names.values():
        state.apps[app_id].plan = None
