"""Backups of a cluster: copies of its log in a folder, with the shipped folders next to them, and restoring one.

    lab-20260314T030007.512Z.dorm         the log of cluster lab at that time, in UTC
    lab-20260314T030007.512Z.files.json   which parts of shipped folders belong to that copy, of which tenant; and the limits
    lab-files/3f/3f2a91c0…                a part, compressed, under the SHA-256 of what it holds

A copy counts once it was read back in full; only then an older one is removed.  Names have the time of this machine's
clock, which may have been wrong.  Copies that are later than the new one neither count among those to keep nor are they
removed, so whichever way a clock was set, the new copy and those before it stay.

Each part of a shipped folder is there once, for all copies that need it.  It is valid if its content matches its name,
both when it is copied and when it is restored.  A part that another program has stored under a wrong name belongs to no
folder that an app could start with, so it is skipped.

A backup is restored into the log of a cluster that knows its users, on servers that run and are empty.  On such servers
nobody may write other people's records, not even an admin.  So during the restore the accounts contain a restorer, who
may; its key is created for it and removed afterwards.  All other users are those at the end of the backup.

    BackupError     there is no new copy, or it can't be trusted; the older ones are all still there
    RestoreError    the backup can't be this cluster's log, or is not what arrived on the servers
"""

from __future__ import annotations

import asyncio
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from dorm.core.state import digest
from dorm.local.founding import found
from events.archive.files import create, make_folder, share
from events.archive.segments import open_archive
from events.durable import aside, put_in_place
from events.errors import DormError
from events.log.records import LogRefused, LogUnavailable
from events.nats.access import RESTORER
from events.nats.connection import Connection
from events.nats.importing import import_log
from events.workdir import UNPACKED_MANIFEST, Limits, open_blob
from replay.export.export import export
from replay.reading import cluster_name
from replay.travel.travel import state_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dorm.deploy.settings import Deployment
    from dorm.security.folder import KeyFolder
    from events.identities import Identities
    from events.log.interface import ReadableLog
    from events.log.stores import Files
    from events.nats.access import Credentials
    from replay import Progress


# --- shipped folders --------------------------------------------------------------------------------------------------

_AT_ONCE = 8
_SUFFIX = ".files.json"
_HASH = re.compile(r"[0-9a-f]{64}")


class FoldersError(DormError):
    """Shipped folders could not be copied, or not all of them restored."""

    code = "backup.files"


class Listed(msgspec.Struct, frozen=True):
    """What belongs to one copy of a log."""

    limits: Limits
    parts: list[tuple[str, str]]
    """Tenant, as the token of a subject, and name."""
    version: int = 1


class Copied(msgspec.Struct, frozen=True):
    """What was copied, or restored."""

    parts: int = 0
    bytes: int = 0
    """Compressed."""


def list_beside(archive: Path) -> Path:
    """Return where the parts of a copy are listed."""
    return archive.with_suffix(_SUFFIX)


async def copy_folders(
    files: Files, archive: Path, cluster: str, progress: Callable[[int, int], None] | None = None
) -> Copied:
    """Copy everything in the store next to a copy of its log. Existing parts are read, and copied again if they are damaged.
    Raises FoldersError, and the log's errors."""
    store, listed = (
        _Parts(archive.parent, cluster),
        [blob for blob in await files.listed() if _HASH.fullmatch(blob.name)],
    )
    turns, kept, sizes = asyncio.Semaphore(_AT_ONCE), list[tuple[str, str]](), list[int]()

    async def copy(tenant: str, name: str) -> None:
        async with turns:
            size = await asyncio.to_thread(store.size, name)
            fetched = await files.get(tenant, name) if not size else None
            if (
                fetched is not None
                and await asyncio.to_thread(open_blob, name, fetched[0], UNPACKED_MANIFEST) is not None
            ):
                size = await asyncio.to_thread(store.write, name, fetched[0])
        if size:
            kept.append((tenant, name))
            sizes.append(size)
        if progress is not None:
            progress(len(sizes), len(listed))

    try:
        async with asyncio.TaskGroup() as tasks:
            for blob in listed:
                if blob.size:
                    tasks.create_task(copy(blob.tenant, blob.name))
        document = msgspec.json.encode(Listed(await files.limits(), sorted(kept)))
        await asyncio.to_thread(_replace, list_beside(archive), document)
    except ExceptionGroup as failures:
        raise _not_copied(failures.exceptions[0], archive) from None
    except OSError as error:
        raise _not_copied(error, archive) from None
    return Copied(len(kept), sum(sizes))


