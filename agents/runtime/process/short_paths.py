"""Short paths to the folders of a node's containers, for the sockets that programs make below TMPDIR and HOME.

The path of a Unix socket has at most 107 bytes (unix(7)), while apps' names and data folders have any length.  A container's
folder stays on the node's disk, where its data belongs, and its program reaches it by a link that has at most 27 characters:

    PLACE/dorm-XXXXXXXX/       one folder for each root, of its user alone and with a random name, which ROOT/short keeps
    PLACE/dorm-XXXXXXXX/root   leads to the root
    PLACE/dorm-XXXXXXXX/YYYY   leads to ROOT/APP-GEN-SLOT, which keeps this path in its own file `short`

The kernel measures the path that it is given, and follows links afterwards.  The link is never the last name of a path that a
program gets: `find $HOME` and `rm -r $TMPDIR` see a folder there.  Only a program that resolves links itself has the long
path.

PLACE holds nothing but links, so it may be small or in memory.  In a place that all users share, the sticky bit (chmod(1))
protects the folder, which no other user can make in advance, since a name that exists is never taken.  Its agent holds a lock
(flock(2)) on it, which keeps systemd-tmpfiles(8) and the agents of other roots from it, and makes it and its links
again should something else remove them.  An agent that leaves no running container removes it; after a crash, any agent of the
same user does, an hour later, if its root is gone or uses another one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import stat
import string
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from agents.runtime.interface import Displaced
from agents.runtime.removing import delete
from agents.runtime.run_dirs import lock_soon

if TYPE_CHECKING:
    from agents.runtime.run_dirs import RunDirs

PLACES: Final = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Places for short paths, in the order in which they are tried; the first is emptied whenever the machine starts."""
RECORD: Final = "short"
_ROOT: Final = "root"
_FOLDER: Final = re.compile(r"dorm-[0-9a-f]{8}")
_LINK: Final = re.compile(r"[0-9a-z]{4}")
_TRIES: Final = 100
_MOST_ENTRIES: Final = 10_000
"""Number of entries of a place that are looked at: other users may fill it."""
ABANDONED_S: Final = 3600.0
"""Seconds after an agent has last touched its folder: longer than the lease of any node, so no container uses it."""
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_log = structlog.get_logger(__name__)


class ShortPaths:
    """The short paths of one root.  Every method blocks: call it from a thread."""

    def __init__(self, dirs: RunDirs) -> None:
        """`dirs`: the root, which the caller has open meanwhile."""
        self._dirs = dirs
        self._guard = threading.Lock()
        self._folder = -1
        self._path = Path()

    def open(self) -> None:
        """Make the links of all containers again, and remove those of containers that are gone."""
        self._keep(clean=True)

    def keep(self) -> None:
        """Make the folder and links again that something has removed."""
        self._keep(clean=False)

    def _keep(self, *, clean: bool) -> None:
        with self._guard:
            try:
                self._hold()
                os.utime(self._folder)
                self._restore(clean=clean)
            except (OSError, Displaced) as failure:
                _log.warning("no short paths for containers", folder=str(self._dirs.root), reason=str(failure))

    def make(self, folder: Path) -> Path:
        """Return a new short path to a container's folder, which need not exist yet.  Raises OSError."""
        with self._guard:
            self._hold()
            for _ in range(_TRIES):
                name = "".join(secrets.choice(string.digits + string.ascii_lowercase) for _ in range(4))
                if name != _ROOT:
                    with contextlib.suppress(FileExistsError):
                        os.symlink(folder, name, dir_fd=self._folder)
                        return self._path / name
        raise FileExistsError(errno.EEXIST, f"{self._path} has no room for another link")

    def works(self, folder: Path) -> bool:
        """Return whether the container in this folder has a short path, after making it again if something removed it."""
        path = recorded(folder)
        if path is None:
            return False
        for mend in (False, True):
            if mend:
                self.keep()
            with self._guard, contextlib.suppress(OSError):
                held = self._folder >= 0 and path.parent == self._path and _is_at(self._folder, self._path)
                if held and os.path.samefile(path, folder):
                    return True
        return False

    def remove(self, path: Path | None) -> None:
        """Remove a short path, None for none."""
        with self._guard:
            if path is not None and self._folder >= 0 and path.parent == self._path:
                with contextlib.suppress(OSError):
                    os.unlink(path.name, dir_fd=self._folder)

    def close(self, *, used: bool) -> None:
        """Release the folder, and remove it unless a container uses it."""
        with self._guard:
            if self._folder < 0:
                return
            if not used and _is_at(self._folder, self._path):
                delete(self._path)
            os.close(self._folder)
            self._folder = -1

    def _hold(self) -> None:
        """Open and lock the folder that the root names, or a new one if that one is not available.  Raises
        OSError."""
        if self._folder >= 0:
            if _is_at(self._folder, self._path):
                return
            os.close(self._folder)
            self._folder = -1
        record = self._dirs.root / RECORD
        named = Path(_read(record))
        known = [named] if named.parent in PLACES and _FOLDER.fullmatch(named.name) else []
        for path in (*known, *(place / f"dorm-{secrets.token_hex(4)}" for place in PLACES)):
            folder = _taken(path, self._dirs.root, may_exist=path in known)
            if folder < 0:
                continue
            try:
                if path not in known:
                    record.with_name("short.new").write_text(str(path))
                    record.with_name("short.new").replace(record)
            except OSError:
                os.close(folder)
                raise
            self._folder, self._path = folder, path
            return
        places = ", ".join(map(str, PLACES))
        raise OSError(
            errno.EACCES, f"none of {places} can hold its short path: let the agent write to one (chmod 1777)"
        )

    def _restore(self, *, clean: bool) -> None:
        """Have a link for each container that was given one here; with `clean`, no other."""
        wanted = {_ROOT: self._dirs.root}
        for key in self._dirs.container_keys():
            folder = self._dirs.container_dir(key)
            path = recorded(folder)
            if path is not None and path.parent == self._path:
                wanted[path.name] = folder
        for name in os.listdir(self._folder) if clean else ():
            if name not in wanted:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)
        for name, target in wanted.items():
            if _target(name, self._folder) != str(target):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._folder)
                os.symlink(target, name, dir_fd=self._folder)


