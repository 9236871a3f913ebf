"""Which stored parts of shipped folders stay: removed next to a master, and only while it leads.

A part is needed while an app that the state knows names its folder, or while it was stored lately.  A client that ships a
folder counts parts as missing once they are older than half of the time for which the cluster keeps them
(`dorm.workdir.shipping`), so a folder that was just shipped holds parts of at most that age.  A part that is older than
one and a half times that time, and that no app's folder names, therefore belongs to no folder that someone could still be
about to submit.

A tenant has a quota, and a client counts before it sends anything.  Servers know no quota for some subjects of a stream,
so another program can write more with the same credentials: the leading master checks once a minute, and removes parts
beyond a tenant's quota.  Parts that its apps name are kept first, then those that were stored earliest.  Between two
looks, such a program can still fill the store for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from events import subjects
from events.errors import DormError
from events.log.stores import EVERY_TENANT
from events.quantities import SECOND
from events.spec import Workdir, shipped
from events.subjects import token
from events.workdir import UNPACKED_MANIFEST, ManifestError, decode, open_blob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from dorm.core.state import State
    from dorm.master.master import Master
    from events.log.stores import Files, StoredBlob
    from events.workdir import Limits


# --- what is stored ---------------------------------------------------------------------------------------------------

_KEPT = 1.5


class Use(msgspec.Struct, frozen=True):
    """What one tenant has in the store."""

    tenant: str
    parts: int
    bytes: int
    """Compressed."""
    newest_at: int
    """UTC ns, when its latest part was stored."""
    folders: int
    """Number of different stored folders that its apps name."""


class Removed(msgspec.Struct, frozen=True):
    parts: int = 0
    bytes: int = 0


def named(state: State) -> list[tuple[str, str]]:
    """Return tenant (as a token) and hash of each folder that an app, or a submission without an answer, names; sorted."""
    folders = [
        (subjects.token(app.tenant or app.user), workdir.hash)
        for app in state.apps.values()
        if (workdir := shipped(app.spec)) is not None
    ]
    folders += [
        (subjects.token(waiting.tenant or waiting.by), hash)
        for waiting in state.submissions.values()
        if (hash := _submitted(waiting.spec))
    ]
    return sorted(set(folders))


def _submitted(spec: Any) -> str:
    """Return the hash in a document that is not checked yet, "" for none."""
    try:
        return msgspec.convert(spec.get("workdir") if isinstance(spec, dict) else None, Workdir).hash
    except msgspec.ValidationError:
        return ""


def uses(listed: Iterable[StoredBlob], folders: Collection[tuple[str, str]]) -> list[Use]:
    """Return the use of each tenant, the largest first."""
    by_tenant: dict[str, list[StoredBlob]] = {}
    for blob in (each for each in listed if each.size):
        by_tenant.setdefault(blob.tenant, []).append(blob)
    all_uses = [
        Use(
            tenant,
            len(blobs),
            sum(blob.size for blob in blobs),
            max(blob.time for blob in blobs),
            sum(1 for owner, _ in folders if owner == tenant),
        )
        for tenant, blobs in by_tenant.items()
    ]
    return sorted(all_uses, key=lambda use: (-use.bytes, use.tenant))


async def remove_unneeded(files: Files, state: State, now: int, keep_s: float, *, of: str = EVERY_TENANT) -> Removed:
    """Remove what no app names and what was not stored for one and a half times `keep_s`, at `now` (UTC ns): the earlier
    of the caller's clock and log time, so that neither clock alone, if it is ahead, makes anything old.  With `of`, give
    up that tenant's parts, as its own users may; masters remove them later.  Raises the log's
    errors."""
    before = now - int(_KEPT * keep_s * SECOND)
    folders = named(state)
    old = [
        blob
        for blob in await files.listed(of)
        if (blob.size or of == EVERY_TENANT) and (blob.time < before or not blob.size)
    ]
    needed = await needed_parts(files, folders, {blob.tenant for blob in old})
    unneeded = [blob for blob in old if (blob.tenant, blob.name) not in needed or not blob.size]
    for blob in unneeded:
        await (files.remove(blob) if of == EVERY_TENANT else files.give_up(blob))
    full = [blob for blob in unneeded if blob.size]
    return Removed(len(full), sum(blob.size for blob in full))


async def needed_parts(
    files: Files, folders: Collection[tuple[str, str]], tenants: Collection[str]
) -> set[tuple[str, str]]:
    """Return tenant and name of each part that folders of these tenants have, their lists included.  Raises the log's
    errors."""
    needed: set[tuple[str, str]] = set(folders)
    for tenant, hash in folders:
        if tenant in tenants:
            needed |= {(tenant, name) for name in await _parts(files, tenant, hash)}
    return needed


async def _parts(files: Files, tenant: str, hash: str) -> list[str]:
    """Return the names of a folder's parts, [] if the store has no list of them."""
    fetched = await files.get(tenant, hash)
    content = open_blob(hash, fetched[0], UNPACKED_MANIFEST) if fetched is not None else None
    try:
        return decode(content).names() if content is not None else []
    except ManifestError:
        return []


