"""What a cluster keeps next to its log on NATS JetStream, each kind in a stream of its own.

*Shipped folders* (`JetStreamFiles`): the stream keeps the last message of each subject.

    dorm.<cluster>.file.<tenant>.<hash>    a blob, compressed
    dorm.<cluster>.file._.limits           what the cluster takes; `_` is not a tenant's name

A server decides by subject who may write and read (`dorm.security.roles`).  So all questions name their subject: a
blob is fetched by `DIRECT.GET.<stream>.<subject>`, and a listing is a consumer that is created for the subjects of one
tenant.  What names subjects in its body instead, as STREAM.INFO can, would show a user the blobs of others, and is
never asked for here.

*Snapshots of the state* (`JetStreamSnapshots`):

    dorm.<cluster>.snapshot.index.all             all infos, as one message: replaced whole
    dorm.<cluster>.snapshot.body.<content>.<n>    a body in pieces that the server accepts, addressed by its hash

So an info is listed only once its body is complete, and one request lists all.  A writer reads the index, stores the
pieces, and writes the index on the condition that no other writer has done so meanwhile; otherwise it starts again.
Pieces left behind by a crash are in no index.  The first `put` of the next writer rewrites the index, so that any
writer storing pieces right now starts again, and removes all unlisted pieces stored until then.

*Progress* (`JetStreamProgress`): what apps report between two marks on the log (`events.log.stores`).

    dorm.<cluster>.progress.<node>.<app>   five tokens, of which the log's stream takes none

Its oldest records give way: to age, to the stream's size, and to newer ones of the same app.  It is never full, so no
report waits, and the log is not touched by any of it.

*Comparisons of shadows* (`Comparisons`), which no part of a cluster reads:

    dorm.<cluster>.shadow.<policy>.<who>   five tokens, of which the log's stream takes none

Old comparisons make room for new ones, so a shadow can fill nothing but this stream.

`events.nats.streams` creates these streams.  The nodes' parts are in `parts_store`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import msgspec
import nats.errors
import nats.js.errors
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamConsumerLimits,
)

from events import subjects as names
from events.log.records import LogClosed, LogDamaged, LogFull, LogRefused, LogUnavailable, Overtaken, Record
from events.log.stores import (
    EVERY_APP,
    EVERY_TENANT,
    Files,
    Progress,
    SnapshotInfo,
    Snapshots,
    StoredBlob,
    content_of,
    yields_to,
)
from events.nats.link import NO_ROOM, as_log_errors
from events.nats.reader import EndsBefore, Reader, ReopenReader, first_since, last_record, nanoseconds, status_of
from events.nats.settings import (
    FILES_BYTES,
    LARGEST_FILE,
    LARGEST_PIECE,
    LARGEST_PROGRESS,
    MOST_READERS,
    PROGRESS_AGE_S,
    PROGRESS_BYTES,
    PROGRESS_OF_APP,
    api_request,
    stream_state,
)
from events.workdir import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from nats.js.api import ConsumerInfo
    from nats.js.manager import JetStreamManager

    from events.nats.link import Link


# --- shipped folders --------------------------------------------------------------------------------------------------

_FILE_TIMEOUT_S = 10.0
_FILE_BATCH = 4096
_FILE_UNUSED_S = 60.0
_LONGEST_UNUSED_S = 600.0
"""Seconds after which an unused consumer ends, whatever it asked for."""
_OF_ALL, _LIMITS = "_", "limits"
_decode_limits = msgspec.json.Decoder(Limits).decode


def files_stream(cluster: str) -> str:
    """Return a name that no cluster's log can have: those start with `DORM-`."""
    return f"DORM_files-{cluster}"


def files_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=files_stream(cluster),
        subjects=[names.file(cluster, "*", "*")],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=FILES_BYTES,
        max_msgs_per_subject=1,
        max_msg_size=LARGEST_FILE,
        allow_direct=True,
        consumer_limits=StreamConsumerLimits(inactive_threshold=_LONGEST_UNUSED_S),
    )


