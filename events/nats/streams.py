"""A cluster's streams on NATS: how they are configured, found, created and replicated, and how their servers are.

On a NATS cluster of at least three servers, new streams get three replicas, so that any one server may be lost.
Existing streams keep their replicas unless more are requested; the number is never lowered.

`stream_states` reports where a stream's copies are, and how current each is.  `server_states` asks each server by
itself, since a cluster answers for a server that is cut off, and `server_clock` compares a server's clock with this
machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import nats.js.errors
from nats.js.api import (
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamConsumerLimits,
)

from events import subjects as names
from events.addresses import shown
from events.log.records import LogDamaged, LogError, LogRefused, LogUnavailable, imported_upto
from events.logger import Logger
from events.nats import settings
from events.nats.access import MASTER
from events.nats.leadership import leadership_config
from events.nats.link import NO_JETSTREAM, NO_ROOM, Link, as_log_errors
from events.nats.parts_store import parts_config
from events.nats.settings import api_request, uncompress
from events.nats.stores import files_config, progress_config, snapshot_config

if TYPE_CHECKING:
    from nats.js.manager import JetStreamManager

    from events.nats.access import Credentials


# --- configuration and creation ---------------------------------------------------------------------------------------

DUPLICATE_WINDOW_S = 600.0
REPORT_AGE_S = 3600.0
REPLICAS = (1, 3, 5)
"""Allowed numbers of replicas: an even number tolerates no more lost servers than the odd one below it."""
NO_CLUSTER = "cluster.not_found"
_USUAL_REPLICAS = 3
_TOO_FEW_SERVERS = (10005, 10074)
"""No suitable peers; more than one replica needs a cluster of servers."""
_TAKEN = 10058
"""A stream of this name exists with another configuration."""
_ELECTION_S = 20.0
_PEERS_S = 6.0
"""Seconds to retry: servers that have just started do not know each other yet, and find too few for three replicas."""
_GONE = (
    "the log of cluster {cluster} is gone from {url}, and {left} is there: the server can't read {log}, as its own log then "
    "says, or somebody deleted it; put the server's data back from a backup, or take another name for a new cluster"
)
_log = Logger(__name__)


_PAUSE_S = 0.1


def log_stream(cluster: str) -> str:
    return f"DORM-{cluster}"


def report_stream(cluster: str) -> str:
    """Return a name that no cluster's log can have.  Older clusters have `DORM-<cluster>-reports`."""
    return f"DORM_reports-{cluster}"


def all_streams(cluster: str) -> list[str]:
    """Return the names of all streams that a cluster may have."""
    return [*(str(config.name) for config in stream_configs(cluster)), f"{log_stream(cluster)}-reports"]


def stream_configs(cluster: str) -> list[StreamConfig]:
    """Return a cluster's streams in the order in which they are made: the log's stream first, and the stream of the
    masters' lease last, because a master waits for it.  None is compressed (`events.nats.settings`), not
    even on one server: it may be raised to three replicas later."""
    return [
        StreamConfig(
            name=log_stream(cluster),
            subjects=[names.log_subjects(cluster)],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            duplicate_window=DUPLICATE_WINDOW_S,
            deny_delete=True,  # Purging stays possible, for rotation alone (docs/decisions/0011-rotation.md).
            allow_direct=True,
            max_consumers=settings.MOST_READERS,
            max_msg_size=settings.LARGEST_RECORD,
            consumer_limits=StreamConsumerLimits(inactive_threshold=settings.UNUSED_S),
        ),
        StreamConfig(
            name=report_stream(cluster),
            subjects=[names.reports(cluster)],
            storage=StorageType.FILE,
            max_age=REPORT_AGE_S,
            max_msgs_per_subject=720,
            max_bytes=settings.REPORTS_BYTES,
            max_msg_size=settings.LARGEST_REPORT,
            allow_direct=True,
            # A server that syncs each write stores some hundred per second, fewer than a thousand nodes send.  A killed
            # server
            # loses milliseconds of heartbeats, which a lease's margin covers.
            persist_mode=PersistMode.ASYNC,
        ),
        progress_config(cluster),
        snapshot_config(cluster),
        parts_config(cluster),
        files_config(cluster),
        leadership_config(cluster),
    ]


async def find_streams(link: Link, cluster: str, timeout: float) -> int:
    """Return the last sequence of the log that comes from an archive.

    JetStream starts after its server, and is away for a moment when the server reads its accounts again, so up to `timeout`
    seconds are allowed for that.  Raises LogRefused if the server has no such cluster, and LogUnavailable."""
    ends = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            return await _find(link, cluster, timeout)
        except LogUnavailable as error:
            if error.code != NO_JETSTREAM or not link.has_jetstream or asyncio.get_running_loop().time() > ends:
                raise
        await asyncio.sleep(_PAUSE_S)


