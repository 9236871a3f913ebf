"""Bringing a shipped folder to a node, before a container that starts in it is created.

Fetched parts stay in the cache, so a call that takes too long gives up and the next one continues: a stop of the
container need not wait for gigabytes. Problems of the node or the servers are `Unavailable`, and the agent tries
again. If the cluster no longer has the folder, or it is invalid, this is the app's failure and ends the try with a
reason on the log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from agents.runtime.interface import Refused, Unavailable
from agents.runtime.workdir import read_manifest
from events.log.records import LogError
from events.spec import shipped
from events.workdir import BLOB, UNPACKED_MANIFEST, ManifestError, open_blob

if TYPE_CHECKING:
    from agents.runtime.workdir import BlobCache, TenantBlobs
    from events.log.stores import Files
    from events.parts import AppPart
    from events.workdir import Manifest

_WAIT_S = 15.0
"""Seconds that one call may take."""
_AT_ONCE = 8
_MOST_CHECKED = 10_000
_LOOKS, _PAUSE_S = 6, 0.5
"""Looks for a blob, and seconds in between: of several servers, one may be a moment behind."""


class Fetching:
    """The fetches of one node."""

    def __init__(self, files: Files, cache: BlobCache) -> None:
        self._files = files
        self._cache = cache
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stored = 0
        """Parts that have come, of all folders: a folder whose turn has not come yet waits for them."""
        self._checked: dict[str, None] = {}
        """Folders that are within the limits: once laid out, they need no server."""

    async def have(self, app: AppPart) -> None:
        """Return once the cache holds the folder that the app's containers start in; at once if there is none.  Raises
        Refused ("spec") if it can never be had, and Unavailable if it is not here yet."""
        workdir = shipped(app.spec)
        if workdir is None:
            return
        name, blobs = workdir.hash, self._cache.of(app.owner)
        turn = self._turns.setdefault(f"{app.owner}/{name}", asyncio.Lock())
        before = self._stored
        try:
            async with asyncio.timeout(_WAIT_S), turn:
                manifest = await self._manifest(app.owner, name, blobs)
                await self._check_size(name, manifest)
                await self._blobs(app.owner, manifest, blobs)
                await asyncio.to_thread(self._cache.trim)
        except TimeoutError:
            if self._stored == before:
                raise Unavailable(
                    f"nothing of its project folder {name[:12]} has come within {_WAIT_S:.0f} s", code="workdir.stalled"
                ) from None
            raise Unavailable(
                f"its project folder {name[:12]} is still being fetched; what is here stays here",
                code="workdir.fetching",
            ) from None
        except LogError as error:
            raise Unavailable(
                f"its project folder {name[:12]} can't be fetched: {error}", code="workdir.unreachable"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"its project folder {name[:12]} can't be kept on this node: {error.strerror}",
                code="workdir.not_writable",
            ) from error

    async def _manifest(self, tenant: str, name: str, blobs: TenantBlobs) -> Manifest:
        try:
            manifest = await asyncio.to_thread(read_manifest, blobs, name)
            if manifest is None:
                await self._fetch(tenant, name, UNPACKED_MANIFEST, blobs)
                manifest = await asyncio.to_thread(read_manifest, blobs, name)
            if manifest is None:
                raise Unavailable(
                    "the node's cache loses files that were just stored in it", code="workdir.not_writable"
                )
        except ManifestError as error:
            raise Refused(
                "spec", f"its project folder {name[:12]} can't be laid out: {error}", code=error.code
            ) from None
        return manifest

    async def _check_size(self, name: str, manifest: Manifest) -> None:
        """Raises Refused: the client checks the same, but a manifest may come from another program.  A few bytes in the cache
        may be a folder of terabytes, since files share parts of blobs."""
        if name in self._checked:
            return
        limits = await self._files.limits()
        if manifest.size > limits.total or len(manifest.entries) > limits.count:
            raise Refused(
                "spec",
                f"its project folder has {len(manifest.entries):,} entries and {manifest.size:,} bytes; the cluster takes "
                f"{limits.count:,} and {limits.total:,} (`dorm files limits`)",
                code="workdir.too_large",
            )
        self._checked[name] = None
        while len(self._checked) > _MOST_CHECKED:
            del self._checked[next(iter(self._checked))]

    async def _blobs(self, tenant: str, manifest: Manifest, blobs: TenantBlobs) -> None:
        missing = await asyncio.to_thread(lambda: [name for name in manifest.names() if not blobs.has(name)])
        if not missing:
            return
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def fetch(name: str) -> None:
            async with at_once:
                await self._fetch(tenant, name, BLOB, blobs)

        try:
            async with asyncio.TaskGroup() as tasks:
                for name in missing:
                    tasks.create_task(fetch(name))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _fetch(self, tenant: str, name: str, most: int, blobs: TenantBlobs) -> None:
        for look in range(_LOOKS):
            blob = await self._files.get(tenant, name)
            if blob is not None:
                stored = blob[0]
                if await asyncio.to_thread(open_blob, name, stored, most) is None:
                    break
                await asyncio.to_thread(blobs.put, name, stored)
                self._stored += 1
                return
            if look < _LOOKS - 1:
                await asyncio.sleep(_PAUSE_S)
        raise Refused(
            "spec",
            f"a part of its project folder is no longer in the cluster's store ({name[:12]}): submit it again from its "
            "folder, which ships what is missing",
            code="workdir.gone",
        )