class JetStreamFiles(Files):
    """The shipped folders of one cluster."""

    def __init__(self, link: Link, cluster: str) -> None:
        self._link = link
        self._cluster = cluster
        self._stream = files_stream(cluster)

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        await self._publish(names.file(self._cluster, tenant, name), body)

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        stored = await self._last(names.file(self._cluster, tenant, name))
        return stored if stored is not None and stored[0] else None

    async def listed(self, tenant: str = EVERY_TENANT) -> list[StoredBlob]:
        await self._link.connected(_FILE_TIMEOUT_S)
        with self._errors("listing shipped folders"):
            blobs = await _Listing(self._link, self._stream, names.file(self._cluster, tenant, "*")).read()
        return sorted(blob for blob in blobs if blob.tenant != _OF_ALL)

    async def remove(self, blob: StoredBlob) -> None:
        await self._link.connected(_FILE_TIMEOUT_S)
        question = {"filter": names.file(self._cluster, blob.tenant, blob.name), "seq": blob.seq + 1}
        with self._errors("removing a part of a shipped folder"):
            await api_request(self._link, f"STREAM.PURGE.{self._stream}", question, _FILE_TIMEOUT_S)

    async def give_up(self, blob: StoredBlob) -> None:
        try:
            await self._publish(names.file(self._cluster, blob.tenant, blob.name), b"", after=blob.seq)
        except Overtaken:
            return  # It was stored again.

    async def limits(self) -> Limits:
        stored = await self._last(names.file(self._cluster, _OF_ALL, _LIMITS))
        try:
            return _decode_limits(stored[0]) if stored is not None else Limits()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return Limits()  # Of a later release, or of an author of nonsense.

    async def set_limits(self, limits: Limits) -> None:
        await self._publish(names.file(self._cluster, _OF_ALL, _LIMITS), msgspec.json.encode(limits))

    async def _publish(self, subject: str, body: bytes, *, after: int | None = None) -> None:
        """Store a message, with `after` only if that is the sequence of the last one on its subject."""
        expected = {"Nats-Expected-Last-Subject-Sequence": str(after)} if after is not None else {}
        self._link.check_size(body, len(self._stream), LARGEST_FILE)
        await self._link.connected(_FILE_TIMEOUT_S)
        with self._errors("storing a part of a folder"):
            await self._link.jetstream().publish(
                subject, body, timeout=_FILE_TIMEOUT_S, headers={"Nats-Expected-Stream": self._stream, **expected}
            )

    async def _last(self, subject: str) -> tuple[bytes, int] | None:
        """Return the last message on a subject, from any server of the stream, and when it was stored."""
        await self._link.connected(_FILE_TIMEOUT_S)
        with self._errors("reading a part of a folder"):
            reply = await self._link.client.request(
                f"{self._link.api}.DIRECT.GET.{self._stream}.{subject}", b"", timeout=_FILE_TIMEOUT_S
            )
        headers = reply.headers or {}
        if "Status" in headers:
            return None
        return reply.data, nanoseconds(headers["Nats-Time-Stamp"])

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Turn errors of nats-py into this project's, with what to do about a store that is missing or full."""
        try:
            with as_log_errors(doing):
                try:
                    yield
                except (nats.errors.NoRespondersError, nats.js.errors.NoStreamResponseError):
                    raise LogRefused(
                        f"cluster {self._cluster} has no store for shipped folders, or it is starting; an admin makes it by "
                        "running `dorm init` again",
                        code="files.no_store",
                    ) from None
        except LogDamaged:
            raise LogRefused(
                f"cluster {self._cluster} has no store for shipped folders; an admin makes it by running `dorm init` again",
                code="files.no_store",
            ) from None
        except LogFull:
            raise LogFull(
                "the cluster's store for shipped folders is full; an operator sees in `dorm files` who takes how much, and "
                "makes room with `dorm files purge`",
                code="files.full",
            ) from None


