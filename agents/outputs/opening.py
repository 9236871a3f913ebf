"""Open what a path names below a folder that apps write to, and nothing outside it.

Apps put links anywhere and change them at any moment.  So a path is resolved one name at a time, each opened without following
links in the folder that is open already.  A link is followed by hand, as long as it leads to a place in the same folder.
Every function blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from events.copying import LONGEST_PATH
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_NAMES: Final = 64
"""Folders within each other: each takes a file descriptor of the agent's."""
_MOST_LINKS: Final = 16
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FilesError(DormError):
    """A question about files can't be answered; the message says why and what to do."""

    code = "files.failed"


def names_of(path: str) -> tuple[str, ...]:
    """Return the names of a relative path.  Raises FilesError for a path that could leave its folder."""
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if path.startswith("/") or ".." in names or "\0" in path:
        raise FilesError(
            f"{path!r} is not a path within the app's folder; name it without a slash at its start and without ..",
            code="files.path.outside",
        )
    if len(names) > MOST_NAMES or len(path) > LONGEST_PATH or any(len(os.fsencode(name)) > 255 for name in names):
        raise FilesError(f"{path[:80]!r}... is too long; use shorter and fewer names", code="files.path.too_long")
    return names


@contextlib.contextmanager
def opened(root: Path, path: str, *, hidden: str = "") -> Iterator[int]:
    """Yield a descriptor of the file or folder at a relative path below `root`, closed afterwards.  `hidden`: files of the
    root that begin so can't be opened.  Raises FilesError."""
    names = names_of(path)
    with _guarded(path):
        file = _open(root, list(names), hidden)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _guarded(path: str) -> Iterator[None]:
    """Turn errors of the operating system into errors about a path."""
    shown = path or "the folder"
    try:
        yield
    except FileNotFoundError:
        raise FilesError(
            f"{shown} is not there; look at what is with `dorm cp --list APP:FOLDER`", code="files.not_found"
        ) from None
    except NotADirectoryError:
        raise FilesError(f"{shown}: a part of this path is not a folder", code="files.not_found") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FilesError(f"{shown} changed while it was opened; try again", code="files.changed") from None
        raise FilesError(f"{shown} can't be read: {error.strerror}", code="files.not_readable") from None


def _open(root: Path, names: list[str], hidden: str) -> int:
    folders, links = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)], 0
    todo = names[::-1]
    try:
        while todo:
            name = todo.pop()
            if name == "..":
                if len(folders) == 1:
                    raise _outside(names)
                os.close(folders.pop())
                continue
            kind = os.stat(name, dir_fd=folders[-1], follow_symlinks=False).st_mode
            if stat.S_ISLNK(kind):
                links += 1
                target = os.readlink(name, dir_fd=folders[-1])
                if links > _MOST_LINKS or target.startswith("/") or len(folders) + len(todo) > 4 * MOST_NAMES:
                    raise _outside(names)
                todo += [part for part in target.split("/")[::-1] if part not in ("", ".")]
            elif stat.S_ISDIR(kind) and len(folders) <= MOST_NAMES:
                folders.append(os.open(name, _FOLDER, dir_fd=folders[-1]))
            elif todo:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            elif hidden and len(folders) == 1 and name.startswith(hidden):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            else:
                return _file(name, folders[-1])
        return os.dup(folders[-1])
    finally:
        for folder in folders:
            os.close(folder)


def _file(name: str, folder: int) -> int:
    """Open a regular file.  A pipe or a device in its place must not block the agent."""
    file = os.open(name, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FilesError(f"{name} is not a regular file, so it can't be copied", code="files.not_regular")
    return file


def _outside(names: list[str]) -> FilesError:
    return FilesError(
        f"{'/'.join(names)} is a link that leads out of the app's folder, or in a circle; name what it leads to",
        code="files.path.outside",
    )


@contextlib.contextmanager
def folder_for(root: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Yield a descriptor of a folder below `root`, created with its parents if missing, each owned by the owner of
    its parent. No link is followed. Raises FilesError."""
    with _guarded("/".join(names)):
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder)
                    above = os.fstat(folder)
                    if (above.st_uid, above.st_gid) != (os.getuid(), os.getgid()):
                        os.chown(name, above.st_uid, above.st_gid, dir_fd=folder, follow_symlinks=False)
                inner = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)
