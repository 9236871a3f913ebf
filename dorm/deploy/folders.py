"""Shipped folders next to copies of a log: each part once, for all copies that need it.

    lab-files/3f/3f2a91c0…             a part, compressed, under the SHA-256 of what it holds
    lab-20260314T030007.512Z.files.json   which parts belong to that copy, of which tenant; and the cluster's limits

A part is valid if its content matches its name, both when it is copied and when it is restored. A part that another program
has stored under a wrong name belongs to no folder that an app could start with, so it is skipped.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING

import msgspec

from events.archive.files import create, make_folder
from events.durable import aside, put_in_place
from events.errors import DormError
from events.workdir import UNPACKED_MANIFEST, Limits, open_blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from events.log.stores import Files

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
            found = await files.get(tenant, name) if not size else None
            if found is not None and await asyncio.to_thread(open_blob, name, found[0], UNPACKED_MANIFEST) is not None:
                size = await asyncio.to_thread(store.write, name, found[0])
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
