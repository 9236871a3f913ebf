"""Archives of segments: the same records are read, from files and pipes, and no damage is missed or yields a wrong one."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import os
import random
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from events.archive.blocks import (
    _HEAD,
    HEAD_SIZE,
    MAGIC,
    MARK,
    TRAILER_SIZE,
    Header,
    head_of,
    pack_header,
    pack_records,
)
from events.archive.damage import Damage, ReadablePart, WholeParts, readable_end
from events.archive.segments import BATCH_BLOCKS, BLOCK_RECORDS, LEAST_RECORDS, SegmentLog, SegmentWriter
from events.log.interface import ReadableLog
from events.log.records import LogDamaged, LogError, LogRefused, Record
from events.log.stores import SnapshotInfo, content_of
from tests.errors import raises
from tests.events.archive.conformance import ArchiveConformance
from tests.events.log.readable_conformance import ALICE, BOB, read_all
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.events.log.readable_conformance import Holding


def written(
    records: Sequence[Record], *, every: int = BLOCK_RECORDS, header: Header | None = None, snapshots: bool = False
) -> bytes:
    """An archive with blocks of this many records, and a snapshot behind each block."""
    file = io.BytesIO()
    writer = SegmentWriter(file, header or Header(cluster="conform", made_by="tests"))
    for first in range(0, len(records), every):
        batch = records[first : first + every]
        writer.add(batch)
        writer._flush()
        if snapshots:
            writer.snapshot(*snapshot_at(batch[-1].seq, batch[-1].time))
    writer.finish()
    assert writer.written == len(file.getvalue())
    assert writer.count == len(records)
    return file.getvalue()


def snapshot_at(seq: int, time: int = 1) -> tuple[SnapshotInfo, bytes]:
    body = b"state at %d" % seq
    return SnapshotInfo(seq=seq, time=time, core=1, digest="d", content=content_of(body), size=len(body)), body


def some(count: int, start: int = 0) -> list[Record]:
    return [
        Record(seq, seq * 10, (ALICE, BOB)[seq % 2], b"body %d" % seq, f"id-{seq}")
        for seq in range(start + 1, start + count + 1)
    ]


async def opened(data: bytes, path: Path) -> SegmentLog:
    path.write_bytes(data)
    return await SegmentLog.open(path)


class TestSegmentLog(ArchiveConformance):
    @pytest.fixture
    def holding(self, tmp_path: Path) -> Holding:
        async def hold(records: Sequence[Record]) -> ReadableLog:
            return await opened(written(records, every=7), tmp_path / "log.dorm")

        return hold


class TestReadablePart(ArchiveConformance):
    """A log that continues behind its readable part."""

    @pytest.fixture
    def holding(self, tmp_path: Path) -> Holding:
        async def hold(records: Sequence[Record]) -> ReadableLog:
            more = [msgspec.structs.replace(record, seq=record.seq + len(records)) for record in some(20)]
            log = await opened(written([*records, *more], every=7), tmp_path / "log.dorm")
            return ReadablePart(log, len(records), "")

        return hold


class TestWholeParts(ArchiveConformance):
    """An archive whose damage costs no record."""

    @pytest.fixture
    def holding(self, tmp_path: Path) -> Holding:
        async def hold(records: Sequence[Record]) -> ReadableLog:
            return WholeParts(await opened(written(records, every=7), tmp_path / "log.dorm"), [Damage(1, "")])

        return hold

    async def test_a_log_without_records(self, holding: Holding) -> None:
        log = await holding([])
        assert (await log.start(), await log.end(), await read_all(log)) == (0, 0, [])


RECORD = st.builds(
    Record,
    seq=st.just(0),
    time=st.integers(-(2**62), 2**62),
    subject=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    body=st.binary(max_size=60),
    msg_id=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


@settings(max_examples=tries(10, 1500), deadline=None)
@given(
    records=st.lists(RECORD, max_size=20),
    gaps=st.lists(st.integers(1, 3)),
    start=st.integers(0, 2**40),
    every=st.integers(1, 7),
)
@example(records=[], gaps=[], start=5, every=1)
def test_any_records_survive_a_round_trip(records: list[Record], gaps: list[int], start: int, every: int) -> None:
    async def round_trip() -> None:
        seq, sparse = start, any(gap > 1 for gap in gaps[: len(records)])
        for record, gap in zip(records, itertools.chain(gaps, itertools.repeat(1)), strict=False):
            seq += gap
            record.seq = seq
        with tempfile.TemporaryDirectory() as home:
            header = Header(cluster="c", start=start, sparse=sparse)
            log = await opened(written(records, every=every, header=header), Path(home) / "log.dorm")
            assert await read_all(log) == records
            assert (await log.start(), await log.end()) == (start, records[-1].seq if records else start)
            assert (log.sparse, log.count, await log.torn(), await log.damages()) == (sparse, len(records), "", [])
            for after in range(start, seq, 2):
                assert await read_all(log, after) == [record for record in records if record.seq > after]
            for time in {record.time for record in records}:
                assert await log.at_time(time) == await ReadableLog.at_time(log, time)
            await log.close()

    asyncio.run(round_trip())


async def test_an_archive_is_read_a_few_blocks_at_a_time(tmp_path: Path) -> None:
    records = some(12 * BLOCK_RECORDS)
    log = await opened(written(records), tmp_path / "log.dorm")
    blocks = [block async for block in log.salvage(damages=[])]
    assert len(blocks[-2]) == BLOCK_RECORDS, "in a long archive blocks are large"
    batches = [batch async for batch in log.read()]
    assert [record for batch in batches for record in batch] == records
    firsts = range(0, len(blocks), BATCH_BLOCKS)
    assert list(map(len, batches)) == [sum(map(len, blocks[first : first + BATCH_BLOCKS])) for first in firsts]
    after = blocks[-3][-2].seq
    assert [len(batch) async for batch in log.read(after=after)] == [1 + sum(map(len, blocks[-2:]))]
    assert await log.last_on(ALICE) == records[-1]
    assert await log.at_time(records[5000].time + 1) == records[5000].seq


async def test_all_before_a_damaged_block_is_given_first(tmp_path: Path) -> None:
    records = some(4 * BLOCK_RECORDS)
    whole = written(records)
    blocks = [block async for block in (await opened(whole, tmp_path / "whole.dorm")).salvage(damages=[])]
    places = [place for place, kind in heads(whole) if kind == b"R"]
    for which in (1, BATCH_BLOCKS - 1, BATCH_BLOCKS, BATCH_BLOCKS + 1):
        data = bytearray(whole)
        data[places[which] + HEAD_SIZE + 10] ^= 64
        log = await opened(bytes(data), tmp_path / f"{which}.dorm")
        given: list[Record] = []
        damaged = False
        try:
            async for batch in log.read():
                given += batch
        except LogDamaged:
            damaged = True
        assert damaged
        assert given == [record for block in blocks[:which] for record in block]


@given(count=st.integers(1, 9000), at=st.floats(0, 1, exclude_max=True), step=st.integers(1, 700))
@settings(max_examples=tries(4, 25), deadline=None)
def test_a_damaged_byte_costs_few_records(count: int, at: float, step: int) -> None:
    """Of a short archive too, however its records came."""
    records = some(count)
    file = io.BytesIO()
    writer = SegmentWriter(file, Header())
    for first in range(0, count, step):
        writer.add(records[first : first + step])
    writer.finish()
    data = bytearray(file.getvalue())
    data[len(MAGIC) + int(at * (len(data) - len(MAGIC)))] ^= 1

    async def lost() -> int:
        with tempfile.TemporaryDirectory() as folder:
            _, salvaged, damages = await survey(bytes(data), Path(folder) / "log.dorm")
        assert damages
        return count - len(salvaged)

    assert asyncio.run(lost()) <= max(LEAST_RECORDS, min(count // 8, BLOCK_RECORDS))


async def test_large_bodies_make_blocks_of_their_own(tmp_path: Path) -> None:
    bodies = [b"small", os.urandom(300 << 10), b"small", os.urandom(180 << 10), os.urandom(180 << 10)]
    records = [Record(seq, seq, ALICE, body) for seq, body in enumerate(bodies, 1)]
    log = await opened(written(records), tmp_path / "log.dorm")
    assert [[r.seq for r in block] async for block in log.salvage(damages=[])] == [[1], [2], [3, 4], [5]]
    assert await read_all(log) == records


async def test_snapshots_lie_between_records(tmp_path: Path) -> None:
    log = await opened(written(some(50), every=10, snapshots=True), tmp_path / "log.dorm")
    infos = await log.snapshots.infos()
    assert [info.seq for info in infos] == [10, 20, 30, 40, 50]
    assert await log.snapshots.get(infos[2]) == b"state at 30"
    assert await log.snapshots.get(snapshot_at(31)[0]) is None


async def test_a_part_of_a_log_starts_with_its_state(tmp_path: Path) -> None:
    file = io.BytesIO()
    writer = SegmentWriter(file, Header(start=100))
    writer.snapshot(*snapshot_at(100))
    writer.add(some(5, start=100))
    writer.finish()
    log = await opened(file.getvalue(), tmp_path / "log.dorm")
    assert (await log.start(), await log.end()) == (100, 105)
    assert [info.seq for info in await log.snapshots.infos()] == [100]
    assert await log.at_time(0) == 100
    assert [record.seq for record in await read_all(log)] == [101, 102, 103, 104, 105]


async def test_records_that_do_not_follow_are_refused() -> None:
    writer = SegmentWriter(io.BytesIO(), Header())
    with raises(LogDamaged, "log.damaged", "record 2", "0"):
        writer.add(some(1, start=1))
    writer = SegmentWriter(io.BytesIO(), Header(sparse=True))
    writer.add(some(1, start=1))
    with raises(LogDamaged, "log.damaged", "record 2"):
        writer.add(some(1, start=1))


async def test_a_later_format_is_refused(tmp_path: Path) -> None:
    data = written(some(3), header=Header(format=3, made_by="dorm 9.0"))
    with raises(LogRefused, "archive.later_format", "dorm 9.0"):
        await opened(data, tmp_path / "log.dorm")


# --- damage -------------------------------------------------------------------------------------------------------------

FORTY = some(40)
WHOLE = written(FORTY, every=8, snapshots=True)


def heads(data: bytes | bytearray) -> list[tuple[int, bytes]]:
    """Place and kind of each block."""
    found, place = [], len(MAGIC)
    while (head := head_of(bytes(data[place : place + HEAD_SIZE]))) is not None:
        found.append((place, head.kind))
        place += head.size
    assert place == len(data) - TRAILER_SIZE
    return found


async def survey(data: bytes, path: Path) -> tuple[list[Record], list[Record], list[Damage]]:
    """What is read of an archive, what is salvaged, and what is wrong with it.  Raises LogError if it can't be opened."""
    log = await opened(data, path)
    try:
        read: list[Record] = []
        damages = await log.damages()
        with contextlib.suppress(LogDamaged):
            async for batch in log.read():
                read += batch
        part = ReadablePart(log, readable_end(damages, await log.end()), "damaged")
        assert await read_all(part) == [record for record in read if record.seq <= await part.end()]
        salvaged = [record async for batch in log.salvage(damages=[*damages]) for record in batch]
        snapshots = log.snapshots
        for info in await snapshots.infos():
            assert await snapshots.get(info) in (None, b"state at %d" % info.seq)
        await log.at_time(200)
        await log.last_on(ALICE)
    except LogDamaged:
        if not damages:
            raise
    finally:
        await log.close()
    return read, salvaged, damages


