"""Blocks, the bytes that make up an archive of segments (`events.archive.segments`), and how they are found in a file.

    file    = "DORMLOG2", block*, trailer
    trailer = place of the index block u64, crc32 u32 of these, "DORMEND2"

    block = head, payload
    head  = mark "\\xd0RM\\xb1", kind, count u32, first u64, last u64, earliest i64, latest i64 (log times, UTC ns),
            packed u32 (bytes of the payload), raw u32 (bytes of it when decompressed), crc32 u32 of the payload,
            crc32 u32 of all this

    H   header: `Header`, zstd of MessagePack
    R   records `first` to `last`, zstd of `_Columns`
    S   a snapshot of the state after `last`: length u32 of its description, the description (`SnapshotInfo`), its body
    X   index: `Index`, zstd of MessagePack

Big-endian.  Records are stored by columns, which takes half the room of rows and reads faster: subjects are a table,
times are differences, sequences are stored only if some are missing.  The head has its own checksum, so an intact head
shows what a broken payload held; the mark lets a reader find the next block after a broken head.  Unknown kinds are
skipped.

The first block is the header, the last one the index.  A file without its end (its writer was killed, a copy broke
off) has neither index nor trailer; it is walked by the heads of its blocks, with one small read for each.

A walk says which records damage costs.  Between two blocks of records their sequences show it.  After the last block
either of two witnesses shows whether records are missing: the index, if it can be read and names all blocks that were
found; or the trailer, if it is intact, nothing before the index is out of line, and the index lies where the trailer
states.  Without a witness nobody knows, and the walk says that what came after the last record is lost.
"""

from __future__ import annotations

import os
import struct
import zlib
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard

from events import limits
from events.archive.damage import Damage
from events.log.records import Record
from events.log.stores import SnapshotInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# --- blocks -----------------------------------------------------------------------------------------------------------

FORMAT = 2
"""The format that this build writes; the one before, without blocks, is `events.archive.legacy`'s."""
HEADER, RECORDS, SNAPSHOT, INDEX = b"H", b"R", b"S", b"X"
MARK = b"\xd0RM\xb1"
LARGEST = 1 << 30
"""The most bytes of a decompressed payload: a hostile file must not take all memory."""
EARLIEST, LATEST = -(2**62), 2**62
"""The range of log times that can be stored; the second is in the year 2116."""

_LEVEL = 3  # Higher levels take three times as long and save nothing here.
_HEAD = struct.Struct(">4s c I QQ qq III")
_CRC = struct.Struct(">I")
HEAD_SIZE = _HEAD.size + _CRC.size
_encode = msgspec.msgpack.Encoder().encode


Payload = bytes | memoryview


class BlockDamaged(Exception):
    """Bytes differ from what was written; the message says briefly how."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """A block's description, without its payload."""

    kind: bytes
    count: int
    """Records in it."""
    first: int
    last: int
    earliest: int
    latest: int
    packed: int
    raw: int
    crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole block."""
        return HEAD_SIZE + self.packed


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """An archive's description of itself."""

    format: limits.Number = FORMAT
    cluster: str = ""
    made_by: str = ""
    """The program and version that wrote it."""
    start: limits.Sequence = 0
    """The sequence before its first record: 0 for a whole log; if it is later, the first snapshot holds the state there."""
    sparse: bool = False
    """Whether records were left out, so that it can be read and not folded."""
    chosen: dict[str, list[str]] = {}
    """The criteria by which records were chosen (`since`, `until`, `app`, `user`), for people."""
    anonymized: bool = False
    """Whether names in it are pseudonyms."""
    renamed: limits.Sequence = 0
    """The last sequence whose record was sealed under another cluster's name."""


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One block of records in the index."""

    place: limits.Number
    size: limits.Number
    count: limits.Number
    first: limits.Sequence
    last: limits.Sequence
    latest: limits.Moment


class Kept(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One snapshot in the index."""

    place: limits.Number
    size: limits.Number
    info: SnapshotInfo


class Index(msgspec.Struct, frozen=True):
    """The places of all blocks, and a copy of the header, so that a broken header is not a loss."""

    header: Header
    records: list[Entry]
    snapshots: list[Kept]


class _Columns(msgspec.Struct, array_like=True, gc=False):
    seqs: list[int] | None
    times: list[int]
    subjects: list[str]
    subject: list[int]
    msg_ids: list[str]
    bodies: list[bytes]


_decode_columns = msgspec.msgpack.Decoder(_Columns).decode
_decode_header = msgspec.msgpack.Decoder(Header).decode
_decode_index = msgspec.msgpack.Decoder(Index).decode
_decode_info = msgspec.msgpack.Decoder(SnapshotInfo).decode


