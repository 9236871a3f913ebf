"""Removes what apps left: the one way in which this project deletes a tree of files that it did not write itself.

An app may leave anything in its folders: a data set that is mounted there, links that lead out, a million folders in
each other, processes that exchange one thing for another meanwhile.  So

* *no other mount is entered.*  Each folder is opened first and then judged, by its device and by the id of its mount: the
  mount of a folder elsewhere on the same disk (`mount --bind`) has the same device.  A file or folder on which something is
  mounted can't be removed at all (EBUSY);
* *no link is followed.*  Every name is looked up in an open folder, never by a path, and opened with O_NOFOLLOW, so no
  exchange leads out.  Links themselves are removed;
* *any depth will do.*  At most `MOST_OPEN` folders are open at a time.  A folder below them is moved to the top first, and
  then removed from there.

What can't be removed stays, with the folders around it, and is returned with the reason.  `delete` logs it.  The
callers leave it where the next process finds it, and tries and names it again.

`taken` returns how much room folders take that apps write to.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


# --- remove -----------------------------------------------------------------------------------------------------------

MOST_OPEN: Final = 64
"""Folders that are open at the same time, one in each other."""
MOST_NAMED: Final = 8
"""Paths of what stays that are returned."""
_BATCH: Final = 10_000
"""Names of a folder that are in memory at a time."""
_TRIES: Final = 3
"""Number of times that a folder is read again if somebody fills it meanwhile."""
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_log = structlog.get_logger(__name__)


class Left(NamedTuple):
    """Something that stays."""

    path: str
    """Below the folder that was to be removed; "" for that folder."""
    reason: str


class Removal(NamedTuple):
    """What came of it."""

    left: tuple[Left, ...] = ()
    """The first ones of what stays, without the folders around it."""
    kept: int = 0
    """Number of entries that are left."""


def delete(folder: Path) -> Removal:
    """Remove a file or folder, log what stays and return it.  A missing one is no error.  Blocks, for as long as there are
    files."""
    removal = remove(folder)
    if removal.kept:
        named = {obstacle.path or ".": obstacle.reason for obstacle in removal.left}
        _log.error("what an app left can't be removed", folder=str(folder), left=named, count=removal.kept)
    return removal


def remove(folder: Path) -> Removal:
    """Remove a file or folder; return what stays.  The folders above it are trusted: the caller has named them."""
    try:
        above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Removal()
    except OSError as failure:
        return Removal((Left("", _reason(failure)),), 1)
    try:
        return _Removing(above).all_of(folder.name)
    finally:
        os.close(above)


class _Folder:
    """One that is being emptied."""

    def __init__(self, descriptor: int, name: str, path: str) -> None:
        self.descriptor = descriptor
        self.name = name
        self.path = path
        self.names: list[str] = []
        self.kept: set[str] = set()
        self.tries = 0

    def read(self) -> bool:
        """Read further names; return whether there are some."""
        with os.scandir(self.descriptor) as entries:
            self.names = list(islice((entry.name for entry in entries if entry.name not in self.kept), _BATCH))
        return bool(self.names)


class _Removing:
    """The removal of one name in an open folder."""

    def __init__(self, above: int) -> None:
        self._above = above
        self._left: list[Left] = []
        self._count = 0
        self._stack: list[_Folder] = []
        self._moved: dict[str, str] = {}
        """Earlier paths of folders at the top."""

    def all_of(self, name: str) -> Removal:
        try:
            self._place = _place(self._above)
            self._take(self._above, name, "")
            while self._stack:
                self._step(self._stack[-1])
        except OSError as failure:  # Such as no free descriptor on the machine.
            self._keep(self._stack[-1].path if self._stack else "", _reason(failure))
        finally:
            for folder in self._stack:
                os.close(folder.descriptor)
        return Removal(tuple(self._left), self._count)

    def _step(self, folder: _Folder) -> None:
        if folder.names or folder.read():
            name = folder.names.pop()
            if not self._take(folder.descriptor, name, self._path_of(folder, name)):
                folder.kept.add(name)
            return
        above = self._stack[-2] if len(self._stack) > 1 else None
        try:
            if not folder.kept:
                os.rmdir(folder.name, dir_fd=above.descriptor if above is not None else self._above)
        except FileNotFoundError:
            pass
        except OSError as failure:
            folder.tries += 1
            if folder.tries < _TRIES:
                return
            self._keep(folder.path, _reason(failure))
            folder.kept.add("")
        self._stack.pop()
        os.close(folder.descriptor)
        if folder.kept and above is not None:
            above.kept.add(folder.name)

    def _take(self, above: int, name: str, path: str) -> bool:
        """Remove a file, or begin to empty a folder; return whether it is gone or will be."""
        try:
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=above)
                return True
            if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                _open_up(above, name)
            if len(self._stack) < MOST_OPEN:
                return self._enter(above, name, path)
            top, moved = self._stack[0], f".deep-{secrets.token_hex(8)}"
            os.rename(name, moved, src_dir_fd=above, dst_dir_fd=top.descriptor)
        except FileNotFoundError:
            return True
        except OSError as failure:
            self._keep(path, _reason(failure))
            return False
        self._moved[moved] = path
        top.names.append(moved)
        return True

    def _enter(self, above: int, name: str, path: str) -> bool:
        descriptor = os.open(name, _OPEN, dir_fd=above)
        try:
            same = _place(descriptor) == self._place
        except OSError:
            os.close(descriptor)
            raise
        if same:
            self._stack.append(_Folder(descriptor, name, path))
        else:
            os.close(descriptor)
            self._keep(path, "another file system is mounted there")
        return same

    def _path_of(self, folder: _Folder, name: str) -> str:
        if len(self._stack) == 1 and (before := self._moved.pop(name, "")):
            return before
        return f"{folder.path}/{name}" if folder.path else name

    def _keep(self, path: str, reason: str) -> None:
        self._count += 1
        if len(self._left) < MOST_NAMED:
            self._left.append(Left(path, reason))


def _place(descriptor: int) -> tuple[int, int]:
    """Return device and mount of an open folder (proc(5), mnt_id of fdinfo)."""
    with open(f"/proc/self/fdinfo/{descriptor}") as file:
        mount = next((int(line.split()[1]) for line in file if line.startswith("mnt_id:")), -1)
    return os.fstat(descriptor).st_dev, mount


def _open_up(above: int, name: str) -> None:
    """Let the owner of a folder empty it, by the folder itself: a name might be exchanged for a link."""
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        finally:
            os.close(descriptor)


def _reason(failure: OSError) -> str:
    return failure.strerror or str(failure)


# --- room -------------------------------------------------------------------------------------------------------------

DEEPEST: Final = 100
"""Each level takes a file descriptor of the agent's, and a frame of its stack, while it is measured."""


class Taken(NamedTuple):
    """The usage found so far."""

    size: int
    """Bytes on the disk."""
    files: int
    """Files and folders."""
    too_deep: bool
    """Whether folders are nested further than is looked at: this is the last that is found."""


def taken(folders: Iterable[Path]) -> Iterator[Taken]:
    """Yield what all folders together take, after each folder in them, so that a caller may stop.  It follows no links, and
    what disappears meanwhile counts as nothing.  Blocks."""
    size = files = 0
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path, inside, names, descriptor in os.fwalk(folder):
                if path.count("/") - str(folder).count("/") > DEEPEST:
                    yield Taken(size, files, too_deep=True)
                    return
                files += len(inside) + len(names)
                size += sum(_size(name, descriptor) for name in names)
                yield Taken(size, files, too_deep=False)


def _size(name: str, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0
