"""Sending a folder: only what the cluster does not have yet.

The manifest is sent last, so if there is one, its blobs are there.  A folder that is there and was shipped lately needs one
request.  A blob that is older than half of the time for which the cluster keeps it counts as missing: sending it again renews
its time, so nothing that a new spec names is about to be removed.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.workdir.errors import Changing, OverQuota
from dorm.workdir.packing import Packing, content_of
from dorm.workdir.quotas import room_of
from dorm.workdir.revision import revision_of
from dorm.workdir.scanning import Scanned, scan
from events.quantities import MEMORY, SECOND, humanize
from events.spec import Workdir
from events.workdir import seal_blob

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.client.client import Client
    from dorm.workdir.packing import Packed
    from events.log.stores import Files
    from events.workdir import Limits

_AT_ONCE = 8
_BESIDE = 256
"""The most bytes that a store keeps in addition to a part."""
_TRIES = 2
"""A folder that changed between packing and sending is packed once more."""


class Shipped(msgspec.Struct, frozen=True):
    """The result of shipping a folder."""

    workdir: Workdir
    blobs: int
    """Its parts, including its list of files."""
    sent: int
    """How many of them had to be sent."""
    sent_bytes: int
    """Their bytes, compressed."""
    scanned: Scanned
    """What is in the folder, and what is left out."""


async def ship(client: Client, folder: Path | str, *, user: str = "") -> dict[str, Any]:
    """Ship a folder for an app of this client; return what `workdir` has to be in a spec.  `user`: the app's, if an open
    cluster's spec names another one.  Raises Unshippable, and the log's errors."""
    shipped = await ship_folder(client.log.files, await tenant_of(client, user), Path(folder))
    found: dict[str, Any] = msgspec.to_builtins(shipped.workdir)
    return found


async def tenant_of(client: Client, user: str = "") -> str:
    """Return for whom this client ships: its tenant, or on an open cluster the app's user, by default the client's."""
    tenant = await client.glance(lambda state: state.known.tenant_of(client.user) if state.known is not None else "")
    return tenant or user or client.user


async def ship_folder(
    files: Files,
    tenant: str,
    folder: Path,
    *,
    clock: Callable[[], int] = time.time_ns,
    tell: Callable[[int, int], None] = lambda sent, of: None,
) -> Shipped:
    """Ship a folder for a tenant's apps.  `tell` is called with the parts that are sent, and how many there are to send.
    Raises Unshippable, and the log's errors."""
    limits = await files.limits()
    for left in reversed(range(_TRIES)):
        try:
            return await _once(files, tenant, folder, limits, clock, tell)
        except Changing:
            if not left:
                raise
    raise AssertionError("it returns or raises")


async def folder_as_shipped(files: Files, folder: Path) -> Workdir:
    """Return what `workdir` would be once the folder were shipped, and send nothing.  Raises Unshippable, and the log's
    errors."""
    scanned = await asyncio.to_thread(scan, folder, await files.limits())
    packed = await asyncio.to_thread(Packing(folder, scanned).pack)
    return Workdir(hash=packed.hash, files=packed.files, bytes=packed.size)


async def _once(
    files: Files,
    tenant: str,
    folder: Path,
    limits: Limits,
    clock: Callable[[], int],
    tell: Callable[[int, int], None],
) -> Shipped:
    looking = asyncio.create_task(revision_of(folder))
    try:
        scanned = await asyncio.to_thread(scan, folder, limits)
        packed = await asyncio.to_thread(Packing(folder, scanned).pack)
        fresh_from = clock() - int(limits.keep_s / 2 * SECOND)
        sent, size = await _send(files, tenant, folder, packed, fresh_from, tell)
        revision = await looking
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    workdir = Workdir(
        hash=packed.hash, files=packed.files, bytes=packed.size, commit=revision.commit, changed=revision.changed
    )
    return Shipped(workdir, len(packed.blobs) + 1, sent, size, scanned)


def _check_quota(folder: Path, packed: Packed, missing: list[str], room: int) -> None:
    """Refuse a folder whose missing parts, compressed as they are sent, do not fit into the tenant's quota: before any of them
    is sent.  Blocks.  Raises OverQuota, Changing."""
    needed = len(packed.manifest) + _BESIDE
    for name in missing:
        needed += len(seal_blob(content_of(folder, name, packed.blobs[name]))) + _BESIDE
        if needed > room:
            raise OverQuota(
                f"{folder} does not fit: {humanize(MEMORY, max(0, room))} are left of what you may ship: "
                "`dorm files purge --unused-for 1m` removes what no app of yours names, a line in .dormignore leaves out what "
                "is large, and an operator gives you more by `dorm files limits --quota-of YOU=SIZE`"
            )


async def _send(
    files: Files, tenant: str, folder: Path, packed: Packed, fresh_from: int, tell: Callable[[int, int], None]
) -> tuple[int, int]:
    """Send what is missing, or was stored before `fresh_from` (UTC ns).  Return how many parts that were, and their bytes."""
    there = await files.get(tenant, packed.hash)
    if there is not None and there[1] >= fresh_from:
        return 0, 0
    listed = await files.listed(tenant)
    have = {blob.name for blob in listed if blob.size and blob.time >= fresh_from}
    missing = [name for name in packed.blobs if name not in have]
    room = room_of(await files.limits(), tenant, listed, replaced={*missing, packed.hash})
    if packed.size + len(packed.manifest) + _BESIDE * len(missing) > room:
        await asyncio.to_thread(_check_quota, folder, packed, missing, room)
    turns, sizes = asyncio.Semaphore(_AT_ONCE), [0]
    tell(0, len(missing) + 1)

    async def send(name: str) -> None:
        async with turns:
            body = await asyncio.to_thread(lambda: seal_blob(content_of(folder, name, packed.blobs[name])))
            await files.put(tenant, name, body)
            sizes.append(len(body))
            tell(len(sizes) - 1, len(missing) + 1)

    try:
        async with asyncio.TaskGroup() as tasks:
            for name in missing:
                tasks.create_task(send(name))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    await files.put(tenant, packed.hash, packed.manifest)
    tell(len(missing) + 1, len(missing) + 1)
    return len(missing) + 1, sum(sizes) + len(packed.manifest)
