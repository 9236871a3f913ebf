"""A log in one file that can be appended to, for tools that need no server; and `open_archive` for any exported log.

`dorm replay export` writes `events.archive.segments`; earlier releases wrote this format, which stays readable.

    file   = magic, frame*
    frame  = length u32, crc32 u32 (of the payload), crc32 u32 (of these eight bytes), payload
    payload = MessagePack [seq, time, subject, body, msg_id]

Big-endian.  Records are the originals, byte for byte.  A writer holds an exclusive lock.  A half-written frame that a crash
left at the end is cut off by the next writer and skipped by readers, who can query it (`torn`).  Damage anywhere else raises
LogDamaged: the length has its own checksum, so that a broken one can't pass for a half-written end and make a writer cut off
the records after it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import stat
import struct
import sys
import tempfile
import threading
import zlib
from typing import TYPE_CHECKING

import msgspec

from events.archive.damage import Damage
from events.archive.index import MAGIC as SEGMENTS_MAGIC
from events.archive.segments import SegmentLog
from events.log.interface import EventLog
from events.log.records import Appended, LogDamaged, LogRefused, Overtaken, Record
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from pathlib import Path

MAGIC = b"DORMLOG1"
BATCH = 2000
BATCH_BYTES = 8 * 1024 * 1024
_POLL_S = 0.05
_INDEX_EVERY = 1024
_LENGTHS = struct.Struct(">II")
_FRAME = struct.Struct(">III")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_CHUNK = 1 << 20


async def open_archive(path: Path) -> ArchiveLog | SegmentLog:
    """Open an exported log of any release for reading; `-` is standard input.  Raises LogRefused."""
    if str(path) == "-":
        return SegmentLog.of_file(await _spooled(), "standard input")
    if await asyncio.to_thread(_first_bytes, path) == SEGMENTS_MAGIC:
        return await SegmentLog.open(path)
    return await ArchiveLog.open(path)


def _first_bytes(path: Path) -> bytes:
    _check_regular(path)
    try:
        with open(path, "rb") as file:
            return file.read(len(SEGMENTS_MAGIC))
    except OSError as error:
        raise LogRefused(f"{path}: {error.strerror}") from None


async def _spooled() -> int:
    """Copy standard input to a file without a name, since a log is not read in one pass.  Raises LogRefused."""
    stop = threading.Event()
    copying = asyncio.create_task(asyncio.to_thread(_spool, stop))
    try:
        return await asyncio.shield(copying)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({copying})
        raise


def _spool(stop: threading.Event) -> int:
    source = sys.stdin.fileno()
    try:
        with tempfile.TemporaryFile() as spool:
            while not stop.is_set():
                # The pipe's writer may take long, and Ctrl-C must not wait for it.
                if not select.select([source], [], [], _POLL_S)[0]:
                    continue
                chunk = os.read(source, _CHUNK)
                if not chunk:
                    break
                if not spool.tell() and chunk[: len(MAGIC)] == MAGIC:
                    raise LogRefused(
                        "this archive is of an earlier format, which can't be read from a pipe; name its file",
                        code="archive.not_seekable",
                    )
                spool.write(chunk)
            spool.flush()
            return os.dup(spool.fileno())
    except OSError as error:
        raise LogRefused(f"standard input: {error.strerror}") from None


class ArchiveLog(EventLog):
    """A file of records.  Opened for reading, or (with `clock`, UTC nanoseconds) for appending by one process at a time.

    What is known of the file (`_end` and so on) grows with it and is read only once.  It changes in threads, under `_lock`,
    so that an append whose caller was cancelled leaves no half of itself behind.
    """

    def __init__(self, path: Path, clock: Callable[[], int] | None) -> None:
        self._path = path
        self._clock = clock
        self._file = -1
        self._broken = ""
        self._lock = threading.Lock()
        self._end = 0
        self._time = 0
        self._whole = len(MAGIC)
        """Where the last complete frame ends."""
        self._places: list[int] = []
        """The places of records 1, 1 + _INDEX_EVERY, 1 + 2·_INDEX_EVERY, …"""
        self._by_id: dict[str, int] = {}
        """Filled only by writers, the only ones that need it."""
        self._last: dict[str, tuple[int, int]] = {}
        """By subject: sequence and place of its last record."""

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], int] | None = None) -> ArchiveLog:
        """Open the file.  Raises LogRefused if it can't be opened or is no archive, and when opened for appending LogDamaged
        if a record is broken (a reader raises it when it gets there)."""
        log = cls(path, clock)
        await asyncio.to_thread(log._open_to_write if clock else log._check)
        return log

    def _check(self) -> None:
        _check_regular(self._path)
        next(_frames(self._path, len(MAGIC), 0), None)

    def _open_to_write(self) -> None:
        _check_regular(self._path, may_be_missing=True)
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogRefused(f"{self._path}: {error.strerror}") from None
        try:
            self._lock_file()
            self._learn()
            if os.fstat(self._file).st_size > self._whole:
                os.ftruncate(self._file, self._whole)
        except BaseException:
            os.close(self._file)
            raise

    def _lock_file(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LogRefused(f"{self._path}: another process is writing to it", code="archive.in_use") from None
        if MAGIC.startswith(start := os.pread(self._file, len(MAGIC), 0)) and start != MAGIC:
            os.ftruncate(self._file, 0)
            self._write(MAGIC)
            os.fsync(self._file)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _learn(self) -> None:
        """Read the records beyond those known.  A writer knows them all except at its start."""
        for record, end in _frames(self._path, self._whole, self._end):
            self._know(record, end)

    def _know(self, record: Record, end: int) -> None:
        if record.seq % _INDEX_EVERY == 1:
            self._places.append(self._whole)
        self._last[record.subject] = record.seq, self._whole
        self._end, self._time, self._whole = record.seq, record.time, end
        if self._clock and record.msg_id:
            self._by_id[record.msg_id] = record.seq

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        return await asyncio.to_thread(self._append, subject, body, msg_id, expected_last)

    def _append(self, subject: str, body: bytes, msg_id: str, expected_last: int | None) -> Appended:
        with self._lock:
            if self._clock is None:
                raise LogRefused(f"{self._path} is open for reading only", code="archive.read_only")
            last, _ = self._last.get(subject, (0, 0))
            if expected_last is not None and last != expected_last:
                raise Overtaken(f"{subject} is at {last}, not at {expected_last}")
            if msg_id and msg_id in self._by_id:
                return Appended(self._by_id[msg_id], duplicate=True)
            record = Record(self._end + 1, max(self._clock(), self._time), subject, bytes(body), msg_id)
            self._store([record], sync=True)
            return Appended(record.seq)

    async def copy_in(self, records: Sequence[Record]) -> None:
        """Append records as they are, with their own sequences and times, as an export does.  Durable once closed.

        Raises LogDamaged if they don't continue the file's records, LogRefused if they can't be written.
        """
        await asyncio.to_thread(self._copy_in, records)

    def _copy_in(self, records: Sequence[Record]) -> None:
        with self._lock:
            if self._clock is None:
                raise LogRefused(f"{self._path} is open for reading only", code="archive.read_only")
            for seq, record in enumerate(records, self._end + 1):
                if record.seq != seq:
                    raise LogDamaged(f"{self._path}: record {record.seq} can't follow {seq - 1}")
            self._store(records, sync=False)

    def _store(self, records: Sequence[Record], *, sync: bool) -> None:
        if self._broken or self._file < 0:
            raise LogRefused(f"{self._path}: {self._broken or 'it has been closed'}")
        frames = [_frame(record) for record in records]
        try:
            self._write(b"".join(frames))
        except OSError as error:
            try:
                os.ftruncate(self._file, self._whole)
            except OSError:
                self._broken = "an earlier write failed half-way"
            raise LogRefused(f"{self._path}: {error.strerror}") from None
        try:
            if sync:
                os.fsync(self._file)
        except OSError as error:
            # What reached the disk is unknown from now on, and a second fsync would not show it.
            self._broken = f"an earlier write could not be made durable ({error.strerror})"
            raise LogRefused(f"{self._path}: {error.strerror}") from None
        for record, frame in zip(records, frames, strict=True):
            self._know(record, self._whole + len(frame))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        until = None if follow else await asyncio.to_thread(_size, self._path)
        place, seq = await asyncio.to_thread(self._begin, after)
        while True:
            batch, place = await asyncio.to_thread(_read_batch, self._path, place, seq, until)
            if batch:
                seq = batch[-1].seq
                batch = [
                    record
                    for record in batch
                    if record.seq > after
                    and (not subjects or any(matches(pattern, record.subject) for pattern in subjects))
                ]
                if batch:
                    yield batch
            elif follow:
                await self._growth(place)
            else:
                return

    def _begin(self, after: int) -> tuple[int, int]:
        """Return where to start reading for records after a sequence, and the sequence before that place."""
        if not after:
            return len(MAGIC), 0
        with self._lock:
            if self._clock is None:
                self._learn()
            if after > self._end:
                raise LogDamaged(f"{self._path} ends at {self._end}, before {after}", code="log.truncated")
            index = after // _INDEX_EVERY
            if index < len(self._places):
                return self._places[index], index * _INDEX_EVERY
            return self._whole, self._end

    async def _growth(self, place: int) -> None:
        """Wait until the file grows beyond `place`, even by half a frame, whichever process writes it."""
        while True:
            await asyncio.sleep(_POLL_S)
            size = await asyncio.to_thread(_size, self._path)
            if size < place:
                raise LogDamaged(f"{self._path} has become shorter while it was read", code="log.truncated")
            if size > place:
                return

    async def end(self) -> int:
        return await asyncio.to_thread(self._current_end)

    def _current_end(self) -> int:
        with self._lock:
            if self._clock is None:
                self._learn()
            return self._end

    async def torn(self) -> str:
        """Return in one line that the file breaks off within a record, "" if it does not.

        A writer's crash leaves such an end, of a record that was never acknowledged; in a file without a writer, such as an
        export, it means that a part is missing.  Raises LogDamaged, LogRefused."""
        return await asyncio.to_thread(self._torn)

    def _torn(self) -> str:
        try:
            size = os.stat(self._path).st_size
        except OSError as error:
            raise LogRefused(f"{self._path}: {error.strerror}") from None
        if size < len(MAGIC):
            return f"{self._path} breaks off before its first record"
        with self._lock:
            if self._clock is None:
                self._learn()
            if size <= self._whole:
                return ""
            return f"{self._path} breaks off within record {self._end + 1}, after {size - self._whole} bytes of it"

    async def damages(self, told: Callable[[int, int], None] | None = None) -> list[Damage]:
        """Return the damage in the file, for which all of it is read; nothing can be found after the first damage.  Raises
        LogRefused if the file can't be read."""
        try:
            torn = await self.torn()
        except LogDamaged as error:
            return [Damage(self._whole, str(error), self._end + 1)]
        return [Damage(self._whole, torn, self._end + 1)] if torn else []

    async def last_on(self, subject: str) -> Record | None:
        return await asyncio.to_thread(self._last_on, subject)

    def _last_on(self, subject: str) -> Record | None:
        with self._lock:
            if self._clock is None:
                self._learn()
            if subject not in self._last:
                return None
            seq, place = self._last[subject]
        batch, _ = _read_batch(self._path, place, seq - 1, None, 1)
        return batch[0] if batch else None

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._file < 0:
                return
            try:
                os.fsync(self._file)
            except OSError as error:
                raise LogRefused(f"{self._path}: {error.strerror}") from None
            finally:
                os.close(self._file)
                self._file = -1


