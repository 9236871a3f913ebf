"""Shipping a folder: into blobs and a manifest, to the cluster, and back.

Content is hashed and not kept, so a folder may be larger than memory.  A file must not change while it is read: its size
and its times have to be the same before and after.  A file that changes is read again, a few times; then the folder is
refused with that file's name.  Before sending, content is read again and must have the same hash, so no mixture of two
states is ever shipped.

Only what the cluster does not have yet is sent, the manifest last, so if there is one, its blobs are there.  A folder that
is there and was shipped lately needs one request.  A blob that is older than half of the time for which the cluster keeps
it counts as missing: sending it again renews its time, so nothing that a new spec names is about to be removed.

The manifest has the git commit that the folder is at, and whether the folder differs from it, for users who examine a run
later.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from agents.runtime.removing import delete
from agents.runtime.workdir import BlobCache, TenantBlobs, place, read_manifest
from dorm.workdir.errors import Changing, OverQuota, Unshippable
from dorm.workdir.ignoring import NoAnswer, ask_git, unfiltered
from dorm.workdir.keeping import room_of
from dorm.workdir.scanning import FoundFile, FoundLink, Scanned, Status, scan
from events.quantities import MEMORY, SECOND, humanize
from events.spec import Workdir
from events.workdir import (
    FULL,
    LARGEST_MANIFEST,
    SMALL,
    UNPACKED_MANIFEST,
    VERSION,
    File,
    Folder,
    Link,
    Manifest,
    ManifestError,
    Part,
    encode,
    ends_bundle,
    hash_of,
    pieces,
    seal_blob,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dorm.client.client import Client
    from events.log.stores import Files
    from events.workdir import Entry, Limits


# --- the git commit ---------------------------------------------------------------------------------------------------

_PATIENCE_S = 5.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Revision(NamedTuple):
    commit: str = ""
    """"" for a folder outside any repository, or if git does not answer in time."""
    changed: bool = False


async def revision_of(folder: Path) -> Revision:
    """Return the commit that the folder is at.  Files that git ignores do not count as a difference, and of a submodule only
    another commit does: git would start the filters that its own settings name."""
    try:
        # One call: the first lines are headers, the others are what differs below this folder.
        lines = (await asyncio.to_thread(_status, folder)).splitlines()
    except NoAnswer:
        return Revision()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    if not _COMMIT.fullmatch(commit):
        return Revision()
    return Revision(commit, any(not line.startswith("#") for line in lines))


def _status(folder: Path) -> str:
    """Return git's output about the folder, "" if it fails. Raises NoAnswer.

    It runs in a thread: where a process of asyncio's is cancelled while it ends, its exit status may be taken twice, and
    asyncio warns on stderr (python/cpython#127049).
    """
    command = (
        "status",
        "--porcelain=v2",
        "--branch",
        "--untracked-files=normal",
        "--ignore-submodules=dirty",
        "--",
        ".",
    )
    code, out = ask_git(folder, *command, timeout=_PATIENCE_S, settings=unfiltered(folder, _PATIENCE_S))
    return out.decode(errors="replace") if code == 0 else ""


# --- packing ----------------------------------------------------------------------------------------------------------

_PACK_TRIES = 3


class Source(NamedTuple):
    """Where a part of a blob is on this machine."""

    path: str
    offset: int
    size: int


class Packed(msgspec.Struct, frozen=True):
    """A folder, ready to be sent."""

    hash: str
    manifest: bytes
    blobs: dict[str, list[Source]]
    """Sources of blobs by their names, in the manifest's order."""
    files: int
    size: int
    """Bytes of all files together."""


class Packing:
    """One packing of one folder."""

    def __init__(self, root: Path, scanned: Scanned) -> None:
        self._root = root
        self._scanned = scanned
        self._blobs: dict[str, list[Source]] = {}
        self._places: dict[str, int] = {}
        self._entries: list[Entry] = []
        self._bundle: list[tuple[FoundFile, bytes]] = []
        self._bundled = 0

    def pack(self) -> Packed:
        """Read all files once.  Blocks.  Raises Unshippable, Changing."""
        for entry in self._scanned.entries:
            if isinstance(entry, FoundFile):
                self._file(entry)
            else:
                self._entries.append(
                    Link(entry.path, entry.target) if isinstance(entry, FoundLink) else Folder(entry.path)
                )
        self._end_bundle()
        entries = sorted(self._entries, key=lambda entry: entry.path)
        name, content = encode(Manifest(VERSION, [bytes.fromhex(blob) for blob in self._blobs], entries))
        sealed = seal_blob(content)
        if len(sealed) > LARGEST_MANIFEST or len(content) > UNPACKED_MANIFEST:
            raise Unshippable(
                f"{self._root}: the list of its {len(entries):,} files is too long; leave out what is not needed by lines in "
                ".dormignore",
                code="workdir.too_many_files",
            )
        files = sum(1 for entry in entries if isinstance(entry, File))
        return Packed(name, sealed, self._blobs, files, sum(e.size for e in entries if isinstance(e, File)))

    def _file(self, file: FoundFile) -> None:
        if file.status.size < SMALL:
            content = _whole(self._root, file)
            if self._bundled + len(content) > FULL:
                self._end_bundle()
            self._bundle.append((file, content))
            self._bundled += len(content)
            if ends_bundle(file.path):
                self._end_bundle()
        else:
            cut = _cut(self._root, file)
            parts = [Part(self._place(name, [Source(file.path, offset, size)]), 0, size) for name, offset, size in cut]
            self._entries.append(File(file.path, file.executable, parts))

    def _end_bundle(self) -> None:
        place = -1
        if self._bundled:
            sources = [Source(file.path, 0, len(content)) for file, content in self._bundle if content]
            place = self._place(hash_of(b"".join(content for _, content in self._bundle)), sources)
        offset = 0
        for file, content in self._bundle:
            parts = [Part(place, offset, len(content))] if content else []
            self._entries.append(File(file.path, file.executable, parts))
            offset += len(content)
        self._bundle, self._bundled = [], 0

    def _place(self, name: str, sources: list[Source]) -> int:
        if name not in self._places:
            self._places[name] = len(self._blobs)
            self._blobs[name] = sources
        return self._places[name]


def content_of(root: Path, name: str, sources: list[Source]) -> bytes:
    """Read a blob again, to send it.  Blocks.  Raises Changing if it has changed since it was packed."""
    content = bytearray()
    for source in sources:
        try:
            with _opened(root, source.path) as file:
                content += os.pread(file.fileno(), source.size, source.offset)
        except (OSError, Unshippable):
            raise Changing(source.path) from None
    if hash_of(bytes(content)) != name:
        raise Changing(sources[0].path if len(sources) == 1 else f"one of {sources[0].path} to {sources[-1].path}")
    return bytes(content)


def _whole(root: Path, source: FoundFile) -> bytes:
    """Return the content of a small file."""
    for _ in range(_PACK_TRIES):
        with _opened(root, source.path) as file:
            before = Status.of(os.fstat(file.fileno()))
            content = file.read(SMALL + 1)
            if Status.of(os.fstat(file.fileno())) == before and before.size == len(content):
                return content
    raise Changing(source.path)


def _cut(root: Path, source: FoundFile) -> list[tuple[str, int, int]]:
    """Return hash, offset and size of each piece of a large file."""
    for _ in range(_PACK_TRIES):
        with _opened(root, source.path) as file:
            before = Status.of(os.fstat(file.fileno()))
            cut = [(name, offset, size) for offset, size, name in _hashed(file.fileno(), before.size)]
            if Status.of(os.fstat(file.fileno())) == before and sum(size for _, _, size in cut) == source.status.size:
                return cut
    raise Changing(source.path)


def _hashed(descriptor: int, size: int) -> Iterator[tuple[int, int, str]]:
    for offset, length in pieces(size):
        content = os.pread(descriptor, length, offset)
        yield offset, len(content), hashlib.sha256(content).hexdigest()


def _opened(root: Path, path: str) -> BinaryIO:
    """Open a regular file; if it has become something else, such as a link, do not follow it."""
    try:
        descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Changing(path) from None
    except OSError as error:
        raise Unshippable(
            f"{path}: {error.strerror}; make it readable, or leave it out by a line in .dormignore",
            code="workdir.file.unreadable",
        ) from None
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise Changing(path)
    return file


# --- shipping ---------------------------------------------------------------------------------------------------------

_AT_ONCE = 8
_BESIDE = 256
"""The most bytes that a store keeps in addition to a part."""
_TRIES = 2
"""A folder that changed between packing and sending is packed once more."""


class Shipped(msgspec.Struct, frozen=True):
    """The result of shipping a folder."""

    workdir: Workdir
    blobs: int
    """Number of its parts, including its list of files."""
    sent: int
    """Number of parts that had to be sent."""
    sent_bytes: int
    """Their bytes, compressed."""
    scanned: Scanned
    """Entries of the folder, and those that are left out."""


async def ship(client: Client, folder: Path | str, *, user: str = "") -> dict[str, Any]:
    """Ship a folder for an app of this client; return what `workdir` has to be in a spec.  `user`: the app's, if an open
    cluster's spec names another one.  Raises Unshippable, and the log's errors."""
    shipped = await ship_folder(client.log.files, await tenant_of(client, user), Path(folder))
    document: dict[str, Any] = msgspec.to_builtins(shipped.workdir)
    return document


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
    report: Callable[[int, int], None] = lambda sent, of: None,
) -> Shipped:
    """Ship a folder for a tenant's apps.  `report` is called with the parts that are sent, and how many there are to send.
    Raises Unshippable, and the log's errors."""
    limits = await files.limits()
    for left in reversed(range(_TRIES)):
        try:
            return await _try_to_ship(files, tenant, folder, limits, clock, report)
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


