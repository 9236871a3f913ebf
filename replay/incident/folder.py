"""Writes the folder of an incident, which appears under its name only once it is complete, and which only its owner can
read.

The log's part is written first, and everything else is read from it: a file of the folder can't say more than its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
from typing import TYPE_CHECKING

import msgspec

from events.archive.segments import open_archive
from replay.export.anonymize import anonymized
from replay.export.export import export
from replay.export.selection import Selection
from replay.incident import readme
from replay.incident.telling import Incident, span_of, tell
from replay.moments import AtSequence
from replay.page.recording import record
from replay.reading import cluster_name
from replay.whole_file import ExportError, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.incident.telling import Span
    from replay.moments import Moment

README, LOG, PAGE, STORIES, DIFF, DOCUMENT = (
    "README.md", "log.dorm", "timeline.html", "stories.md", "diff.md", "incident.json",
)  # fmt: skip
_PLAIN = "plain.dorm"
"""The log's part before names are replaced; it is removed before the folder appears."""


async def write(
    log: ReadableLog,
    folder: Path,
    since: Moment,
    until: Moment | None = None,
    *,
    before_s: float,
    disguised: bool,
    page: Callable[[bytes, str], str],
    progress: Progress | None = None,
) -> Incident:
    """Write the folder of what happened between two moments, and of `before_s` seconds before.  `page` returns the dashboard
    of a recording with a title.

    Raises IncidentError, ExportError if the folder exists or can't be written, MomentError, and what `log.read` raises.
    """
    span = await span_of(log, since, until, before_s)
    async with _whole_folder(folder) as unfinished:
        await _write_log(log, unfinished, span, disguised=disguised, progress=progress)
        part = await open_archive(unfinished / LOG)
        try:
            cluster = await cluster_name(part)
            told = await tell(part, span, cluster, disguised=disguised, progress=progress)
            recording = await record(part, f"{cluster} · incident", AtSequence(span.first), AtSequence(span.last))
        finally:
            await part.close()
        await in_thread(_write_texts, unfinished, told, lambda: page(msgspec.json.encode(recording), recording.title))
    return told


async def _write_log(log: ReadableLog, folder: Path, span: Span, *, disguised: bool, progress: Progress | None) -> None:
    selection = Selection(since=AtSequence(span.first + 1), until=AtSequence(span.last))
    await export(log, folder / (_PLAIN if disguised else LOG), selection=selection, progress=progress)
    if not disguised:
        return
    plain = await open_archive(folder / _PLAIN)
    try:
        await export(await anonymized(plain, progress=progress), folder / LOG, progress=progress)
    finally:
        await plain.close()
    await asyncio.to_thread((folder / _PLAIN).unlink)


def _write_texts(folder: Path, told: Incident, page: Callable[[], str]) -> None:
    texts = {
        PAGE: page(),
        STORIES: readme.stories(told),
        DIFF: readme.difference(told.diff),
        DOCUMENT: json.dumps(msgspec.to_builtins(told), indent=2) + "\n",
        README: readme.readme(told, (README, LOG, PAGE, STORIES, DIFF, DOCUMENT)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8", "backslashreplace", newline="\n")


@contextlib.asynccontextmanager
async def _whole_folder(folder: Path) -> AsyncIterator[Path]:
    """Yield a folder to fill, which gets its name if the body ends without an exception.  Raises ExportError."""
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.unfinished")
    try:
        await in_thread(_create, unfinished, folder)
        yield unfinished
        await in_thread(_put_in_place, unfinished, folder)
    except OSError as error:
        raise ExportError(f"{folder}: {error.strerror or error}") from None
    finally:
        await in_thread(shutil.rmtree, unfinished, True)


def _create(unfinished: Path, folder: Path) -> None:
    _check_new(folder)
    unfinished.mkdir(mode=0o700)


def _put_in_place(unfinished: Path, folder: Path) -> None:
    for path in (*unfinished.iterdir(), unfinished):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    _check_new(folder)
    unfinished.rename(folder)


def _check_new(folder: Path) -> None:
    if os.path.lexists(folder):
        raise ExportError(f"{folder} already exists; choose another name with -o", code="file.exists")
