"""Copies of files and folders: which files they consist of, and where each goes.

Files that are there already, with the same size and time, are not copied again.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dorm.client.files.asking import FilesRefused
from dorm.client.files.download import download
from dorm.client.files.upload import upload
from events.copying import MOST_FILES, FileEntry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from dorm.client.files.asking import Files, Where

_AT_ONCE = 4
"""Files that are copied at once."""


class Progress:
    """The progress of a copy for its caller; the default learns nothing."""

    def plan(self, files: int, size: int) -> None:
        """What to copy."""

    def done(self, size: int) -> None:
        """So many bytes more are done."""

    def skip(self, path: str, why: str) -> None:
        """This can't be copied."""


class Copied(msgspec.Struct, frozen=True):
    """The result of a copy."""

    files: int
    size: int
    """Bytes of these."""
    unchanged: int
    """Files that were there already."""
    skipped: int
    """Entries that are neither files nor folders."""


async def copy_from(files: Files, where: Where, path: str, target: Path, progress: Progress | None = None) -> Copied:
    """Copy a file or a folder of an app to `target`, or into it if it is a folder. Raises FilesRefused, OSError, and
    the bus's errors."""
    told = progress or Progress()
    entries = await files.listed(where, path)
    name = path.strip("/").rpartition("/")[2] or where.area
    final = target / name if await asyncio.to_thread(target.is_dir) else target
    if entries and entries[0].kind == "other" and not entries[0].path:
        raise FilesRefused(f"{path} can't be copied: {entries[0].note}", code="files.not_regular")
    plan = [(entry, _inside(final, entry.path)) for entry in entries if entry.kind == "file"]
    due = [(entry, to) for entry, to in plan if not await asyncio.to_thread(_is_here, entry, to)]
    for entry in entries:
        if entry.kind == "other":
            told.skip(entry.path, entry.note)
    told.plan(len(due), sum(entry.size for entry, _ in due))
    folders = [_inside(final, entry.path) for entry in entries if entry.kind == "folder"]
    await asyncio.to_thread(_make, [*folders, final.parent])

    async def one(entry: FileEntry, to: Path) -> None:
        source = "/".join(part for part in (path.strip("/"), entry.path) if part)
        await download(files, where, source, entry, to, told.done)

    await _each(lambda: (one(entry, to) for entry, to in due))
    return _copied(due, len(plan), sum(entry.kind == "other" for entry in entries))


def _make(folders: Iterable[Path]) -> None:
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)


def _inside(folder: Path, path: str) -> Path:
    """Return a path below a folder on this machine.  An agent's answer must not lead out of it."""
    names = path.split("/") if path else []
    if any(name in ("", ".", "..") or "\0" in name or os.sep in name for name in names):
        raise FilesRefused(f"the agent lists {path!r}, which leaves its folder", code="files.path.outside")
    return folder.joinpath(*names)


def _is_here(entry: FileEntry, to: Path) -> bool:
    try:
        status = to.lstat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (entry.size, entry.modified)


async def copy_to(files: Files, source: Path, where: Where, path: str, progress: Progress | None = None) -> Copied:
    """Copy a file or a folder of this machine to an app's outputs or checkpoints; into it, where `path` is a folder there.
    Raises as `copy_from`."""
    told = progress or Progress()
    there = await _there(files, where, path)
    base = path.strip("/")
    if not base or path.endswith("/") or there.get("", FileEntry("", "file")).kind == "folder":
        name = (await asyncio.to_thread(source.absolute)).name
        base = f"{base}/{name}" if base else name
        there = await _there(files, where, base)
    found, skipped = await asyncio.to_thread(_local, source)
    for left in skipped:
        told.skip(left, "neither a file nor a folder, or a link to a folder")
    due = [(entry, file) for entry, file in found if not _is_there(entry, there.get(entry.path))]
    told.plan(len(due), sum(entry.size for entry, _ in due))

    async def one(entry: FileEntry, file: Path) -> None:
        await upload(files, where, file, f"{base}/{entry.path}" if entry.path else base, told.done)

    await _each(lambda: (one(entry, file) for entry, file in due))
    return _copied(due, len(found), len(skipped))


async def _there(files: Files, where: Where, path: str) -> dict[str, FileEntry]:
    try:
        return {entry.path: entry for entry in await files.listed(where, path)}
    except FilesRefused as error:
        if error.code != "files.not_found":
            raise
        return {}


def _is_there(entry: FileEntry, there: FileEntry | None) -> bool:
    return there is not None and (there.kind, there.size, there.modified) == ("file", entry.size, entry.modified)


def _local(source: Path) -> tuple[list[tuple[FileEntry, Path]], list[str]]:
    """Return the files of a folder, or the file itself, in order; and other entries."""
    if not source.is_dir():
        status = source.stat()
        return [(FileEntry("", "file", size=status.st_size, modified=status.st_mtime_ns), source)], []
    found: list[tuple[FileEntry, Path]] = []
    skipped: list[str] = []
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted([*names, *(one for one in folders if Path(folder, one).is_symlink())]):
            file = Path(folder, name)
            place = file.relative_to(source).as_posix()
            if not file.is_file():
                skipped.append(place)
                continue
            status = file.stat()
            found.append((FileEntry(place, "file", size=status.st_size, modified=status.st_mtime_ns), file))
        if len(found) > MOST_FILES:
            raise FilesRefused(
                f"{source} has more than {MOST_FILES:,} files; copy parts of it, or an archive", code="files.too_many"
            )
    return found, skipped


async def _each(copies: Callable[[], Iterable[Awaitable[None]]]) -> None:
    """Make copies, some at once.  The first that fails ends the others."""
    waiting = iter(copies())

    async def work() -> None:
        for copy in waiting:
            await copy

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _copied(due: list[tuple[FileEntry, Path]], files: int, skipped: int) -> Copied:
    return Copied(len(due), sum(entry.size for entry, _ in due), files - len(due), skipped)
