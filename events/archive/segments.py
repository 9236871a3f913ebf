"""A log in one file of segments, as `dorm replay export` writes it: compressed, indexed, checksummed, written front to back.

    file = "DORMLOG2", header, (records | snapshot)*, index, trailer

`blocks` defines a block, and finds the blocks of a file.  A block holds up to 512 records, so that it costs
little to read or to lose and still compresses well. Between the blocks are snapshots of the state, so that any moment
is one snapshot and a short fold away.  With the index at the end, opening takes three reads, and because nothing is
written twice an archive can go through a pipe.

Records are the originals, byte for byte.  Damage is reported with its byte position and the records that it costs.
Everything before it can be read normally, and everything intact after it with `salvage`.

`open_archive` opens an archive that any release wrote, from a file or from standard input.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import tempfile
import threading
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO, Self, TypeAlias

from events.archive.blocks import (
    FORMAT,
    HEAD_SIZE,
    MAGIC,
    BlockDamaged,
    Entry,
    Header,
    Index,
    Kept,
    Layout,
    examine,
    head_of,
    layout_of,
    pack_header,
    pack_index,
    pack_records,
    pack_snapshot,
    trailer,
    unpack_records,
    unpack_snapshot,
    walked,
)
from events.archive.damage import Damage, refuse_to_follow
from events.archive.files import closed_on_error, open_file, refusing
from events.archive.legacy import LegacyLog
from events.log.interface import ReadableLog
from events.log.records import LogDamaged, LogRefused, Record, on_subjects
from events.log.stores import ReadableSnapshots, SnapshotInfo, content_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path


# --- segments ---------------------------------------------------------------------------------------------------------

LEAST_RECORDS, BLOCK_RECORDS = 64, 512
"""Records in a block.  One damaged byte costs its whole block, so blocks start small and grow with the archive.  Blocks of
4096 would save a hundredth of the room and a fifth of the time to read all, and make one record six times as expensive to
reach."""
_SHARE = 8
"""A block above the minimum holds at most this fraction (1/8) of the records before it."""
BLOCK_BYTES = 256 << 10
"""Bytes of bodies in a block, unless a single record has more."""
BATCH_BLOCKS = 8
"""Blocks that a reader gets at once: each switch between threads costs as much as folding a hundred records."""


class SegmentWriter:
    """Writes an archive front to back into a file or a pipe.  Not thread-safe."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        """Write the header.  Every method raises LogRefused if the file can't be written; BrokenPipeError passes through."""
        self._file = file
        self._header = header
        self._last = header.start
        self._waiting: list[Record] = []
        self._bytes = 0
        self._room = min(LEAST_RECORDS, BLOCK_RECORDS)
        """Number of records that the current block may hold."""
        self._records: list[Entry] = []
        self._snapshots: list[Kept] = []
        self.count = 0
        """Records so far."""
        self.written = 0
        """Bytes so far."""
        self._write(MAGIC)
        self._write(pack_header(header))

    def add(self, records: Sequence[Record]) -> None:
        """Append the next records.  Raises LogDamaged if sequences are not contiguous (sparse: not increasing)."""
        self._check_order(records)
        at = 0
        while at < len(records):
            part = records[at : at + self._room - len(self._waiting)]
            size = sum([len(record.body) for record in part])
            if self._bytes + size <= BLOCK_BYTES:
                self._waiting += part
                self._bytes += size
            else:
                self._add_large(part)
            at += len(part)
            self.count += len(part)
            if len(self._waiting) == self._room:
                self._flush()

    def _check_order(self, records: Sequence[Record]) -> None:
        seqs = [record.seq for record in records]
        if seqs != list(range(self._last + 1, self._last + 1 + len(seqs))):
            for before, seq in pairwise([self._last, *seqs]):
                if seq != before + 1 and (seq <= before or not self._header.sparse):
                    raise LogDamaged(f"record {seq} can't follow {before}")
        if seqs:
            self._last = seqs[-1]

    def _add_large(self, records: Sequence[Record]) -> None:
        """Append one by one, as some records need a block each."""
        for record in records:
            if self._bytes and self._bytes + len(record.body) > BLOCK_BYTES:
                self._flush()
            self._waiting.append(record)
            self._bytes += len(record.body)

    def snapshot(self, info: SnapshotInfo, body: bytes) -> None:
        """Write a snapshot of the state after the last record added, or at the archive's start."""
        assert info.seq == self._last, "a snapshot lies behind the record that it is of"
        self._flush()
        place = self.written
        block = pack_snapshot(info, body)
        self._write(block)
        self._snapshots.append(Kept(place, len(block), info))

    def finish(self) -> None:
        """Write the last records, the index and the trailer; the file stays open."""
        self._flush()
        place = self.written
        self._write(pack_index(Index(self._header, self._records, self._snapshots)))
        self._write(trailer(place))
        try:
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise LogRefused(f"the archive can't be written: {error.strerror}", code="archive.not_written") from None

    def _flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self._room = min(max(LEAST_RECORDS, self.count // _SHARE), BLOCK_RECORDS)
        if not waiting:
            return
        place = self.written
        try:
            block = pack_records(waiting)
        except (ValueError, UnicodeEncodeError) as error:
            raise LogRefused(f"record {waiting[0].seq} and those after it can't be stored: {error}") from None
        self._write(block)
        latest = max(record.time for record in waiting)
        self._records.append(Entry(place, len(block), len(waiting), waiting[0].seq, waiting[-1].seq, latest))

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise LogRefused(f"the archive can't be written: {error.strerror}", code="archive.not_written") from None
        self.written += len(data)


class SegmentLog(ReadableLog):
    """An archive of segments, open for reading."""

    def __init__(self, file: int, name: str, layout: Layout) -> None:
        self._file = file
        self._name = name
        self._layout = layout
        self._entries = layout.records
        self._lasts = [entry.last for entry in self._entries]
        self._latest = _running_maximum([entry.latest for entry in self._entries])
        self._snapshots = _Inside(self)
        self._by_heads: dict[tuple[int, int, int], Entry] | None = None
        """The blocks by the heads that are in the file; found when the index is wrong."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open an archive.  Raises LogRefused if it can't be opened, is not an archive of segments, or has a later format."""
        return await asyncio.to_thread(lambda: cls.of_file(open_file(path), str(path)))

    @classmethod
    def of_file(cls, file: int, name: str) -> Self:
        """Open a file descriptor, which is closed with the log or if this raises.  Raises LogRefused."""
        with closed_on_error(file, name):
            if os.pread(file, len(MAGIC), 0) != MAGIC:
                raise LogRefused(f"{name} is not a Dorm archive", code="archive.not_an_archive")
            layout = layout_of(file)
            if layout.header.format > FORMAT:
                made_by = layout.header.made_by or "a later build"
                raise LogRefused(
                    f"{name} was written by {made_by} in a later format; update Dorm to read it",
                    code="archive.later_format",
                )
        return cls(file, name, layout)

    @property
    def header(self) -> Header:
        """The archive's header."""
        return self._layout.header

    @property
    def sparse(self) -> bool:
        return self._layout.header.sparse

    @property
    def anonymized(self) -> bool:
        return self._layout.header.anonymized

    async def renamed_upto(self) -> int:
        return self._layout.header.renamed

    @property
    def snapshots(self) -> ReadableSnapshots:
        return self._snapshots

    @property
    def count(self) -> int:
        """How many records it holds, also if it is sparse."""
        return sum(entry.count for entry in self._entries)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        refuse_to_follow(follow)
        end = await self.end()
        if after > end:
            raise LogDamaged(f"{self._name} ends at {end}, before {after}", code="log.truncated")
        index = bisect_right(self._lasts, after)
        while index < len(self._entries):
            records, index = await asyncio.to_thread(self._load_from, index, after)
            batch = _after(records, after, subjects)
            if batch:
                yield batch
        self._check_neighbours(len(self._entries), after)

    async def salvage(
        self, *, damages: list[Damage], after: int = 0, subjects: Sequence[str] = ()
    ) -> AsyncGenerator[list[Record], None]:
        """Like `read`, but skip what can't be read.  `damages` is the known damage; newly found damage is added."""
        for entry in self._entries[bisect_right(self._lasts, after) :]:
            try:
                batch = _after(await asyncio.to_thread(self._load, entry), after, subjects)
            except LogDamaged as error:
                if not any(damage.costs(entry.first, entry.last) for damage in damages):
                    damages.append(Damage(entry.place, str(error), entry.first, entry.last))
                continue
            if batch:
                yield batch

    async def end(self) -> int:
        return self._lasts[-1] if self._lasts else self._layout.header.start

    async def start(self) -> int:
        return self._layout.header.start

    async def at_time(self, time: int) -> int:
        index = bisect_right(self._latest, time)
        if index == len(self._entries):
            return await self.end()
        seq = self._lasts[index - 1] if index else await self.start()
        for record in await asyncio.to_thread(self._load, self._entries[index]):
            if record.time > time:
                break
            seq = record.seq
        return seq

    async def last_on(self, subject: str) -> Record | None:
        def search() -> Record | None:
            for entry in reversed(self._entries):
                for record in reversed(self._load(entry)):
                    if record.subject == subject:
                        return record
            return None

        return await asyncio.to_thread(search)

    async def torn(self) -> str:
        """Return the first damage found when it was opened, "" if there was none.  `damages` checks everything."""
        damages = self._layout.damages
        return f"{self._name}: {damages[0]}" if damages else ""

    async def damages(self, progress: Callable[[int, int], None] | None = None) -> list[Damage]:
        """Return all damage in the file.  This reads all of it, at more than a gigabyte per second.  `progress` is called
        with the number of checked bytes and of all bytes.  Raises LogRefused if the file can't be read."""
        with refusing(self._name):
            return (await asyncio.to_thread(examine, self._file, progress)).damages

    async def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _check_neighbours(self, index: int, after: int) -> None:
        """Raises LogDamaged if records before the block are missing; after the last block, if a known range is."""
        before = self._entries[index - 1].last if index else self._layout.header.start
        ends = index == len(self._entries)
        for damage in self._layout.damages:
            between = before < damage.first and (ends or damage.first < self._entries[index].first)
            # A missing end is reported by `torn`: the records that are there can be used.
            if between and damage.last is not None and damage.last > after:
                raise LogDamaged(f"{self._name}: {damage}")
        if not ends and not self.sparse and self._entries[index].first != before + 1:
            raise LogDamaged(f"{self._name}: records {before + 1} to {self._entries[index].first - 1} are missing")

    def _block(self, place: int, size: int) -> bytes:
        """Return the bytes of a block, fewer at the end of the file.  Raises LogRefused."""
        with refusing(self._name):
            return os.pread(self._file, size, place)

    def _load_from(self, index: int, after: int) -> tuple[list[Record], int]:
        """Return the records of a batch of blocks, and the next index.  Raises LogDamaged if the first is unreadable."""
        self._check_neighbours(index, after)
        records = self._load(self._entries[index])
        for more in range(index + 1, min(index + BATCH_BLOCKS, len(self._entries))):
            try:
                self._check_neighbours(more, after)
                records += self._load(self._entries[more])
            except LogDamaged:
                return records, more  # Records before the damage are returned first.
        return records, min(index + BATCH_BLOCKS, len(self._entries))

    def _load(self, entry: Entry) -> list[Record]:
        """Read one block.  Raises LogDamaged."""
        data = self._block(entry.place, entry.size)
        head = head_of(data)
        try:
            if head is None or (head.first, head.last, head.count) != (entry.first, entry.last, entry.count):
                copy = self._moved_copy(entry)
                if copy is not None:
                    return self._load(copy)
                raise BlockDamaged("has no head that can be read")
            return unpack_records(head, memoryview(data)[HEAD_SIZE:])
        except BlockDamaged as error:
            what = f"{self._name}: the block at byte {entry.place} {error}"
            raise LogDamaged(str(Damage(entry.place, what, entry.first, entry.last))) from None

    def _moved_copy(self, entry: Entry) -> Entry | None:
        """Return where a block lies that is not where the index says, as bytes before it were cut out or put in."""
        if self._by_heads is None:
            with refusing(self._name):
                records = walked(self._file).records
            self._by_heads = {(entry_.first, entry_.last, entry_.count): entry_ for entry_ in records}
        same = self._by_heads.get((entry.first, entry.last, entry.count))
        return None if same is None or same.place == entry.place else same


class _Inside(ReadableSnapshots):
    """The snapshots of an archive."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    async def infos(self) -> Sequence[SnapshotInfo]:
        return [kept.info for kept in self._log._layout.snapshots]

    async def get(self, info: SnapshotInfo) -> bytes | None:
        kept = self._log._layout.snapshots
        index = bisect_left([entry.info.seq for entry in kept], info.seq)
        if index == len(kept) or kept[index].info != info:
            return None
        data = await asyncio.to_thread(self._log._block, kept[index].place, kept[index].size)
        head = head_of(data)
        if head is None:
            return None
        try:
            stored, body = unpack_snapshot(head, data[HEAD_SIZE:])
        except BlockDamaged:
            return None
        return body if stored == info and content_of(body) == info.content else None


def _after(batch: list[Record], after: int, subjects: Sequence[str]) -> list[Record]:
    if batch[0].seq <= after:
        batch = [record for record in batch if record.seq > after]
    return on_subjects(batch, subjects)


def _running_maximum(times: Sequence[int]) -> list[int]:
    """Return running maxima: a server's clock may go back, and a search by time wants the first later record."""
    latest = [*times]
    for index in range(1, len(latest)):
        latest[index] = max(latest[index - 1], latest[index])
    return latest


# --- archives of any release ------------------------------------------------------------------------------------------

__all__ = ["Archive", "open_archive"]

Archive: TypeAlias = SegmentLog | LegacyLog
"""Either can be read as any log can, and reports its damage (`damages`)."""
_POLL_S = 0.05
_CHUNK = 1 << 20


async def open_archive(path: Path) -> Archive:
    """Open an archive; `-` is standard input.  Raises LogRefused."""
    if str(path) == "-":
        return await asyncio.to_thread(_archive_of, await _spooled(), "standard input")
    return await asyncio.to_thread(_open, path)


def _open(path: Path) -> Archive:
    return _archive_of(open_file(path), str(path))


def _archive_of(file: int, name: str) -> Archive:
    with closed_on_error(file, name):
        start = os.pread(file, len(MAGIC), 0)
    return SegmentLog.of_file(file, name) if start == MAGIC else LegacyLog.of_file(file, name)


async def _spooled() -> int:
    """Copy standard input to a file without a name, since a log is not read in one pass.  Raises LogRefused."""
    stop = threading.Event()
    copying = asyncio.create_task(asyncio.to_thread(_spool, stop))
    try:
        return await asyncio.shield(copying)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({copying})
        if copying.exception() is None:
            os.close(copying.result())
        raise


def _spool(stop: threading.Event) -> int:
    source = sys.stdin.fileno()
    with refusing("standard input"), tempfile.TemporaryFile() as spool:
        while not stop.is_set():
            # The pipe's writer may take long, and Ctrl-C must not wait for it.
            if not select.select([source], [], [], _POLL_S)[0]:
                continue
            chunk = os.read(source, _CHUNK)
            if not chunk:
                break
            spool.write(chunk)
        spool.flush()
        return os.dup(spool.fileno())