def _not_copied(error: Exception, archive: Path) -> Exception:
    if not isinstance(error, OSError):
        return error
    text = f"shipped folders can't be written beside {archive} ({error.strerror}); make room, or say --without-files"
    return FoldersError(text, code="backup.files_not_written")


async def restore_folders(
    files: Files, archive: Path, cluster: str, progress: Callable[[int, int], None] | None = None
) -> Copied | None:
    """Put the parts of a copy into the store of a cluster; None if there are no shipped folders next to the copy.
    `cluster` is the one that was copied.

    Raises FoldersError if parts are missing or damaged, after all others were restored; and the log's errors."""
    try:
        listed = msgspec.json.decode(await asyncio.to_thread(list_beside(archive).read_bytes), type=Listed)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = f"{list_beside(archive)} can't be read ({error}); restore its backup, or say --without-files"
        raise FoldersError(text, code="backup.files_not_read") from None
    store, turns, lost, sizes = _Parts(archive.parent, cluster), asyncio.Semaphore(_AT_ONCE), list[str](), list[int]()
    await files.set_limits(listed.limits)

    async def put(tenant: str, name: str) -> None:
        async with turns:
            body = await asyncio.to_thread(store.read, name)
            if body is None:
                lost.append(name)
            else:
                await files.put(tenant, name, body)
                sizes.append(len(body))
        if progress is not None:
            progress(len(sizes) + len(lost), len(listed.parts))

    try:
        async with asyncio.TaskGroup() as tasks:
            for tenant, name in listed.parts:
                tasks.create_task(put(tenant, name))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    if lost:
        text = (
            f"{len(lost)} of {len(listed.parts)} parts of shipped folders are missing or damaged in {store.root}, such as "
            f"{min(lost)[:12]}; all else is restored.  Apps that need them say so, and start after they are submitted again"
        )
        raise FoldersError(text, code="backup.files_damaged")
    return Copied(len(sizes), sum(sizes))


def prune_folders(archives: Iterable[Path], folder: Path, cluster: str) -> None:
    """Remove the lists of copies that are gone, and parts that no copy needs.  A list that can't be read keeps all parts."""
    store = _Parts(folder, cluster)
    lists = {list_beside(path) for path in archives}
    stamped = re.compile(rf"{re.escape(cluster)}-\d{{8}}T\d{{6}}\.\d{{3}}Z{re.escape(_SUFFIX)}")
    for path in [path for path in folder.iterdir() if stamped.fullmatch(path.name) and path not in lists]:
        path.unlink(missing_ok=True)
    needed: dict[str, None] = {}
    for path in lists:
        try:
            needed |= dict.fromkeys(name for _, name in msgspec.json.decode(path.read_bytes(), type=Listed).parts)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return
    store.keep(needed)