@pytest.mark.parametrize("block", range(1, 6))
@pytest.mark.parametrize("where", ["head", "payload"])
async def test_a_broken_block_costs_its_records_and_no_others(tmp_path: Path, block: int, where: str) -> None:
    place = [place for place, kind in heads(WHOLE) if kind == b"R"][block - 1]
    data = bytearray(WHOLE)
    data[place + (10 if where == "head" else HEAD_SIZE + 10)] ^= 64
    read, salvaged, damages = await survey(bytes(data), tmp_path / "log.dorm")
    first, last = 8 * block - 7, 8 * block
    assert read == FORTY[: first - 1]
    assert salvaged == FORTY[: first - 1] + FORTY[last:]
    assert [(damage.place, damage.first, damage.last) for damage in damages] == [(place, first, last)]
    assert f"byte {place}" in str(damages[0])
    assert f"records {first} to {last} are lost" in str(damages[0])


async def test_damage_outside_the_records_costs_none(tmp_path: Path) -> None:
    places = [place for place, kind in heads(WHOLE) if kind != b"R"]
    for place in [*places, *(place + HEAD_SIZE + 3 for place in places), len(WHOLE) - 3, len(WHOLE) - TRAILER_SIZE + 2]:
        data = bytearray(WHOLE)
        data[place] ^= 1
        read, _, damages = await survey(bytes(data), tmp_path / "log.dorm")
        assert read == FORTY
        assert damages
        assert not any(damage.first for damage in damages), damages


