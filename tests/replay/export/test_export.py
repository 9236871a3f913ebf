"""A log in a file."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zstandard

from dorm.core.evolve import GapError
from dorm.core.snapshot import load
from dorm.core.state import digest
from events.archive.segments import SegmentLog, open_archive
from events.chain import Chain
from events.cloudevents import cloud_event, rfc3339
from events.codec import encode
from events.log.memory import MemoryLog
from events.log.records import LogDamaged
from events.positions import logged
from replay import frames
from replay.audit.audit import verify
from replay.export.export import export, format_of
from replay.export.selection import Selection
from replay.export.sink import FileFormat
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError
from replay.travel import state_at
from replay.whole_file import ExportError
from tests.errors import raises
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from events.log.records import Record


def files(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


async def read_all(path: Path) -> list[Record]:
    log = await open_archive(path)
    return [record for batch in [batch async for batch in log.read()] for record in batch]


async def test_records_are_copied_byte_for_byte(recorded: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    told: list[tuple[int, int]] = []
    done = await export(log_of(recorded), path, progress=lambda done, total: told.append((done, total)))
    assert await read_all(path) == recorded
    assert (done.records, done.bytes) == (len(recorded), path.stat().st_size)
    assert told[-1] == (len(recorded), len(recorded))
    assert files(tmp_path) == ["log.dorm"]


async def test_state_and_audit_are_the_same_from_the_file(recorded: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(recorded), path)
    log = await open_archive(path)
    assert digest(await state_at(log)) == digest(await state_at(log_of(recorded)))
    report = await verify(log)
    assert report == await verify(log_of(recorded))
    assert report.good


async def test_an_archive_is_exported_like_any_log_even_onto_itself(recorded: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(recorded), path)
    await export(await open_archive(path), path, force=True)
    assert await read_all(path) == recorded


async def test_an_empty_log_makes_an_empty_archive(tmp_path: Path) -> None:
    assert (await export(log_of([]), tmp_path / "empty.dorm")).records == 0
    assert await read_all(tmp_path / "empty.dorm") == []


async def test_an_existing_file_is_kept(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    path.write_text("precious")
    with raises(ExportError, "file.exists"):
        await export(log_of(written), path)
    assert path.read_text() == "precious"
    await export(log_of(written), path, force=True)
    assert await read_all(path) == written


async def test_only_the_owner_reads_a_new_file_and_a_replaced_one_keeps_its_permissions(
    written: list[Record], tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        await export(log_of(written), tmp_path / "log.dorm")
        assert stat.S_IMODE((tmp_path / "log.dorm").stat().st_mode) == 0o600
        (tmp_path / "log.dorm").chmod(0o644)
        await export(log_of(written), tmp_path / "log.dorm", force=True)
        assert stat.S_IMODE((tmp_path / "log.dorm").stat().st_mode) == 0o644
    finally:
        os.umask(before)


async def test_a_file_created_meanwhile_is_kept(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"

    def meanwhile(done: int, total: int) -> None:
        path.write_text("precious")

    with raises(ExportError, "file.exists"):
        await export(log_of(written), path, progress=meanwhile)
    assert files(tmp_path) == ["log.dorm"]
    assert path.read_text() == "precious"


async def test_a_damaged_log_leaves_no_file(written: list[Record], tmp_path: Path) -> None:
    with pytest.raises(LogDamaged):
        await export(log_of([*written[:5], *written[6:]]), tmp_path / "log.dorm")
    assert files(tmp_path) == []


async def test_a_cancelled_export_leaves_no_file(written: list[Record], tmp_path: Path) -> None:
    began = asyncio.Event()

    class Stuck(MemoryLog):
        """Gives some records, and then nothing."""

        async def end(self) -> int:
            return len(written) + 1

        async def read(
            self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
        ) -> AsyncGenerator[list[Record], None]:
            yield written
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(export(Stuck(time.time_ns), tmp_path / "log.dorm"))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(tmp_path) == []


async def test_a_place_where_nothing_can_be_written(written: list[Record], tmp_path: Path) -> None:
    with raises(ExportError, "export.not_written"):
        await export(log_of(written), tmp_path / "nowhere" / "log.dorm")


async def test_a_truncated_file_verifies_up_to_the_cut_and_reports_it(written: list[Record], tmp_path: Path) -> None:
    whole = tmp_path / "log.dorm"
    await export(log_of(written[:12]), whole)
    data = whole.read_bytes()
    cut = tmp_path / "cut.dorm"
    for length in range(9, len(data), 97):
        cut.write_bytes(data[:length])
        archive = await open_archive(cut)
        report = await verify(archive)
        assert report.events == report.end == await archive.end()
        assert report.divergence is not None
        assert report.divergence.seq == report.end + 1
        assert f"{cut}: it breaks off" in report.divergence.what
    cut.write_bytes(data)
    assert (await verify(await open_archive(cut))).good


async def test_damage_in_a_file_is_a_divergence(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(written), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = await verify(await open_archive(path))
    assert report.divergence is not None
    assert "damaged" in str(report.divergence)
    assert report.events < len(written)


# --- snapshots ----------------------------------------------------------------------------------------------------------


async def test_an_archive_has_a_snapshot_every_so_often(
    written: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "EVERY", 10)
    await export(log_of(written), tmp_path / "log.dorm")
    log = await open_archive(tmp_path / "log.dorm")
    infos = await log.snapshots.infos()
    assert [info.seq for info in infos] == list(range(10, len(written) + 1, 10))
    for info in infos:
        body = await log.snapshots.get(info)
        assert body is not None
        state = load(info, body, build=frames.build())
        assert state is not None
        assert digest(state) == digest(await state_at(log_of(written), AtSequence(info.seq)))
    # Copied from there it has the same ones, and nothing is folded for that.
    monkeypatch.setattr(frames.FoldedFrames, "due", None)
    await export(log, tmp_path / "copy.dorm")
    assert (tmp_path / "copy.dorm").read_bytes() == (tmp_path / "log.dorm").read_bytes()


@pytest.mark.parametrize("since", [2, 11, 30, 57])
async def test_a_part_of_a_log_folds_to_the_same_states(written: list[Record], tmp_path: Path, since: int) -> None:
    part = tmp_path / "part.dorm"
    done = await export(log_of(written), part, selection=Selection(since=AtSequence(since), until=AtSequence(57)))
    log = await open_archive(part)
    assert (done.first, done.last, done.records) == (since, 57, 58 - since)
    assert (await log.start(), await log.end()) == (since - 1, 57)
    assert await read_all(part) == written[since - 1 : 57]
    for seq in range(since - 1, 58):
        assert digest(await state_at(log, AtSequence(seq))) == digest(await state_at(log_of(written), AtSequence(seq)))
    (info, *_) = await log.snapshots.infos()
    chain = Chain()
    for record in written[: since - 1]:
        chain.follow(record)
    assert (info.seq, info.chain) == (since - 1, chain.value.hex())
    # A part of the part begins with a state as well.
    await export(log, tmp_path / "less.dorm", selection=Selection(since=AtSequence(57)))
    less = await open_archive(tmp_path / "less.dorm")
    assert digest(await state_at(less)) == digest(await state_at(log))


async def test_a_part_by_times(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "part.dorm"
    since, until = written[9].time, written[19].time
    await export(log_of(written), path, selection=Selection(since=AtTime(since), until=AtTime(until)))
    assert await read_all(path) == written[9:20]
    await export(log_of(written), path, selection=Selection(since=BeforeEnd(10**9)), force=True)
    assert await read_all(path) == written[-11:]
    with raises(MomentError, "moment.no_records"):
        await export(log_of(written), path, selection=Selection(since=AtTime(until), until=AtTime(since)), force=True)
    with raises(MomentError, "moment.after_end"):
        await export(log_of(written), path, selection=Selection(since=AtSequence(10**6)), force=True)


# --- selections and tables ----------------------------------------------------------------------------------------------


async def test_records_that_concern_an_app(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "one.dorm"
    done = await export(log_of(written), path, selection=Selection(apps=("one",)))
    found = await read_all(path)
    wanted = [one for record in found for one in logged(record) if b"one" in encode(one.event)]
    everything = [
        one for record in written for one in logged(record) if getattr(one.event, "app", "").startswith("one-")
    ]
    assert done.records == len(found) < len(written)
    assert {one.position for one in everything} <= {one.position for one in wanted}
    log = await open_archive(path)
    assert isinstance(log, SegmentLog)
    assert (log.sparse, log.header.chosen, await log.end()) == (True, {"app": ["one"]}, found[-1].seq)
    with pytest.raises(GapError):
        await state_at(log)
    await export(log, tmp_path / "copy.dorm")
    assert await read_all(tmp_path / "copy.dorm") == found


def lines(path: Path, opener: Callable[..., Any] = open) -> list[dict[str, Any]]:
    with opener(path, "rb") as file:
        return [json.loads(line) for line in file.read().splitlines()]


async def test_lines_of_json(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    done = await export(log_of(written), path)
    rows = lines(path)
    events = [one for record in written for one in logged(record)]
    assert done.rows == len(rows) == len(events)
    for one, row in zip(events, rows, strict=True):
        assert row["position"] == str(one.position)
        assert (row["seq"], row["index"]) == (one.position.seq, one.position.index)
        assert row["kind"] == type(one.event).__name__ == row["body"]["kind"]
        assert row["log_time"] == rfc3339(one.time)
    resized = next(row for row in rows if row["kind"] == "Resized")
    assert resized["body"]["changes"][0]["app"].startswith("one-")
    assert {row["user"] for row in rows if str(row["app"]).startswith("one-")} == {"someone"}
    assert {row["node"] for row in rows if row["kind"] == "ContainerStarted"} == {"n0", "n1", "n2"}
    assert next(row for row in rows if row["kind"] == "AppSubmitted")["app"].startswith("one-")


async def test_lines_are_compressed_by_the_files_extension(written: list[Record], tmp_path: Path) -> None:
    for name in ("log.jsonl", "log.ndjson.gz", "log.ndjson.zst"):
        await export(log_of(written), tmp_path / name)
    plain = lines(tmp_path / "log.jsonl")
    assert lines(tmp_path / "log.ndjson.gz", gzip.open) == plain
    assert lines(tmp_path / "log.ndjson.zst", zstandard.open) == plain


async def test_cloudevents(written: list[Record], tmp_path: Path) -> None:
    await export(log_of(written), tmp_path / "log.jsonl", form=FileFormat.cloudevents)
    events = [one for record in written for one in logged(record)]
    assert lines(tmp_path / "log.jsonl") == [json.loads(msgspec.json.encode(cloud_event(one))) for one in events]


async def test_parquet(written: list[Record], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    await export(log_of(written), tmp_path / "log.parquet")
    await export(log_of(written), tmp_path / "log.ndjson")
    table = parquet.read_table(tmp_path / "log.parquet")
    assert table.schema.metadata[b"dorm.cluster"] == b"story"
    assert str(table.schema.field("log_time").type) == "timestamp[ns, tz=UTC]"
    times = table.column("log_time").cast("int64").to_pylist()
    rows = table.drop_columns(["log_time"]).to_pylist()
    for row, at, line in zip(rows, times, lines(tmp_path / "log.ndjson"), strict=True):
        assert rfc3339(at) == line.pop("log_time")
        assert {**row, "body": json.loads(row["body"])} == line


async def test_rows_of_one_app_are_its_events_alone(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    selection = Selection(apps=("two",), since=AtSequence(20))
    await export(log_of(written), path, selection=selection)
    rows = lines(path)
    assert min(row["seq"] for row in rows) >= 20
    assert {row["app"] for row in rows if row["app"]} == {next(row["app"] for row in rows if row["app"])}
    assert all("two" in json.dumps(row) for row in rows)
    assert {row["user"] for row in rows if row["app"]} == {"someone"}


def test_the_file_extension_determines_the_format() -> None:
    for name, form in (("a.dorm", "archive"), ("a", "archive"), ("a.b.parquet", "parquet"), ("a.jsonl.gz", "ndjson")):
        assert format_of(Path(name)) == form
    for name in ("a.csv", "a.dorm.gz", "a.gz.parquet.zst"):
        with raises(ExportError, "export.format.unknown"):
            format_of(Path(name))