async def _find(link: Link, cluster: str, timeout: float) -> int:
    manager = link.jetstream(timeout=timeout)
    with as_log_errors(f"looking up cluster {cluster} at {link.url}"):
        try:
            stream = await manager.stream_info(log_stream(cluster))
            if link.credentials is not None and link.credentials.role == MASTER:
                await manager.stream_info(str(leadership_config(cluster).name))  # An admin is making them just now.
            if stream.config.subjects == [names.log_subjects(cluster)]:
                return imported_upto(stream.config.metadata)
        except nats.js.errors.NotFoundError:
            pass
        # Identities that may list a server's streams are admins alone.
        there = ", ".join(await _clusters(manager)) if link.credentials is None else ""
    if link.credentials is not None:
        raise LogRefused(
            f"cluster {cluster!r} is not made yet at {link.url}; its admin makes it with `dorm init`, or `dorm deploy found`",
            code=NO_CLUSTER,
        )
    raise LogRefused(
        f"there is no cluster {cluster!r} at {link.url}, "
        + (f"only {there}; name one with --cluster" if there else "and no other")
        + "; a new one is made by `dorm up` or `dorm master`",
        code=NO_CLUSTER,
    )


async def _clusters(manager: JetStreamManager) -> list[str]:
    """Return the names of a server's clusters: streams named as a log, with a log's subjects."""
    clusters: list[str] = []
    offset = 0
    while page := await manager.streams_info(offset):
        offset += len(page)
        for config in (info.config for info in page):
            cluster = (config.name or "").removeprefix(log_stream(""))
            if config.name == log_stream(cluster) and config.subjects == [names.log_subjects(cluster)]:
                clusters.append(cluster)
    return sorted(clusters)


async def make_streams(link: Link, cluster: str, timeout: float, replicas: int | None) -> int:
    """Do as `find_streams`, but create missing streams, and raise those with fewer than `replicas`."""
    if replicas is not None and replicas not in REPLICAS:
        raise LogRefused(
            f"a log has {', '.join(map(str, REPLICAS))} replicas, not {replicas}", code="log.replicas.not_a_choice"
        )
    manager = link.jetstream(timeout=timeout)
    imported = 0
    for config in stream_configs(cluster):
        with as_log_errors(f"looking up stream {config.name} at {link.url}"):
            existing = await _existing(manager, config, cluster)
            if existing is None:
                if config.name == log_stream(cluster) and (left := await _left_over(manager, cluster)):
                    raise LogDamaged(
                        _GONE.format(cluster=cluster, url=link.url, log=config.name, left=left), code="log.gone"
                    )
                if await _add(link, manager, config, replicas):
                    continue
                existing = await _existing(
                    manager, config, cluster
                )  # Another process was creating it at the same moment.
                assert existing is not None
            if config.name == log_stream(cluster):
                imported = imported_upto(existing.metadata)
            await settings.update_limits(link, existing, config, timeout)
            if replicas is not None and (existing.num_replicas or 1) < replicas:
                if existing.persist_mode == PersistMode.ASYNC:
                    # This mode can't be changed.  New heartbeats arrive soon, and each master counts from when it started to
                    # listen.
                    await manager.delete_stream(str(existing.name))
                    await _add(link, manager, config, replicas)
                else:
                    await _raise_replicas(link, str(existing.name), replicas, timeout)
    return imported


async def _left_over(manager: JetStreamManager, cluster: str) -> str:
    """Return a stream of a cluster whose log is gone, "" if there is none.  A server omits a stream whose files it can't
    read; a new one in its place would start empty, as if the old log had never existed."""
    for config in stream_configs(cluster)[1:]:
        if await _is_there(manager, config) and not await _is_there(manager, stream_configs(cluster)[0]):
            return str(config.name)  # Otherwise another process is creating them just now.
    return ""


async def _is_there(manager: JetStreamManager, config: StreamConfig) -> bool:
    try:
        await manager.stream_info(str(config.name))
    except nats.js.errors.NotFoundError:
        return False
    return True