class _Listing:
    """One consumer that lists messages without their bodies."""

    def __init__(self, link: Link, stream: str, pattern: str) -> None:
        self._link = link
        self._stream = stream
        self._pattern = pattern
        self._inbox = link.client.new_inbox()
        # Chosen here, so that it can be deleted even if the answer to its creation is lost.
        self._name = self._inbox.rsplit(".", 1)[-1]
        self._blobs: list[StoredBlob] = []
        self._news = asyncio.Event()
        self._broken = ""

    async def read(self) -> list[StoredBlob]:
        """Raises what nats-py raises, and LogUnavailable."""
        subscription = await self._link.take(self._inbox, self._take)
        try:
            made = await self._create()
            expected = made.num_pending or 0
            while len(self._blobs) < expected and not self._broken:
                await self._ask(min(_FILE_BATCH, expected - len(self._blobs)))
            if self._broken:
                raise LogUnavailable(f"listing shipped folders: {self._broken}; try again")
            return self._blobs
        finally:
            with contextlib.suppress(nats.errors.Error):
                await self._link.leave(subscription)
                # Not awaited: an unused consumer ends by itself.
                await self._link.client.publish(f"{self._link.api}.CONSUMER.DELETE.{self._stream}.{self._name}", b"")

    async def _create(self) -> ConsumerInfo:
        return await self._link.jetstream(timeout=_FILE_TIMEOUT_S).add_consumer(
            self._stream,
            ConsumerConfig(
                name=self._name,
                deliver_policy=DeliverPolicy.ALL,
                ack_policy=AckPolicy.NONE,
                headers_only=True,
                mem_storage=True,
                num_replicas=1,
                inactive_threshold=_FILE_UNUSED_S,
                filter_subject=self._pattern,
            ),
        )

    async def _ask(self, batch: int) -> None:
        """Request this many messages, and wait until they have arrived."""
        wanted = len(self._blobs) + batch
        question = json.dumps({"batch": batch, "expires": int(_FILE_TIMEOUT_S * 1e9)}).encode()
        await self._link.client.publish(
            f"{self._link.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}", question, reply=self._inbox
        )
        async with asyncio.timeout(_FILE_TIMEOUT_S):
            while len(self._blobs) < wanted and not self._broken:
                self._news.clear()
                await self._news.wait()

    def _take(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        del body
        # $JS.ACK.<stream>.<consumer>.<tries>.<seq>.<delivered>.<time>.<pending>, or with a domain and an account in front.
        parts = reply.split(b".")
        tokens = subject.decode(errors="replace").split(".")
        if len(parts) < 9 or len(tokens) != 5:
            self._broken = " ".join(status_of(header)[:2]).strip() or "an answer that is none"
        else:
            at = 5 if len(parts) == 9 else 7
            size = status_of(header)[2].get("Nats-Msg-Size", "0") if header else "0"
            time, seq = int(parts[at + 2]), int(parts[at])
            self._blobs.append(StoredBlob(tokens[3], tokens[4], int(size), time, seq, len(header)))
        self._news.set()


# --- snapshots --------------------------------------------------------------------------------------------------------

_PIECE = 256 * 1024
"""Bytes; servers accept a megabyte by default."""
_TIMEOUT_S = 5.0
_TRIES = 5
_encode_infos = msgspec.msgpack.Encoder().encode
_decode_infos = msgspec.msgpack.Decoder(list[SnapshotInfo]).decode


def snapshot_stream(cluster: str) -> str:
    """Return a name that no cluster's log can have: those start with `DORM-`."""
    return f"DORM_snapshots-{cluster}"


def snapshot_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=snapshot_stream(cluster),
        subjects=[f"dorm.{cluster}.snapshot.index.all", f"dorm.{cluster}.snapshot.body.*.*"],
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        allow_direct=True,
        max_msg_size=LARGEST_PIECE,
    )


