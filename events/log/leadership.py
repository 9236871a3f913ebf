"""Who leads a cluster's masters: a lease in one place that all of them can reach.

The lease is advice.  It keeps two masters from competing and tells the others when to take over; what protects the log is its
fence (each round carries the sequence of the last one).  So a lease that is lost, lent twice or read late costs time and
nothing else.

It also says how far its holder had read the log, which the next leader expects to find: a server that lost acknowledged
records shows by that, also where it lost them while no master ran.

Nobody compares clocks: whoever waits counts, by its own monotonic clock, for how long it has seen the same revision.

Implementations: `MemoryLeadership` here, `events.nats.leadership`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Held(msgspec.Struct, frozen=True):
    """The lease as it was stored."""

    holder: str
    """The name of the master that has it, "" where the last one gave it back."""
    ttl_s: float
    """Seconds without a new revision after which others may take it."""
    revision: int
    """Another one after each change."""
    seq: int = 0
    """Up to which record its holder had read the log, 0 where it did not say."""
    chain: str = ""
    """The log's hash chain there."""


class Leadership(Protocol):
    """One cluster's lease.  Each of these raises LogUnavailable where nobody answers; whether a change was stored then is
    unknown, and the next look tells.  Raises LogRefused where the lease can't be kept at all."""

    async def look(self) -> Held | None:
        """As it is, None where it was never taken."""
        ...

    async def take(self, holder: str, ttl_s: float, over: Held | None) -> Held | None:
        """The lease, taken over from what was seen last (None: from nobody) with what it says of the log; None where somebody
        was first."""
        ...

    async def renew(self, held: Held) -> Held | None:
        """The same lease with a new revision and what `held` says of the log; None where it is somebody else's by now."""
        ...

    async def give_back(self, held: Held) -> None:
        """Let others take it at once, with what `held` says of the log.  One that is somebody else's by now is left alone."""
        ...


class MemoryLeadership(Leadership):
    """Within one process, for tests and simulations."""

    def __init__(self) -> None:
        self._held: Held | None = None

    async def look(self) -> Held | None:
        return self._held

    async def take(self, holder: str, ttl_s: float, over: Held | None) -> Held | None:
        if self._held != over:
            return None
        return self._store(Held(holder, ttl_s, 0, over.seq if over else 0, over.chain if over else ""))

    async def renew(self, held: Held) -> Held | None:
        if self._held is None or self._held.holder != held.holder:
            return None
        return self._store(held)

    async def give_back(self, held: Held) -> None:
        if self._held is not None and self._held.holder == held.holder:
            self._store(msgspec.structs.replace(held, holder=""))

    def _store(self, held: Held) -> Held:
        self._held = msgspec.structs.replace(held, revision=self._held.revision + 1 if self._held else 1)
        return self._held
