"""An app's files: opened, listed, read and uploaded, and nothing outside its folder.

Apps put links anywhere and change them at any moment.  So a path is resolved one name at a time, each opened without
following links in the folder that is open already.  A link is followed by hand, as long as it leads to a place in the
same folder.  Every function blocks.

An upload is a file of its own, where no container sees it, until it is complete and its digest is right; then it is
renamed to its place.  So an app finds a whole file or none.  Every function blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from events.copying import (
    BLOCK,
    LARGEST,
    LONGEST_PATH,
    MOST_FILES,
    FileDigest,
    FileEntry,
    digest_of,
    next_block,
    write_at,
)
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from events.copying import CommitUpload, ReadFile, WriteBlock


# --- open -------------------------------------------------------------------------------------------------------------

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


# --- list and read ----------------------------------------------------------------------------------------------------

_AT_ONCE = 500
"""Entries in one piece of a listing: with the longest names well within one message."""


def listed(root: Path, path: str, *, hidden: str = "") -> Iterator[list[FileEntry]]:
    """Yield the entries at a path, folders before their contents, some at a time.  Raises FilesError."""
    with opened(root, path, hidden=hidden) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode):
            yield [_entry("", status)]
            return
    entries, count = [FileEntry("", "folder", modified=status.st_mtime_ns)], 1
    folders = deque([""])
    while folders:
        inner = folders.popleft()
        for entry in _in_folder(root, path, inner, hidden):
            entries.append(entry)
            if entry.kind == "folder" and entry.path.count("/") < MOST_NAMES // 2:
                folders.append(entry.path)
            if len(entries) >= _AT_ONCE:
                count += len(entries)
                _check_count(count)
                yield entries
                entries = []
    _check_count(count + len(entries))
    yield entries


def _check_count(count: int) -> None:
    if count > MOST_FILES:
        raise FilesError(f"there are more than {MOST_FILES:,} files; name a folder inside", code="files.too_many")


def _in_folder(root: Path, path: str, inner: str, hidden: str) -> list[FileEntry]:
    try:
        with opened(root, f"{path}/{inner}" if path else inner) as folder, os.scandir(folder) as names:
            # Names without end would fill the agent's memory; as many are too many for a listing already.
            names_ = sorted(entry.name for entry in islice(names, MOST_FILES + 1))
            if not path and not inner and hidden:
                names_ = [name for name in names_ if not name.startswith(hidden)]
            return [_looked(root, path, f"{inner}/{name}" if inner else name, folder, hidden) for name in names_]
    except (FilesError, OSError):
        return []  # It was removed while it was listed.


def _looked(root: Path, path: str, place: str, folder: int, hidden: str) -> FileEntry:
    try:
        place.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(place).decode("utf-8", "backslashreplace")
        return FileEntry(shown, "other", note="its name is not UTF-8")
    try:
        status = os.stat(place.rpartition("/")[2], dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        return FileEntry(place, "other", note=error.strerror or "it can't be looked at")
    return _link(root, path, place, hidden) if stat.S_ISLNK(status.st_mode) else _entry(place, status)


def _link(root: Path, path: str, place: str, hidden: str) -> FileEntry:
    """Return the target of a link, if it is a file that can be copied in its place."""
    try:
        with opened(root, f"{path}/{place}" if path else place, hidden=hidden) as descriptor:
            status = os.fstat(descriptor)
    except FilesError:
        return FileEntry(place, "other", note="a link that leads nowhere, or out of the folder")
    if stat.S_ISDIR(status.st_mode):
        return FileEntry(place, "other", note="a link to a folder")
    return _entry(place, status)


def _entry(place: str, status: os.stat_result) -> FileEntry:
    if stat.S_ISDIR(status.st_mode):
        return FileEntry(place, "folder", modified=status.st_mtime_ns)
    if not stat.S_ISREG(status.st_mode):
        return FileEntry(place, "other", note="neither a file nor a folder")
    executable = bool(status.st_mode & 0o100)
    return FileEntry(place, "file", size=status.st_size, modified=status.st_mtime_ns, executable=executable)


class Reader:
    """Reads one file in blocks, from `asked.offset` on.  Its methods run in threads; `close` may be called while one of them
    still does, which then closes the file at its end."""

    def __init__(self, root: Path, request: ReadFile, *, hidden: str = "") -> None:
        self._root = root
        self._request = request
        self._hidden = hidden
        self._file = -1
        self._at = request.offset
        self._digest = FileDigest()
        self._lock = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Open it, and compute the digest of the part that the asker already has.  Raises FilesError if it is not the
        file that the question is about."""
        request = self._request
        if request.offset % BLOCK:
            raise FilesError(f"a copy goes on at a multiple of {BLOCK} bytes", code="files.question.malformed")
        with self._working():
            with opened(self._root, request.place.path, hidden=self._hidden) as descriptor:
                self._file = os.dup(descriptor)
            self._check()
            self._digest = digest_of(self._file, request.size, upto=request.offset)

    def next(self) -> bytes | int | str:
        """Return the next block, how many whole blocks are a hole, or at the end the digest of the whole file.  Raises
        FilesError."""
        with self._working():
            if self._at >= self._request.size:
                self._check()
                return self._digest.of(self._request.size)
            block = next_block(self._file, self._at, self._request.size)
            if isinstance(block, int):
                self._digest.add_zeros(block)
                self._at += block * BLOCK
            elif not block:
                raise EOFError
            else:
                self._digest.add(block)
                self._at += len(block)
            return block

    def close(self) -> None:
        """Close it now, or as soon as no thread reads it."""
        self._closed = True
        self._close_if_free()

    def _close_if_free(self) -> None:
        if self._closed and self._lock.acquire(blocking=False):
            try:
                if self._file >= 0:
                    os.close(self._file)
                    self._file = -1
            finally:
                self._lock.release()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        path = self._request.place.path
        try:
            with self._lock:
                yield
        except EOFError:
            raise _changed(path) from None
        except OSError as error:
            raise FilesError(f"{path} can't be read: {error.strerror}", code="files.not_readable") from None
        finally:
            self._close_if_free()

    def _check(self) -> None:
        status, shown = os.fstat(self._file), self._request.place.path
        if not stat.S_ISREG(status.st_mode):
            raise FilesError(f"{shown} is not a regular file, so it can't be copied", code="files.not_regular")
        if status.st_size > LARGEST:
            raise FilesError(f"{shown} has more than {LARGEST:,} bytes, so it is not copied", code="files.too_large")
        if (status.st_size, status.st_mtime_ns) != (self._request.size, self._request.modified):
            raise _changed(shown)


