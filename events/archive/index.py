"""Find the blocks of an archive of segments: by the index at its end, or by walking from block to block.

    file    = "DORMLOG2", block*, trailer
    trailer = place of the index block u64, crc32 u32 of these, "DORMEND2"

The first block is the header, the last one the index.  A file without its end (its writer was killed, a copy broke off) has
neither index nor trailer; it is walked by the heads of its blocks, with one small read for each.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING

import msgspec

from events.archive.blocks import (
    HEAD_SIZE,
    HEADER,
    INDEX,
    LARGEST,
    MARK,
    RECORDS,
    SNAPSHOT,
    BlockDamaged,
    Entry,
    Head,
    Header,
    Index,
    Kept,
    head_of,
    intact,
    unpack_header,
    unpack_index,
    unpack_snapshot,
)
from events.archive.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"DORMLOG2"
_END = b"DORMEND2"
_PLACE = struct.Struct(">QI")
TRAILER_SIZE = _PLACE.size + len(_END)
_CHUNK = 1 << 20


class Layout(msgspec.Struct):
    """The blocks of a file, and their places."""

    header: Header
    records: list[Entry]
    snapshots: list[Kept]
    damages: list[Damage]
    """Damage found so far; only `examine` checks payloads."""


def trailer(index_place: int) -> bytes:
    place = struct.pack(">Q", index_place)
    return place + struct.pack(">I", zlib.crc32(place)) + _END


def layout_of(file: int) -> Layout:
    """Return the layout, by the index if that is readable.  Raises OSError."""
    size = os.fstat(file).st_size
    return _by_index(file, size) or _Walk(file, size, deep=False).walk()


def examine(file: int, told: Callable[[int, int], None] | None = None) -> Layout:
    """Check the whole file, with every payload against its checksum.  Raises OSError."""
    size = os.fstat(file).st_size
    found = _Walk(file, size, deep=True, told=told).walk()
    if not found.damages and (index := _by_index(file, size)) is not None and index.records != found.records:
        found.damages.append(Damage(size - TRAILER_SIZE, "the index at the end names other blocks than there are"))
    return found


def _by_index(file: int, size: int) -> Layout | None:
    """Return the layout by the index; None if there is no index, or it is invalid."""
    data = os.pread(file, TRAILER_SIZE, max(0, size - TRAILER_SIZE))
    if len(data) < TRAILER_SIZE or not data.endswith(_END):
        return None
    place, check = _PLACE.unpack_from(data)
    if zlib.crc32(data[:8]) != check or place >= size:
        return None
    data = os.pread(file, size - TRAILER_SIZE - place, place)
    head = head_of(data)
    if head is None or head.kind != INDEX:
        return None
    try:
        index: Index = unpack_index(head, data[HEAD_SIZE:])
    except BlockDamaged:
        return None
    if not _plausible(index, place):
        return None
    return Layout(index.header, index.records, index.snapshots, [])


def _plausible(index: Index, end: int) -> bool:
    """Return whether blocks and records are in order and within the file, so that a forged index can't mislead."""
    place, last = len(MAGIC), index.header.start
    for entry in index.records:
        if not (place <= entry.place < entry.place + HEAD_SIZE < entry.place + entry.size <= end):
            return False
        if not last < entry.first <= entry.last:
            return False
        place, last = entry.place + entry.size, entry.last
    return all(len(MAGIC) <= kept.place < kept.place + kept.size <= end for kept in index.snapshots)


