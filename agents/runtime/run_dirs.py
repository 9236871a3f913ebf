"""The folders of a node's containers on the host, created and removed atomically, even across crashes.

    ROOT/lock            held by the runtime that has it open
    ROOT/lease           until when containers may run (`agents.lease`)
    ROOT/identity        the root's permanent id; on a shared engine, only containers that carry it are the node's
    ROOT/tenant          whose apps it runs, if its runtime confines nothing
    ROOT/workdirs/       parts of shipped folders (`agents.runtime.workdir`)
    ROOT/APP-GEN-SLOT/   one container: the runtime's own records, out of the app's reach if it is confined
        home/up/run/                the private directory that the app sees
        home/up/run/progress.jsonl  what DORM_PROGRESS names, beside the files that the app's engine wants there
        project/up/work/            its copy of the project folder that its app ships, if it does

Programs start in one of the last two, and many write next to it: `../log`, `../../data`.  So the two folders above each are
the app's own too, and empty.  Earlier releases had `run` and `work` right in the container's folder; containers that they made
keep their places.

A folder is filled under a name with a leading dot and then renamed, and renamed before it is emptied, so a visible folder is
always complete.  Every method blocks: call it from a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agents import lease
from agents.runtime.interface import PROGRESS_FILE, Conflict, Displaced, Key, Refused, Unavailable, key_name
from agents.runtime.long_work import LongWork, Remains
from agents.runtime.removing import delete
from agents.runtime.workdir import FOLDER, BlobCache, TenantBlobs, place
from events.durable import write_whole
from events.workdir import ManifestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_IDENTITY: Final = re.compile(r"[0-9a-f]{32}\n")
_LOCK_S: Final = 0.3
"""Seconds to wait for a killed agent's lock: a child that it was just starting may still hold it for a moment."""


RUN: Final = Path("home", "up", "run")
"""The private directory, below a container's folder."""
_WORK: Final = Path("project", "up", "work")


def work_copy(run_dir: Path) -> Path:
    """Return where the copy of the project folder is, if there is one, of the container with this private directory."""
    if run_dir.parts[-len(RUN.parts) :] != RUN.parts:  # an earlier release made it
        return run_dir.with_name("work")
    return run_dir.parents[len(RUN.parts) - 1] / _WORK


