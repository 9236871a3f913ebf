"""Convert an archive of release 0.1 or 0.2, which later releases do not read, into one that they read.

    python convert_legacy_archive.py OLD.dorm NEW.dorm

Run it with the Python of an installed Dorm.  The records stay the same, byte for byte, with their sequences and times.  An
archive that breaks off, because its writer was killed or a copy is incomplete, is converted up to there, and the exit code
is 1; damage anywhere else converts nothing.

The old format, with big-endian numbers:

    file    = "DORMLOG1", frame*
    frame   = length u32, crc32 u32 (of the payload), crc32 u32 (of these eight bytes), payload
    payload = MessagePack [seq, time, subject, body, msg_id]

The length has a checksum of its own, so a damaged length does not pass for a file that breaks off.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
import zlib
from pathlib import Path

import msgspec

from events.errors import DormError
from events.log.memory import MemoryLog
from events.log.records import LogDamaged, Record
from replay.export.export import export

MAGIC = b"DORMLOG1"
_LENGTHS, _FRAME = struct.Struct(">II"), struct.Struct(">III")


def records_of(data: bytes, name: str) -> tuple[list[Record], int]:
    """Return the complete records, and how many bytes of a further one follow.  Raises LogDamaged."""
    if not data.startswith(MAGIC):
        raise LogDamaged(f"{name} is not an archive of release 0.1 or 0.2", code="archive.not_an_archive")
    records: list[Record] = []
    place = len(MAGIC)
    while place + _FRAME.size <= len(data):
        length, checksum, check = _FRAME.unpack_from(data, place)
        if zlib.crc32(data[place : place + _LENGTHS.size]) != check:
            raise LogDamaged(f"{name}: the head of the record at byte {place} does not match its checksum")
        payload = data[place + _FRAME.size : place + _FRAME.size + length]
        if len(payload) < length:
            break
        if zlib.crc32(payload) != checksum:
            raise LogDamaged(f"{name}: the record at byte {place} does not match its checksum")
        try:
            record = msgspec.msgpack.decode(payload, type=Record)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise LogDamaged(f"{name}: the record at byte {place} can't be decoded") from None
        if record.seq != len(records) + 1:
            raise LogDamaged(f"{name}: record {record.seq} follows {len(records)} at byte {place}")
        records.append(record)
        place += _FRAME.size + length
    return records, len(data) - place


def convert(old: Path, new: Path) -> str:
    """Convert an archive.  Return where it breaks off, "" if it is whole.  Raises OSError, LogDamaged, ExportError."""
    records, left = records_of(old.read_bytes(), str(old))
    asyncio.run(export(MemoryLog(time.time_ns, records), new))
    return f"{old} breaks off within record {len(records) + 1}, after {left} bytes of it" if left else ""


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python convert_legacy_archive.py OLD.dorm NEW.dorm")
    try:
        broken_off = convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except (OSError, DormError) as error:
        sys.exit(f"error: {error}")
    if broken_off:
        sys.exit(f"warning: {broken_off}")


if __name__ == "__main__":
    main()
