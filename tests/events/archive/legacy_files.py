"""Writes archives as releases 0.1 and 0.2 did, for the tests of their readers."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import msgspec

from events.archive.legacy import MAGIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record


def frame(payload: bytes) -> bytes:
    lengths = struct.pack(">II", len(payload), zlib.crc32(payload))
    return lengths + struct.pack(">I", zlib.crc32(lengths)) + payload


def legacy_archive(records: Sequence[Record]) -> bytes:
    return MAGIC + b"".join(frame(msgspec.msgpack.encode(record)) for record in records)
