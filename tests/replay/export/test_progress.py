"""The progress beside a log, exported next to its archive and read with it again."""

from __future__ import annotations

import itertools
from contextlib import aclosing
from typing import TYPE_CHECKING

from dorm.api.clusters import ArchivedLog
from dorm.cli.connect import Cluster
from dorm.cli.source import log_of
from dorm.client.tail import Filter, Tail
from events import subjects
from events.archive.progress import progress_path
from events.codec import encode
from events.kinds import AppProgressed, ContainerStarted
from events.log.memory import MemoryLog
from replay.export.export import export
from replay.export.progress import export_progress
from replay.export.selection import Selection
from replay.moments import AtSequence
from replay.page.recording import record

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.interface import ReadableLog

APPS = ("a-aaaaaa", "b-bbbbbb")


async def made() -> MemoryLog:
    log = MemoryLog(itertools.count(1_763_000_000 * 10**9, 10**9).__next__)
    for number in range(6):
        started = ContainerStarted(id=f"l{number}", app=APPS[0], generation=1, slot=0, node="n1")
        await log.append(subjects.fact("lab", "ContainerStarted", "n1"), encode(started), msg_id=started.id)
        for app in APPS:
            said = AppProgressed(id=f"{app}{number}", app=app, generation=1, step=number, loss=1 / (number + 1))
            await log.progress.put(subjects.progress("lab", "n1", app), encode(said), msg_id=said.id)
    return log


async def positions(log: ReadableLog) -> list[str]:
    async with aclosing(Tail(log, "lab", Filter()).events()) as found:
        return [f"{one.position} {one.event.id}" async for one in found]


async def test_an_archive_with_its_progress_reads_as_the_log_does(tmp_path: Path) -> None:
    log, path = await made(), tmp_path / "whole.dorm"
    await export(log, path)
    file, count = await export_progress(log, path, Selection())
    assert (file, count) == (str(progress_path(path)), 12)
    async with log_of(path, Cluster(), folds=False) as archive:
        assert await positions(archive) == await positions(log)
        assert [one.body for one in await archive.progress.newest()] == [
            one.body for one in await log.progress.newest()
        ]
        assert await ArchivedLog(archive).progress.end() == 12
        recording = await record(archive, title="")
        assert [point.step for point in recording.progress[APPS[1]].points] == list(range(6))
    progress_path(path).unlink()
    async with log_of(path, Cluster(), folds=False) as archive:
        assert await positions(archive) == [f"{number} l{number - 1}" for number in range(1, 7)]


async def test_a_part_has_the_progress_of_its_time_and_its_apps(tmp_path: Path) -> None:
    log, path = await made(), tmp_path / "part.dorm"
    selection = Selection(since=AtSequence(3), until=AtSequence(4), apps=(APPS[1],))
    await export(log, path, selection=selection)
    await export_progress(log, path, selection)
    async with log_of(path, Cluster(), folds=False) as archive:
        found = [one async for batch in archive.progress.read() for one in batch]
    assert [one.seq for one in found] == [4, 6]
