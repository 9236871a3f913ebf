"""The store of the nodes' parts, beside a cluster's log: the last part of each node.

A write of a part succeeds only if its writer knows the part that it replaces. A deposed master does not know what its
successor wrote, so it can't overwrite it.  Bodies are bytes; `events.parts` gives them a meaning.

Implementations: `MemoryParts` here, `events.nats.parts_store`.  A log without such a store has `NoParts`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from events.log.records import LogRefused, Overtaken
from events.subjects import token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class StoredPart(NamedTuple):
    """A part as the store has it."""

    node: str
    """The node's name as a token of a subject."""
    revision: int
    """Changes with every write."""
    body: bytes
    """b"" if it is incomplete because its writer stopped in the middle."""


class ReadableParts(Protocol):
    """Parts to read."""

    async def all(self) -> list[StoredPart]:
        """Return the parts of all nodes, sorted by node.  Raises LogUnavailable, LogRefused."""
        ...

    async def last(self, node: str) -> StoredPart | None:
        """Return the part of a node, None if it has none.  Raises LogUnavailable, LogRefused."""
        ...

    def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        """Yield a node's present part and then each complete replacement, without end and through outages; if many
        come at once, only the last ones.  Raises LogClosed."""
        ...

    async def written(self) -> bool | None:
        """Return whether the leading master writes parts; None if that is unknown. Raises LogUnavailable."""
        ...


class Parts(ReadableParts, Protocol):
    """Parts to read and to write."""

    async def put(self, node: str, body: bytes, expected: int) -> int:
        """Store a node's part in place of the one with revision `expected` (0: none yet).  Return the new revision.  Raises
        Overtaken if the store has another one, LogUnavailable if it is unknown whether it was stored, LogRefused."""
        ...

    def writes(self, parts: bool) -> None:
        """Say whether this process writes parts while it leads (`written`)."""


class NoParts(Parts):
    """For logs that have none."""

    async def all(self) -> list[StoredPart]:
        return []

    async def last(self, node: str) -> StoredPart | None:
        return None

    async def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        await asyncio.Event().wait()
        yield StoredPart(node, 0, b"")

    async def written(self) -> bool | None:
        return False

    async def put(self, node: str, body: bytes, expected: int) -> int:
        raise LogRefused("this log keeps no parts of nodes", code="part.no_store")

    def writes(self, parts: bool) -> None:
        return None


class MemoryParts(Parts):
    """Parts within one process, for tests."""

    def __init__(self) -> None:
        self.stored: dict[str, StoredPart] = {}
        self._written = False
        self._revision = 0
        self._changed = asyncio.Condition()

    async def all(self) -> list[StoredPart]:
        return [part for _, part in sorted(self.stored.items())]

    async def last(self, node: str) -> StoredPart | None:
        return self.stored.get(token(node))

    async def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        after = 0
        while True:
            async with self._changed:
                while self._revision_of(node) <= after:
                    await self._changed.wait()
                part = self.stored[token(node)]
            after = part.revision
            yield part

    def _revision_of(self, node: str) -> int:
        part = self.stored.get(token(node))
        return part.revision if part is not None else 0

    async def written(self) -> bool | None:
        return self._written

    async def put(self, node: str, body: bytes, expected: int) -> int:
        async with self._changed:
            if self._revision_of(node) != expected:
                raise Overtaken(f"the part of {node} is at {self._revision_of(node)}, not at {expected}")
            self._revision += 1
            self.stored[token(node)] = StoredPart(token(node), self._revision, bytes(body))
            self._changed.notify_all()
            return self._revision

    def writes(self, parts: bool) -> None:
        self._written = parts
