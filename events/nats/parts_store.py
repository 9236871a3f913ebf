"""The nodes' parts on NATS JetStream: a stream next to the log's, which keeps the last message of each subject.

    dorm.<cluster>.part.<node>.0    the first piece, written last: with it the part is there as a whole
    dorm.<cluster>.part.<node>.<n>  further pieces, of parts that one message can't hold

Each piece names the whole that it belongs to by its hash.  A write succeeds only if its writer knows the part that it
replaces.  A server lets a node read the subjects of its own part alone (`dorm.security.roles`).

A stream supports a limited number of consumers. Nodes need theirs, so outside the log's account only nodes have
consumers here: people who read all parts use direct requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import msgspec
from nats.js.api import StorageType, StreamConfig

from events import subjects as names
from events.log.records import LogClosed, LogDamaged, LogRefused, LogUnavailable
from events.log.stores import Parts, StoredPart
from events.nats.access import in_log_account
from events.nats.link import as_log_errors
from events.nats.reader import EndsBefore, Reader, ReopenReader, last_record, read_directly
from events.nats.settings import LARGEST_PART_PIECE, MOST_READERS, stream_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from events.log.records import Record
    from events.nats.leadership import JetStreamLeadership
    from events.nats.link import Link

_PIECE = LARGEST_PART_PIECE * 3 // 4
_TIMEOUT_S = 5.0
_OVERDUE_S = 5.0
_SHORTEST_S, _LONGEST_S = 0.1, 5.0


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    whole: str
    """Hash of the whole body."""
    count: int
    """Pieces that the body has."""
    data: bytes


_MOST_PIECES = 1024
_NO_PIECE = _Piece("", 1, b"")
_STRAY = 2**31
"""The number of a message on a subject that no piece has."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Piece).decode


def _stream(cluster: str) -> str:
    """Return a name that no cluster's log can have: those start with `DORM-`."""
    return f"DORM_parts-{cluster}"


def parts_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=_stream(cluster),
        subjects=[names.parts(cluster)],
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        allow_direct=True,
        max_msg_size=LARGEST_PART_PIECE,
        max_consumers=MOST_READERS,
    )


