"""Copies of the log in a folder.  A copy counts once it was read back in full; only then an older one is removed.

Names have the time of this machine's clock, which may have been wrong.  Copies that are later than the new one neither count
among those to keep nor are they removed, so whichever way a clock was set, the new copy and those before it stay.

lab-20260314T030007.512Z.dorm    the log of cluster lab at that time, in UTC; next to it its shipped folders (`folders`)

BackupError    there is no new copy, or it can't be trusted; the older ones are all still there
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from dorm.core.state import digest
from dorm.deploy.folders import Copied, FoldersError, copy_folders, prune_folders
from events.archive.files import share
from events.archive.segments import open_archive
from events.errors import DormError
from events.log.records import LogRefused
from replay.export.export import export
from replay.travel.travel import state_at

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.interface import ReadableLog
    from events.log.stores import Files
    from replay import Progress

_STAMP = "%Y%m%dT%H%M%S"


class BackupError(DormError):
    """There is no new backup."""

    code = "backup.failed"


class Kept(msgspec.Struct, frozen=True):
    """A new backup, and what was removed for it."""

    file: str
    records: int
    bytes: int
    digest: str
    """The digest of the state at its end, from the copy."""
    removed: list[str]
    ahead: list[str] = []
    """Copies that are later than this one, as made by a clock that was ahead; they are left alone."""
    shipped: Copied | None = None
    """Of shipped folders; None if they were left out."""


async def back_up(
    log: ReadableLog,
    folder: Path,
    cluster: str,
    *,
    keep: int,
    now: int,
    files: Files | None = None,
    progress: Progress | None = None,
) -> Kept:
    """Copy the log into the folder, read the copy back, and remove all but the newest `keep` copies up to this one.  `files`:
    the shipped folders, which are copied next to it.  `now`: UTC ns.

    Raises BackupError, FoldersError, the errors of `replay.export.export`, and the log's."""
    stamp = f"{datetime.fromtimestamp(now // 10**9, UTC):{_STAMP}}.{now // 10**6 % 1000:03d}Z"
    target = folder / f"{cluster}-{stamp}.dorm"
    if not await asyncio.to_thread(folder.is_dir):
        raise BackupError(f"there is no folder {folder}; make it, or mount it", code="backup.no_folder")
    done = await export(log, target, progress=progress)
    await asyncio.to_thread(_share, target)
    try:
        found = await _read_back(target, done.last)
    except DormError:
        await asyncio.to_thread(target.rename, target.with_suffix(".damaged"))  # So that it never counts as a copy.
        raise
    shipped = await _copy_folders(files, target, cluster, progress) if files is not None else None
    removed, ahead = await asyncio.to_thread(_prune, target, cluster, keep)
    return Kept(str(target), done.records, done.bytes, found, removed, ahead, shipped)


async def _copy_folders(files: Files, target: Path, cluster: str, progress: Progress | None) -> Copied:
    try:
        return await copy_folders(files, target, cluster, progress)
    except LogRefused as error:
        raise FoldersError(
            f"the log is in {target}, and the shipped folders can't be read ({error}): make backups as the reader `backup` or "
            "an operator, run a `dorm user` command once on a cluster of an earlier release, or say --without-files",
            code="backup.files_refused",
        ) from None


async def _read_back(file: Path, end: int) -> str:
    """Return the digest of the state that a copy gives.  Raises BackupError if it differs from what was copied."""
    archive = await open_archive(file)
    try:
        damages = await archive.damages()
        if damages or await archive.end() != end:
            why = str(damages[0]) if damages else f"it ends at record {await archive.end()} instead of {end}"
            raise BackupError(
                f"{file} is not what was copied ({why}); look at its disk. The earlier backups are all there",
                code="backup.damaged",
            )
        return digest(await state_at(archive))
    finally:
        await archive.close()


def _share(target: Path) -> None:
    with target.open("rb") as file:
        share(file, target.parent)


def report(done: Kept, cluster: str, now: int, file: Path) -> None:
    """Write what Prometheus's node exporter reads from its folder of text files, atomically.  `now`: UTC ns.  Raises
    BackupError."""
    registry = CollectorRegistry()
    for name, meaning, value in (
        ("dorm_backup_time_seconds", "When the newest backup was made, as seconds since 1970", now / 1e9),
        ("dorm_backup_records", "Records in the newest backup", done.records),
        ("dorm_backup_size_bytes", "Bytes of the newest backup", done.bytes),
    ):
        Gauge(name, meaning, ["cluster"], registry=registry).labels(cluster).set(value)
    try:
        write_to_textfile(str(file), registry)
    except OSError as error:
        raise BackupError(
            f"the backup is made, and {file} can't be written: {error.strerror}", code="backup.metrics"
        ) from None


def copies(folder: Path, cluster: str) -> list[Path]:
    """Return the copies of a cluster's log in a folder, the oldest first."""
    name = re.compile(rf"{re.escape(cluster)}-\d{{8}}T\d{{6}}\.\d{{3}}Z\.dorm")
    return sorted(path for path in folder.iterdir() if name.fullmatch(path.name))


def _prune(made: Path, cluster: str, keep: int) -> tuple[list[str], list[str]]:
    """Remove the oldest copies up to the one that was made; return them, and those that are later."""
    every = copies(made.parent, cluster)
    end = every.index(made) + 1
    old = every[:end][:-keep]
    for path in old:
        path.unlink(missing_ok=True)
    prune_folders(copies(made.parent, cluster), made.parent, cluster)
    return [str(path) for path in old], [str(path) for path in every[end:]]