def head_of(data: bytes) -> Head | None:
    """Return the head at the start of these bytes, None if there is none."""
    if len(data) < HEAD_SIZE or not data.startswith(MARK):
        return None
    if zlib.crc32(data[: _HEAD.size]) != _CRC.unpack_from(data, _HEAD.size)[0]:
        return None
    return Head(*_HEAD.unpack_from(data)[1:])


def intact(head: Head, payload: Payload) -> bool:
    return len(payload) == head.packed and zlib.crc32(payload) == head.crc


def pack_records(records: Sequence[Record]) -> bytes:
    """Return a block of at least one record, with increasing sequences.  Raises ValueError for a time out of range."""
    first, last = records[0].seq, records[-1].seq
    dense = last - first == len(records) - 1
    subjects: dict[str, int] = {}
    times = [record.time for record in records]
    earliest, latest = min(times), max(times)
    if earliest < EARLIEST or latest > LATEST:
        raise ValueError(f"a log time of record {first} to {last} is out of range")
    payload = _encode(
        _Columns(
            seqs=None if dense else [record.seq for record in records],
            times=[times[0], *(after - before for before, after in pairwise(times))],
            subject=[subjects.setdefault(record.subject, len(subjects)) for record in records],
            subjects=list(subjects),
            msg_ids=[record.msg_id for record in records],
            bodies=[record.body for record in records],
        )
    )
    return _block(RECORDS, _compressed(payload), len(payload), len(records), (first, last), (earliest, latest))


def unpack_records(head: Head, payload: Payload) -> list[Record]:
    """Return the records of a block.  Raises BlockDamaged."""
    columns = _decoded(_decode_columns, head, payload)
    subjects = columns.subjects
    count = head.count
    seqs = range(head.first, head.first + count) if columns.seqs is None else columns.seqs
    try:
        records = list(
            map(
                Record,
                seqs,
                accumulate(columns.times),
                map(subjects.__getitem__, columns.subject),
                columns.bodies,
                columns.msg_ids,
            )
        )
    except IndexError:
        raise BlockDamaged("names a subject that it does not have") from None
    lengths = {len(seqs), len(columns.times), len(columns.subject), len(columns.msg_ids), len(columns.bodies)}
    if lengths != {count} or not records or (records[0].seq, records[-1].seq) != (head.first, head.last):
        raise BlockDamaged("does not hold the records that its head names")
    return records


def pack_snapshot(info: SnapshotInfo, body: bytes) -> bytes:
    """Return a block; the body is already compressed by its maker."""
    described = _encode(info)
    payload = _CRC.pack(len(described)) + described + body
    return _block(SNAPSHOT, payload, len(payload), 0, (info.seq, info.seq), (info.time, info.time))


def unpack_snapshot(head: Head, payload: Payload) -> tuple[SnapshotInfo, bytes]:
    """Return a snapshot and its body.  Raises BlockDamaged."""
    _check(head, payload)
    length = _CRC.unpack_from(payload)[0] if len(payload) >= _CRC.size else 0
    begin = _CRC.size + length
    try:
        return _decode_info(payload[_CRC.size : begin]), bytes(payload[begin:])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BlockDamaged("can't be decoded") from None


def pack_header(header: Header) -> bytes:
    payload = _encode(header)
    return _block(HEADER, _compressed(payload), len(payload), 0, (header.start, header.start), (0, 0))


def unpack_header(head: Head, payload: Payload) -> Header:
    """Return the header.  Raises BlockDamaged."""
    header: Header = _decoded(_decode_header, head, payload)
    return header


def pack_index(index: Index) -> bytes:
    payload = _encode(index)
    return _block(INDEX, _compressed(payload), len(payload), 0, (0, 0), (0, 0))


def unpack_index(head: Head, payload: Payload) -> Index:
    """Return the index.  Raises BlockDamaged."""
    index: Index = _decoded(_decode_index, head, payload)
    return index


def _block(kind: bytes, payload: bytes, raw: int, count: int, seqs: tuple[int, int], times: tuple[int, int]) -> bytes:
    if raw > LARGEST:
        raise ValueError(f"{raw:,} bytes in one block are too many")
    head = _HEAD.pack(MARK, kind, count, *seqs, *times, len(payload), raw, zlib.crc32(payload))
    return head + _CRC.pack(zlib.crc32(head)) + payload


def _compressed(payload: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(payload)


def _check(head: Head, payload: Payload) -> None:
    if not intact(head, payload):
        raise BlockDamaged("does not match its checksum")


def _decoded(decode: Any, head: Head, payload: Payload) -> Any:
    _check(head, payload)
    try:
        if head.raw > LARGEST or zstandard.frame_content_size(payload) != head.raw:
            raise BlockDamaged("does not have the size that its head states")
        return decode(zstandard.ZstdDecompressor().decompress(payload))
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError):
        raise BlockDamaged("can't be decoded") from None


