"""List and read an app's files.  Every function blocks."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from agents.outputs.opening import MOST_NAMES, FilesError, opened
from events.copying import BLOCK, LARGEST, MOST_FILES, FileDigest, FileEntry, digest_of, next_block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from events.copying import ReadFile

_AT_ONCE = 500
"""Entries in one piece of a listing: with the longest names well within one message."""


def listed(root: Path, path: str, *, hidden: str = "") -> Iterator[list[FileEntry]]:
    """Yield the entries at a path, folders before their contents, some at a time.  Raises FilesError."""
    with opened(root, path, hidden=hidden) as found:
        status = os.fstat(found)
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
            found = sorted(one.name for one in islice(names, MOST_FILES + 1))
            if not path and not inner and hidden:
                found = [name for name in found if not name.startswith(hidden)]
            return [_looked(root, path, f"{inner}/{name}" if inner else name, folder, hidden) for name in found]
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
        with opened(root, f"{path}/{place}" if path else place, hidden=hidden) as found:
            status = os.fstat(found)
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

    def __init__(self, root: Path, asked: ReadFile, *, hidden: str = "") -> None:
        self._root = root
        self._asked = asked
        self._hidden = hidden
        self._file = -1
        self._at = asked.offset
        self._digest = FileDigest()
        self._lock = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Open it, and compute the digest of the part that the asker already has.  Raises FilesError if it is not the
        file that the question is about."""
        asked = self._asked
        if asked.offset % BLOCK:
            raise FilesError(f"a copy goes on at a multiple of {BLOCK} bytes", code="files.question.malformed")
        with self._working():
            with opened(self._root, asked.place.path, hidden=self._hidden) as found:
                self._file = os.dup(found)
            self._check()
            self._digest = digest_of(self._file, asked.size, upto=asked.offset)

    def next(self) -> bytes | int | str:
        """Return the next block, how many whole blocks are a hole, or at the end the digest of the whole file.  Raises
        FilesError."""
        with self._working():
            if self._at >= self._asked.size:
                self._check()
                return self._digest.of(self._asked.size)
            found = next_block(self._file, self._at, self._asked.size)
            if isinstance(found, int):
                self._digest.add_zeros(found)
                self._at += found * BLOCK
            elif not found:
                raise EOFError
            else:
                self._digest.add(found)
                self._at += len(found)
            return found

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
        path = self._asked.place.path
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
        status, shown = os.fstat(self._file), self._asked.place.path
        if not stat.S_ISREG(status.st_mode):
            raise FilesError(f"{shown} is not a regular file, so it can't be copied", code="files.not_regular")
        if status.st_size > LARGEST:
            raise FilesError(f"{shown} has more than {LARGEST:,} bytes, so it is not copied", code="files.too_large")
        if (status.st_size, status.st_mtime_ns) != (self._asked.size, self._asked.modified):
            raise _changed(shown)


def _changed(path: str) -> FilesError:
    return FilesError(f"{path} changed while it was copied; copy it again", code="files.changed")