async def _add(link: Link, manager: JetStreamManager, config: StreamConfig, replicas: int | None) -> bool:
    """Create the stream with the requested replicas, by default three if there are enough servers.  Return False if
    another process has created it with another number in the meantime."""
    wanted = replicas or (_USUAL_REPLICAS if link.clustered else 1)
    try:
        try:
            await _add_when_peers_are_known(manager, _replicated(config) if wanted > 1 else config, wanted)
        except nats.js.errors.APIError as error:
            if error.err_code in (*_TOO_FEW_SERVERS, *NO_ROOM) and (config.max_bytes or 0) > 0:
                # A server reserves a stream's bytes, and a small server does not have this many.
                return await _add(link, manager, config.evolve(max_bytes=-1), replicas)
            if error.err_code not in _TOO_FEW_SERVERS:
                raise
            if replicas is not None:
                raise _too_few(link, replicas) from None
            _log.warning("a stream is held by one server, as there are too few for three", stream=config.name)
            await manager.add_stream(config, num_replicas=1)
    except nats.js.errors.APIError as error:
        if error.err_code != _TAKEN:
            raise
        return False
    return True


async def _add_when_peers_are_known(manager: JetStreamManager, config: StreamConfig, replicas: int) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + (_PEERS_S if replicas > 1 else 0.0)
    while True:
        try:
            await manager.add_stream(config, num_replicas=replicas)
        except nats.js.errors.APIError as error:
            if error.err_code != _TOO_FEW_SERVERS[0] or loop.time() >= until:
                raise
        else:
            return
        await asyncio.sleep(_PAUSE_S)


def _replicated(config: StreamConfig) -> StreamConfig:
    """Drop the persist mode: servers do not replicate a stream that acknowledges before it persists."""
    return config.evolve(persist_mode=None)


def _too_few(link: Link, replicas: int) -> LogRefused:
    return LogRefused(
        f"{replicas} replicas need a NATS cluster of at least {replicas} servers with JetStream, "
        f"and at {link.url} there are fewer; start more of them, or ask for fewer replicas",
        code="log.replicas.too_few_servers",
    )


async def _raise_replicas(link: Link, stream: str, replicas: int, timeout: float) -> None:
    """Raise the replicas of a stream, and return once it accepts messages again; the new replicas catch up later.  The
    configuration is sent back as received, with fields that nats-py does not know."""
    await uncompress(link, [stream], timeout)
    config = (await api_request(link, f"STREAM.INFO.{stream}", {}, timeout))["config"]
    try:
        await api_request(link, f"STREAM.UPDATE.{stream}", config | {"num_replicas": replicas}, timeout)
    except nats.js.errors.APIError as error:
        if error.err_code in _TOO_FEW_SERVERS:
            raise _too_few(link, replicas) from None
        raise
    _log.warning("a stream gets more replicas", stream=stream, before=config.get("num_replicas", 1), now=replicas)
    async with asyncio.timeout(_ELECTION_S):
        while True:
            group = (await api_request(link, f"STREAM.INFO.{stream}", {}, timeout)).get("cluster", {})
            if group.get("leader") and group.get("replicas"):
                return
            await asyncio.sleep(_PAUSE_S)


async def _existing(manager: JetStreamManager, config: StreamConfig, cluster: str) -> StreamConfig | None:
    """Return the configuration of the stream, None if it does not exist.  Raises LogRefused if it has other subjects."""
    assert config.name
    try:
        existing = (await manager.stream_info(config.name)).config
    except nats.js.errors.NotFoundError:
        if config.name != report_stream(cluster):
            return None
        # Older clusters have another name for the stream of heartbeats.
        with contextlib.suppress(nats.js.errors.NotFoundError):
            return (await manager.stream_info(await manager.find_stream_name_by_subject(names.reports(cluster)))).config
        return None
    if existing.subjects != config.subjects:
        raise LogRefused(
            f"stream {config.name} already exists and holds {', '.join(existing.subjects or ())}; "
            "name the cluster differently, or use another server",
            code="cluster.exists",
        )
    return existing


# --- the state of the copies ------------------------------------------------------------------------------------------

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
    """Number of copies that it is to have."""
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


# --- the servers ------------------------------------------------------------------------------------------------------

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
    """Certificate in DER; empty if the connection is not encrypted."""


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
    stamp = info.get("ts")
    return compared(_seconds(stamp), before, after) if isinstance(stamp, str) else None


def compared(reported: float, before: float, after: float) -> ClockState:
    """Compare another clock's time with this one's; by this clock, the question was sent at `before` and answered at
    `after` (seconds, UTC)."""
    return ClockState(ahead_s=reported - (before + after) / 2, within_s=(after - before) / 2)


def _seconds(text: str) -> float:
    """Return seconds since the epoch from RFC 3339 with nanoseconds."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")
