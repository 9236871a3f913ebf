"""Archives of releases 0.1 and 0.2: their records are read, and no damage is missed or yields a wrong record."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from events.archive.damage import ReadablePart, readable_end
from events.archive.files import open_file
from events.archive.legacy import BATCH, MAGIC, LegacyLog
from events.log.records import LogDamaged, LogRefused, Record
from tests.errors import raises
from tests.events.archive.conformance import ArchiveConformance
from tests.events.archive.legacy_files import frame, legacy_archive
from tests.events.log.readable_conformance import ALICE, BOB, read_all, records_of
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from events.log.interface import ReadableLog
    from tests.events.log.readable_conformance import Holding


def opened(path: Path, data: bytes) -> LegacyLog:
    path.write_bytes(data)
    return LegacyLog.of_file(open_file(path), str(path))


@contextlib.asynccontextmanager
async def archive_of(data: bytes) -> AsyncIterator[LegacyLog]:
    with tempfile.TemporaryDirectory() as home:
        log = opened(Path(home) / "log.dorm", data)
        yield log
        await log.close()


def run(check: Callable[[LegacyLog], object], data: bytes) -> None:
    async def opened_and_checked() -> None:
        async with archive_of(data) as log:
            await check(log)  # type: ignore[misc]

    asyncio.run(opened_and_checked())


class TestLegacyLog(ArchiveConformance):
    @pytest_asyncio.fixture
    async def holding(self, tmp_path: Path) -> Holding:
        async def hold(records: Sequence[Record]) -> ReadableLog:
            return opened(tmp_path / "log.dorm", legacy_archive(records))

        return hold


FIVE = records_of(5)
WHOLE = legacy_archive(FIVE)
ENDS = [len(legacy_archive(FIVE[:count])) for count in range(6)]
"""Where each record ends in the file."""


async def test_an_archive_is_read_a_batch_at_a_time(tmp_path: Path) -> None:
    log = opened(tmp_path / "log.dorm", legacy_archive(records_of(2 * BATCH + 10)))
    assert [len(batch) async for batch in log.read()] == [BATCH, BATCH, 10]
    assert [len(batch) async for batch in log.read(after=2 * BATCH + 3)] == [7]
    large = [Record(seq, seq, ALICE, bytes(3 << 20)) for seq in range(1, 6)]
    log = opened(tmp_path / "large.dorm", legacy_archive(large))
    assert [len(batch) async for batch in log.read()] == [3, 2]


@pytest.mark.parametrize("size", range(ENDS[2] + 1, ENDS[3]))
async def test_an_archive_that_breaks_off_is_read_up_to_there(tmp_path: Path, size: int) -> None:
    log = opened(tmp_path / "log.dorm", WHOLE[:size])
    assert await read_all(log) == FIVE[:2]
    assert await log.end() == 2
    found = f"{tmp_path / 'log.dorm'} breaks off within record 3, after {size - ENDS[2]} bytes of it"
    assert await log.torn() == found
    (damage,) = await log.damages()
    assert (damage.place, damage.what, damage.first, damage.last) == (ENDS[2], found, 3, None)


@pytest.mark.parametrize("start", [MAGIC[:size] for size in range(len(MAGIC))], ids=repr)
async def test_an_archive_that_breaks_off_before_its_first_record_is_empty(tmp_path: Path, start: bytes) -> None:
    log = opened(tmp_path / "log.dorm", start)
    assert (await read_all(log), await log.end()) == ([], 0)
    assert await log.torn() == f"{tmp_path / 'log.dorm'} breaks off before its first record"


@settings(max_examples=tries(13, 2000), deadline=None)
@given(bit=st.integers(len(MAGIC) * 8, len(WHOLE) * 8 - 1))
def test_a_flipped_bit_is_found_wherever_it_is(bit: int) -> None:
    """The records before it can be read, and the damage is located."""
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    intact = sum(end <= bit // 8 for end in ENDS[1:])

    async def check(log: LegacyLog) -> None:
        seen: list[Record] = []
        with contextlib.suppress(LogDamaged):
            async for batch in log.read():
                seen += batch
            pytest.fail("the damage was not noticed")
        assert seen == FIVE[:intact]
        (damage,) = await log.damages()
        assert (damage.place, damage.first) == (ENDS[intact], intact + 1)
        for question in (log.end(), log.torn()):
            with pytest.raises(LogDamaged):
                await question
        part = ReadablePart(log, readable_end([damage], damage.first), str(damage))
        assert await read_all(part) == FIVE[:intact]

    run(check, bytes(data))


@settings(max_examples=tries(13, 2000), deadline=None)
@given(tail=st.binary(max_size=200))
def test_bytes_after_the_last_record_are_damage(tail: bytes) -> None:
    async def check(log: LegacyLog) -> None:
        seen: list[Record] = []
        with contextlib.suppress(LogDamaged):
            async for batch in log.read():
                seen += batch
        assert seen == FIVE
        assert bool(await log.damages()) == bool(tail)

    run(check, WHOLE + tail)


@settings(max_examples=tries(13, 2000), deadline=None)
@given(content=st.binary(max_size=100).filter(lambda content: not MAGIC.startswith(content[: len(MAGIC)])))
def test_any_other_file_is_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as home:
        before = os.listdir("/proc/self/fd")
        with raises(LogRefused, "archive.not_an_archive", "notes.txt"):
            opened(Path(home) / "notes.txt", content)
        assert os.listdir("/proc/self/fd") == before, "a file was left open"


@pytest.mark.parametrize(
    ("records", "reason"),
    [(FIVE[:1] + FIVE[2:], "record 3 follows 1 at byte"), (FIVE[1:], "record 2 follows 0 at byte")],
)
async def test_records_in_a_wrong_order_are_damage(tmp_path: Path, records: list[Record], reason: str) -> None:
    log = opened(tmp_path / "log.dorm", legacy_archive(records))
    with raises(LogDamaged, "log.damaged", reason):
        await read_all(log)
    with raises(LogDamaged, "log.damaged", reason):
        await log.end()


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode([6, 1, "subject"]), b"\x95\x06\x01\xa1\xff\xc4\x00\xa0"], ids=repr
)
async def test_a_payload_that_is_not_a_record_is_damage(tmp_path: Path, payload: bytes) -> None:
    """Its checksum is right, so a writer made it that way."""
    log = opened(tmp_path / "log.dorm", WHOLE + frame(payload))
    with raises(LogDamaged, "log.damaged", f"byte {ENDS[5]}"):
        await read_all(log)


async def test_a_file_that_becomes_shorter_is_damage(tmp_path: Path) -> None:
    log = opened(tmp_path / "log.dorm", legacy_archive(records_of(3 * BATCH)))
    async with aclosing(log.read()) as batches:
        await anext(batches)
        os.truncate(tmp_path / "log.dorm", len(MAGIC))
        with raises(LogDamaged, "log.truncated"):
            await anext(batches)


async def test_a_read_starts_near_its_first_record(tmp_path: Path) -> None:
    """Damage in front of it, done after the file was scanned, is not noticed: nothing reads there."""
    records = records_of(5000, [ALICE, BOB])
    log = opened(tmp_path / "log.dorm", legacy_archive(records))
    assert await log.end() == 5000
    with (tmp_path / "log.dorm").open("r+b") as file:
        file.seek(len(MAGIC) + 20)
        file.write(b"broken")
    assert await read_all(log, 4500) == records[4500:]
    with pytest.raises(LogDamaged):
        await read_all(log)


async def test_progress_of_the_check_is_reported(tmp_path: Path) -> None:
    data = legacy_archive(records_of(5000))
    reported: list[tuple[int, int]] = []
    log = opened(tmp_path / "log.dorm", data)
    assert await log.damages(lambda done, total: reported.append((done, total))) == []
    assert len(reported) == 5
    assert reported == sorted(reported)
    assert {total for _, total in reported} == {len(data)}
