"""Files of apps, asked of the agents that see them: listed, and copied from and to apps.

Outputs and checkpoints are in the folder that all nodes share, so any node can answer for them, and another one does if
the first is gone.  Only a container's own node can answer for its private folder.

A file from an app is written under a name that says which version of the file it is, and renamed once its digest is right.
An interrupted copy therefore continues where it stopped, also in another process, and a file never appears incomplete
under its own name.  A file to an app is sent with several blocks under way at once.  Files that are there already, with
the same size and time, are not copied again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dorm.client.errors import ClientError
from dorm.core.app import App
from events import subjects
from events.copying import (
    BLOCK,
    FILES,
    LARGEST,
    MOST_FILES,
    PUT,
    Answer,
    Area,
    Block,
    CommitUpload,
    FileDigest,
    FileEntry,
    ListFiles,
    Listing,
    Place,
    ReadFile,
    Refusal,
    Stored,
    Tail,
    WriteBlock,
    Zeros,
    answer_decoder,
    digest_of,
    encode,
    is_zeros,
    next_block,
    write_at,
)
from events.log.records import LogRefused, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from dorm.client.client import Client
    from events.copying import Reading, Writing


# --- questions to agents ----------------------------------------------------------------------------------------------

_PATIENCE_S = 30.0
"""Seconds for which a question is repeated if no node answers: servers and agents come back after an outage."""
_PAUSE_S = 0.5
_ELSEWHERE = ("files.app_unknown", "files.not_mounted", "files.unavailable")
"""Refusals after which another node may have the files."""


class FilesRefused(ClientError):
    """An agent refuses a question about files, or none answers; the message says what to do."""

    code = "files.failed"


class Where(msgspec.Struct, frozen=True):
    """An area of an app's files, and the nodes that have it."""

    app: App
    area: Area
    nodes: list[str]
    generation: int = 0
    """Generation of the container whose `work` it is."""
    slot: int = 0

    def place(self, path: str) -> Place:
        return Place(self.app.id, self.area, path, generation=self.generation, slot=self.slot)


