"""Whether the view is due to change, and to what: pure functions of a member's knowledge.

A view changes because a membership was announced, or because chunks should move from slow members to fast ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.elastic.ownership import owned_by, shared_out

if TYPE_CHECKING:
    from dorm.elastic.ownership import Owners
    from dorm.elastic.protocol.known import Known

__all__ = ["BALANCE_EVERY", "BALANCE_GAIN", "balanced_owners", "next_members", "without_state"]

BALANCE_EVERY = 20
"""Steps in a view before chunks may move for balance."""
BALANCE_GAIN = 0.1
"""Share of a step's time that a move for balance must save."""


def next_members(known: Known) -> tuple[int, ...] | None:
    """Return the members of the next view, or None while no change is due or a newcomer is not ready for it.

    The present members are the answer if only chunks move for balance, or only the membership's number changes."""
    view = known.view
    assert view is not None
    if known.announced.membership > view.membership:
        members = tuple(sorted(set(known.announced.members) - known.dead))
        newcomers = set(members) - set(view.members)
        if not members or newcomers - known.warm.keys() or newcomers - known.connected:
            return None
        return members
    return view.members if balanced_owners(known) != view.owners else None


def balanced_owners(known: Known) -> Owners:
    """Return owners in proportion to measured speed if that makes steps shorter by `BALANCE_GAIN`, else the present ones."""
    view, rates = known.view, known.rates
    assert view is not None
    if (
        known.step - known.changed_at < BALANCE_EVERY
        or len(view.members) < 2
        or any(slot not in rates for slot in view.members)
    ):
        return view.owners
    moved = shared_out(view.owners, view.members, rates)
    before, after = (max(len(owned_by(o, s)) / rates[s] for s in view.members) for o in (view.owners, moved))
    return moved if after < (1 - BALANCE_GAIN) * before else view.owners


def without_state(known: Known) -> set[int]:
    """Return the connected newcomers that still need a first state to warm up with."""
    view = known.view
    assert view is not None
    if known.announced.membership <= view.membership:
        return set()
    newcomers = set(known.announced.members) - set(view.members) - known.dead
    return {slot for slot in newcomers & known.connected if slot not in known.warm and slot not in known.offered}
