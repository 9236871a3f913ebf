"""Archives of releases 0.1 and 0.2: the converter makes archives of them that this release reads."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import msgspec
import pytest

from docs.tools import convert_legacy_archive as converter
from events.archive.segments import open_archive
from events.log.records import LogDamaged, LogRefused, Record
from tests.errors import raises
from tests.events.log.readable_conformance import read_all, records_of
from tests.golden.made import FOLDER

if TYPE_CHECKING:
    from pathlib import Path

FIVE = records_of(5)


def frame(payload: bytes) -> bytes:
    lengths = struct.pack(">II", len(payload), zlib.crc32(payload))
    return lengths + struct.pack(">I", zlib.crc32(lengths)) + payload


def legacy(records: list[Record]) -> bytes:
    return converter.MAGIC + b"".join(frame(msgspec.msgpack.encode(record)) for record in records)


WHOLE = legacy(FIVE)
ENDS = [len(legacy(FIVE[:count])) for count in range(6)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, converter.__file__, *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
async def test_the_golden_logs_of_these_releases_are_the_converted_ones(version: str) -> None:
    """The originals are in `tests/golden/legacy`."""
    original = FOLDER / "legacy" / f"{version}.dorm"
    records, left = converter.records_of(original.read_bytes(), original.name)
    log = await open_archive(FOLDER / f"{version}.dorm")
    assert (await read_all(log), left) == (records, 0)
    await log.close()


async def test_a_legacy_archive_is_refused_and_the_error_names_the_converter(tmp_path: Path) -> None:
    (tmp_path / "old.dorm").write_bytes(WHOLE)
    with raises(LogRefused, "archive.legacy_format", "convert_legacy_archive.py"):
        await open_archive(tmp_path / "old.dorm")
    done = run(tmp_path / "old.dorm", tmp_path / "new.dorm")
    assert (done.returncode, done.stderr) == (0, "")
    log = await open_archive(tmp_path / "new.dorm")
    assert await read_all(log) == FIVE
    await log.close()


async def test_an_archive_that_breaks_off_is_converted_up_to_there(tmp_path: Path) -> None:
    for size in range(ENDS[2] + 1, ENDS[3]):
        assert converter.records_of(WHOLE[:size], "old") == (FIVE[:2], size - ENDS[2])
    (tmp_path / "old.dorm").write_bytes(WHOLE[:-1])
    done = run(tmp_path / "old.dorm", tmp_path / "new.dorm")
    assert done.returncode == 1
    assert "breaks off within record 5" in done.stderr
    log = await open_archive(tmp_path / "new.dorm")
    assert await read_all(log) == FIVE[:4]
    await log.close()


@pytest.mark.parametrize("bit", range(len(converter.MAGIC) * 8, len(WHOLE) * 8, 37))
def test_a_flipped_bit_converts_nothing(bit: int) -> None:
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LogDamaged):
        converter.records_of(bytes(data), "old")


@pytest.mark.parametrize("records", [FIVE[:1] + FIVE[2:], FIVE[1:]])
def test_records_in_a_wrong_order_convert_nothing(records: list[Record]) -> None:
    with raises(LogDamaged, "log.damaged", "follows"):
        converter.records_of(legacy(records), "old")


def test_other_files_and_existing_targets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("DORMLOG9")
    assert "not an archive of release 0.1 or 0.2" in run(tmp_path / "notes", tmp_path / "new.dorm").stderr
    (tmp_path / "old.dorm").write_bytes(WHOLE)
    (tmp_path / "new.dorm").write_text("mine")
    assert run(tmp_path / "old.dorm", tmp_path / "new.dorm").returncode == 1
    assert (tmp_path / "new.dorm").read_text() == "mine"
