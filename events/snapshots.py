"""Snapshots of the state, beside the log: they bound how much has to be folded to start, or to know a moment of the past.

Bodies are opaque here (`dorm.core` makes and reads them) and are kept under a hash of themselves, so what is read back is
what was put, or it is not used.  A snapshot is never a source of truth: whoever loads one checks it and folds from the begin
where it does not fit.  Losing all of them costs time and nothing else.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def content_of(body: bytes) -> str:
    """The address of a body: 64 hex digits."""
    return hashlib.blake2b(body, digest_size=32).hexdigest()


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
