"""What containers have used until now, from the looks that heartbeats take at them; reported once, at each container's end.

An engine forgets a container's figures when the container ends, so the last look before its end counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.runtime.interface import Key
from events.kinds import ContainerUsed
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agents.runtime.interface import Seen
    from events.kinds import ContainerUse


class _Looks:
    """The looks at one container."""

    def __init__(self, started_at: int, first_at: int) -> None:
        self.started_at = started_at
        self.at = self.first_at = first_at
        self.cpu_s = 0.0
        self.byte_ns = 0
        """Resident bytes, each look's from the one before it on."""
        self.memory = 0


class Usage:
    """The use of the containers of one node.  A restart of the agent loses only the mean of their memory before it."""

    def __init__(self) -> None:
        self._looks: dict[Key, _Looks] = {}

    def note(self, seen: Sequence[Seen], uses: Sequence[ContainerUse], at: int, clock: int) -> None:
        """Take a look at the running containers, and forget those that are gone.  Times are measured by an unsettable clock
        (`at`, ns).  The wall clock (`clock`, UTC ns) only says, at the first look, how long a container has run by then."""
        listed: Mapping[Key, Seen] = {one.key: one for one in seen}
        for use in uses:
            key = Key(use.app, use.generation, use.slot)
            if key not in listed:
                continue
            looks = self._looks.get(key)
            if looks is None:
                ran = max(0, clock - (listed[key].started_at or clock))
                looks = self._looks[key] = _Looks(at - ran, at)
            looks.byte_ns += use.memory * max(0, at - looks.at)
            looks.at, looks.cpu_s, looks.memory = max(looks.at, at), max(looks.cpu_s, use.cpu_s), use.memory
        for key in [key for key in self._looks if key not in listed]:
            del self._looks[key]

    def of(self, key: Key) -> ContainerUsed | None:
        """Return a container's usage when it was last looked at; None if it never was."""
        looks = self._looks.get(key)
        if looks is None:
            return None
        watched = looks.at - looks.first_at
        return ContainerUsed(
            cpu_s=round(looks.cpu_s, 3),
            memory=looks.byte_ns // watched if watched else looks.memory,
            over_s=round(max(0, looks.at - looks.started_at) / SECOND, 3),
        )
