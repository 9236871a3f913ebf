"""The engine `elastic`: the command as it is, and a file that announces the members of the generation.

`DORM_MEMBERS` names the file.  A program that follows it learns all changes from there and needs no other variable.  At the
start of a generation the membership is 1 and holds every container of the placement.  For an app that is adjusted by
checkpoint and restart the file never changes: each generation has a new one.  With `elastic: live` the agent replaces it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from agents.engines.interface import Launch

if TYPE_CHECKING:
    from agents.engines.interface import Place

MEMBERS_FILE: Final = "dorm-members.json"
_DEADLINE_S: Final = 60.0
"""Seconds for members to follow an announcement."""


def prepare(place: Place) -> Launch:
    if place.spec.elastic == "live":
        return Launch(place.command)  # The agent announces each membership (`agents.members`), the first one too.
    announcement = {
        "generation": place.generation,
        "membership": 1,
        "deadline_s": _DEADLINE_S,
        "members": [{"slot": placed.slot, "host": placed.address, "port": placed.port} for placed in place.placement],
    }
    return Launch(
        place.command,
        env={"DORM_MEMBERS": place.path(MEMBERS_FILE)},
        files={MEMBERS_FILE: msgspec.json.encode(announcement).decode() + "\n"},
    )
