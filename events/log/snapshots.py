"""Snapshots of the state, beside the log: they bound how much must be folded to start, or to reach a moment of the past.

Bodies are opaque here (`dorm.core` makes and reads them) and are stored under their own hash, so a body that differs from
what was put is never used.  A snapshot is never a source of truth: a reader checks it, and folds from the start if it does
not fit.  Losing all snapshots costs time and nothing else.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from events import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from events.log.records import Record

_encode = msgspec.msgpack.Encoder().encode


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot's metadata."""

    seq: limits.Sequence
    """The snapshot holds the state after this record."""
    time: limits.Moment
    """The state's log time, UTC nanoseconds."""
    core: limits.Number
    """Version of the core that folded it (`dorm.core.state.SCHEMA`): another build may fold the same log to another
    state."""
    build: str = ""
    """`events.sources.fingerprint` of the build that folded it.  Another build does not use it, even with the same core."""
    digest: str
    """The state's digest, as decisions carry it."""
    content: str
    """`content_of` the body, which is its address."""
    size: limits.Number
    """The body's size in bytes."""
    chain: str = ""
    """The log's hash chain after `seq`, so that a reader that starts here can continue it; empty if unknown."""
    record: str = ""
    """`identity` of the record `seq`.  A log that was recreated, or restored from a copy and then extended, has another
    record there, and the snapshot does not belong to it.  Empty if the store can't outlive its log."""
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    """Set by a rotation, which is about to remove the records that lead here: only a snapshot before the log's start is
    dropped all the same."""


def content_of(body: bytes) -> str:
    """Return the address of a body: 64 hex digits."""
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def identity(record: Record) -> str:
    """Return a hash of the whole record: 32 hex digits."""
    return hashlib.blake2b(_encode(record), digest_size=16).hexdigest()


EVERY = 10_000
"""Records between two snapshots.  Reading this many from a server and folding them takes about a tenth of a second, so any
moment is shown at once; a log of ten million then has 1,000 snapshots, about as many as a store keeps."""
MOST = 1024
"""Snapshots kept for one log.  Their list is one message, and has to stay below the size that every server accepts."""
MOST_BYTES = 256 * 2**20
"""Limit of the sum of their bodies."""


def surplus(
    infos: Sequence[SnapshotInfo], *, start: int = 0, kept: Collection[int] = frozenset()
) -> list[SnapshotInfo]:
    """Return which of a log's snapshots, given in order of sequence, to drop.  The last is the newest and stays, and so do
    those at the sequences `kept` and those that are pinned.  Those before `start` are of no use: the stream begins there.

    A snapshot goes if its neighbors are no more than `EVERY` apart without it.  If there are still too many, those of other
    builds go first, oldest first; then the one whose removal leaves the smallest gap relative to its distance from the end.
    So snapshots are dense near the end and sparse long ago.
    """
    own: list[SnapshotInfo] = []
    others: list[SnapshotInfo] = []
    early = [info for info in infos[:-1] if info.seq < start and info.seq not in kept]
    for info in infos:
        if info.seq in kept or info.pinned or info in early:
            continue
        (own if (info.core, info.build) == (infos[-1].core, infos[-1].build) else others).append(info)
    dropped: list[SnapshotInfo] = early
    index = 0
    while index < len(own) - 1:
        if _gap_without(own, index) <= EVERY:
            dropped.append(own.pop(index))
        else:
            index += 1
    size = sum(info.size for info in (*own, *others))
    while len(own) + len(others) > MOST or size > MOST_BYTES:
        if others:
            gone = others.pop(0)
        elif len(own) > 1:
            gone = own.pop(min(range(len(own) - 1), key=partial(_missed, own)))
        else:
            break
        dropped.append(gone)
        size -= gone.size
    return dropped


def _gap_without(infos: Sequence[SnapshotInfo], index: int) -> int:
    return infos[index + 1].seq - (infos[index - 1].seq if index else 0)


def _missed(infos: Sequence[SnapshotInfo], index: int) -> float:
    return _gap_without(infos, index) / (infos[-1].seq - infos[index].seq + EVERY)


class ReadableSnapshots(Protocol):
    """The snapshots of one log.  Its methods raise LogUnavailable and LogRefused as the log's do."""

    async def infos(self) -> Sequence[SnapshotInfo]:
        """Return all snapshots in order of sequence."""
        ...

    async def get(self, info: SnapshotInfo) -> bytes | None:
        """Return the body; None if it is gone or differs from what was put."""
        ...

    async def fetch(self, info: SnapshotInfo) -> tuple[SnapshotInfo, bytes] | None:
        """Return the body with all that is known of it.  A store that makes snapshots when they are asked for knows neither
        digest nor size before."""
        body = await self.get(info)
        return None if body is None else (info, body)


class Snapshots(ReadableSnapshots, Protocol):
    """A store of one log's snapshots."""

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        """Store it durably: once listed, it can be read.  A snapshot of the same sequence is replaced, unless it is
        pinned and this one is not; then this one is not stored."""
        ...

    async def drop(self, info: SnapshotInfo) -> None:
        """Remove it; a missing one is not an error. A newer one that has replaced it stays: the decision was about
        the old one."""
        ...


def yields_to(info: SnapshotInfo, there: SnapshotInfo | None) -> bool:
    """Return whether a snapshot is not stored because of the one that is there at its sequence."""
    return there is not None and bool(there.pinned) and not info.pinned


class NoSnapshots(ReadableSnapshots):
    """The snapshots of a log that has none."""

    async def infos(self) -> Sequence[SnapshotInfo]:
        return ()

    async def get(self, info: SnapshotInfo) -> bytes | None:
        return None


class MemorySnapshots(Snapshots):
    """Snapshots in memory."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[SnapshotInfo, bytes]] = {}

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        if not yields_to(info, self._kept.get(info.seq, (None,))[0]):
            self._kept[info.seq] = info, bytes(body)

    async def infos(self) -> Sequence[SnapshotInfo]:
        return [self._kept[seq][0] for seq in sorted(self._kept)]

    async def get(self, info: SnapshotInfo) -> bytes | None:
        _, body = self._kept.get(info.seq, (info, b""))
        return body if content_of(body) == info.content else None

    async def drop(self, info: SnapshotInfo) -> None:
        if info.seq in self._kept and self._kept[info.seq][0] == info:
            del self._kept[info.seq]
