"""A rotated log as one: its past in archives, its present in a stream.

    WholeLog   reads both as one log, and appends to the stream
    Archives   the archives of one place, opened when they are needed

The newest cut on the log (`events.kinds.LogRotated`) names the last archive and its place; the others are found by
their names.  Nothing is looked up before a reader needs records that the stream no longer has, so a log that was
never rotated costs nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

from events.archive.place import open_store
from events.archive.segments import SegmentLog
from events.archive.stores import ArchiveMissing, Name, StoreError, digest_of, name_of
from events.log.interface import EventLog, ReadableLog
from events.log.records import Archived, LogDamaged, LogError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.archive.stores import ArchiveStore
    from events.kinds import LogRotated
    from events.log.records import Appended, Record
    from events.log.stores import Files, Parts, Progress, Snapshots

_OPEN = 4
"""Archives that are kept open: a reader goes from one to the next, and a search by time tries some."""


Checked = dict[Name, tuple[int, ...]]
"""Archives whose bytes were compared with their names, and the files that held them then."""


async def open_archive_of(
    store: ArchiveStore, name: Name, cluster: str, *, checked: Checked | None = None
) -> SegmentLog:
    """Open an archive of a store, whose bytes are compared with its name, unless that was done: a file that is in `checked`
    and has not been touched since.  Raises StoreError, and LogDamaged for a file that is truncated, altered, or of another
    log."""
    file = await store.fetch(name)
    checked = {} if checked is None else checked
    try:
        touched = _touched(file)
        digest = name.digest if checked.get(name) == touched else await asyncio.to_thread(digest_of, file)
    except OSError as error:
        os.close(file)
        raise StoreError(f"the archive {name} in {store.place} can't be read: {error.strerror}") from None
    if digest != name.digest:
        os.close(file)
        raise LogDamaged(
            f"the archive {name} in {store.place} is truncated or altered: its hash differs from its name; put it back from "
            "a copy",
            code="archive.altered",
        )
    checked[name] = touched
    archive = await asyncio.to_thread(SegmentLog.of_file, file, f"archive {name}")
    header = archive.header
    if header.cluster != cluster or (header.start, await archive.end()) != (name.after, name.upto) or header.sparse:
        await archive.close()
        raise LogDamaged(
            f"the archive {name} in {store.place} holds records {header.start + 1:,} to {await archive.end():,} of cluster "
            f"{header.cluster!r}, and is not part of the log of {cluster!r}; put the right one back from a copy",
            code="archive.of_another_log",
        )
    return archive


def _touched(file: int) -> tuple[int, ...]:
    """Return which file this is, and when it was last written."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Archives:
    """The archives up to one cut, in one store.

    A place may hold other archives, too: those of a rotation that died, and those of an earlier log of the same cluster.  The
    cut names the last archive of this log.  Each archive begins with the hash chain before its first record, which the one
    before it has to end with."""

    def __init__(self, store: ArchiveStore, cluster: str, last: Name) -> None:
        self._store = store
        self._cluster = cluster
        self._last = last
        self._names: list[Name] | None = None
        self._opened: OrderedDict[Name, SegmentLog] = OrderedDict()
        self._checked: Checked = {}
        self._before: dict[int, tuple[Name, str]] = {}
        """The archive that begins after a sequence, and the hash chain with which it does."""
        self._until: dict[int, tuple[Name, str]] = {}
        """The archive that ends with a sequence, and the hash chain with which it does."""

    @property
    def place(self) -> str:
        return self._store.place

    @property
    def upto(self) -> int:
        return self._last.upto

    async def names(self) -> list[Name]:
        """Return the archives that hold the past, first to last; `missing` says what is not in them.  Raises StoreError."""
        if self._names is not None:
            return self._names
        names = await self._line(await self._store.names())
        if _gap(names) is None:  # Otherwise, what is missing may be put back.
            self._names = names
        return names

    async def missing(self) -> ArchiveMissing | None:
        """Return the error for the first records that are in no archive here, None if all are.  Raises StoreError."""
        upto = _gap(await self.names())
        return None if upto is None else self._missing(upto)

    def _missing(self, upto: int) -> ArchiveMissing:
        return ArchiveMissing(
            f"the archive with the records up to {upto:,} is not in {self.place}; put it back from a copy, or name another "
            "place with --archives"
        )

    async def _line(self, names: Sequence[Name]) -> list[Name]:
        """Return those that follow each other up to the last, and before a gap those that end first before it."""
        by_end: dict[int, list[Name]] = {}
        for name in sorted(names):
            if name.after < name.upto < self.upto:
                by_end.setdefault(name.upto, []).append(name)
        ends, line = sorted(by_end), [self._last]
        while at := bisect_right(ends, line[-1].after):
            line.append(await self._choice(by_end[ends[at - 1]], line[-1]))
        return line[::-1]

    async def _choice(self, ending: Sequence[Name], following: Name) -> Name:
        """Return which of several archives with the same end comes before another one; if none does, reading it fails."""
        if len(ending) == 1 or ending[0].upto != following.after:
            return ending[0]
        wanted = await self._chain(following, following.after)
        for name in ending:
            with contextlib.suppress(LogError):
                if wanted and await self._chain(name, name.upto) == wanted:
                    return name
        return ending[0]

    async def _chain(self, name: Name, seq: int) -> str:
        """Return the hash chain after a record with which an archive begins or ends, "" if it does not say."""
        archive = await open_archive_of(self._store, name, self._cluster, checked=self._checked)
        try:
            return await _chain_at(archive, seq)
        finally:
            await archive.close()

    async def _holding(self, seq: int) -> Name:
        """Return the archive with a record, the first one for 0.  Raises StoreError, ArchiveMissing."""
        names = await self.names()
        name = names[min(bisect_left([name.upto for name in names], seq), len(names) - 1)]
        if max(seq, 1) <= name.after:
            raise self._missing(name.after)
        return name

    async def _open(self, name: Name) -> SegmentLog:
        """Open an archive, which has to fit its neighbors that were opened before.  Raises StoreError, LogDamaged."""
        try:
            archive = await open_archive_of(self._store, name, self._cluster, checked=self._checked)
            self._before[name.after] = name, await _chain_at(archive, name.after)
            self._until[name.upto] = name, await _chain_at(archive, name.upto)
            try:
                self._check_joint(name.after)
                self._check_joint(name.upto)
            except LogDamaged:
                await archive.close()
                raise
        except LogError:  # The right one may be put there, under another name.
            self._names = None
            self._before.clear()
            self._until.clear()
            raise
        return archive

    def _check_joint(self, seq: int) -> None:
        """Raises LogDamaged if the archives before and after a record are of different logs."""
        (first, ends), (second, begins) = self._until.get(seq, (None, "")), self._before.get(seq, (None, ""))
        if ends and begins and ends != begins:
            raise LogDamaged(
                f"the archives {first} and {second} in {self.place} are of different logs of this cluster: the records of the "
                "first are not those before the second; put the right one back from a copy",
                code="archive.of_another_log",
            )

    async def at(self, seq: int) -> SegmentLog:
        """Return the archive that holds a record; it stays open for a while.  Raises StoreError, LogDamaged, LogRefused."""
        name = await self._holding(seq)
        archive = self._opened.get(name)
        if archive is None:
            archive = self._opened[name] = await self._open(name)
        self._opened.move_to_end(name)
        while len(self._opened) > _OPEN:
            await self._opened.popitem(last=False)[1].close()
        return archive

    async def read(self, after: int, subjects: Sequence[str]) -> AsyncGenerator[list[Record], None]:
        """Yield the records after `after`, up to the end of the last archive.  An archive is kept open while it is read, by
        anyone else who uses these."""
        while after < self.upto:
            name = await self._holding(after + 1)
            archive = await self._open(name)
            try:
                async with contextlib.aclosing(archive.read(after=after, subjects=subjects)) as batches:
                    async for batch in batches:
                        yield batch
            finally:
                await archive.close()
            after = name.upto

    async def at_time(self, time: int) -> int:
        """Return the last record before the first one that is later than this log time."""
        names = await self.names()
        low, high = 0, len(names) - 1
        while low < high:  # The first archive whose last record is later.
            middle = (low + high) // 2
            archive = await self.at(names[middle].upto)
            low, high = (middle + 1, high) if await archive.at_time(time) == names[middle].upto else (low, middle)
        seq = await (await self.at(names[low].upto)).at_time(time)
        if seq == names[low].after:  # The record is the last one of the archive before.
            await self._holding(seq)
        return seq

    async def last_on(self, subject: str) -> Record | None:
        """Return the last record of a subject.  Raises as `at`."""
        seq = self.upto
        while seq:
            name = await self._holding(seq)
            if (record := await (await self.at(seq)).last_on(subject)) is not None:
                return record
            seq = name.after
        return None

    async def close(self) -> None:
        for archive in self._opened.values():
            await archive.close()
        self._opened.clear()
        await self._store.close()


