"""Settings of a cluster's streams besides their subjects, and what a server reports of them.

*The state of a stream* counts only if the server leads a majority.  On several servers, a leader that was cut off
answers as if it still led: for about ten seconds, and again for a while when it is back.  It can be recognized by its
peers, which it has not heard for long.

*Limits* are those of a message, of a stream's disk space, and of an unused consumer.  The log's own size has no limit
of Dorm's: a log never forgets.  `dorm log limit` gives it one (`set_limit`), so that a flood fills the log and not the
disk that the other streams need.  A full log refuses records and loses none; `room` is how one sees it come.

*Compression* of streams that earlier releases created is unsafe on several servers.  A replica that has to discard
uncommitted records cannot cut a compressed block: it takes the block for broken, and the copy with it.  So if two of
three servers are killed at once, all copies can be lost (nats-server 2.15; not without compression).  A stream's
configuration can be changed while it is in use.  But a server uses the old one until it restarts; only then are its
last blocks uncompressed too.  So the change notes in the stream's metadata which processes (names and ids of the
servers) had the old configuration, and `endangered` reports which of them still run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import nats.errors
import nats.js.errors

from events.limits import LEAST_MAX_PAYLOAD
from events.log.records import LogError, LogRefused, LogUnavailable
from events.logger import Logger
from events.nats.link import Link, as_log_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nats.js.api import StreamConfig


# --- the state of a stream --------------------------------------------------------------------------------------------

_HEARD_NS = 4_000_000_000
"""Nanoseconds; peers exchange messages once a second."""


async def api_request(link: Link, what: str, question: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Send a JetStream API request by hand, to get the whole answer.  Raises what nats-py raises."""
    reply = await link.client.request(f"{link.api}.{what}", json.dumps(question).encode(), timeout=timeout)
    answer: dict[str, Any] = json.loads(reply.data)
    if error := answer.get("error"):
        raise nats.js.errors.APIError.from_error(error)
    return answer


async def checked_info(link: Link, stream: str, timeout: float, **more: bool) -> dict[str, Any]:
    """Return a stream's configuration and state.  Raises LogUnavailable if the answering server reaches no majority,
    and the errors of nats-py."""
    info = await api_request(link, f"STREAM.INFO.{stream}", more, timeout)
    if not leads(info):
        raise LogUnavailable(
            f"stream {stream}: the server that answers for it has lost sight of the others; try again",
            code="log.behind",
        )
    return info


async def stream_state(link: Link, stream: str, timeout: float) -> dict[str, Any]:
    """Return `first_seq`, `last_seq` and so on.  Raises as `checked_info`."""
    state: dict[str, Any] = (await checked_info(link, stream, timeout))["state"]
    return state


def leads(info: dict[str, Any]) -> bool:
    """Return whether the answering server can reach a majority of the stream's servers, including itself."""
    replicas = info["config"].get("num_replicas", 1)
    if replicas <= 1:
        return True
    peers = (info.get("cluster") or {}).get("replicas") or []
    heard = sum(1 for peer in peers if not peer.get("offline") and peer.get("active", 0) < _HEARD_NS)
    return bool(2 * (heard + 1) > replicas)


# --- limits -----------------------------------------------------------------------------------------------------------

MOST_READERS = 25_000
"""Readers of the log, and of the nodes' parts, at one time.  Each agent is one, and a cluster takes 20,000 connections of
nodes.  Servers since 2.15 allow a thousand unless the stream sets a limit.  It bounds the cost of one hostile reader: a
consumer takes 40 KB of the server's memory, and time of each append."""
LARGEST_RECORD = LEAST_MAX_PAYLOAD
"""Bytes of a record with its headers.  Masters write no larger one, so the server refuses it before it takes any room, even if
its `max_payload` is more."""
LARGEST_REPORT = 512 * 1024
"""Bytes of a heartbeat: one with 4,096 containers has less than half."""
REPORTS_BYTES = 256 * 1024 * 1024
"""Bytes that heartbeats may take; the oldest give way.  A thousand nodes fill it in an hour, and then heartbeats expire
anyway.  On a server that has less room than that the stream has no limit of its own."""
LARGEST_PROGRESS = 8 * 1024
"""Bytes of one report of progress with its headers."""
PROGRESS_AGE_S = 7 * 86_400.0
"""Seconds for which reports between two marks are kept; the marks stay on the log."""
PROGRESS_BYTES = 1024 * 1024 * 1024
"""Bytes that all of them may take; the oldest give way.  200 apps that report each second fill it in five hours."""
PROGRESS_OF_APP = 50_000
"""Number of reports that one app may have on one node: at a report each second, fourteen hours."""
LARGEST_PIECE = 512 * 1024
"""Bytes of a piece of a snapshot, or of their index; pieces have half of it."""
LARGEST_PART_PIECE = 512 * 1024
"""Bytes of a piece of a node's part; pieces have three quarters of it."""
LARGEST_FILE = 1000 * 1024
"""Bytes of a part of a shipped folder as it is stored, with its headers."""
FILES_BYTES = 1024 * 1024 * 1024
"""Bytes that all shipped folders may take.  More is refused; nothing gives way by itself, since apps may need it."""
LARGEST_LEASE = 4096
UNUSED_S = 30 * 86_400.0
"""Seconds without a request after which a log's consumer is removed, a webhook's place as well as a stranger's consumer."""
_ACCOUNT_S = 1.0
"""Seconds: a server does not answer who may not ask for this."""
ALARM = 0.8
"""The part of its limit that a log may take before masters and `dorm masters` warn."""
_UPDATED = ("max_msg_size", "max_bytes", "max_consumers")
"""Limits that streams of earlier releases get as well."""


