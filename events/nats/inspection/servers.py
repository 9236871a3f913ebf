"""The NATS servers of a cluster, each asked by itself."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
import nats.js.errors

from events.addresses import shown
from events.log.records import LogError
from events.nats.link import Link, as_log_errors
from events.nats.stream_state import api_request
from events.nats.streams import log_stream

if TYPE_CHECKING:
    from events.nats.access.credentials import Credentials

_CONNECT_S = 3.0
_ASK_S = 2.0


class ServerState(msgspec.Struct, frozen=True):
    """One server."""

    address: str
    error: str = ""
    """Why its condition is unknown."""
    name: str = ""
    version: str = ""
    answers_in_s: float = 0.0
    """The time that a question and its answer take."""
    certificate: bytes = b""
    """In DER; empty if the connection is not encrypted."""


class ClockState(msgspec.Struct, frozen=True):
    """How far another clock is ahead of this machine's, in seconds."""

    ahead_s: float
    within_s: float
    """The answer's way takes time, so the difference is known only up to this."""


async def server_states(link: Link) -> list[ServerState]:
    """Ask each configured server, and each that another one announces."""
    return list(await asyncio.gather(*(_server(address, link.credentials) for address in link.known_servers)))


async def _server(address: str, credentials: Credentials | None) -> ServerState:
    try:
        alone = await Link.open(address, name="dorm-doctor", timeout=_CONNECT_S, credentials=credentials)
    except LogError as error:
        return ServerState(shown(address), error=str(error))
    try:
        began = time.perf_counter()
        with as_log_errors("asking for a sign of life"):
            await alone.taken()
        version = alone.client.connected_server_version
        return ServerState(
            address=shown(address),
            name=alone.server_name,
            version=f"{version.major}.{version.minor}.{version.patch}",
            answers_in_s=(time.perf_counter() - began) / 2,  # Two questions, one after the other.
            certificate=alone.certificate,
        )
    except LogError as error:
        return ServerState(shown(address), error=str(error))
    finally:
        await alone.close()


async def server_clock(link: Link, cluster: str) -> ClockState | None:
    """Compare the clock of the server that leads the log with this machine's. None if it does not report its time."""
    before = time.time()
    try:
        with as_log_errors("looking up the server's time"):
            info = await api_request(link, f"STREAM.INFO.{log_stream(cluster)}", {}, _ASK_S)
    except (LogError, nats.js.errors.Error):
        return None
    after = time.time()
    told = info.get("ts")
    return compared(_seconds(told), before, after) if isinstance(told, str) else None


def compared(told: float, before: float, after: float) -> ClockState:
    """Compare another clock's time with this one's; by this clock, the question was sent at `before` and answered at
    `after` (seconds, UTC)."""
    return ClockState(ahead_s=told - (before + after) / 2, within_s=(after - before) / 2)


def _seconds(text: str) -> float:
    """Return seconds since the epoch from RFC 3339 with nanoseconds."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")