def _gap(names: Sequence[Name]) -> int | None:
    """Return the end of the first records that none of these archives holds, None if they hold all."""
    before = 0
    for name in names:
        if name.after != before:
            return name.after
        before = name.upto
    return None


async def _chain_at(archive: SegmentLog, seq: int) -> str:
    """Return the hash chain that the snapshot at a sequence states, "" if there is none."""
    return next((info.chain for info in await archive.snapshots.infos() if info.seq == seq), "")


class WholeLog(EventLog):
    """A log with its archives.  `place` is where to look for them, "" for the place that the log names.

    It starts with the very first record. Archived records are read from the archives, all others from the stream. If
    archives are missing, only reading their records fails."""

    def __init__(self, stream: EventLog, cluster: str, *, place: str = "") -> None:
        self._stream = stream
        self._cluster = cluster
        self._place = place
        self._archives: Archives | None = None

    @property
    def stream(self) -> EventLog:
        """The part that is not archived yet."""
        return self._stream

    async def archives(self) -> Archives | None:
        """Return the archives up to the newest cut, None for a log without.  Raises StoreError, LogUnavailable."""
        cut = await self._stream.cut()
        if cut is None:
            return None
        if self._archives is None or self._archives.upto != cut.upto:
            made = self._made(cut)
            if self._archives is not None:
                await self._archives.close()
            self._archives = made
        return self._archives

    def _made(self, cut: LogRotated) -> Archives:
        name = name_of(cut.archive)
        if name is None or (name.after, name.upto) != (cut.after, cut.upto):
            raise LogDamaged(f"the log names the archive {cut.archive[:100]!r}, which is not the name of an archive")
        place = self._place or cut.place
        try:
            return Archives(open_store(place, self._cluster), self._cluster, name)
        except StoreError:
            if self._place or not place:
                raise
            raise Archived(cut.upto, cut) from None

    async def _past(self, after: int) -> Archives | None:
        """Return the archives where records after `after` are no longer in the stream."""
        return None if after >= await self._stream.start() else await self.archives()

    # --- reading --------------------------------------------------------------------------------------------------------

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        while True:
            try:
                async with contextlib.aclosing(
                    self._stream.read(after=after, subjects=subjects, follow=follow)
                ) as batches:
                    async for batch in batches:
                        after = batch[-1].seq
                        yield batch
                return
            except Archived:  # From the start, or while this reader was behind.
                past = await self.archives()
                if past is None or past.upto <= after:
                    raise
            async with contextlib.aclosing(past.read(after, subjects)) as batches:
                async for batch in batches:
                    yield batch
            after = past.upto

    async def at_time(self, time: int) -> int:
        seq = await self._stream.at_time(time)
        start = await self._stream.start()
        past = await self.archives() if seq <= start and start else None
        return seq if past is None else min(await past.at_time(time), seq)

    async def record_at(self, seq: int) -> Record | None:
        record = await self._stream.record_at(seq)
        past = await self._past(seq - 1) if record is None and seq > 0 else None
        return record if past is None else await (await past.at(seq)).record_at(seq)

    async def last_on(self, subject: str) -> Record | None:
        record = await self._stream.last_on(subject)
        past = await self._past(0) if record is None else None
        return record if past is None else await past.last_on(subject)

    async def start(self) -> int:
        return 0

    async def part_at(self, seq: int) -> ReadableLog:
        past = await self._past(seq)
        return self._stream if past is None else await past.at(seq)

    async def end(self) -> int:
        return await self._stream.end()

    async def renamed_upto(self) -> int:
        return await self._stream.renamed_upto()

    async def torn(self) -> str:
        return await self._stream.torn()

    @property
    def progress(self) -> Progress:
        """Data beside the log is in separate streams, which rotation does not touch."""
        return self._stream.progress

    @property
    def parts(self) -> Parts:
        return self._stream.parts

    @property
    def files(self) -> Files:
        return self._stream.files

    @property
    def snapshots(self) -> Snapshots:
        return self._stream.snapshots

    # --- the stream's ---------------------------------------------------------------------------------------------------

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        return await self._stream.append(subject, body, msg_id=msg_id, expected_last=expected_last, timeout=timeout)

    async def check(self) -> None:
        await self._stream.check()

    def check_room(self) -> None:
        self._stream.check_room()

    async def cut(self) -> LogRotated | None:
        return await self._stream.cut()

    async def purge(self, upto: int) -> None:
        await self._stream.purge(upto)

    async def close(self) -> None:
        if self._archives is not None:
            await self._archives.close()
        await self._stream.close()