class JetStreamSnapshots(Snapshots):
    """The snapshots of one cluster's log.  A cluster without this stream has no snapshots; `put` creates it, with the log's
    replicas."""

    def __init__(self, link: Link, cluster: str, log_stream: str) -> None:
        self._link = link
        self._cluster = cluster
        self._log_stream = log_stream
        self._stream = snapshot_stream(cluster)
        self._index = f"dorm.{cluster}.snapshot.index.all"
        self._ready = False
        """Whether the stream exists, and leftovers of crashes are removed from it."""

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        if not self._ready:
            await self._prepare()
        for _ in range(_TRIES):
            with contextlib.suppress(Overtaken):
                return await self._put(info, body)
        raise LogUnavailable("snapshots: other writers keep changing them; try again", code="log.contended")

    async def _put(self, info: SnapshotInfo, body: bytes) -> None:
        """Store the pieces, then the index.  Raises Overtaken if another writer was first."""
        infos, fence = await self._read()
        kept = {old.seq: old for old in infos}
        if yields_to(info, kept.get(info.seq)):
            return
        for number, first in enumerate(range(0, len(body), _PIECE)):
            await self._publish(self._piece(info.content, number), body[first : first + _PIECE])
        kept[info.seq] = info
        await self._replace([kept[seq] for seq in sorted(kept)], infos, fence)

    async def infos(self) -> Sequence[SnapshotInfo]:
        return (await self._read())[0]

    async def get(self, info: SnapshotInfo) -> bytes | None:
        body = b""
        number = 0
        while len(body) < info.size:
            piece = await self._get_piece(self._piece(info.content, number))
            if not piece:
                return None
            body += piece
            number += 1
        return body if content_of(body) == info.content else None

    async def drop(self, info: SnapshotInfo) -> None:
        for _ in range(_TRIES):
            with contextlib.suppress(Overtaken):
                infos, fence = await self._read()
                return await self._replace([other for other in infos if other != info], infos, fence)
        raise LogUnavailable("snapshots: other writers keep changing them; try again", code="log.contended")

    # --- the index ------------------------------------------------------------------------------------------------------

    async def _read(self) -> tuple[list[SnapshotInfo], int]:
        """Return the listed infos and the index's sequence, 0 if there is none.  An unreadable index lists nothing."""
        try:
            record = await last_record(self._link, self._stream, self._index, _TIMEOUT_S)
        except LogDamaged:  # No such stream: nothing has been stored yet.
            return [], 0
        if record is None:
            return [], 0
        try:
            return _decode_infos(record.body), record.seq
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return [], record.seq

    async def _replace(self, infos: list[SnapshotInfo], before: list[SnapshotInfo], fence: int) -> None:
        """Write the index, then remove the pieces that only the previous one listed.  Raises Overtaken."""
        seq = await self._publish(self._index, _encode_infos(infos), fence)
        listed = {info.content for info in infos}
        for info in before:
            if info.content not in listed:
                await self._purge(info.content, seq)

    async def _publish(self, subject: str, body: bytes, fence: int | None = None) -> int:
        headers = {"Nats-Expected-Stream": self._stream}
        if fence is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(fence)
        self._link.check_size(body, sum(map(len, headers.values())))
        await self._link.connected(_TIMEOUT_S)
        with as_log_errors("storing a snapshot"):
            ack = await self._link.jetstream().publish(subject, body, timeout=_TIMEOUT_S, headers=headers)
        return int(ack.seq)

    # --- the pieces -----------------------------------------------------------------------------------------------------

    def _piece(self, content: str, number: int | str) -> str:
        return f"dorm.{self._cluster}.snapshot.body.{content}.{number}"

    async def _get_piece(self, subject: str) -> bytes | None:
        """Return a piece from any server of the stream; the body's hash shows whether the pieces belong together."""
        await self._link.connected(_TIMEOUT_S)
        with as_log_errors("reading a snapshot"):
            try:
                reply = await self._link.client.request(
                    f"{self._link.api}.DIRECT.GET.{self._stream}.{subject}", b"", timeout=_TIMEOUT_S
                )
            except nats.errors.NoRespondersError:
                return None
        return None if reply.headers and "Status" in reply.headers else reply.data

    async def _purge(self, content: str, before: int) -> None:
        """Remove pieces stored before this sequence; later ones may belong to a writer that stores the same body again."""
        await self._link.connected(_TIMEOUT_S)
        with as_log_errors("removing a snapshot"):
            await self._manager().purge_stream(self._stream, seq=before, subject=self._piece(content, "*"))

    async def _prepare(self) -> None:
        manager = self._manager()
        pieces = self._piece("*", "*")
        await self._link.connected(_TIMEOUT_S)
        with as_log_errors("preparing the store of snapshots"):
            try:
                stream = await manager.stream_info(self._stream, subjects_filter=pieces)
            except nats.js.errors.NotFoundError:
                replicas = (await manager.stream_info(self._log_stream)).config.num_replicas
                await manager.add_stream(snapshot_config(self._cluster), num_replicas=replicas)
                stream = await manager.stream_info(self._stream, subjects_filter=pieces)
        infos, fence = await self._read()
        listed = {info.content for info in infos}
        stored = {subject.split(".")[4] for subject in stream.state.subjects or ()}
        if left := sorted(stored - listed):
            with contextlib.suppress(Overtaken):  # Another writer has just cleaned up.
                await self._publish(self._index, _encode_infos(infos), fence)
                for content in left:
                    await self._purge(content, stream.state.last_seq + 1)
        self._ready = True

    def _manager(self) -> JetStreamManager:
        return self._link.jetstream(timeout=_TIMEOUT_S)


# --- progress ---------------------------------------------------------------------------------------------------------

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_OVERDUE_S = 5.0
_DUPLICATES_S = 120.0


def progress_stream(cluster: str) -> str:
    """Return a name that no cluster's log can have."""
    return f"DORM_progress-{cluster}"


def progress_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=progress_stream(cluster),
        subjects=[names.progress_of(cluster)],
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=PROGRESS_AGE_S,
        max_bytes=PROGRESS_BYTES,
        max_msgs_per_subject=PROGRESS_OF_APP,
        max_msg_size=LARGEST_PROGRESS,
        max_consumers=MOST_READERS,
        duplicate_window=_DUPLICATES_S,
        allow_direct=True,
        # As for heartbeats: a server that syncs each write stores some hundred a second, and what a killed server loses here
        # are milliseconds of curves.
        persist_mode=PersistMode.ASYNC,
    )