class _Parts:
    """The folder of parts next to the copies of one cluster's log.  Every method blocks."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self.root = folder / f"{cluster}-files"

    def _path(self, name: str) -> Path:
        return self.root / name[:2] / name

    def read(self, name: str) -> bytes | None:
        """Return a part as it is stored; None if it is not there, or not what its name says."""
        try:
            body = self._path(name).read_bytes() if _HASH.fullmatch(name) else b""
        except OSError:
            return None
        return body if body and open_blob(name, body, UNPACKED_MANIFEST) is not None else None

    def size(self, name: str) -> int:
        """Return the bytes of an intact part, 0 if there is none."""
        return len(self.read(name) or b"")

    def write(self, name: str, body: bytes) -> int:
        """Write a part, and return its bytes.  Raises OSError."""
        make_folder(self._path(name).parent)
        _replace(self._path(name), body)
        return len(body)

    def keep(self, needed: dict[str, None]) -> None:
        """Remove all other parts."""
        for path in self.root.glob("??/*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)


def _replace(path: Path, body: bytes) -> None:
    """Write a file, whole or not at all.  Raises OSError."""
    unfinished = aside(path)  # Two tenants may have the same part.
    with create(unfinished) as file:  # The folder's group may read it, if it shares its folder.
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(unfinished, path)


# --- copies -----------------------------------------------------------------------------------------------------------

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
    """Copied parts of shipped folders; None if they were left out."""


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
        snapshot = await _read_back(target, done.last)
    except DormError:
        await asyncio.to_thread(target.rename, target.with_suffix(".damaged"))  # So that it never counts as a copy.
        raise
    shipped = await _copy_folders(files, target, cluster, progress) if files is not None else None
    removed, ahead = await asyncio.to_thread(_prune, target, cluster, keep)
    return Kept(str(target), done.records, done.bytes, snapshot, removed, ahead, shipped)


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


# --- restoring --------------------------------------------------------------------------------------------------------

_TRIES, _PAUSE_S = 100, 0.5


class RestoreError(DormError):
    """The backup was not restored."""

    code = "restore.failed"


class Restored(msgspec.Struct, frozen=True):
    """What the servers have now."""

    records: int
    digest: str


async def restore_log(
    log: ReadableLog,
    settings: Deployment,
    keys: KeyFolder,
    *,
    clock: Callable[[], int],
    progress: Progress | None = None,
) -> Restored:
    """Restore the whole log.  Raises RestoreError, SecurityError, CredentialsError, and the log's errors, after which the
    same call continues."""
    if not keys.exists:
        raise RestoreError(
            f"{keys.path} holds no keys of a cluster; restore their folder first, since the log names the keys in it",
            code="deploy.keys.missing",
        )
    name = await cluster_name(log)
    if name != settings.cluster:
        raise RestoreError(
            f"this is a backup of cluster {name}, and the settings are those of {settings.cluster}",
            code="restore.other_cluster",
        )
    state = await state_at(log)
    if state.known is None:
        raise RestoreError(
            f"cluster {name} knew no users: set `trust: false`, and use `dorm replay import`",
            code="restore.open_cluster",
        )
    url, own = settings.url(), keys.credentials(keys.admin())
    restorer = await asyncio.to_thread(keys.make_credentials, name, url, RESTORER, RESTORER)
    try:
        await _apply(keys, name, state.known, clock())
        await _admitted(restorer)
        done = await import_log(
            log, url, name, progress=progress, credentials=restorer, replicas=min(3, len(settings.servers))
        )
    finally:
        await asyncio.to_thread(keys.file_of(RESTORER).unlink, missing_ok=True)
        await _apply(keys, name, state.known, clock())
    await found(keys, own, url, (), clock=clock)
    arrived = await _digest(settings, keys)
    if arrived != digest(state):
        raise RestoreError(
            f"the records on the servers give the state {arrived}, and the backup's give {digest(state)}; empty the servers' "
            "folders and restore an earlier backup",
            code="restore.differs",
        )
    return Restored(done.records, arrived)


async def restore_shipped(
    archive: Path, settings: Deployment, keys: KeyFolder, progress: Progress | None = None
) -> Copied | None:
    """Restore the shipped folders next to a backup, after its log; None if there are none.  Raises FoldersError,
    CredentialsError, and the log's errors."""
    own = keys.credentials(keys.admin())
    connection = await Connection.open(
        settings.url(), settings.cluster, name="dorm-restore", credentials=own, patient=True
    )
    try:
        return await restore_folders(connection.log.files, archive, settings.cluster, progress)
    finally:
        await connection.close()


async def _admitted(restorer: Credentials) -> None:
    """Wait until the servers let it in: they have just been started, and read changed accounts a moment after the request.
    Raises LogRefused or LogUnavailable if they do not."""
    for tries in range(_TRIES):
        try:
            connection = await Connection.open(
                restorer.url, restorer.cluster, name="dorm-restore", credentials=restorer
            )
        except (LogRefused, LogUnavailable) as error:
            if error.code == "cluster.not_found":
                return
            if tries == _TRIES - 1:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            await connection.close()  # An interrupted import continues.
            return


async def _apply(keys: KeyFolder, cluster: str, known: Identities, now: int) -> None:
    await asyncio.to_thread(keys.write_known, cluster, known, now)
    await asyncio.to_thread(keys.reload)


async def _digest(settings: Deployment, keys: KeyFolder) -> str:
    own = keys.credentials(keys.admin())
    connection = await Connection.open(
        settings.url(), settings.cluster, name="dorm-restore", credentials=own, patient=True
    )
    try:
        return digest(await state_at(connection.log))
    finally:
        await connection.close()