async def test_a_cut_anywhere_is_named_and_the_records_before_it_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    blocks = heads(WHOLE)
    begins = [place for place, _ in blocks] + [len(WHOLE) - TRAILER_SIZE]
    ends = [begins[index + 1] for index, (_, kind) in enumerate(blocks) if kind == b"R"]
    index = begins[-1]
    near = {begin + by for begin in begins for by in (-1, 0, 1, HEAD_SIZE)}
    for size in sorted(
        {n for n in near if len(MAGIC) <= n < len(WHOLE)} | {*range(len(MAGIC), len(WHOLE), 41), len(WHOLE) - 1}
    ):
        read, salvaged, damages = await survey(WHOLE[:size], path)
        assert read == salvaged == FORTY[: 8 * sum(end <= size for end in ends)]
        assert len(damages) == 1
        place = max(begin for begin in [len(MAGIC), *begins] if begin <= size)
        said = (
            f" within the part at byte {place}, after {size - place} byte" if size > place else f" after byte {place};"
        )
        assert f"it breaks off{said}" in str(damages[0])
        assert damages[0].first == (0 if size >= index else len(read) + 1)
        log = await SegmentLog.open(path)
        assert "breaks off" in await log.torn()


async def test_the_readable_part_is_a_log_of_its_own(tmp_path: Path) -> None:
    place = [place for place, kind in heads(WHOLE) if kind == b"R"][3]
    data = bytearray(WHOLE)
    data[place + HEAD_SIZE + 5] ^= 1
    log = await opened(bytes(data), tmp_path / "log.dorm")
    damages = await log.damages()
    part = ReadablePart(log, readable_end(damages, await log.end()), str(damages[0]))
    assert (await part.start(), await part.end(), part.sparse) == (0, 24, False)
    assert await read_all(part) == FORTY[:24]
    assert await read_all(part, 20, [BOB]) == [record for record in FORTY[20:24] if record.subject == BOB]
    assert await part.last_on(ALICE) == FORTY[23]
    assert [info.seq for info in await part.snapshots.infos()] == [8, 16, 24]
    assert [await part.at_time(time) for time in (0, 155, 240, 255, 10**6)] == [0, 15, 24, 24, 24]
    assert "records 25 to 32 are lost" in await part.torn()
    with raises(LogDamaged, "log.damaged", "24"):
        await read_all(part, 30)
    parts = WholeParts(log, damages)
    assert (parts.sparse, await parts.end()) == (True, 40)
    assert await read_all(parts) == FORTY[:24] + FORTY[32:]
    assert await parts.last_on(BOB) == FORTY[38]
    with raises(LogDamaged, "log.damaged", "40", "41"):
        await read_all(parts, 41)