# --- finding them in a file -------------------------------------------------------------------------------------------

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
    return _by_index(file, size) or walked(file)


def examine(file: int, progress: Callable[[int, int], None] | None = None) -> Layout:
    """Check the whole file, with every payload against its checksum.  Raises OSError."""
    return _Walk(file, os.fstat(file).st_size, deep=True, progress=progress).walk()


def walked(file: int) -> Layout:
    """Return the layout by the heads of the blocks, whatever the index says.  Raises OSError."""
    return _Walk(file, os.fstat(file).st_size, deep=False).walk()


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

    def __init__(self, file: int, size: int, *, deep: bool, progress: Callable[[int, int], None] | None = None) -> None:
        self._file = file
        self._size = size
        self._deep = deep
        self._progress = progress
        self._layout = Layout(Header(), [], [], [])
        self._last = 0
        """The last record found, or the sequence before the first."""
        self._hole: tuple[int, str] | None = None
        """A damaged place; only the next block of records shows which records it costs."""
        self._holes = 0
        """Damaged places so far."""
        self._stray = False
        """Whether a block is where the writer does not put it, so that places don't show that nothing is missing."""
        self._headed = False
        self._index_place = 0
        """Byte at which the last index starts; 0 before there is one."""
        self._index_end = 0
        self._index: Index | None = None
        """The last index that could be read."""
        self._bad_index: Damage | None = None
        """The last index, if it could not be read; only the trailer shows whether records are missing before it."""
        self._ended = False

    def walk(self) -> Layout:
        place = len(MAGIC)
        if (indexed := _by_index(self._file, self._size)) is not None:  # Until the header is read, and if it can't be.
            self._layout.header = indexed.header
            self._last = indexed.header.start
        while place < self._size and not self._ended:
            if self._progress:
                self._progress(place, self._size)
            place = self._at(place)
        if not self._ended:
            self._break_off()
        if place < self._size:
            self._layout.damages.append(Damage(place, f"{self._size - place} bytes follow the end of the archive"))
        return self._layout

    def _at(self, place: int) -> int:
        """Process the block at this place; return where the next block starts."""
        head = head_of(os.pread(self._file, HEAD_SIZE, place))
        if head is not None and place + head.size <= self._size:
            self._take(place, head)
            return place + head.size
        if (end := self._trailer(place)) and (place + TRAILER_SIZE == self._size or self._after_index(place)):
            self._end(place, end)
            return place + TRAILER_SIZE
        whole = "runs beyond the end of the file" if head is not None else "has no head that can be read"
        if self._hole is None:
            self._hole = place, f"the part at byte {place} {whole}"
            self._holes += 1
        return self._next_block(place + 1)

    def _after_index(self, place: int) -> bool:
        """Return whether the index ends here; a trailer elsewhere is a stray copy, and blocks may follow it."""
        return self._hole is None and self._index_end == place

    def _end(self, place: int, locator: bytes) -> None:
        """Process the trailer; it states where the index is."""
        self._ended = True
        index, check = _PLACE.unpack_from(locator)
        valid = zlib.crc32(locator[:8]) == check
        known = self._complete() or (valid and not self._stray and self._in_line(index))
        lost = 0 if known else self._last + 1
        if self._hole is not None:
            self._lose(*self._hole, before=self._last + 1 if known else None)
            lost = 0
        if self._bad_index is not None:
            self._layout.damages.append(msgspec.structs.replace(self._bad_index, first=lost))
            lost = 0
        self._compare()
        if not valid:
            self._layout.damages.append(Damage(place, f"the trailer at byte {place} does not match its checksum", lost))
        elif lost or (index != self._index_place and not self._layout.damages):
            what = f"the trailer at byte {place} states that the index is at byte {index}, where it is not"
            self._layout.damages.append(Damage(place, what, lost))

    def _in_line(self, index: int) -> bool:
        """Return whether there is nothing but whole blocks up to the index at this place, or to what is left of it."""
        if self._hole is not None:
            return self._holes == 1 and self._hole[0] == index
        return self._holes == 0 and self._index_place == index

    def _complete(self) -> bool:
        """Return whether there is an index that names all blocks which were found, so that it is this archive's."""
        if self._index is None:
            return False
        return {_seqs(entry) for entry in self._layout.records} <= {_seqs(entry) for entry in self._index.records}

    def _compare(self) -> None:
        """Note blocks that only the index shows to be missing: one that was cut out as a whole may leave no other trace."""
        if self._index is None:
            return
        damages, at = self._layout.damages, f"the index at byte {self._index_place} names"
        known = list(damages)
        there = {_seqs(entry) for entry in self._layout.records}
        before = self._index.header.start
        for first, last in map(_seqs, self._index.records):
            if (first, last) not in there and not any(damage.costs(first, last) for damage in known):
                damages.append(Damage(self._index_place, f"{at} a block that is not there", before + 1, last))
            before = last
        if not self._complete() or (not damages and self._index.records != self._layout.records):
            damages.append(Damage(self._index_place, f"{at} other blocks than there are"))

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
        elif head.kind == INDEX:
            self._take_index(place, head)
        elif head.kind == HEADER and not self._headed:
            self._take_header(place, head)
        elif head.kind == HEADER:
            self._stray = True

    def _payload(self, place: int, head: Head) -> bytes:
        return os.pread(self._file, min(head.packed, LARGEST), place + HEAD_SIZE)

    def _take_header(self, place: int, head: Head) -> None:
        self._headed = True
        try:
            self._layout.header = unpack_header(head, self._payload(place, head))
        except BlockDamaged as error:
            self._layout.damages.append(Damage(place, f"the header at byte {place} {error}"))
        if not self._layout.records:
            self._last = self._layout.header.start

    def _take_records(self, place: int, head: Head) -> None:
        if head.first <= self._last:
            what = f"the block at byte {place} repeats records {head.first} to {head.last}"
            self._stray = True
            self._layout.damages.append(Damage(place, what))
            return
        first = head.first
        if self._hole is not None:
            self._lose(*self._hole, before=first)
        elif self._layout.header.sparse:
            first = self._last + 1  # No record is known to be in the gap before it.
        elif first != self._last + 1:
            what = f"there is nothing between record {self._last} and record {head.first} at byte {place}"
            self._layout.damages.append(Damage(place, what, self._last + 1, head.first - 1))
        self._last = head.last
        if self._deep and (reason := self._fault(place, head)):
            what = f"the block at byte {place} {reason}"
            self._layout.damages.append(Damage(place, what, first, head.last))
            return
        entry = Entry(place, head.size, head.count, head.first, head.last, head.latest)
        self._layout.records.append(entry)

    def _fault(self, place: int, head: Head) -> str:
        return "" if intact(head, self._payload(place, head)) else "does not match its checksum"

    def _take_snapshot(self, place: int, head: Head) -> None:
        if self._hole is None:
            twice = self._layout.snapshots and self._layout.snapshots[-1].info.seq >= head.last
            self._stray = self._stray or head.last != self._last or bool(twice)
        elif head.last > self._last:  # A snapshot follows the last record that it covers; an older one shows nothing.
            self._lose(*self._hole, before=head.last + 1)
            self._last = head.last
        try:
            info, _ = unpack_snapshot(head, self._payload(place, head))
        except BlockDamaged as error:
            what = f"the snapshot of the state at {head.last}, at byte {place}, {error}"
            self._layout.damages.append(Damage(place, what))
            return
        self._layout.snapshots.append(Kept(place, head.size, info))

    def _take_index(self, place: int, head: Head) -> None:
        if self._index_place:
            self._stray = True
        if self._bad_index is not None:
            self._layout.damages.append(self._bad_index)
        self._bad_index = None
        try:
            index = unpack_index(head, self._payload(place, head))
        except BlockDamaged as error:
            self._bad_index = Damage(place, f"the index at byte {place} {error}")
        else:
            self._index = index
            end = index.records[-1].last if index.records else index.header.start
            if self._hole is not None and end >= self._last:
                self._lose(*self._hole, before=end + 1)
        self._index_place = place
        self._index_end = place + head.size

    def _lose(self, place: int, what: str, before: int | None = None) -> None:
        """Note damage that costs the records between the last one and `before`, if any; without it their number is unknown."""
        self._hole = None
        if before is None:
            damage = Damage(place, what, self._last + 1)
        elif before > self._last + 1:
            damage = Damage(place, what, self._last + 1, before - 1)
        else:
            damage = Damage(place, what)
        self._layout.damages.append(damage)

    def _break_off(self) -> None:
        place, _ = self._hole or (self._size, "")
        left = self._size - place
        what = f"it breaks off after byte {place}" if not left else f"it breaks off within the part at byte {place}"
        if left:
            what += f", after {left} {'byte' if left == 1 else 'bytes'} of it"
        if self._bad_index is not None:
            self._layout.damages.append(self._bad_index)
        lost = 0 if self._complete() else self._last + 1  # No record follows the index.
        self._layout.damages.append(Damage(place, what, lost))
        self._compare()


def _seqs(entry: Entry) -> tuple[int, int]:
    return entry.first, entry.last