class JetStreamParts(Parts):
    """The parts of one cluster's nodes."""

    def __init__(self, link: Link, cluster: str, leadership: JetStreamLeadership) -> None:
        """`leadership`: the lease says whether its holder writes parts."""
        self._link = link
        self._cluster = cluster
        self._leadership = leadership
        self._stream = _stream(cluster)
        self._revisions: dict[str, int] = {}
        """Sequence of the last message that this process has seen, by subject."""

    async def all(self) -> list[StoredPart]:
        pieces = _Whole()
        records = await self._read_all(names.parts(self._cluster))
        self._revisions = {record.subject: record.seq for record in records}
        for record in records:
            pieces.take(record)
        return [part for _, part in sorted(pieces.parts().items())]

    async def last(self, node: str) -> StoredPart | None:
        pieces = _Whole()
        number, count = 0, 1
        while number < count:
            subject = names.part(self._cluster, node, number)
            record = await last_record(self._link, self._stream, subject, _TIMEOUT_S)
            self._revisions[subject] = record.seq if record is not None else 0
            if record is not None:
                count = min(max(count, pieces.take(record).count), _MOST_PIECES)
            number += 1
        return pieces.parts().get(names.token(node))

    async def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        after, pause = 0, _SHORTEST_S
        pieces = _Whole()
        while True:
            try:
                await self._link.connected()
                async with self._reader(after, names.part(self._cluster, node, "*")) as reader:
                    pause = _SHORTEST_S
                    while True:
                        news = await reader.next()
                        after = news[-1].seq
                        for record in news:
                            pieces.take(record)
                        complete = any(record.subject.endswith(".0") for record in news)
                        whole = pieces.parts().get(names.token(node)) if complete else None
                        if whole is not None and whole.body:
                            yield whole
            except EndsBefore:  # The stream was made again, and its sequences start again.
                after, pieces = 0, _Whole()
            except (ReopenReader, LogUnavailable, LogDamaged, LogRefused):
                # Without the stream the cluster has no parts yet: an admin, or a master of this release, makes it.
                if self._link.client.is_closed:
                    raise LogClosed(f"the connection to {self._link.url} is closed") from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)

    async def written(self) -> bool | None:
        held = await self._leadership.look()
        return held.parts if held is not None and held.holder else None

    def writes(self, parts: bool) -> None:
        self._leadership.writes_parts = parts

    async def put(self, node: str, body: bytes, expected: int) -> int:
        whole = hashlib.blake2b(body, digest_size=16).hexdigest()
        count = max(1, -(-len(body) // _PIECE))
        for number in range(count - 1, -1, -1):
            subject = names.part(self._cluster, node, number)
            fence = self._revisions.get(subject, 0) if number else expected
            piece = _encode(_Piece(whole, count, body[number * _PIECE : (number + 1) * _PIECE]))
            self._revisions[subject] = await self._publish(subject, piece, fence)
        return self._revisions[subject]

    async def _publish(self, subject: str, body: bytes, fence: int) -> int:
        headers = {"Nats-Expected-Stream": self._stream, "Nats-Expected-Last-Subject-Sequence": str(fence)}
        self._link.check_size(body, sum(map(len, headers.values())))
        await self._link.sendable("storing a part", _TIMEOUT_S)
        with as_log_errors("storing a part"):
            ack = await self._link.jetstream().publish(subject, body, timeout=_TIMEOUT_S, headers=headers)
        return int(ack.seq)

    def _reader(self, after: int, pattern: str) -> Reader:
        return Reader(self._link, self._stream, after, [pattern], replaces=True)

    async def _read_all(self, pattern: str) -> list[Record]:
        """Return the last message of each subject.  Raises LogUnavailable, LogRefused."""
        await self._link.connected(_TIMEOUT_S)
        credentials = self._link.credentials
        newest: dict[str, Record] = {}
        try:
            with as_log_errors("reading the parts of nodes"):
                until = (await stream_state(self._link, self._stream, _TIMEOUT_S))["last_seq"]
            if not until:
                return []
            if credentials is not None and not in_log_account(credentials.role):
                return await self._directly(pattern)
            async with self._reader(0, pattern) as reader:
                done = 0
                while done < until:
                    news = await reader.next(_OVERDUE_S)
                    newest |= {record.subject: record for record in news}
                    done = news[-1].seq
        except LogDamaged:
            raise LogRefused(
                f"cluster {self._cluster} has no store for the parts of its nodes; an admin makes it by running `dorm init` "
                "again",
                code="part.no_store",
            ) from None
        except ReopenReader as error:
            raise LogUnavailable(f"reading the parts of nodes: {error}") from None
        return list(newest.values())

    async def _directly(self, pattern: str) -> list[Record]:
        """The same without a consumer: a part that is written during the read is returned in its newest version."""
        newest: dict[str, Record] = {}
        after = 0
        while news := await read_directly(self._link, self._stream, after, pattern=pattern):
            newest |= {record.subject: record for record in news}
            after = news[-1].seq
        return list(newest.values())


class _Whole:
    """Pieces as they come, and the parts that they make."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[int, tuple[int, _Piece]]] = {}

    def take(self, record: Record) -> _Piece:
        """Note a piece and return it.  One that can't be read belongs to no whole."""
        node, number = record.subject.split(".")[3:5]
        try:
            piece = _decode(record.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            piece = _NO_PIECE
        self._pieces.setdefault(node, {})[int(number) if number.isdecimal() else _STRAY] = record.seq, piece
        return piece

    def parts(self) -> dict[str, StoredPart]:
        return {
            node: StoredPart(node, pieces[0][0], _joined(piece for _, (_, piece) in sorted(pieces.items())))
            for node, pieces in self._pieces.items()
            if 0 in pieces
        }


def _joined(pieces: Iterable[_Piece]) -> bytes:
    """Return the whole that the first piece names, b"" if others are not of it."""
    first, *more = pieces
    rest = more[: first.count - 1]
    if len(rest) + 1 < first.count or any(piece.whole != first.whole for piece in rest):
        return b""
    body = b"".join(piece.data for piece in (first, *rest))
    return body if hashlib.blake2b(body, digest_size=16).hexdigest() == first.whole else b""
