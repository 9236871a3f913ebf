"""The engine `elastic`: the command as it is, and a file that announces the members of the generation.

`DORM_MEMBERS` names the file.  A program that follows it learns all changes from there and needs no other variable.  At the
start of a generation the membership is 1 and holds every container of the placement.  For an app that is adjusted by
checkpoint and restart the file never changes: each generation has a new one.  With `elastic: live` the agent replaces it
(`agents.announcements`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from agents.engines.interface import Launch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.engines.interface import Place
    from events.kinds import Placed

MEMBERS_FILE: Final = "dorm-members.json"
_DEADLINE_S: Final = 60.0
"""Seconds for members to follow an announcement."""


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
    """Slots of the generation's first membership.  Only they may begin the job; all others join a membership that may
    be under way."""


def announcement(
    generation: int, membership: int, deadline_s: float, placement: Iterable[Placed], founders: list[int] | None = None
) -> bytes:
    """Return the content of the file; without `founders`, all members are."""
    ordered = sorted(placement, key=lambda placed: placed.slot)
    members = [Member(slot=one.slot, host=one.address, port=one.port) for one in ordered]
    first = [one.slot for one in ordered] if founders is None else founders
    return msgspec.json.encode(Announcement(generation, membership, deadline_s, members, first)) + b"\n"


def prepare(place: Place) -> Launch:
    if place.spec.elastic == "live":
        return Launch(place.command)  # The agent announces each membership, the first one too.
    announced = announcement(place.generation, 1, _DEADLINE_S, place.placement)
    return Launch(
        place.command,
        env={"DORM_MEMBERS": place.path(MEMBERS_FILE)},
        files={MEMBERS_FILE: announced.decode()},
    )