def _changed(path: str) -> FilesError:
    return FilesError(f"{path} changed while it was copied; copy it again", code="files.changed")


# --- upload -----------------------------------------------------------------------------------------------------------

_MOST: Final = 64
"""Uploads of one app that are not complete."""
_KEPT_S: Final = 2 * 86_400
"""Seconds for which an abandoned upload is kept."""
_LEFT_FREE: Final = 1024**3
"""Bytes that uploads leave free in the shared folder."""


def write(incoming: Path, block: WriteBlock) -> int:
    """Write a block of an upload; return how far the upload reaches, in bytes.  Raises FilesError."""
    if block.at % BLOCK or len(block.data) > BLOCK:
        raise FilesError(f"a block of an upload begins at a multiple of {BLOCK} bytes", code="files.question.malformed")
    with _guarded_upload(block.place.path):
        # With each block: an upload may be larger than the free room when it began.
        if shutil.disk_usage(incoming.parent).free < _LEFT_FREE + len(block.data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = _open_upload(incoming, block)
        try:
            write_at(file, block.data, block.at)
            return os.fstat(file).st_size
        finally:
            os.close(file)


def _open_upload(incoming: Path, block: WriteBlock) -> int:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        return os.open(incoming / block.upload, flags)
    incoming.mkdir(mode=0o700, exist_ok=True)
    _forget_old(incoming)
    if len(os.listdir(incoming)) >= _MOST:
        raise FilesError(
            f"{_MOST} uploads to this app are not complete; let them end, or try again in two days",
            code="files.too_many",
        )
    return os.open(incoming / block.upload, flags | os.O_CREAT, 0o600)


def _forget_old(incoming: Path) -> None:
    """Remove abandoned uploads. Their times are the file server's, as is the time of a file created now."""
    now = time.time()
    for left in os.scandir(incoming):
        with contextlib.suppress(OSError):
            if now - left.stat(follow_symlinks=False).st_mtime > _KEPT_S:
                os.unlink(left.path)


def commit(root: Path, incoming: Path, request: CommitUpload) -> int:
    """Verify an upload and rename it to its place below `root`; return its size.  A repeat finds it there.  Raises
    FilesError."""
    *folders, name = names_of(request.place.path) or ("",)
    if not name:
        raise FilesError("an upload needs a name; give the path of the file", code="files.question.malformed")
    with folder_for(root, tuple(folders)) as folder, _guarded_upload(request.place.path):
        try:
            file = os.open(incoming / request.upload, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if request.size and not _is_there(folder, name, request):
                raise FilesError(
                    f"nothing of the upload of {request.place.path} is left; copy it again", code="files.upload.lost"
                ) from None
            if request.size:
                return request.size
            file = _empty(incoming, request)
        try:
            os.ftruncate(file, request.size)
            _check_digest(incoming, file, request)
            above = os.fstat(folder)
            if (above.st_uid, above.st_gid) != (os.getuid(), os.getgid()):
                os.fchown(file, above.st_uid, above.st_gid)
            os.fchmod(file, 0o700 if request.executable else 0o600)
            if request.modified:
                os.utime(file, ns=(request.modified, request.modified))
            os.fsync(file)
            _rename(incoming, folder, name, request)
        finally:
            os.close(file)
    return request.size


def _empty(incoming: Path, request: CommitUpload) -> int:
    incoming.mkdir(mode=0o700, exist_ok=True)
    return os.open(incoming / request.upload, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT, 0o600)


def _is_there(folder: int, name: str, request: CommitUpload) -> bool:
    """Return whether the file is in its place: the answer to an earlier commit was lost."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        same = stat.S_ISREG(status.st_mode) and status.st_size == request.size
        return same and digest_of(file, request.size).of(request.size) == request.digest
    finally:
        os.close(file)


def _check_digest(incoming: Path, file: int, request: CommitUpload) -> None:
    try:
        digest = digest_of(file, request.size).of(request.size)
    except EOFError:
        digest = ""
    if digest != request.digest:
        os.unlink(incoming / request.upload)  # Another try begins at the start.
        raise FilesError(
            f"{request.place.path} did not arrive as it was sent; copy it again", code="files.upload.damaged"
        )


def _rename(incoming: Path, folder: int, name: str, request: CommitUpload) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise FilesError(
                f"{request.place.path} is a folder there, and a file cannot replace it; name a file in it",
                code="files.is_folder",
            )
    os.rename(incoming / request.upload, name, dst_dir_fd=folder)


@contextlib.contextmanager
def _guarded_upload(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            text = (
                f"{path}: there is no room for it in the shared folder; remove something, or ask the cluster's operator"
            )
            raise FilesError(text, code="files.no_room") from None
        raise FilesError(f"{path} can't be written: {error.strerror}", code="files.not_writable") from None