class _Walk:
    """Walks from block to block; after a broken head, to the next intact one."""

    def __init__(self, file: int, size: int, *, deep: bool, told: Callable[[int, int], None] | None = None) -> None:
        self._file = file
        self._size = size
        self._deep = deep
        self._told = told
        self._found = Layout(Header(), [], [], [])
        self._last = 0
        """The last record found, or the sequence before the first."""
        self._hole: tuple[int, str] | None = None
        """A damaged place; only the next block of records shows which records it costs."""
        self._headed = False
        self._indexed = False
        self._ended = False

    def walk(self) -> Layout:
        place = len(MAGIC)
        while place < self._size and not self._ended:
            if self._told:
                self._told(place, self._size)
            place = self._at(place)
        if not self._ended:
            self._break_off()
        if place < self._size:
            self._found.damages.append(Damage(place, f"{self._size - place} bytes follow the end of the archive"))
        return self._found

    def _at(self, place: int) -> int:
        """Process the block at this place; return where the next block starts."""
        head = head_of(os.pread(self._file, HEAD_SIZE, place))
        if head is not None and place + head.size <= self._size:
            self._take(place, head)
            return place + head.size
        if end := self._trailer(place):
            self._end(place, end)
            return place + TRAILER_SIZE
        whole = "runs beyond the end of the file" if head is not None else "has no head that can be read"
        if self._hole is None:
            self._hole = place, f"the part at byte {place} {whole}"
        return self._next_block(place + 1)

    def _end(self, place: int, found: bytes) -> None:
        """Process the trailer; it states where the index is.  A damaged place elsewhere may have held records."""
        self._ended = True
        index, check = _PLACE.unpack_from(found)
        if zlib.crc32(found[:8]) != check:
            self._found.damages.append(Damage(place, f"the trailer at byte {place} does not match its checksum"))
        if self._hole is not None:
            self._lose(*self._hole, before=self._last + 1 if self._hole[0] == index else None)

    def _next_block(self, place: int) -> int:
        """Return the place of the next intact head, of the trailer, or of the file's end."""
        while place < self._size:
            chunk = os.pread(self._file, _CHUNK + HEAD_SIZE, place)
            at = chunk.find(MARK)
            while 0 <= at < _CHUNK:
                head = head_of(chunk[at : at + HEAD_SIZE])
                if head is not None and place + at + head.size <= self._size:
                    return place + at
                at = chunk.find(MARK, at + 1)
            place += _CHUNK
        last = max(len(MAGIC), self._size - TRAILER_SIZE)
        return last if self._trailer(last) else self._size

    def _trailer(self, place: int) -> bytes:
        """Return the trailer's bytes if it is at this place, else b""."""
        data = os.pread(self._file, TRAILER_SIZE, place)
        return data if len(data) == TRAILER_SIZE and data.endswith(_END) else b""

    def _take(self, place: int, head: Head) -> None:
        if head.kind == RECORDS:
            self._take_records(place, head)
        elif head.kind == SNAPSHOT:
            self._take_snapshot(place, head)
        elif head.kind == HEADER and not self._headed:
            self._take_header(place, head)
        elif head.kind == INDEX:
            self._take_index(place, head)

    def _payload(self, place: int, head: Head) -> bytes:
        return os.pread(self._file, min(head.packed, LARGEST), place + HEAD_SIZE)

    def _take_header(self, place: int, head: Head) -> None:
        self._headed = True
        try:
            self._found.header = unpack_header(head, self._payload(place, head))
        except BlockDamaged as error:
            self._found.damages.append(Damage(place, f"the header at byte {place} {error}"))
            indexed = _by_index(self._file, self._size)
            self._found.header = indexed.header if indexed else Header()
        if not self._found.records:
            self._last = self._found.header.start

    def _take_records(self, place: int, head: Head) -> None:
        if head.first <= self._last:
            what = f"the block at byte {place} repeats records {head.first} to {head.last}"
            self._found.damages.append(Damage(place, what))
            return
        if self._hole is not None:
            self._lose(*self._hole, before=head.first)
        elif head.first != self._last + 1 and not self._found.header.sparse:
            what = f"there is nothing between record {self._last} and record {head.first} at byte {place}"
            self._found.damages.append(Damage(place, what, self._last + 1, head.first - 1))
        self._last = head.last
        if self._deep and (reason := self._fault(place, head)):
            what = f"the block at byte {place} {reason}"
            self._found.damages.append(Damage(place, what, head.first, head.last))
            return
        entry = Entry(place, head.size, head.count, head.first, head.last, head.latest)
        self._found.records.append(entry)

    def _fault(self, place: int, head: Head) -> str:
        return "" if intact(head, self._payload(place, head)) else "does not match its checksum"

    def _take_snapshot(self, place: int, head: Head) -> None:
        if self._hole is not None:  # A snapshot follows the last record that it covers.
            self._lose(*self._hole, before=head.last + 1)
            self._last = max(self._last, head.last)
        try:
            info, _ = unpack_snapshot(head, self._payload(place, head))
        except BlockDamaged as error:
            what = f"the snapshot of the state at {head.last}, at byte {place}, {error}"
            self._found.damages.append(Damage(place, what))
            return
        self._found.snapshots.append(Kept(place, head.size, info))

    def _take_index(self, place: int, head: Head) -> None:
        self._indexed = True
        try:
            index = unpack_index(head, self._payload(place, head))
        except BlockDamaged as error:
            self._found.damages.append(Damage(place, f"the index at byte {place} {error}"))
            return
        if self._hole is not None and index.records:
            self._lose(*self._hole, before=index.records[-1].last + 1)

    def _lose(self, place: int, what: str, before: int | None = None) -> None:
        """Note damage that costs the records between the last one and `before`, if any; without it their number is unknown."""
        self._hole = None
        first = self._last + 1 if before is None or before > self._last + 1 else 0
        self._found.damages.append(Damage(place, what, first, None if before is None else before - 1))

    def _break_off(self) -> None:
        place, _ = self._hole or (self._size, "")
        left = self._size - place
        what = f"it breaks off after byte {place}" if not left else f"it breaks off within the part at byte {place}"
        if left:
            what += f", after {left} {'byte' if left == 1 else 'bytes'} of it"
        lost = 0 if self._indexed else self._last + 1  # No record follows the index.
        self._found.damages.append(Damage(place, what, lost))
