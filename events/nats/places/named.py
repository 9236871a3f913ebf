"""All places of one cluster's log, by name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import nats.js.errors

from events.nats.link import as_log_errors
from events.nats.places.deliveries import AGAIN_S, TIMEOUT_S, Deliveries
from events.nats.streams import log_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nats.js.api import ConsumerInfo

    from events.nats.link import Link

WEBHOOK = "webhook-"
"""How the names of webhooks' places start."""


class Standing(NamedTuple):
    """Where a reader is."""

    pending: int
    """Records that came and are not done."""
    unread: int
    """Records that have not come yet."""


class Places:
    """The durable readers of one cluster's log."""

    def __init__(self, link: Link, cluster: str, imported: int) -> None:
        self._link = link
        self._cluster = cluster
        self._imported = imported

    def reader(
        self, name: str, subjects: Sequence[str], *, after: int, most: int, again_s: float = AGAIN_S
    ) -> Deliveries:
        return Deliveries(
            self._link,
            self._cluster,
            name,
            subjects,
            after=after,
            most=most,
            again_s=again_s,
            imported=self._imported,
        )

    async def names(self, prefix: str) -> list[str]:
        """Return the names of all places that start so.  Raises LogUnavailable, LogRefused."""
        return sorted([info.name async for info in self._infos(prefix)])

    async def needed_from(self, prefix: str) -> int | None:
        """Return the first sequence that a reader at one of these places may have yet to see; None if all of them have seen
        everything.  Raises LogUnavailable, LogRefused."""
        found: list[int] = []
        async for info in self._infos(prefix):
            # A reader that waits for nothing has seen all, however far back its last record is.
            place = info.ack_floor if info.num_ack_pending else info.delivered if info.num_pending else None
            if place is not None:
                found.append((place.stream_seq or 0) + 1)
        return min(found, default=None)

    async def _infos(self, prefix: str) -> AsyncIterator[ConsumerInfo]:
        manager = self._link.jetstream(timeout=TIMEOUT_S)
        offset = 0
        with as_log_errors("listing places in the log"):
            while page := await manager.consumers_info(log_stream(self._cluster), offset):
                offset += len(page)
                for info in page:
                    if info.name.startswith(prefix):
                        yield info

    async def standing(self, name: str) -> Standing | None:
        """Return where a reader is; None if there is none.  Raises LogUnavailable, LogRefused."""
        with as_log_errors("looking at a place in the log"):
            try:
                info = await self._link.jetstream(timeout=TIMEOUT_S).consumer_info(log_stream(self._cluster), name)
            except nats.js.errors.NotFoundError:
                return None
        return Standing(info.num_ack_pending or 0, info.num_pending or 0)

    async def remove(self, name: str) -> None:
        """Forget a place.  Raises LogUnavailable, LogRefused."""
        with as_log_errors("removing a place in the log"), contextlib.suppress(nats.js.errors.NotFoundError):
            await self._link.jetstream(timeout=TIMEOUT_S).delete_consumer(log_stream(self._cluster), name)
