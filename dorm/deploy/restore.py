"""Turns a backup into the log of a cluster that knows its users, on servers that run and are empty.

On such servers nobody may write other people's records, not even an admin. So during the restore the accounts contain a
restorer, who may; its key is created for it and removed afterwards. All other users are those at the end of the backup.

    RestoreError    the backup can't be this cluster's log, or is not what arrived on the servers
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from dorm.core.state import digest
from dorm.deploy.folders import restore_folders
from dorm.local.founding import found
from events.errors import DormError
from events.log.records import LogRefused, LogUnavailable
from events.nats.access import RESTORER
from events.nats.connection import Connection
from events.nats.importing import import_log
from replay.reading import cluster_name
from replay.travel.travel import state_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm.deploy.folders import Copied
    from dorm.deploy.settings import Deployment
    from dorm.security.folder import KeyFolder
    from events.identities import Identities
    from events.log.interface import ReadableLog
    from events.nats.access import Credentials
    from replay import Progress


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
