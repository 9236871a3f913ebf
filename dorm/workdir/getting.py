"""A shipped folder back on this machine, as nodes lay it out."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agents.runtime.removing import delete
from agents.runtime.workdir import BlobCache, TenantBlobs, place, read_manifest
from dorm.workdir.errors import Unshippable
from events.workdir import ManifestError

if TYPE_CHECKING:
    from events.log.stores import Files


async def get_folder(files: Files, tenant: str, hash: str, to: Path) -> None:
    """Lay out a tenant's folder at `to`.  Raises Unshippable if the cluster no longer has it or `to` exists, OSError, and
    the log's errors."""
    aside = await asyncio.to_thread(_aside, to)
    try:
        cache = BlobCache(aside / "blobs").of(tenant)
        await _fetch(files, cache, tenant, hash)
        try:
            manifest = await asyncio.to_thread(read_manifest, cache, hash)
        except ManifestError as error:
            raise Unshippable(f"the folder {hash[:12]} can't be laid out: {error}", code=error.code) from None
        for name in manifest.names() if manifest is not None else ():
            await _fetch(files, cache, tenant, name)
        await asyncio.to_thread(place, cache, hash, aside / "folder", (os.getuid(), os.getgid()))
        (aside / "folder").rename(to)
    finally:
        await asyncio.to_thread(delete, aside)


def _aside(to: Path) -> Path:
    """Return a new folder beside `to`, on the same disk."""
    if to.exists():
        raise Unshippable(f"{to}: it is there already; name a folder that is not", code="workdir.exists")
    return Path(tempfile.mkdtemp(dir=to.absolute().parent, prefix=".dorm-"))


async def _fetch(files: Files, cache: TenantBlobs, tenant: str, name: str) -> None:
    if cache.has(name):
        return
    found = await files.get(tenant, name)
    if found is None:
        raise Unshippable(
            f"the cluster no longer has a part of this folder ({name[:12]}); what no app names is kept for a while only "
            "(`dorm files limits`)",
            code="workdir.gone",
        )
    await asyncio.to_thread(cache.put, name, found[0])
