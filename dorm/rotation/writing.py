"""One archive of a rotation: the records up to a seal, snapshots between them, and the state at both ends.

The last snapshot is the one that its master signs: from there the stream is folded without the archive.
"""

from __future__ import annotations

import contextlib
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from dorm.core.fold.evolve import evolve
from dorm.core.snapshot import dump
from dorm.rotation.policy import RotationError
from events.archive.blocks import Header
from events.archive.segments import SegmentWriter
from events.archive.stores.interface import Name, digest_of
from events.chain.hash_chain import START, Chain
from events.log.records import LogDamaged
from events.log.snapshots import SnapshotInfo, identity
from replay.frames import EVERY, build, state_after
from replay.whole_file import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dorm.core.state import State
    from dorm.rotation.policy import Plan
    from events.archive.segments import SegmentLog
    from events.log.interface import EventLog
    from events.log.records import Record


class Written(msgspec.Struct, frozen=True):
    """An archive that is in a file, not yet in its store."""

    name: Name
    size: int
    """Bytes."""
    chain: str
    """The hash chain after its last record."""
    snapshot: SnapshotInfo
    body: bytes


async def write(log: EventLog, cluster: str, plan: Plan, file: Path) -> Written:
    """Write the records of a plan into a new file.  Raises LogError, LogRefused if the file can't be written, and
    RotationError if the records are not those that the seal covers."""
    state, chain = await state_after(log, plan.after)
    if not chain:
        raise RotationError(
            f"the hash chain after record {plan.after:,} is unknown: the snapshot there is gone or of another version; start "
            "the master with --archives where the log's archives are",
            code="rotation.no_snapshot",
        )
    header = Header(
        cluster=cluster,
        made_by=f"dorm {version('dorm')}",
        start=plan.after,
        renamed=min(await log.renamed_upto(), plan.upto),
    )
    with await in_thread(_create, file) as opened:
        writing = await in_thread(_Writing, opened, header, state, chain)
        async with contextlib.aclosing(log.read(after=plan.after)) as batches:
            async for batch in batches:
                if await in_thread(writing.take, batch, plan.upto):
                    break
        if writing.seq != plan.upto:
            raise LogDamaged(f"the log ends at {writing.seq:,}, before {plan.upto:,}", code="log.truncated")
        info, body = await in_thread(writing.finish)
        if info.chain != plan.seal.chain:
            raise RotationError(
                f"records {plan.after + 1:,} to {plan.upto:,} are not those that the seal there covers; `dorm log verify` "
                "shows where they differ",
                code="rotation.differs",
            )
        size = opened.tell()
        digest = await in_thread(digest_of, opened.fileno())
    return Written(Name(plan.after, plan.upto, digest), size, info.chain, info, body)


def _create(file: Path) -> BinaryIO:
    try:
        return open(file, "xb+", buffering=1 << 20, opener=_private)
    except OSError as error:
        raise RotationError(f"{file}: {error.strerror}", code="archive.not_written") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class _Writing:
    """Writes records as they are read; called in threads, one call after the other."""

    def __init__(self, file: BinaryIO, header: Header, state: State, chain: str) -> None:
        self._file = file
        self._state = state
        self._chain = Chain(header.start, bytes.fromhex(chain) if chain else START)
        self._last: Record | None = None
        self._writer = SegmentWriter(file, header)
        if header.start:
            self._writer.snapshot(*self._dumped())

    @property
    def seq(self) -> int:
        return self._state.seq

    def take(self, records: Sequence[Record], upto: int) -> bool:
        """Take the next records, and none after `upto`; return whether that is reached."""
        begin = 0
        for index, record in enumerate(records):
            if record.seq > upto:
                self._writer.add(records[begin:index])
                return True
            evolve(self._state, record)
            self._chain.follow(record)
            self._last = record
            if not record.seq % EVERY and record.seq != upto:
                self._writer.add(records[begin : index + 1])
                self._writer.snapshot(*self._dumped())
                begin = index + 1
        self._chain.forget(self._chain.seq)
        self._writer.add(records[begin:])
        return self.seq >= upto

    def finish(self) -> tuple[SnapshotInfo, bytes]:
        """Write the last snapshot and the index; return the snapshot."""
        last = self._dumped()
        self._writer.snapshot(*last)
        self._writer.finish()
        os.fsync(self._file.fileno())
        return last

    def _dumped(self) -> tuple[SnapshotInfo, bytes]:
        info, body = dump(self._state, build=build(), chain=self._chain.value.hex())
        record = identity(self._last) if self._last is not None else ""
        return msgspec.structs.replace(info, record=record), body


async def check_archive(archive: SegmentLog, name: Name, chain_before: str, chain: str) -> None:
    """Read an archive as its store gives it back, every byte, and compare its records with the chain before and after them.
    Raises RotationError, LogError."""
    if damages := await archive.damages():
        raise RotationError(f"the archive {name} came back damaged: {damages[0]}", code="archive.altered")
    found = Chain(name.after, bytes.fromhex(chain_before) if chain_before else START)

    def follow(batch: Sequence[Record]) -> None:
        for record in batch:
            if record.seq != found.seq + 1:
                raise RotationError(f"the archive {name} lacks record {found.seq + 1:,}", code="archive.altered")
            found.follow(record)
        found.forget(found.seq)

    async with contextlib.aclosing(archive.read(after=name.after)) as batches:
        async for batch in batches:
            await in_thread(follow, batch)
    if found.seq != name.upto or found.value.hex() != chain:
        raise RotationError(f"the archive {name} does not hold the records that it should", code="archive.altered")


async def last_snapshot(archive: SegmentLog) -> tuple[SnapshotInfo, bytes] | None:
    """Return the snapshot at the archive's end, None if it can't be read."""
    end = await archive.end()
    for info in await archive.snapshots.infos():
        if info.seq == end:
            body = await archive.snapshots.get(info)
            return (info, body) if body is not None else None
    return None
