"""Blocks: the bytes that make up an archive of segments (`events.archive.segments`).

    block = head, payload
    head  = mark "\\xd0RM\\xb1", kind, count u32, first u64, last u64, earliest i64, latest i64 (log times, UTC ns),
            packed u32 (bytes of the payload), raw u32 (bytes of it when decompressed), crc32 u32 of the payload,
            crc32 u32 of all this

    H   header: `Header`, zstd of MessagePack
    R   records `first` to `last`, zstd of `_Columns`
    S   a snapshot of the state after `last`: length u32 of its description, the description (`SnapshotInfo`), its body
    X   index: `Index`, zstd of MessagePack

Big-endian.  Records are stored by columns, which takes half the room of rows and reads faster: subjects are a table, times
are differences, sequences are stored only if some are missing.  The head has its own checksum, so an intact head shows what a
broken payload held; the mark lets a reader find the next block after a broken head.  Unknown kinds are skipped.
"""

from __future__ import annotations

import struct
import zlib
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard

from events import limits
from events.log.records import Record
from events.log.snapshots import SnapshotInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

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