async def test_bytes_after_the_end_are_named(tmp_path: Path) -> None:
    read, _, damages = await survey(WHOLE + b"more", tmp_path / "log.dorm")
    assert read == FORTY
    assert str(damages[0]) == "4 bytes follow the end of the archive; no record is lost"


async def test_a_removed_or_repeated_block_is_found(tmp_path: Path) -> None:
    blocks = [place for place, _ in heads(WHOLE)]
    places = [place for place, kind in heads(WHOLE) if kind == b"R"]
    after = blocks[blocks.index(places[1]) + 1]
    read, salvaged, damages = await survey(WHOLE[: places[1]] + WHOLE[after:], tmp_path / "log.dorm")
    assert (read, salvaged) == (FORTY[:8], FORTY[:8] + FORTY[16:])
    assert (damages[0].first, damages[0].last) == (9, 16)
    read, salvaged, damages = await survey(
        WHOLE[:after] + WHOLE[places[1] : after] + WHOLE[after:], tmp_path / "log.dorm"
    )
    assert (read, salvaged) == (FORTY, FORTY)
    assert "repeats records 9 to 16" in str(damages[0])


async def check_damaged(data: bytes) -> None:
    """Whatever happened to the bytes, what is read is right, and no lost record goes unmentioned."""
    with tempfile.TemporaryDirectory() as home:
        try:
            read, salvaged, damages = await survey(data, Path(home) / "log.dorm")
        except LogError:
            return
        assert read == FORTY[: len(read)]
        assert all(FORTY[record.seq - 1] == record for record in salvaged)
        assert [record.seq for record in salvaged] == sorted({record.seq for record in salvaged})
        assert damages or data == WHOLE
        assert len(read) == len(FORTY) or any(damage.first for damage in damages)
        mentioned = [(damage.first, damage.last or len(FORTY)) for damage in damages if damage.first]
        missing = {record.seq for record in FORTY} - {record.seq for record in salvaged}
        assert all(any(first <= seq <= last for first, last in mentioned) for seq in missing)