class Room(NamedTuple):
    """What a log takes on the server that answers, in bytes."""

    taken: int
    limit: int | None
    """Bytes at which its server refuses more: by the stream's limit, or by what is left of the account's. None if neither has
    one, and the disk is the limit."""

    @property
    def scarce(self) -> bool:
        return self.limit is not None and self.taken >= ALARM * self.limit


async def update_limits(link: Link, existing: StreamConfig, wanted: StreamConfig, timeout: float) -> None:
    """Give a stream that was made without limits those of this release.  Smaller ones, which an operator has set, stay.  A
    server that refuses is older and has no such limits."""
    missing = {
        name: limit
        for name in _UPDATED
        if (limit := getattr(wanted, name) or 0) > 0 and _raises(name, getattr(existing, name) or -1, limit)
    }
    if missing:
        config = (await api_request(link, f"STREAM.INFO.{existing.name}", {}, timeout))["config"]
        with contextlib.suppress(nats.js.errors.BadRequestError, nats.js.errors.ServerError):
            await api_request(link, f"STREAM.UPDATE.{existing.name}", config | missing, timeout)


def _raises(name: str, present: int, limit: int) -> bool:
    return present <= 0 or (name == "max_consumers" and present < limit)  # Each agent is one.


async def room(link: Link, stream: str, timeout: float) -> Room:
    """Return what the stream takes and may take.  Raises LogUnavailable, LogRefused."""
    with as_log_errors("looking up the size of the log"):
        info = await checked_info(link, stream, timeout)
    taken, limit = int(info["state"]["bytes"]), int(info["config"].get("max_bytes", -1))
    return Room(taken, limit if limit > 0 else await _limit_of_account(link, taken, timeout))


async def _limit_of_account(link: Link, taken: int, timeout: float) -> int | None:
    """Return how large the stream may become by the account's limit; None without one, or if it may not be asked for."""
    try:
        account = await api_request(link, "INFO", {}, min(timeout, _ACCOUNT_S))
    except (nats.errors.Error, TimeoutError, LogError):
        return None
    limit = int((account.get("limits") or {}).get("max_storage", -1))
    return taken + max(0, limit - int(account.get("storage", 0))) if limit > 0 else None


def nearly_full(now: Room) -> str:
    """Return in one line what to do about a log that its limit will soon stop; "" if there is time."""
    if not now.scarce or not now.limit:
        return ""
    return (
        f"the log takes {100 * now.taken / now.limit:.0f}% of the {now.limit:,} bytes that it may, and a full log stops the "
        "cluster: make room on the servers' disks and raise its limit with `dorm log limit`"
    )


async def set_limit(link: Link, stream: str, limit: int | None, timeout: float) -> None:
    """Set the stream's limit in bytes, or remove it. Raises LogRefused if the stream is already larger,
    LogUnavailable."""
    with as_log_errors("limiting the log"):
        info = await checked_info(link, stream, timeout)
        taken = int(info["state"]["bytes"])
        if limit is not None and limit <= taken:
            raise LogRefused(
                f"the log takes {taken:,} bytes already, so a limit of {limit:,} would stop the cluster; take a larger one",
                code="log.limit.too_small",
            )
        changed = info["config"] | {"max_bytes": limit or -1}
        await api_request(link, f"STREAM.UPDATE.{stream}", changed, timeout)


# --- compression ------------------------------------------------------------------------------------------------------

COMPRESSED_BY = "dorm_compressed_by"
"""Key in a stream's metadata for `NAME=ID NAME=ID`."""
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
    fields = ((metadata or {}).get(COMPRESSED_BY) or "").split()
    return {name: started for name, _, started in (word.rpartition("=") for word in fields) if name}


async def uncompress(link: Link, streams: Iterable[str], timeout: float) -> None:
    """Change compressed streams, and drop the note once every server has restarted.  Raises LogUnavailable, LogRefused."""
    servers: dict[str, str] | None = None
    for stream in streams:
        info = await _info(link, stream, timeout)
        if info is None or not (_compressed(info) or _compressing(info)):
            continue
        servers = servers if servers is not None else await _servers(link)
        config = info["config"]
        if _compressed(info):
            changed = _without_compression(config, {name: servers.get(name, _UNKNOWN) for name in _holders(info)})
            _log.warning("a stream is not compressed any more", stream=stream)
        elif _not_restarted(_compressing(info), servers):
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
        elif noted := _compressing(info):
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


def _compressing(info: Mapping[str, Any]) -> dict[str, str]:
    return compressed_by(info["config"].get("metadata"))


def _holders(info: Mapping[str, Any]) -> list[str]:
    """Return the names of the servers that hold a stream."""
    cluster = info.get("cluster") or {}
    names = [cluster.get("leader"), *(peer.get("name") for peer in cluster.get("replicas") or [])]
    return [name for name in names if name]


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

    replies = await asyncio.gather(*(ask(address) for address in link.known_servers))
    return dict(sorted(reply for reply in replies if reply is not None))
