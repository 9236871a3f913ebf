"""The masters' lease: which master of a cluster leads.

The lease is advice.  It keeps two masters from competing and shows the others when to take over.  The fence protects
the log: each round carries the sequence of the last one.  A lease that is lost, granted twice or read late costs only
time.

The lease also records how far its holder had read the log, and the next leader expects to find that much.  So a server that
lost acknowledged records is detected, even if no master ran when it lost them.

Clocks are never compared: a waiting master measures, by its own monotonic clock, how long it has seen the same revision.

Implementations: `MemoryLeadership` here, `events.nats.leadership`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Held(msgspec.Struct, frozen=True):
    """The lease as stored."""

    holder: str
    """The name of the master that holds it, "" if the last holder gave it back."""
    ttl_s: float
    """Seconds without a new revision after which another master may take it."""
    revision: int
    """Changes with every write."""
    seq: int = 0
    """The last record that its holder had read, 0 if it recorded none."""
    chain: str = ""
    """The log's hash chain after that record."""
    parts: bool = False
    """Whether its holder writes the nodes' parts, as masters do since 0.6.0."""


class Leadership(Protocol):
    """One cluster's lease.  Each method raises LogUnavailable if no server answers; whether a change was stored is then
    unknown until the next `look`.  Raises LogRefused if the lease can't be kept."""

    async def look(self) -> Held | None:
        """Return the lease, None if it was never taken."""
        ...

    async def take(self, holder: str, ttl_s: float, over: Held | None) -> Held | None:
        """Take the lease over from `over`, the last one seen (None: none), and keep what it recorded of the log.
        Return the new lease, or None if another master was first."""
        ...

    async def renew(self, held: Held) -> Held | None:
        """Store a new revision with what `held` records of the log.  Return it, or None if another master holds the lease."""
        ...

    async def give_back(self, held: Held) -> None:
        """Free the lease at once, with what `held` records of the log.  A lease that another master holds is left alone."""
        ...


class MemoryLeadership(Leadership):
    """A lease within one process, for tests and simulations."""

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