class JetStreamProgress(Progress):
    """The progress of one cluster.  If there is no such stream, as on a cluster that an earlier release made, readers find
    nothing, and `put` raises LogUnavailable."""

    def __init__(self, link: Link, cluster: str) -> None:
        self._link = link
        self._cluster = cluster
        self._stream = progress_stream(cluster)

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = _TIMEOUT_S) -> None:
        if not names.matches(names.progress_of(self._cluster), subject):
            raise LogRefused(f"{subject[:200]!r} is not a subject of progress", code="log.subject.malformed")
        headers = {"Nats-Msg-Id": msg_id} if msg_id else None
        self._link.check_size(body, len(msg_id), LARGEST_PROGRESS)
        await self._link.sendable("progress", timeout)
        with as_log_errors("storing progress"):
            await self._link.jetstream().publish(subject, body, timeout=timeout, headers=headers)

    async def read(
        self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        pattern = names.progress_of(self._cluster, app)
        until = None if follow else await self._last(pattern)
        pause = _PAUSE_S
        while until is None or after < until:
            try:
                first, end = await self._bounds()
                # The stream was made again, as when its replicas were raised: all of it is new.
                after = 0 if after > end and follow else after
                async with Reader(self._link, self._stream, max(after, first - 1), [pattern]) as reader:
                    pause = _PAUSE_S
                    while until is None or after < until:
                        batch = await reader.next(None if until is None else _OVERDUE_S)
                        after = batch[-1].seq
                        if wanted := [record for record in batch if until is None or record.seq <= until]:
                            yield wanted
                return
            except (ReopenReader, LogUnavailable, LogDamaged) as error:  # Of a stream that forgets, nothing is damage.
                if self._link.client.is_closed:
                    raise LogClosed(f"the connection to {self._link.url} is closed") from None
                if not follow:
                    if isinstance(error, EndsBefore | LogDamaged):
                        return
                    raise LogUnavailable(f"reading progress: {error}") from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        pattern = names.progress_of(self._cluster, app)
        last = await self._last(pattern)
        latest: dict[str, Record] = {}
        if not last:
            return []
        try:
            async with _Newest(self._link, self._stream, 0, [pattern]) as reader:
                while not latest or max(record.seq for record in latest.values()) < last:
                    for record in await reader.next(_OVERDUE_S):
                        latest[record.subject] = record
        except (ReopenReader, LogDamaged) as error:
            raise LogUnavailable(f"reading progress: {error}") from None
        return sorted(latest.values(), key=lambda record: record.seq)

    async def end(self) -> int:
        return (await self._bounds())[1]

    async def at_time(self, time: int) -> int:
        try:
            later = await first_since(self._link, self._stream, time + 1)
        except LogDamaged:
            return 0
        return await self.end() if later is None else later.seq - 1

    async def _bounds(self) -> tuple[int, int]:
        """Return the first and the last sequence; zeros if there is no such stream."""
        await self._link.connected(_TIMEOUT_S)
        with as_log_errors("looking up the progress"):
            try:
                state = await stream_state(self._link, self._stream, _TIMEOUT_S)
            except nats.js.errors.NotFoundError:
                return 0, 0
        return int(state["first_seq"]), int(state["last_seq"])

    async def _last(self, pattern: str) -> int:
        """Return the sequence of the last record on these subjects, 0 for none."""
        try:
            record = await last_record(self._link, self._stream, pattern)
        except LogDamaged:  # There is no such stream.
            return 0
        return record.seq if record is not None else 0


class _Newest(Reader):
    """Reads the last record on each subject."""

    def consumer(self) -> ConsumerConfig:
        config = super().consumer()
        return config.evolve(
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, opt_start_seq=None, ack_policy=AckPolicy.NONE
        )


# --- comparisons of shadows -------------------------------------------------------------------------------------------

SHADOW_AGE_S = 7 * 86_400.0
LARGEST_SHADOW = 256 * 1024 * 1024
_COMPARISONS_OF_SHADOW = 100_000


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
        max_age=SHADOW_AGE_S,
        max_bytes=LARGEST_SHADOW,
        max_msgs_per_subject=_COMPARISONS_OF_SHADOW,
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
                existing = (await manager.stream_info(shadow_stream(self._cluster))).config
                if existing.subjects != config.subjects:
                    raise LogRefused(f"stream {config.name} exists and holds {', '.join(existing.subjects or ())}")
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