def remove_abandoned() -> None:
    """Remove the folders of this user's agents that have died and whose root is gone or uses another folder by now.  It reads
    these roots, whose disks may not answer: the caller gives it a thread of its own."""
    for place in PLACES:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in itertools.islice(entries, _MOST_ENTRIES):
                if _FOLDER.fullmatch(entry.name):
                    with contextlib.suppress(OSError):
                        _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    folder = os.open(path, _OPEN)
    try:
        if not _is_ours(folder) or time.time() - os.fstat(folder).st_mtime < ABANDONED_S:
            return
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its agent lives
        root = _target(_ROOT, folder)
        if not _is_at(folder, path):
            return
        if root is None:
            path.rmdir()  # an agent died when it had just made it; what is not empty is something else's
        elif _read(Path(root, RECORD)) != str(path):
            delete(path)
    finally:
        os.close(folder)


def note(new: Path, path: Path) -> None:
    """Keep a container's short path in its folder that is being filled.  Raises OSError."""
    (new / RECORD).write_text(str(path))


def recorded(folder: Path) -> Path | None:
    """Return the short path that a container was given, None if it has none."""
    try:
        path = Path(_read(folder / RECORD))
    except OSError:
        return None
    parent = path.parent
    return path if parent.parent in PLACES and _FOLDER.fullmatch(parent.name) and _LINK.fullmatch(path.name) else None


def _taken(path: Path, root: Path, *, may_exist: bool) -> int:
    """Return a descriptor of the folder, made and locked for this root; -1 if it can't be had."""
    made = False
    try:
        place = os.stat(path.parent)
        if place.st_mode & 0o022 and not place.st_mode & stat.S_ISVTX:  # others could exchange what is ours there
            return -1
        with contextlib.suppress(*((FileExistsError,) if may_exist else ())):
            os.mkdir(path, 0o700)
            made = True
        folder = os.open(path, _OPEN)
    except OSError:
        return -1
    try:
        if _is_ours(folder) and lock_soon(folder) and _is_at(folder, path):
            if _target(_ROOT, folder) is None:
                os.symlink(root, _ROOT, dir_fd=folder)
            # Some mounts follow no links.
            if _target(_ROOT, folder) == str(root) and os.path.samefile(path / _ROOT, root):
                return folder
    except OSError as failure:
        _log.info("no folder for short paths", path=str(path), reason=failure.strerror)
    if made:
        delete(path)
    os.close(folder)
    return -1


def _is_ours(folder: int) -> bool:
    status = os.fstat(folder)
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _is_at(folder: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), os.lstat(path))
    except OSError:
        return False


def _target(name: str, folder: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _read(path: Path) -> str:
    """Return a record, "" if there is none.  Raises OSError, and waits for no writer of a pipe that an app put there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        return os.fsdecode(os.read(file, 4096))
    finally:
        os.close(file)
