"""A cluster's streams on NATS: how they are configured, found, created, and replicated.

On a NATS cluster of at least three servers, new streams get three replicas, so that any one server may be lost.  Existing
streams keep their replicas unless more are requested; the number is never lowered.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

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
from events.log.imported import imported_upto
from events.log.records import LogDamaged, LogRefused, LogUnavailable
from events.logger import Logger
from events.nats.access.names import MASTER
from events.nats.beside.files import files_config
from events.nats.beside.parts import parts_config
from events.nats.beside.progress import progress_config
from events.nats.beside.snapshots import snapshot_config
from events.nats.leadership import leadership_config
from events.nats.link import NO_JETSTREAM, NO_ROOM, as_log_errors
from events.nats.settings import limits
from events.nats.settings.compression import uncompress
from events.nats.stream_state import api_request

if TYPE_CHECKING:
    from nats.js.manager import JetStreamManager

    from events.nats.link import Link

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
    masters' lease last, because a master waits for it.  None is compressed (`events.nats.settings.compression`), not
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
            max_consumers=limits.MOST_READERS,
            max_msg_size=limits.LARGEST_RECORD,
            consumer_limits=StreamConsumerLimits(inactive_threshold=limits.UNUSED_S),
        ),
        StreamConfig(
            name=report_stream(cluster),
            subjects=[names.reports(cluster)],
            storage=StorageType.FILE,
            max_age=REPORT_AGE_S,
            max_msgs_per_subject=720,
            max_bytes=limits.REPORTS_BYTES,
            max_msg_size=limits.LARGEST_REPORT,
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
            found = await manager.stream_info(log_stream(cluster))
            if link.credentials is not None and link.credentials.role == MASTER:
                await manager.stream_info(str(leadership_config(cluster).name))  # An admin is making them just now.
            if found.config.subjects == [names.log_subjects(cluster)]:
                return imported_upto(found.config.metadata)
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
    found: list[str] = []
    offset = 0
    while page := await manager.streams_info(offset):
        offset += len(page)
        for config in (info.config for info in page):
            cluster = (config.name or "").removeprefix(log_stream(""))
            if config.name == log_stream(cluster) and config.subjects == [names.log_subjects(cluster)]:
                found.append(cluster)
    return sorted(found)


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
            found = await _existing(manager, config, cluster)
            if found is None:
                if config.name == log_stream(cluster) and (left := await _left_over(manager, cluster)):
                    raise LogDamaged(
                        _GONE.format(cluster=cluster, url=link.url, log=config.name, left=left), code="log.gone"
                    )
                if await _add(link, manager, config, replicas):
                    continue
                found = await _existing(manager, config, cluster)  # Another process was creating it at the same moment.
                assert found is not None
            if config.name == log_stream(cluster):
                imported = imported_upto(found.metadata)
            await limits.update_limits(link, found, config, timeout)
            if replicas is not None and (found.num_replicas or 1) < replicas:
                if found.persist_mode == PersistMode.ASYNC:
                    # This mode can't be changed.  New heartbeats arrive soon, and each master counts from when it started to
                    # listen.
                    await manager.delete_stream(str(found.name))
                    await _add(link, manager, config, replicas)
                else:
                    await _raise_replicas(link, str(found.name), replicas, timeout)
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
        found = (await manager.stream_info(config.name)).config
    except nats.js.errors.NotFoundError:
        if config.name != report_stream(cluster):
            return None
        # Older clusters have another name for the stream of heartbeats.
        with contextlib.suppress(nats.js.errors.NotFoundError):
            return (await manager.stream_info(await manager.find_stream_name_by_subject(names.reports(cluster)))).config
        return None
    if found.subjects != config.subjects:
        raise LogRefused(
            f"stream {config.name} already exists and holds {', '.join(found.subjects or ())}; "
            "name the cluster differently, or use another server",
            code="cluster.exists",
        )
    return found
