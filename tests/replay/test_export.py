"""A log in a file."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from dorm.core.state import digest
from events.archive import ArchiveLog
from events.log import LogDamaged, LogRefused
from events.memory import MemoryLog
from replay.audit import verify
from replay.export import ExportError, export
from replay.travel import state_at
from tests.replay.story import log_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from events.log import Record


def files(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


async def read_all(path: Path) -> list[Record]:
    log = await ArchiveLog.open(path)
    return [record for batch in [batch async for batch in log.read()] for record in batch]


async def test_records_are_copied_byte_for_byte(recorded: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    told: list[tuple[int, int]] = []
    done = await export(log_of(recorded), path, progress=lambda done, total: told.append((done, total)))
    assert await read_all(path) == recorded
    assert (done.events, done.bytes) == (len(recorded), path.stat().st_size)
    assert told[-1] == (len(recorded), len(recorded))
    assert files(tmp_path) == ["log.dorm"]


async def test_state_and_audit_are_the_same_from_the_file(recorded: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(recorded), path)
    log = await ArchiveLog.open(path)
    assert digest(await state_at(log)) == digest(await state_at(log_of(recorded)))
    report = await verify(log)
    assert report == await verify(log_of(recorded))
    assert report.good


async def test_an_archive_is_exported_like_any_log_even_onto_itself(recorded: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(recorded), path)
    await export(await ArchiveLog.open(path), path, force=True)
    assert await read_all(path) == recorded


async def test_an_empty_log_makes_an_empty_archive(tmp_path: Path) -> None:
    assert (await export(log_of([]), tmp_path / "empty.dorm")).events == 0
    assert await read_all(tmp_path / "empty.dorm") == []


async def test_a_file_that_is_there_stays(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    path.write_text("precious")
    with pytest.raises(ExportError, match="is there already"):
        await export(log_of(written), path)
    assert path.read_text() == "precious"
    await export(log_of(written), path, force=True)
    assert await read_all(path) == written


async def test_a_file_that_comes_while_it_is_written_stays(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"

    def meanwhile(done: int, total: int) -> None:
        path.write_text("precious")

    with pytest.raises(ExportError, match="is there already"):
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
    with pytest.raises(LogRefused, match="No such file or directory"):
        await export(log_of(written), tmp_path / "nowhere" / "log.dorm")


async def test_a_file_cut_anywhere_verifies_up_to_there_and_is_told_to_be_cut(
    written: list[Record], tmp_path: Path
) -> None:
    whole = tmp_path / "log.dorm"
    await export(log_of(written[:12]), whole)
    data = whole.read_bytes()
    cut = tmp_path / "cut.dorm"
    sizes = [(await export(log_of(written[:n]), cut, force=True)).bytes for n in range(12)]
    for length in range(9, len(data), 97):
        cut.write_bytes(data[:length])
        archive = await ArchiveLog.open(cut)
        report = await verify(archive)
        assert report.events == report.end == await archive.end() < 12
        if length in sizes:  # That can't be told from a log which had no more.
            assert report.good
            continue
        assert report.divergence is not None
        assert report.divergence.seq == report.end + 1
        assert f"{cut} breaks off within record {report.end + 1}, after " in report.divergence.what
    cut.write_bytes(data)
    assert (await verify(await ArchiveLog.open(cut))).good


async def test_damage_in_a_file_is_a_divergence(written: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(written), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = await verify(await ArchiveLog.open(path))
    assert report.divergence is not None
    assert "damaged" in str(report.divergence)
    assert report.events < len(written)