async def _try_to_ship(
    files: Files,
    tenant: str,
    folder: Path,
    limits: Limits,
    clock: Callable[[], int],
    report: Callable[[int, int], None],
) -> Shipped:
    looking = asyncio.create_task(revision_of(folder))
    try:
        scanned = await asyncio.to_thread(scan, folder, limits)
        packed = await asyncio.to_thread(Packing(folder, scanned).pack)
        fresh_from = clock() - int(limits.keep_s / 2 * SECOND)
        sent, size = await _send(files, tenant, folder, packed, fresh_from, report)
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
    files: Files, tenant: str, folder: Path, packed: Packed, fresh_from: int, report: Callable[[int, int], None]
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
    report(0, len(missing) + 1)

    async def send(name: str) -> None:
        async with turns:
            body = await asyncio.to_thread(lambda: seal_blob(content_of(folder, name, packed.blobs[name])))
            await files.put(tenant, name, body)
            sizes.append(len(body))
            report(len(sizes) - 1, len(missing) + 1)

    try:
        async with asyncio.TaskGroup() as tasks:
            for name in missing:
                tasks.create_task(send(name))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    await files.put(tenant, packed.hash, packed.manifest)
    report(len(missing) + 1, len(missing) + 1)
    return len(missing) + 1, sum(sizes) + len(packed.manifest)


# --- the way back -----------------------------------------------------------------------------------------------------


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
    fetched = await files.get(tenant, name)
    if fetched is None:
        raise Unshippable(
            f"the cluster no longer has a part of this folder ({name[:12]}); what no app names is kept for a while only "
            "(`dorm files limits`)",
            code="workdir.gone",
        )
    await asyncio.to_thread(cache.put, name, fetched[0])