PLACES = [place for place, _ in heads(WHOLE)]


@pytest.mark.parametrize(
    ("parts", "flipped"),
    [
        # The last block of records has no head, the index can't be read, and the trailer is missing.
        ([(0, 1534), (1759, 2645)], (8, 1896)),
        # The last block of records is missing as a whole, with its snapshot: with index and trailer, and without either.
        ([(0, PLACES[-3]), (PLACES[-1], 2665)], ()),
        ([(0, PLACES[-3]), (PLACES[-1], 2645)], ()),
        ([(0, PLACES[-3]), (PLACES[-1], 2665)], (PLACES[-3] + 60,)),
        ([(0, PLACES[-3]), (2645, 2665)], ()),
        # Only a snapshot is missing, and only its space.
        ([(0, PLACES[2]), (PLACES[3], 2665)], ()),
        ([(0, PLACES[2] + 80), (PLACES[2] + 90, PLACES[8] + 80), (0, 10), (PLACES[8] + 80, 2665)], ()),
        # A copy of the trailer lies between blocks, a copy of index and trailer does, and a copy of the index.
        ([(0, PLACES[5]), (2645, 2665), (PLACES[5], 2665)], ()),
        ([(0, PLACES[5]), (PLACES[-1], 2665), (PLACES[5], 2665)], ()),
        ([(0, PLACES[5]), (PLACES[-1], 2645), (PLACES[5], PLACES[7])], ()),
        ([(0, PLACES[5]), (PLACES[-1], 2645), (PLACES[5], PLACES[7])], (PLACES[5] + 60,)),
    ],
)
async def test_what_may_be_lost_is_mentioned(parts: list[tuple[int, int]], flipped: tuple[int, ...]) -> None:
    damaged = bytearray().join(WHOLE[begin:end] for begin, end in parts)
    for place in flipped:
        damaged[place] ^= 1
    await check_damaged(bytes(damaged))


