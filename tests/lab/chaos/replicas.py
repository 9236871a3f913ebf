"""Compares every server's own copy of the log, as stored in its files, with the log, record by record.

A server may answer from any replica, so each copy is read from the server's block files: for each message its
length, sequence, time, length of the subject, the subject, the headers with their length if there are any, the body, and a
checksum of eight bytes.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, NamedTuple

from events.log.records import Record
from events.nats.reader import as_it_was, message_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_HEAD = struct.Struct("<IQqH")
_HEADERS = 1 << 31
"""Flag in the length: there are headers."""
_NO_RECORD = 3 << 62
"""Flag in the sequence: the message is deleted."""
_CHECKSUM = 8
_COMPRESSED = b"cmp"
_LATE_S = 30.0
_LOOK_AGAIN_S = 0.5
_MOST_TOLD = 3


class Unreadable(Exception):
    """A block does not have the expected format."""


class Copy(NamedTuple):
    """One server's copy."""

    records: dict[int, Record]
    trouble: str
    """Unreadable parts, "" if there are none."""


def stored(folder: Path) -> Copy:
    """Return the messages in a stream's folder of a server's store."""
    records: dict[int, Record] = {}
    for block in sorted((folder / "msgs").glob("*.blk"), key=lambda path: int(path.stem)):
        try:
            for record in _in_block(block.read_bytes()):
                records[record.seq] = record
        except (Unreadable, FileNotFoundError) as error:  # The server may be replacing one right now.
            return Copy(records, f"{block.name}: {error}")
    return Copy(records, "")


def _in_block(data: bytes) -> Iterator[Record]:
    if data.startswith(_COMPRESSED):
        raise Unreadable("it is compressed")
    place = 0
    while place < len(data):
        if place + _HEAD.size > len(data):
            raise Unreadable(f"it ends within the head of a message at {place}")
        length, seq, time, subject_length = _HEAD.unpack_from(data, place)
        end = place + (length & ~_HEADERS)
        body = place + _HEAD.size + subject_length
        if end > len(data) or body + _CHECKSUM > end:
            raise Unreadable(f"there is no message at {place}")
        headers = b""
        if length & _HEADERS:
            (headers_length,) = struct.unpack_from("<I", data, body)
            headers = data[body + 4 : body + 4 + headers_length]
            body += 4 + headers_length
        if not seq & _NO_RECORD:
            subject = data[place + _HEAD.size : place + _HEAD.size + subject_length].decode(errors="replace")
            yield as_it_was(
                Record(seq, time, subject, data[body : end - _CHECKSUM], message_id(headers) if headers else ""),
                headers,
            )
        place = end


def differences(name: str, copy: Copy, log: Sequence[Record]) -> list[str]:
    """Return the differences between a copy and this log, one line for each of the first few records; later records are
    allowed."""
    wrong = [f"{name}: its copy of the log can't be read: {copy.trouble}"] if copy.trouble else []
    for record in log:
        found = copy.records.get(record.seq)
        if found is None:
            wrong.append(f"{name}: record {record.seq} is not in its copy of the log")
        elif found != record:
            wrong.append(f"{name}: record {record.seq} is another one in its copy of the log")
        if len(wrong) >= _MOST_TOLD:
            break
    return wrong


async def compare(folders: Mapping[str, Path], log: Sequence[Record]) -> list[str]:
    """Return lasting differences of the servers' copies: a server that was down catches up after a while.  `folders`: those of
    the stream, by the server's name."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _LATE_S
    while True:
        wrong: list[str] = []
        for name, folder in folders.items():
            wrong += differences(name, await asyncio.to_thread(stored, folder), log)
        if not wrong or loop.time() >= until:
            return wrong
        await asyncio.sleep(_LOOK_AGAIN_S)
