"""A cluster's streams as the servers report them: where their copies are, and how current each is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import nats.js.errors

from events.log.records import LogError
from events.nats.link import as_log_errors
from events.nats.stream_state import api_request
from events.nats.streams import stream_configs

if TYPE_CHECKING:
    from events.nats.link import Link

_TIMEOUT_S = 3.0
_SECOND_NS = 1e9


class Copy(msgspec.Struct, frozen=True):
    """A copy of a stream on one server."""

    server: str
    leads: bool
    current: bool
    """Whether it has all records of the leading copy."""
    offline: bool
    active_s: float
    """Seconds since the leading copy last heard from it."""
    lag: int
    """Records that it does not have yet."""


class StreamState(msgspec.Struct, frozen=True):
    """One stream."""

    name: str
    error: str = ""
    """Why nothing else is known."""
    missing: bool = False
    replicas: int = 1
    """How many copies it is to have."""
    copies: list[Copy] = []
    first: int = 0
    last: int = 0
    size: int = 0
    """Bytes on the leading server."""
    limit: int | None = None
    """Bytes that it may take; None if only the disk limits it."""

    @property
    def heard(self) -> int:
        """Copies that the leading one can reach, including itself."""
        return sum(1 for copy in self.copies if copy.leads or (not copy.offline and copy.active_s < HEARD_S))


HEARD_S = 4.0
"""Copies exchange messages once a second."""


async def stream_states(link: Link, cluster: str) -> list[StreamState]:
    """Return the state of each stream of a cluster, the log's first.  What can't be read says why."""
    return list(await asyncio.gather(*(_state(link, str(config.name)) for config in stream_configs(cluster))))


async def _state(link: Link, stream: str) -> StreamState:
    try:
        with as_log_errors(f"looking up stream {stream}"):
            info = await api_request(link, f"STREAM.INFO.{stream}", {}, _TIMEOUT_S)
    except LogError as error:
        missing = isinstance(error.__cause__, nats.js.errors.NotFoundError)
        return StreamState(stream, error="" if missing else str(error), missing=missing)
    config, state = info["config"], info["state"]
    return StreamState(
        name=stream,
        replicas=config.get("num_replicas", 1),
        copies=_copies(link, info),
        first=state["first_seq"],
        last=state["last_seq"],
        size=state["bytes"],
        limit=limit if (limit := config.get("max_bytes", -1)) > 0 else None,
    )


def _copies(link: Link, info: dict[str, Any]) -> list[Copy]:
    """Return the copies, the leader's first.  A single server does not name itself."""
    cluster = info.get("cluster") or {}
    leader = cluster.get("leader") or link.server_name
    copies = [Copy(leader, True, True, False, 0.0, 0)]
    copies += [
        Copy(
            server=str(peer.get("name", "?")),
            leads=False,
            current=bool(peer.get("current")),
            offline=bool(peer.get("offline")),
            active_s=peer.get("active", 0) / _SECOND_NS,
            lag=int(peer.get("lag", 0)),
        )
        for peer in cluster.get("replicas") or []
    ]
    return copies
