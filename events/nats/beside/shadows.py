"""The comparison streams of shadows on NATS: a stream and subjects of their own, which no part of a cluster reads.

    dorm.<cluster>.shadow.<policy>.<who>   five tokens, of which the log's stream takes none

Old comparisons make room for new ones, so a shadow can fill nothing but this stream.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import nats.js.errors
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from events import subjects as names
from events.log.records import LogRefused
from events.nats.link import NO_ROOM, as_log_errors

if TYPE_CHECKING:
    from events.nats.link import Link

AGE_S = 7 * 86_400.0
LARGEST = 256 * 1024 * 1024
_EACH = 100_000


def shadow_stream(cluster: str) -> str:
    """Return a name that no cluster's log can have."""
    return f"DORM_shadow-{cluster}"


def shadow_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=shadow_stream(cluster),
        subjects=[names.shadows(cluster)],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=AGE_S,
        max_bytes=LARGEST,
        max_msgs_per_subject=_EACH,
        allow_direct=True,
    )


class Comparisons:
    """Where one shadow publishes.  It knows one subject, and has no other way to write."""

    def __init__(self, link: Link, cluster: str, policy: str, who: str) -> None:
        self._link, self._cluster = link, cluster
        self.subject = names.shadow(cluster, policy, who)

    async def prepare(self, timeout: float = 5.0) -> None:
        """Create the stream if it does not exist. Raises LogUnavailable, LogRefused."""
        manager = self._link.jetstream(timeout=timeout)
        config = shadow_config(self._cluster)
        with as_log_errors(f"looking up stream {config.name} at {self._link.url}"):
            with contextlib.suppress(nats.js.errors.NotFoundError):
                found = (await manager.stream_info(shadow_stream(self._cluster))).config
                if found.subjects != config.subjects:
                    raise LogRefused(f"stream {config.name} exists and holds {', '.join(found.subjects or ())}")
                return
            try:
                await manager.add_stream(config)
            except nats.js.errors.APIError as error:
                if error.err_code not in NO_ROOM:
                    raise
                # A server reserves a stream's bytes, and a small server does not have this many.
                await manager.add_stream(config.evolve(max_bytes=-1))

    async def publish(self, body: bytes, timeout: float = 5.0) -> None:
        """Store one comparison.  Raises LogUnavailable, LogRefused."""
        self._link.check_size(body)
        await self._link.sendable("comparison", timeout)
        with as_log_errors("publishing a comparison"):
            await self._link.jetstream().publish(self.subject, body, timeout=timeout)