async def test_what_follows_is_unknown_if_neither_index_nor_trailer_can_be_read(tmp_path: Path) -> None:
    data = bytearray(WHOLE)
    data[PLACES[-1] + HEAD_SIZE + 3] ^= 1
    data[-TRAILER_SIZE] ^= 1
    read, _, damages = await survey(bytes(data), tmp_path / "log.dorm")
    assert read == FORTY
    assert [(damage.place, damage.first, damage.last) for damage in damages] == [
        (PLACES[-1], 41, None),
        (len(WHOLE) - TRAILER_SIZE, 0, None),
    ]
    assert "whatever came after record 40 is lost" in str(damages[0])


async def test_a_missing_block_of_a_sparse_archive_is_found_by_the_index(tmp_path: Path) -> None:
    """Its sequences have gaps anyway."""
    even = FORTY[1::2]
    data = written(even, every=5, header=Header(sparse=True))
    places = [place for place, _ in heads(data)]
    read, salvaged, damages = await survey(data[: places[2]] + data[places[3] :], tmp_path / "log.dorm")
    assert (read, salvaged) == (even[:5], even[:5] + even[10:])
    assert [(damage.first, damage.last) for damage in damages] == [(11, 20)]


async def test_a_broken_block_of_a_sparse_archive_ends_its_readable_part(tmp_path: Path) -> None:
    even = FORTY[1::2]
    data = bytearray(written(even, every=5, header=Header(sparse=True)))
    data[heads(data)[2][0] + HEAD_SIZE + 8] ^= 1
    log = await opened(bytes(data), tmp_path / "log.dorm")
    damages = await log.damages()
    part = ReadablePart(log, readable_end(damages, await log.end()), "damaged")
    assert await read_all(part) == even[:5]
    assert [record async for batch in log.salvage(damages=damages) for record in batch] == even[:5] + even[10:]
    assert [(damage.first, damage.last) for damage in damages] == [(11, 20)]


async def test_a_part_of_a_log_with_a_broken_header_has_lost_nothing(tmp_path: Path) -> None:
    file = io.BytesIO()
    writer = SegmentWriter(file, Header(start=100))
    writer.add(some(5, start=100))
    writer.finish()
    data = bytearray(file.getvalue())
    data[len(MAGIC)] ^= 1
    read, _, damages = await survey(bytes(data), tmp_path / "log.dorm")
    assert [record.seq for record in read] == [101, 102, 103, 104, 105]
    assert [(damage.place, damage.first) for damage in damages] == [(len(MAGIC), 0)]


@settings(max_examples=tries(6, 4000), deadline=None)
@given(data=st.data())
def test_a_fuzzed_archive_never_crashes_its_reader_nor_gives_a_wrong_record(data: st.DataObject) -> None:
    fuzzed = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(fuzzed) - 1)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "remove", "move"])):
            case "flip" if fuzzed:
                fuzzed[place] ^= data.draw(st.integers(1, 255))
            case "cut":
                del fuzzed[place:]
            case "insert":
                fuzzed[place:place] = data.draw(st.binary(min_size=1, max_size=100))
            case "remove":
                del fuzzed[place : place + data.draw(st.integers(1, 300))]
            case "move":
                piece = fuzzed[place : place + data.draw(st.integers(1, 700))]
                to = data.draw(st.integers(0, len(fuzzed)))
                fuzzed[to:to] = piece

    asyncio.run(check_damaged(bytes(fuzzed)))


def test_whole_blocks_with_senseless_content_are_damage(tmp_path: Path) -> None:
    """What a checksum does not help against: somebody made it so."""
    chance = random.Random(7)
    for _ in range(100):
        block = bytearray(pack_records(some(3)))
        payload = bytes(chance.randrange(256) for _ in range(chance.randrange(40)))
        head = head_of(bytes(block))
        assert head is not None
        fields = _HEAD.pack(MARK, b"R", head.count, 1, 3, 10, 30, len(payload), head.raw, zlib.crc32(payload))
        made = fields + zlib.crc32(fields).to_bytes(4, "big") + payload
        with pytest.raises(LogDamaged):
            asyncio.run(_all(MAGIC + pack_header(Header()) + made, tmp_path / "log.dorm"))


async def _all(data: bytes, path: Path) -> list[Record]:
    return await read_all(await opened(data, path))