class RunDirs:
    """The folders below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.blobs = BlobCache(self.root / FOLDER)
        self.work = LongWork("containers' folders")
        """Threads for the work of `make`, by tenant."""
        self._remains = Remains(delete)
        self._lock = -1

    def open(self) -> None:
        """Create and lock the root; remove directories that a crash left half created or half removed.

        Raises `Conflict` if another runtime has it open, `OSError` if the root cannot be written.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._lock >= 0:
            return
        lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not lock_soon(lock):
            os.close(lock)
            raise Conflict(
                f"another agent holds {self.root}: each node needs a folder of its own", code="node_folder.in_use"
            )
        self._lock = lock
        for left in self.root.glob(".*-*"):
            self._remains.put(left)

    def check(self) -> None:
        """Raises `Displaced` if the root was removed or replaced since it was opened: then containers missing below it may
        still run, and those below it may be another agent's."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if self._lock < 0 or os.path.samestat(os.fstat(self._lock), os.stat(self.root / "lock")):
                return
        raise Displaced(
            f"{self.root} was removed or replaced while the agent ran: its containers are killed, at the latest when the "
            "node's lease ends; start the agent again"
        )

    def close(self) -> None:
        """Release the root for another runtime."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError, Displaced):
            self.check()
            if self._lease.exists():
                lease.write(str(self._lease), lease.deadline(str(self._lease)), 0)
        os.close(self._lock)
        self._lock = -1

    @property
    def _lease(self) -> Path:
        return self.root / lease.FILE

    async def extend_lease(self, deadline: int) -> None:
        """Set the lease's deadline, in the time of `agents.lease`.  Raises `Unavailable`, `Displaced`."""

        def extend() -> None:
            self.check()
            lease.write(str(self._lease), deadline, os.getpid())

        try:
            await asyncio.to_thread(extend)
        except OSError as failure:
            raise Unavailable(
                f"the lease cannot be written to {self._lease}: {failure.strerror}", code="node_lease.not_writable"
            ) from failure

    def locked(self, name: str) -> bool:
        """Return whether a process holds the lock file of this name, such as the guard of the lease."""
        lock = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    async def check_lease(self) -> None:
        """Check the lease before a start.  Raises `Unavailable` if it has expired, `Displaced`."""
        left = await self.lease_left()
        if left is not None and left <= 0:
            raise Unavailable(
                "the node's lease has ended, so nothing is started until it is extended", code="node_lease.expired"
            )

    async def lease_left(self) -> float | None:
        """See `Runtime.lease_left`.  Raises `Displaced`."""

        def left() -> float | None:
            self.check()
            return lease.left(str(self._lease))

        return await asyncio.to_thread(left)

    def identity(self) -> str:
        """Return 32 hex digits unique to this root: drawn at the first call, then constant.  Needs the lock.

        Raises `Conflict` if the file is malformed: another identity would orphan the running containers.
        """
        path = self.root / "identity"
        if not path.exists():
            self._keep("identity", f"{secrets.token_hex(16)}\n")  # before a container carries it
        text = path.read_text(errors="replace")
        if not _IDENTITY.fullmatch(text):
            raise Conflict(
                f"{path} holds no identity: put back its 32 hex digits, the label dorm.owner of its containers",
                code="identity.malformed",
            )
        return text.strip()

    def served(self) -> str:
        """Return the tenant that this root serves, "" if none has asked, or if its name can't be read.  Blocks."""
        try:
            return (self.root / "tenant").read_text(errors="replace")
        except OSError:
            return ""

    def serve(self, tenant: str) -> str:
        """Return the tenant that this root serves: the first one that asked; "" if its record is damaged.  Blocks.  Raises
        OSError."""
        path = self.root / "tenant"
        if not path.exists():
            self._keep("tenant", tenant)
        text = path.read_text(errors="replace")
        return text if text.isprintable() and "\ufffd" not in text else ""

    def _keep(self, name: str, text: str) -> None:
        """Write a record of the root, which no loss of power takes away or cuts off."""
        write_whole(self.root / name, text.encode())

    def container_dir(self, key: Key) -> Path:
        """Return the folder of the runtime's records of one container."""
        return self.root / key_name(key)

    def run_dir(self, key: Key) -> Path:
        """Return the directory that the app sees as its own."""
        earlier, run = self.container_dir(key) / "run", self.container_dir(key) / RUN
        return earlier if earlier.is_dir() and not run.is_dir() else run

    def work_dirs(self, key: Key) -> tuple[Path, ...]:
        """Return its copy of the project folder, which is there if its app ships one, after the folders above it that are the
        app's too, the outermost first."""
        work, container = work_copy(self.run_dir(key)), self.container_dir(key)
        return (*reversed([above for above in work.parents if container in above.parents]), work)

    def container_keys(self) -> list[Key]:
        """Return the keys of all folders, sorted.  Raises `Displaced`."""
        self.check()
        keys = []
        for entry in self.root.iterdir():
            app, *numbers = entry.name.rsplit("-", 2)
            if app and app[0] != "." and len(numbers) == 2 and all(n.isdecimal() for n in numbers):
                keys.append(Key(app, int(numbers[0]), int(numbers[1])))
        return sorted(keys)

    def make(
        self,
        key: Key,
        fill: Callable[[Path], None] | None = None,
        *,
        files: Mapping[str, str] | None = None,
        owner: tuple[int, int] | None = None,
        workdir: str = "",
        tenant: str = "",
    ) -> bool:
        """Create one container's folder with `files` in its private directory, let `fill` put records in it, lay out the
        shipped folder of `tenant` with the hash `workdir`, then make it visible.  The directories are `owner`'s (uid, gid),
        None for the agent's own user; any other requires root.  Return False if it existed.  Raises OSError, and Refused
        ("spec") for a shipped folder that can't be laid out."""
        final = self.container_dir(key)
        if final.is_dir():
            return False
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            _make_parents(new, RUN, owner or _own())
            _make_run(new / RUN, files or {}, owner or _own())
            if workdir:
                _make_parents(new, _WORK, owner or _own())
                _place(self.blobs.of(tenant), workdir, new / _WORK, owner or _own())
            if fill is not None:
                fill(new)
            os.rename(new, final)  # refuses a target that is not empty, created by another call
        except (OSError, Refused) as failure:
            self._remains.put(new)
            if final.is_dir() and isinstance(failure, OSError):
                return False
            raise
        return True

    async def put_file(self, key: Key, name: str, content: bytes) -> None:
        """Replace a file in the private directory.  Raises KeyError, `Unavailable`."""
        try:
            await asyncio.to_thread(self.put, key, name, content)
        except OSError as failure:
            reason = f"{name} cannot be written: {failure.strerror}"
            raise Unavailable(
                f"{key}: {reason}", code="container.folder.not_writable", doing="create", said=reason
            ) from failure

    async def put_files(self, key: Key, files: Mapping[str, bytes]) -> None:
        """Write the files that a container finds at its start. Raises `Unavailable`, also if the directory was
        removed in between: the next try creates it again."""
        try:
            for name, content in files.items():
                await self.put_file(key, name, content)
        except KeyError:
            raise Unavailable(f"{key} was removed while it was started", code="container.removed") from None

    def put(self, key: Key, name: str, content: bytes) -> None:
        """Replace a file in the private directory in one step.  The app may have put links there, so none is followed.  Raises
        KeyError if there is no such directory, OSError."""
        try:
            folder = os.open(self.run_dir(key), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise KeyError(key) from None
        try:
            _put(folder, name, content)
        finally:
            os.close(folder)

    def remove(self, key: Key) -> None:
        """Delete one container's folder; a missing one is not an error.  The app's own files are removed later."""
        gone = Path(tempfile.mkdtemp(prefix=".gone-", dir=self.root))
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.container_dir(key), gone)  # replaces the empty folder in one step
        self._remains.put(gone)