def _check_regular(path: Path, *, may_be_missing: bool = False) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        if may_be_missing:
            return
        raise LogRefused(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise LogRefused(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise LogRefused(f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'not a file'}")


def _size(path: Path) -> int:
    try:
        return max(len(MAGIC), os.stat(path).st_size)  # It may just be being created.
    except OSError as error:
        raise LogRefused(f"{path}: {error.strerror}") from None


def _read_batch(
    path: Path, place: int, previous: int, until: int | None, count: int = BATCH
) -> tuple[list[Record], int]:
    """Return at most `count` records from a place on, of little more than BATCH_BYTES, and the place after them."""
    batch = []
    begin = place
    try:
        for record, place in _frames(path, place, previous, until):  # noqa: B020 - the place after the last is wanted
            batch.append(record)
            if len(batch) == count or place - begin >= BATCH_BYTES:
                break
    except LogDamaged:
        if not batch:
            raise
    return batch, place  # Intact records before damage are returned; the next batch raises.


def _frame(record: Record) -> bytes:
    payload = _encode(record)
    lengths = _LENGTHS.pack(len(payload), zlib.crc32(payload))
    return lengths + zlib.crc32(lengths).to_bytes(4, "big") + payload


def _frames(path: Path, place: int, previous: int, until: int | None = None) -> Iterator[tuple[Record, int]]:
    """Yield records from a place on, each with the place after it; end before a half-written frame, or at the byte `until`.

    `previous` is the sequence before the first one.  Raises LogRefused and LogDamaged.
    """
    try:
        file = open(path, "rb", buffering=1024 * 1024)  # noqa: SIM115 - closed below, after errors of `open` are turned
    except OSError as error:
        raise LogRefused(f"{path}: {error.strerror}") from None
    with file:
        size = os.fstat(file.fileno()).st_size if until is None else until
        magic = file.read(len(MAGIC))
        if not MAGIC.startswith(magic):  # It may just be being created, and shorter.
            raise LogRefused(f"{path} is not a Dorm archive", code="archive.not_an_archive")
        file.seek(place)
        while place + _FRAME.size <= size:
            header = file.read(_FRAME.size)
            if len(header) < _FRAME.size:
                return  # A writer just cut off a half-written frame.
            length, checksum, check = _FRAME.unpack(header)
            if zlib.crc32(header[: _LENGTHS.size]) != check:
                raise LogDamaged(f"{path}: the head of the record at byte {place} does not match its checksum")
            if place + _FRAME.size + length > size:
                return
            record = _checked(path, file.read(length), checksum, place)
            if record.seq != previous + 1:
                raise LogDamaged(f"{path}: record {record.seq} follows {previous} at byte {place}")
            previous, place = record.seq, place + _FRAME.size + length
            yield record, place


def _checked(path: Path, payload: bytes, checksum: int, place: int) -> Record:
    if zlib.crc32(payload) != checksum:
        raise LogDamaged(f"{path}: the record at byte {place} does not match its checksum")
    try:
        return _decode(payload)
    except msgspec.MsgspecError:
        raise LogDamaged(f"{path}: the record at byte {place} can't be decoded") from None