# --- quotas -----------------------------------------------------------------------------------------------------------


def room_of(limits: Limits, tenant: str, listed: Iterable[StoredBlob], *, replaced: Collection[str]) -> int:
    """Return how many bytes a tenant may still store: its quota without the blobs `listed` of it, except for those that are
    about to be `replaced`, by their names.  Negative if it exceeds its quota."""
    return limits.quota_of(token(tenant)) - sum(blob.takes for blob in listed if blob.name not in replaced)


async def enforce_quotas(files: Files, state: State, limits: Limits) -> dict[str, Removed]:
    """Remove parts beyond tenants' quotas; return them by tenant.  Raises the log's errors."""
    by_tenant: dict[str, list[StoredBlob]] = {}
    for blob in await files.listed():
        by_tenant.setdefault(blob.tenant, []).append(blob)
    over = {
        tenant: blobs
        for tenant, blobs in by_tenant.items()
        if sum(blob.takes for blob in blobs) > limits.quota_of(tenant)
    }
    if not over:
        return {}
    needed = await needed_parts(files, named(state), over)
    removals: dict[str, Removed] = {}
    for tenant, blobs in sorted(over.items()):
        room = limits.quota_of(tenant)
        removed: list[StoredBlob] = []
        for blob in sorted(blobs, key=lambda blob: ((blob.tenant, blob.name) not in needed, blob.time, blob.seq)):
            if blob.takes <= room:
                room -= blob.takes
            else:
                await files.remove(blob)
                removed.append(blob)
        removals[tenant] = Removed(len(removed), sum(blob.takes for blob in removed))
    return removals


# --- removing ---------------------------------------------------------------------------------------------------------

_EVERY_S = 60.0
"""Seconds between two checks of quotas."""
_LOOKS = 60
"""One check in this many also removes parts that no app needs."""
_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def keeping_while_leading(master: Master, files: Files) -> AsyncIterator[None]:
    """Check once a minute, while the body runs."""
    keeping = asyncio.create_task(_keep(files, lambda: master.state, lambda: master.leads), name="files")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _keep(files: Files, state: Callable[[], State], leads: Callable[[], bool]) -> None:
    for look in itertools.count(1):
        await asyncio.sleep(_EVERY_S)
        if not leads():
            continue
        try:
            limits = await files.limits()
            for tenant, beyond in (await enforce_quotas(files, state(), limits)).items():
                _log.warning(
                    "a tenant wrote more than its quota", tenant=tenant, count=beyond.parts, bytes=beyond.bytes
                )
            if look % _LOOKS:
                continue
            removed = await remove_unneeded(files, state(), min(time.time_ns(), state().time), limits.keep_s)
        except DormError as error:
            _log.info("the store of shipped folders can't be looked at", reason=str(error))
        else:
            if removed.parts:
                _log.info("parts of shipped folders are removed", count=removed.parts, bytes=removed.bytes)
