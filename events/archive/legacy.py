"""Archives of releases 0.1 and 0.2, for reading.  Later releases write `events.archive.segments`.

    file    = "DORMLOG1", frame*
    frame   = length u32, crc32 u32 (of the payload), crc32 u32 (of these eight bytes), payload
    payload = MessagePack [seq, time, subject, body, msg_id]

Big-endian.  Records are the originals, byte for byte.  A file may break off within a frame, when its writer was killed or a
copy is incomplete: readers end before that frame, and `torn` reports it.  Damage anywhere else raises LogDamaged.  The length
has its own checksum, so a damaged length does not pass for a file that breaks off.
"""

from __future__ import annotations

import asyncio
import io
import os
import struct
import zlib
from typing import TYPE_CHECKING

import msgspec

from events.archive.damage import Damage, refuse_to_follow
from events.archive.files import closed_on_error, refusing
from events.log.interface import ReadableLog
from events.log.records import LogDamaged, LogRefused, Record, on_subjects

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from _typeshed import WriteableBuffer

MAGIC = b"DORMLOG1"
BATCH = 2000
BATCH_BYTES = 8 * 1024 * 1024
_INDEX_EVERY = 1024
_LENGTHS = struct.Struct(">II")
_FRAME = struct.Struct(">III")
_decode = msgspec.msgpack.Decoder(Record).decode
_CHUNK = 1 << 20


class _Scan(msgspec.Struct):
    """What one pass over the file found."""

    size: int
    """The file's size in bytes."""
    places: list[int]
    """The byte positions of records 1, 1 + _INDEX_EVERY, 1 + 2·_INDEX_EVERY, …"""
    end: int = 0
    """The last record before the end or the first damage."""
    place: int = len(MAGIC)
    """The byte position after that record."""
    damage: str = ""
    """The damage there, "" if there is none or the file only breaks off."""


class LegacyLog(ReadableLog):
    """An archive of release 0.1 or 0.2.  The first use scans the whole file."""

    def __init__(self, file: int, name: str) -> None:
        self._file = file
        self._name = name
        self._scan: _Scan | None = None

    @classmethod
    def of_file(cls, file: int, name: str) -> LegacyLog:
        """Open a file descriptor, which is closed with the log or if this raises.  Raises LogRefused."""
        with closed_on_error(file, name):
            # A shorter file may be the start of an archive whose writer was killed.
            if not MAGIC.startswith(os.pread(file, len(MAGIC), 0)):
                raise LogRefused(f"{name} is not a Dorm archive", code="archive.not_an_archive")
        return cls(file, name)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        refuse_to_follow(follow)
        scan = await self._scanned()
        if after > scan.end:
            if scan.damage:
                raise LogDamaged(scan.damage)
            raise LogDamaged(f"{self._name} ends at {scan.end}, before {after}", code="log.truncated")
        index = after // _INDEX_EVERY
        place, seq = scan.place, scan.end
        if index < len(scan.places):
            place, seq = scan.places[index], index * _INDEX_EVERY
        while seq < scan.end:
            batch, place = await asyncio.to_thread(self._batch, place, seq, scan.place)
            seq = batch[-1].seq
            if wanted := on_subjects([record for record in batch if record.seq > after], subjects):
                yield wanted
        if scan.damage:
            raise LogDamaged(scan.damage)

    async def end(self) -> int:
        scan = await self._scanned()
        if scan.damage:  # Nothing says how many records followed.
            raise LogDamaged(scan.damage)
        return scan.end

    async def torn(self) -> str:
        scan = await self._scanned()
        if scan.damage:
            raise LogDamaged(scan.damage)
        return self._torn(scan)

    def _torn(self, scan: _Scan) -> str:
        if scan.size < len(MAGIC):
            return f"{self._name} breaks off before its first record"
        left = scan.size - scan.place
        return f"{self._name} breaks off within record {scan.end + 1}, after {left} bytes of it" if left else ""

    async def damages(self, progress: Callable[[int, int], None] | None = None) -> list[Damage]:
        """Return the damage in the file; nothing can be found after the first damage.  `progress` is called with the number of
        checked bytes and of all bytes.  Raises LogRefused if the file can't be read."""
        scan = await self._scanned(progress)
        damage = scan.damage or self._torn(scan)
        return [Damage(scan.place, damage, scan.end + 1)] if damage else []

    async def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def _scanned(self, progress: Callable[[int, int], None] | None = None) -> _Scan:
        if self._scan is None:
            self._scan = await asyncio.to_thread(self._scan_all, progress)
        return self._scan

    def _scan_all(self, progress: Callable[[int, int], None] | None) -> _Scan:
        with refusing(self._name):
            scan = _Scan(os.fstat(self._file).st_size, [])
        try:
            for record, place in self._frames(len(MAGIC), 0, scan.size):
                if record.seq % _INDEX_EVERY == 1:
                    scan.places.append(scan.place)
                    if progress:
                        progress(place, scan.size)
                scan.end, scan.place = record.seq, place
        except LogDamaged as error:
            scan.damage = str(error)
        return scan

    def _batch(self, place: int, previous: int, until: int) -> tuple[list[Record], int]:
        """Return at least one record from a place on, and the place after the last."""
        batch: list[Record] = []
        begin = place
        for record, after in self._frames(place, previous, until):
            batch.append(record)
            place = after
            if len(batch) == BATCH or place - begin >= BATCH_BYTES:
                break
        return batch, place

    def _frames(self, place: int, previous: int, until: int) -> Iterator[tuple[Record, int]]:
        """Yield records from a place on, each with the place after it, up to the byte `until` or a frame that goes beyond it.

        `previous` is the sequence before the first one.  Raises LogRefused and LogDamaged.
        """
        stream = io.BufferedReader(_From(self._file, place), _CHUNK)
        while place + _FRAME.size <= until:
            with refusing(self._name):
                head = stream.read(_FRAME.size)
            if len(head) < _FRAME.size:
                raise LogDamaged(f"{self._name} has become shorter while it was read", code="log.truncated")
            length, checksum, check = _FRAME.unpack(head)
            if zlib.crc32(head[: _LENGTHS.size]) != check:
                raise LogDamaged(f"{self._name}: the head of the record at byte {place} does not match its checksum")
            if place + _FRAME.size + length > until:
                return
            with refusing(self._name):
                payload = stream.read(length)
            record = self._checked(payload, checksum, place)
            if record.seq != previous + 1:
                raise LogDamaged(f"{self._name}: record {record.seq} follows {previous} at byte {place}")
            previous, place = record.seq, place + _FRAME.size + length
            yield record, place

    def _checked(self, payload: bytes, checksum: int, place: int) -> Record:
        if zlib.crc32(payload) != checksum:
            raise LogDamaged(f"{self._name}: the record at byte {place} does not match its checksum")
        try:
            return _decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise LogDamaged(f"{self._name}: the record at byte {place} can't be decoded") from None


class _From(io.RawIOBase):
    """Reads a file from a place on.  Each reader has its own place in the shared descriptor."""

    def __init__(self, file: int, place: int) -> None:
        self._file = file
        self._place = place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = os.preadv(self._file, [buffer], self._place)
        self._place += count
        return count