class Files:
    """Questions of one client.  A node that has answered is asked first from then on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._answered = ""

    async def find(self, name_or_id: str, area: Area = "outputs", *, rank: int | None = None) -> Where:
        """Return where an app's files are: of `work`, those of the container of this rank, default the first, in its latest
        generation.  Raises NotFound."""
        app = await self._client.app(name_or_id)
        if area == "work":
            ran = await self._client.output.generation(app)
            slot = ran.slot(rank=rank)
            return Where(app, area, [ran.nodes[slot]], ran.number, slot)
        state = await self._client.state()
        had = [
            container.node
            for _, generation in sorted(app.generations.items(), reverse=True)
            for container in generation.all_containers()
        ]
        up = [name for name, node in sorted(state.nodes.items()) if node.condition == "up" and not node.foreign]
        nodes = [*(name for name in had if name in up), *up]
        if not nodes:
            raise FilesRefused(
                f"no node is up that could have files of {app.name}; `dorm nodes` shows why", code="files.no_node"
            )
        return Where(app, area, list(dict.fromkeys(nodes)))

    async def listed(self, where: Where, path: str = "") -> list[FileEntry]:
        """Return the entries at a path: the file, or the folder with its content. Raises FilesRefused, and the bus's
        errors."""
        entries: list[FileEntry] = []
        async with contextlib.aclosing(self.read(where, ListFiles(where.place(path)))) as pieces:
            async for piece in pieces:
                if isinstance(piece, Listing):
                    entries += piece.entries
        return entries

    async def read(self, where: Where, question: Reading) -> AsyncGenerator[Answer, None]:
        """Yield the pieces of an answer from the first node that has the file.  Raises as `listed`; once a piece has
        come, the caller has to handle a lost connection."""
        async for piece in self._ask(where, FILES, encode(question)):
            yield piece

    async def write(self, where: Where, question: Writing) -> Stored:
        """Take one step of an upload.  Raises as `listed`."""
        async with contextlib.aclosing(self._ask(where, PUT, encode(question))) as pieces:
            async for piece in pieces:
                if isinstance(piece, Stored):
                    return piece
        raise FilesRefused("the agent did not say whether it took the file; copy it again", code="files.no_answer")

    async def _ask(self, where: Where, what: str, question: bytes) -> AsyncGenerator[Answer, None]:
        """Ask one node after the other, and again for a while if none answers."""
        loop = asyncio.get_running_loop()
        ends, begun = loop.time() + _PATIENCE_S, False
        while True:
            failed: Exception | None = None
            for node in sorted(where.nodes, key=lambda node: node != self._answered):
                try:
                    async for piece in self._pieces(where, node, what, question):
                        begun, self._answered = True, node
                        yield piece
                    return
                except FilesRefused as error:
                    if begun or error.code not in _ELSEWHERE:
                        raise
                    failed = error
                except LogUnavailable as error:
                    if begun:
                        raise
                    failed = failed or error
            if not isinstance(failed, LogUnavailable) or loop.time() > ends or failed.code == "agent.no_answer":
                raise self._no_answer(where, failed)
            await asyncio.sleep(_PAUSE_S)

    def _no_answer(self, where: Where, failed: Exception | None) -> Exception:
        if isinstance(failed, LogUnavailable) and failed.code == "agent.no_answer":
            return FilesRefused(
                f"no agent on {', '.join(where.nodes[:3])} answers for files of {where.app.name}: it does not run, or is "
                "older than 0.6.0; `dorm doctor` shows which",
                code="files.no_answer",
            )
        return failed or FilesRefused("no node was asked", code="files.no_node")

    async def _pieces(self, where: Where, node: str, what: str, question: bytes) -> AsyncGenerator[Answer, None]:
        bus = self._client.bus
        subject = subjects.ask(self._client.cluster, node, what, where.app.tenant if bus.guarded else "")
        try:
            async with contextlib.aclosing(bus.ask(subject, question)) as answer:
                async for body in answer:
                    piece = _decoded(body)
                    if isinstance(piece, Refusal):
                        raise FilesRefused(piece.text, code=piece.code)
                    yield piece
        except LogRefused as error:
            raise FilesRefused(str(error), code=error.code) from None


def _decoded(body: bytes) -> Answer:
    try:
        return answer_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise FilesRefused(
            "the agent's answer can't be read: it is of another release; upgrade the older of the two",
            code="files.answer.unreadable",
        ) from None


# --- upload -----------------------------------------------------------------------------------------------------------

_UNDER_WAY = 4
"""Blocks that are sent at once."""


async def upload(files: Files, where: Where, source: Path, path: str, done: Callable[[int], None]) -> None:
    """Copy a file to `path` of an area; call `done` with bytes as they are stored.  An upload of the same bytes to the same
    place continues where an earlier one stopped.  Raises FilesRefused, OSError, LogUnavailable."""
    file = await asyncio.to_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size > LARGEST:
            raise FilesRefused(f"{source} is not a regular file of at most {LARGEST:,} bytes", code="files.not_regular")
        try:
            digest = (await asyncio.to_thread(digest_of, file, size)).of(size)
            known = f"{where.app.id}\0{where.area}\0{path}\0{digest}".encode()
            id = hashlib.sha256(known).hexdigest()[:32]
            await _send(files, where, path, id, file, size, done)
        except EOFError:
            raise _changed(source) from None
        place = where.place(path)
        executable = bool(status.st_mode & 0o100)
        await files.write(where, CommitUpload(place, id, size, digest, status.st_mtime_ns, executable))
    finally:
        os.close(file)


async def _send(
    files: Files, where: Where, path: str, id: str, file: int, size: int, done: Callable[[int], None]
) -> None:
    place = where.place(path)
    reached = (await files.write(where, WriteBlock(place, id, 0, b""))).size
    # Blocks are stored in any order, so of the last ones some may be missing.
    at = max(0, min(reached, size) // BLOCK - _UNDER_WAY) * BLOCK
    done(at)
    room = asyncio.Semaphore(_UNDER_WAY)

    async def send(block: bytes, at: int) -> None:
        try:
            await files.write(where, WriteBlock(place, id, at, block))
            done(len(block))
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as tasks:
            while at < size:
                piece = await asyncio.to_thread(next_block, file, at, size)
                if isinstance(piece, int) or (piece and is_zeros(piece)):
                    length = piece * BLOCK if isinstance(piece, int) else len(piece)
                    done(length)
                elif not piece:
                    raise EOFError
                else:
                    length = len(piece)
                    await room.acquire()
                    tasks.create_task(send(piece, at))
                at += length
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _changed(source: Path) -> FilesRefused:
    return FilesRefused(f"{source} changed while it was copied; copy it again", code="files.changed")


# --- download ---------------------------------------------------------------------------------------------------------

_TRIES = 30
"""Number of times that a copy continues after a lost connection without a single new block."""
_DOWNLOAD_PAUSE_S = 1.0


def part_of(target: Path, entry: FileEntry) -> Path:
    """Return where this version of a file is written before it is complete."""
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    return target.with_name(f".dorm-{name}-{entry.size:x}-{entry.modified:x}.part")


async def download(
    files: Files, where: Where, path: str, entry: FileEntry, target: Path, done: Callable[[int], None]
) -> None:
    """Copy the file at `path` of an area, which was listed as `entry`, to `target`; call `done` with bytes as they arrive.
    Raises FilesRefused, OSError, and LogUnavailable after many tries."""
    part = part_of(target, entry)
    copy = _Copy(part, entry)
    try:
        done(await asyncio.to_thread(copy.open))
        tries = 0
        while not copy.complete:
            before = copy.at
            try:
                question = ReadFile(where.place(path), copy.at, entry.size, entry.modified)
                async with contextlib.aclosing(files.read(where, question)) as pieces:
                    async for piece in pieces:
                        match piece:
                            case Block(data):
                                await asyncio.to_thread(copy.write, data)
                                done(len(data))
                            case Zeros(blocks):
                                copy.skip(blocks)
                                done(blocks * BLOCK)
                            case Tail(digest):
                                await asyncio.to_thread(copy.finish, digest)
                            case _:
                                pass
            except LogUnavailable:
                tries = tries + 1 if copy.at == before else 0
                if tries > _TRIES:
                    raise
                await asyncio.sleep(_DOWNLOAD_PAUSE_S)
    finally:
        copy.close()
    await asyncio.to_thread(_rename, part, target, entry)


def _rename(part: Path, target: Path, entry: FileEntry) -> None:
    os.utime(part, ns=(entry.modified, entry.modified))
    if entry.executable:
        part.chmod(part.stat().st_mode | 0o100)
    part.replace(target)


class _Copy:
    """What of the file is here."""

    def __init__(self, part: Path, entry: FileEntry) -> None:
        self._part = part
        self._size = entry.size
        self._file = -1
        self._digest = FileDigest()
        self.at = 0
        self.complete = False

    def open(self) -> int:
        """Open it; return how many bytes are here already."""
        self._file = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        here = min(os.fstat(self._file).st_size, self._size) // BLOCK * BLOCK
        with contextlib.suppress(EOFError):
            self._digest = digest_of(self._file, here)
            self.at = here
        return self.at

    def write(self, data: bytes) -> None:
        write_at(self._file, data, self.at)
        self._digest.add(data)
        self.at += len(data)

    def skip(self, blocks: int) -> None:
        """Leave a hole, which has its size on disk once something follows, or at the end."""
        self._digest.add_zeros(blocks)
        self.at += blocks * BLOCK

    def finish(self, digest: str) -> None:
        os.ftruncate(self._file, self._size)
        if self.at != self._size or self._digest.of(self._size) != digest:
            self._part.unlink(missing_ok=True)
            raise FilesRefused(
                f"{self._part.name} did not arrive as it was sent; copy it again", code="files.copy.damaged"
            )
        os.fsync(self._file)
        self.complete = True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# --- which files a copy consists of -----------------------------------------------------------------------------------

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
    reported = progress or Progress()
    entries = await files.listed(where, path)
    name = path.strip("/").rpartition("/")[2] or where.area
    final = target / name if await asyncio.to_thread(target.is_dir) else target
    if entries and entries[0].kind == "other" and not entries[0].path:
        raise FilesRefused(f"{path} can't be copied: {entries[0].note}", code="files.not_regular")
    plan = [(entry, _inside(final, entry.path)) for entry in entries if entry.kind == "file"]
    due = [(entry, to) for entry, to in plan if not await asyncio.to_thread(_is_here, entry, to)]
    for entry in entries:
        if entry.kind == "other":
            reported.skip(entry.path, entry.note)
    reported.plan(len(due), sum(entry.size for entry, _ in due))
    folders = [_inside(final, entry.path) for entry in entries if entry.kind == "folder"]
    await asyncio.to_thread(_make, [*folders, final.parent])

    async def one(entry: FileEntry, to: Path) -> None:
        source = "/".join(part for part in (path.strip("/"), entry.path) if part)
        await download(files, where, source, entry, to, reported.done)

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
    reported = progress or Progress()
    there = await _there(files, where, path)
    base = path.strip("/")
    if not base or path.endswith("/") or there.get("", FileEntry("", "file")).kind == "folder":
        name = (await asyncio.to_thread(source.absolute)).name
        base = f"{base}/{name}" if base else name
        there = await _there(files, where, base)
    sources, skipped = await asyncio.to_thread(_local, source)
    for left in skipped:
        reported.skip(left, "neither a file nor a folder, or a link to a folder")
    due = [(entry, file) for entry, file in sources if not _is_there(entry, there.get(entry.path))]
    reported.plan(len(due), sum(entry.size for entry, _ in due))

    async def one(entry: FileEntry, file: Path) -> None:
        await upload(files, where, file, f"{base}/{entry.path}" if entry.path else base, reported.done)

    await _each(lambda: (one(entry, file) for entry, file in due))
    return _copied(due, len(sources), len(skipped))


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
    files: list[tuple[FileEntry, Path]] = []
    skipped: list[str] = []
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted([*names, *(link for link in folders if Path(folder, link).is_symlink())]):
            file = Path(folder, name)
            place = file.relative_to(source).as_posix()
            if not file.is_file():
                skipped.append(place)
                continue
            status = file.stat()
            files.append((FileEntry(place, "file", size=status.st_size, modified=status.st_mtime_ns), file))
        if len(files) > MOST_FILES:
            raise FilesRefused(
                f"{source} has more than {MOST_FILES:,} files; copy parts of it, or an archive", code="files.too_many"
            )
    return files, skipped


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


# --- files ------------------------------------------------------------------------------------------------------------

__all__ = ["Files", "FilesRefused", "Where", "copy_from", "copy_to"]