def lock_soon(descriptor: int) -> bool:
    """Take the lock of an open file or folder (flock(2)); return whether it was free, after a moment if need be.  Blocks."""
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _own() -> tuple[int, int]:
    return os.getuid(), os.getgid()


def _make_parents(container: Path, inner: Path, owner: tuple[int, int]) -> None:
    """Make the empty folders between a container's folder and one of the app's."""
    for above in reversed(inner.parents[:-1]):
        (container / above).mkdir(mode=0o700)
        _give(container / above, owner)


def _make_run(run: Path, files: Mapping[str, str], owner: tuple[int, int]) -> None:
    """Fill the private directory before any program can see it, so that no link of an app's leads the agent astray."""
    run.mkdir(mode=0o700)
    for name, text in {PROGRESS_FILE: "", **files}.items():
        path = run / name
        path.touch(mode=0o600)
        path.write_text(text)
        _give(path, owner)
    _give(run, owner)


def _give(path: Path, owner: tuple[int, int]) -> None:
    if owner != _own():
        os.chown(path, *owner)


def _place(blobs: TenantBlobs, workdir: str, target: Path, owner: tuple[int, int]) -> None:
    try:
        place(blobs, workdir, target, owner)
    except ManifestError as error:
        text = f"its project folder {workdir[:12]} can't be laid out: {error}"
        raise Refused("spec", text, code=error.code) from None


def _put(folder: int, name: str, content: bytes) -> None:
    """Replace a file in an open folder; the file belongs to the folder's owner, as whom the container runs."""
    status = os.fstat(folder)
    aside = f".{name}.{secrets.token_hex(8)}"
    file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as writable:
            writable.write(content)
            if (status.st_uid, status.st_gid) != _own():
                os.fchown(writable.fileno(), status.st_uid, status.st_gid)
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=folder)
        raise
