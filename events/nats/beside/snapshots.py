"""Snapshots on NATS JetStream: a separate stream beside the log's.

    dorm.<cluster>.snapshot.index.all             all infos, as one message: replaced whole
    dorm.<cluster>.snapshot.body.<content>.<n>    a body in pieces that the server accepts, addressed by its hash

So an info is listed only once its body is complete, and one request lists all.  A writer reads the index, stores the pieces,
and writes the index on the condition that no other writer has done so meanwhile; otherwise it starts again.  Pieces left
behind by a crash are in no index.  The first `put` of the next writer rewrites the index, so that any writer storing pieces
right now starts again, and removes all unlisted pieces stored until then.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec
import nats.errors
import nats.js.errors
from nats.js.api import StorageType, StreamConfig

from events.log.records import LogDamaged, LogUnavailable, Overtaken
from events.log.snapshots import SnapshotInfo, Snapshots, content_of, yields_to
from events.nats.link import as_log_errors
from events.nats.reader import last_record
from events.nats.settings.limits import LARGEST_PIECE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.js.manager import JetStreamManager

    from events.nats.link import Link

_PIECE = 256 * 1024
"""Bytes; servers accept a megabyte by default."""
_TIMEOUT_S = 5.0
_TRIES = 5
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SnapshotInfo]).decode


def _stream(cluster: str) -> str:
    """Return a name that no cluster's log can have: those start with `DORM-`."""
    return f"DORM_snapshots-{cluster}"


def snapshot_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=_stream(cluster),
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
        self._stream = _stream(cluster)
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
                return await self._replace([one for one in infos if one != info], infos, fence)
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
            return _decode(record.body), record.seq
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return [], record.seq

    async def _replace(self, infos: list[SnapshotInfo], before: list[SnapshotInfo], fence: int) -> None:
        """Write the index, then remove the pieces that only the previous one listed.  Raises Overtaken."""
        seq = await self._publish(self._index, _encode(infos), fence)
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
                found = await manager.stream_info(self._stream, subjects_filter=pieces)
            except nats.js.errors.NotFoundError:
                replicas = (await manager.stream_info(self._log_stream)).config.num_replicas
                await manager.add_stream(snapshot_config(self._cluster), num_replicas=replicas)
                found = await manager.stream_info(self._stream, subjects_filter=pieces)
        infos, fence = await self._read()
        listed = {info.content for info in infos}
        stored = {subject.split(".")[4] for subject in found.state.subjects or ()}
        if left := sorted(stored - listed):
            with contextlib.suppress(Overtaken):  # Another writer has just cleaned up.
                await self._publish(self._index, _encode(infos), fence)
                for content in left:
                    await self._purge(content, found.state.last_seq + 1)
        self._ready = True

    def _manager(self) -> JetStreamManager:
        return self._link.jetstream(timeout=_TIMEOUT_S)
