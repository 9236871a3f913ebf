"""Streams that earlier releases created compressed, which is unsafe on several servers.

A replica that has to discard uncommitted records cannot cut a compressed block: it takes the block for broken, and the copy
with it.  So if two of three servers are killed at once, all copies can be lost (nats-server 2.15; not without compression).

A stream's configuration can be changed while it is in use.  But a server uses the old one until it restarts; only then are
its last blocks uncompressed too.  So the change notes in the stream's metadata which processes (names and ids of the servers)
had the old configuration, and `endangered` reports which of them still run.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import nats.js.errors

from events.log.records import LogError
from events.logger import Logger
from events.nats.link import Link, as_log_errors
from events.nats.stream_state import api_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COMPRESSED_BY = "dorm_compressed_by"
"""In a stream's metadata: `NAME=ID NAME=ID`."""
_UNKNOWN = "?"
_ID_LENGTH = 16
"""Characters kept of a server's id, which is random at each of its starts: enough to distinguish two starts."""
_CONNECT_S = 2.0
_log = Logger(__name__)


def _without_compression(config: Mapping[str, Any], held_by: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration that replaces this one."""
    metadata = dict(config.get("metadata") or {})
    if held_by:
        metadata[COMPRESSED_BY] = " ".join(f"{name}={held_by[name]}" for name in sorted(held_by))
    return {**config, "compression": "none", "metadata": metadata}


def compressed_by(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the servers that held the stream, with their ids when the configuration was changed."""
    words = ((metadata or {}).get(COMPRESSED_BY) or "").split()
    return {name: started for name, _, started in (word.rpartition("=") for word in words) if name}


async def uncompress(link: Link, streams: Iterable[str], timeout: float) -> None:
    """Change compressed streams, and drop the note once every server has restarted.  Raises LogUnavailable, LogRefused."""
    servers: dict[str, str] | None = None
    for stream in streams:
        info = await _info(link, stream, timeout)
        if info is None or not (_compressed(info) or _noted(info)):
            continue
        servers = servers if servers is not None else await _servers(link)
        config = info["config"]
        if _compressed(info):
            changed = _without_compression(config, {name: servers.get(name, _UNKNOWN) for name in _holders(info)})
            _log.warning("a stream is not compressed any more", stream=stream)
        elif _not_restarted(_noted(info), servers):
            continue
        else:
            metadata = {key: value for key, value in config["metadata"].items() if key != COMPRESSED_BY}
            changed = {**config, "metadata": metadata}
        with as_log_errors(f"changing stream {stream}"):
            await api_request(link, f"STREAM.UPDATE.{stream}", changed, timeout)


async def endangered(link: Link, streams: Iterable[str], timeout: float) -> str:
    """Return in one line what to do about replicated streams with compressed copies; "" if there are none.  Raises
    LogUnavailable."""
    compressed: list[str] = []
    waiting: set[str] = set()
    servers: dict[str, str] | None = None
    for stream in streams:
        info = await _info(link, stream, timeout)
        if info is None or len(_holders(info)) < 2:
            continue
        if _compressed(info):
            compressed.append(stream)
        elif noted := _noted(info):
            servers = servers if servers is not None else await _servers(link)
            waiting |= _not_restarted(noted, servers)
    if compressed:
        return (
            f"{' and '.join(compressed)}: compressed, and held by several servers, which can lose all copies when two are "
            "killed at once; start a master of this release, which changes that, and then restart each NATS server, one "
            "after the other"
        )
    if waiting:
        return (
            f"NATS servers {', '.join(sorted(waiting))} still compress their copies of the log, and can lose them all when "
            "two are killed at once: restart each of these, one after the other, each once the last one has caught up"
        )
    return ""


async def _info(link: Link, stream: str, timeout: float) -> dict[str, Any] | None:
    """Return the stream's information, None if it does not exist."""
    with as_log_errors(f"looking up whether stream {stream} is compressed"):
        try:
            return await api_request(link, f"STREAM.INFO.{stream}", {}, timeout)
        except nats.js.errors.NotFoundError:
            return None


def _compressed(info: Mapping[str, Any]) -> bool:
    return bool(info["config"].get("compression", "none") != "none")


def _noted(info: Mapping[str, Any]) -> dict[str, str]:
    return compressed_by(info["config"].get("metadata"))


def _holders(info: Mapping[str, Any]) -> list[str]:
    """Return the names of the servers that hold a stream."""
    cluster = info.get("cluster") or {}
    found = [cluster.get("leader"), *(peer.get("name") for peer in cluster.get("replicas") or [])]
    return [name for name in found if name]


def _not_restarted(noted: Mapping[str, str], running: Mapping[str, str]) -> set[str]:
    """Return the servers not known to have restarted.  Unreachable ones and unknown ids count: unknown is not safe."""
    return {name for name, started in noted.items() if running.get(name) in (None, started) or started == _UNKNOWN}


async def _servers(link: Link) -> dict[str, str]:
    """Return the ids of the reachable servers, by their names."""

    async def ask(address: str) -> tuple[str, str] | None:
        with contextlib.suppress(LogError):
            alone = await Link.open(address, name="dorm-servers", timeout=_CONNECT_S, credentials=link.credentials)
            try:
                return alone.server_name, alone.server_id[:_ID_LENGTH]
            finally:
                await alone.close()
        return None

    found = await asyncio.gather(*(ask(address) for address in link.known_servers))
    return dict(sorted(one for one in found if one is not None))
