"""What a live app's containers read about their membership: the file that `DORM_MEMBERS` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from agents.desired import DesiredApp


class Member(msgspec.Struct, frozen=True):
    slot: int
    host: str
    port: int


class Announcement(msgspec.Struct, frozen=True):
    """The whole target membership, by slot.  A slot that is missing leaves; readers accept fields that they do not know."""

    generation: int
    membership: int
    deadline_s: float
    """Seconds from the announcement within which the membership has to train."""
    members: list[Member]
    founders: list[int]
    """Slots of the generation's first membership.  Only they may begin the job; all others join one that may be under way."""


def announcement(app: DesiredApp) -> bytes:
    """Return the file's content for the membership that was announced last."""
    members = sorted(app.members, key=lambda placed: placed.slot)
    return msgspec.json.encode(
        Announcement(
            generation=app.generation,
            membership=app.membership,
            deadline_s=app.spec.deadlines.live_s,
            members=[Member(slot=one.slot, host=one.address, port=one.port) for one in members],
            founders=app.founders,
        )
    )
