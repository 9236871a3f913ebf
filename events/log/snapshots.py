"""Snapshots of the state, beside the log: they bound how much has to be folded to start, or to know a moment of the past.

Bodies are opaque here (`dorm.core` makes and reads them) and are kept under a hash of themselves, so what is read back is
what was put, or it is not used.  A snapshot is never a source of truth: whoever loads one checks it and folds from the begin
where it does not fit.  Losing all of them costs time and nothing else.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record

_encode = msgspec.msgpack.Encoder().encode


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a snapshot without its body."""

    seq: int
    """The state is that after this record."""
    time: int
    """The state's log time, UTC nanoseconds."""
    core: int
    """Version of the core that folded it (`dorm.core.state.SCHEMA`): another one may fold the same log to another state."""
    build: str = ""
    """`events.sources.fingerprint` of what folded it: another build's is not used, whatever its core says."""
    digest: str
    """Of the state, as decisions carry it."""
    content: str
    """`content_of` its body: its address."""
    size: int
    """Of its body, in bytes."""
    chain: str = ""
    """The log's hash chain after `seq`, so that whoever starts here can go on with it; empty where it is not known."""
    record: str = ""
    """`identity` of the record `seq`: a log that was made anew, or put back from a copy and written on, has another one
    there, and the snapshot is not of it.  Empty where the store can't outlive its log."""


def content_of(body: bytes) -> str:
    """The address of a body: 64 hex digits."""
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def identity(record: Record) -> str:
    """32 hex digits of all that there is of a record."""
    return hashlib.blake2b(_encode(record), digest_size=16).hexdigest()


EVERY = 40_000
"""Records between two snapshots.  Folding so many from a server takes about half a second, and a log of ten million has 250
snapshots then, which is what a store keeps."""
MOST = 256
"""Snapshots of one log."""
MOST_BYTES = 256 * 2**20
"""Of all their bodies."""


def surplus(infos: Sequence[SnapshotInfo]) -> list[SnapshotInfo]:
    """What to drop of a log's snapshots, given by sequence, of which the last is the newest and stays.

    One that is not needed for two others to be no more than `EVERY` apart goes.  Where there are still too many, those of
    other builds go first, oldest first; then that which is missed least: whose neighbours would be nearest to each other,
    measured against how far back they are.  So they lie dense near the end and sparse long ago.
    """
    newest = infos[-1:]
    own = [info for info in infos if (info.core, info.build) == (newest[0].core, newest[0].build)] if newest else []
    others = [info for info in infos if info not in own]
    dropped: list[SnapshotInfo] = []
    index = 0
    while index < len(own) - 1:
        if _gap_without(own, index) <= EVERY:
            dropped.append(own.pop(index))
        else:
            index += 1
    while len(own) + len(others) > MOST or sum(info.size for info in (*own, *others)) > MOST_BYTES:
        if others:
            dropped.append(others.pop(0))
        elif len(own) > 1:
            dropped.append(own.pop(min(range(len(own) - 1), key=partial(_missed, own))))
        else:
            break
    return dropped


def _gap_without(infos: Sequence[SnapshotInfo], index: int) -> int:
    return infos[index + 1].seq - (infos[index - 1].seq if index else 0)


def _missed(infos: Sequence[SnapshotInfo], index: int) -> float:
    return _gap_without(infos, index) / (infos[-1].seq - infos[index].seq + EVERY)


class Snapshots(Protocol):
    """A store of snapshots of one log.  Its methods raise LogUnavailable and LogRefused as the log's do."""

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        """Keep it durably; whoever lists it can get it.  One of the same sequence is replaced."""
        ...

    async def infos(self) -> Sequence[SnapshotInfo]:
        """All that there are, by sequence."""
        ...

    async def get(self, info: SnapshotInfo) -> bytes | None:
        """Its body; None where it is gone, or is not what was put."""
        ...

    async def drop(self, info: SnapshotInfo) -> None:
        """Forget it; one that is gone already is no error."""
        ...


class NoSnapshots(Snapshots):
    """Of a log that keeps none: what is put is not kept."""

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        return None

    async def infos(self) -> Sequence[SnapshotInfo]:
        return ()

    async def get(self, info: SnapshotInfo) -> bytes | None:
        return None

    async def drop(self, info: SnapshotInfo) -> None:
        return None


class MemorySnapshots(Snapshots):
    """All of them in memory."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[SnapshotInfo, bytes]] = {}

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        self._kept[info.seq] = info, bytes(body)

    async def infos(self) -> Sequence[SnapshotInfo]:
        return [self._kept[seq][0] for seq in sorted(self._kept)]

    async def get(self, info: SnapshotInfo) -> bytes | None:
        _, body = self._kept.get(info.seq, (info, b""))
        return body if content_of(body) == info.content else None

    async def drop(self, info: SnapshotInfo) -> None:
        self._kept.pop(info.seq, None)
