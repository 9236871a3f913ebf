"""A log in one file: what `dorm replay export` writes, and a log for tools that need no server.

    file   = magic, frame*
    frame  = length u32, crc32 u32 (of the payload), payload = MessagePack [seq, time, subject, body, msg_id]

Big-endian.  Records are the originals, byte for byte.  A writer holds an exclusive lock; a frame that a crash left half
written at the end is cut off by the next writer and left alone by readers.  Damage anywhere else is LogDamaged.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import zlib
from typing import IO, TYPE_CHECKING

import msgspec

from events.log import Appended, EventLog, LogDamaged, LogRefused, Overtaken, Record
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

MAGIC = b"DORMLOG1"
BATCH = 2000
_POLL_S = 0.05
_FRAME = struct.Struct(">II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class ArchiveLog(EventLog):
    """A file of records.  Opened for reading, or (with `clock`) for appending by one process at a time."""

    def __init__(self, path: Path, file: IO[bytes], clock: Callable[[], int] | None) -> None:
        self._path = path
        self._file = file
        self._clock = clock
        self._lock = asyncio.Lock()
        self._end = 0
        self._by_id: dict[str, int] = {}
        self._last: dict[str, Record] = {}

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], int] | None = None) -> ArchiveLog:
        """Raises LogRefused where the file can't be opened or is no archive, LogDamaged where a record is broken."""
        return await asyncio.to_thread(cls._open, path, clock)

    @classmethod
    def _open(cls, path: Path, clock: Callable[[], int] | None) -> ArchiveLog:
        try:
            file = open(path, "a+b" if clock else "rb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise LogRefused(f"{path}: {error.strerror}") from None
        log = cls(path, file, clock)
        try:
            if clock:
                log._lock_for_writing()
            log._scan()
        except BaseException:
            file.close()
            raise
        return log

    def _lock_for_writing(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LogRefused(f"{self._path}: another process is writing to it") from None
        if self._file.seek(0, os.SEEK_END) == 0:
            self._file.write(MAGIC)
            self._file.flush()

    def _scan(self) -> None:
        """Learn ids and ends, and cut off what a crash left half written."""
        whole = len(MAGIC)
        for record, end in _frames(self._path, 0):
            self._end, whole = record.seq, end
            self._last[record.subject] = record
            if record.msg_id:
                self._by_id[record.msg_id] = record.seq
        if self._clock and self._file.seek(0, os.SEEK_END) > whole:
            self._file.truncate(whole)

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        if self._clock is None:
            raise LogRefused(f"{self._path} is open for reading only")
        async with self._lock:
            last = self._last.get(subject)
            if expected_last is not None and (last.seq if last else 0) != expected_last:
                raise Overtaken(f"{subject} is at {last.seq if last else 0}, not at {expected_last}")
            if msg_id and msg_id in self._by_id:
                return Appended(self._by_id[msg_id], duplicate=True)
            record = Record(self._end + 1, self._clock(), subject, body, msg_id)
            await asyncio.shield(asyncio.to_thread(self._write, [record], sync=True))
            return Appended(record.seq)

    async def copy_in(self, records: Sequence[Record]) -> None:
        """Append records as they are, with their own sequences and times: what an export does.

        Raises LogDamaged when they don't continue what the file holds.
        """
        async with self._lock:
            await asyncio.shield(asyncio.to_thread(self._write, records, sync=False))

    def _write(self, records: Sequence[Record], *, sync: bool) -> None:
        frames = []
        for record in records:
            if record.seq != self._end + 1:
                raise LogDamaged(f"{self._path}: record {record.seq} can't follow {self._end}")
            payload = _encode(record)
            frames.append(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
            self._end = record.seq
            self._last[record.subject] = record
            if record.msg_id:
                self._by_id[record.msg_id] = record.seq
        try:
            self._file.write(b"".join(frames))
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise LogRefused(f"{self._path}: {error.strerror}") from None

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncIterator[list[Record]]:
        until, offset = self._end, 0
        while True:
            batch, offset = await asyncio.to_thread(_read_batch, self._path, offset)
            if not batch:
                if not follow:
                    return
                await asyncio.sleep(_POLL_S)
                continue
            wanted = [
                record
                for record in batch
                if record.seq > after
                and (follow or record.seq <= until)
                and (not subjects or any(matches(pattern, record.subject) for pattern in subjects))
            ]
            if wanted:
                yield wanted
            if not follow and batch[-1].seq >= until:
                return

    async def end(self) -> int:
        return self._end

    async def last_on(self, subject: str) -> Record | None:
        return self._last.get(subject)

    async def close(self) -> None:
        async with self._lock:
            if self._clock and not self._file.closed:
                await asyncio.to_thread(os.fsync, self._file.fileno())
            self._file.close()


def _read_batch(path: Path, offset: int) -> tuple[list[Record], int]:
    batch = []
    for record, end in _frames(path, offset):
        batch.append(record)
        offset = end
        if len(batch) == BATCH:
            break
    return batch, offset


def _frames(path: Path, offset: int) -> Iterator[tuple[Record, int]]:
    """Records from a byte offset (0: the start), each with the offset after it; ends before a half-written frame."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise LogRefused(f"{path} is not a Dorm archive")
        size = os.fstat(file.fileno()).st_size
        position = max(offset, len(MAGIC))
        file.seek(position)
        previous = None
        while position + _FRAME.size <= size:
            length, checksum = _FRAME.unpack(file.read(_FRAME.size))
            end = position + _FRAME.size + length
            if end > size:
                return
            payload = file.read(length)
            record = _checked(path, payload, checksum, position)
            if previous is not None and record.seq != previous + 1:
                raise LogDamaged(f"{path}: record {record.seq} follows {previous} at byte {position}")
            previous, position = record.seq, end
            yield record, end


def _checked(path: Path, payload: bytes, checksum: int, position: int) -> Record:
    if zlib.crc32(payload) != checksum:
        raise LogDamaged(f"{path}: the record at byte {position} does not match its checksum")
    try:
        return _decode(payload)
    except msgspec.MsgspecError:
        raise LogDamaged(f"{path}: the record at byte {position} can't be decoded") from None
