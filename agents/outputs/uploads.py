"""Uploads into an app's outputs and checkpoints.

An upload is a file of its own, where no container sees it, until it is complete and its digest is right; then it is
renamed to its place.  So an app finds a whole file or none.  Every function blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING, Final

from agents.outputs.opening import FilesError, folder_for, names_of
from events.copying import BLOCK, digest_of, write_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from events.copying import CommitUpload, WriteBlock

_MOST: Final = 64
"""Uploads of one app that are not complete."""
_KEPT_S: Final = 2 * 86_400
"""How long an abandoned upload is kept."""
_LEFT_FREE: Final = 1024**3
"""Bytes that uploads leave free in the shared folder."""


def write(incoming: Path, asked: WriteBlock) -> int:
    """Write a block of an upload; return how far the upload reaches, in bytes.  Raises FilesError."""
    if asked.at % BLOCK or len(asked.data) > BLOCK:
        raise FilesError(f"a block of an upload begins at a multiple of {BLOCK} bytes", code="files.question.malformed")
    with _guarded(asked.place.path):
        # With each block: an upload may be larger than the free room when it began.
        if shutil.disk_usage(incoming.parent).free < _LEFT_FREE + len(asked.data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = _open(incoming, asked)
        try:
            write_at(file, asked.data, asked.at)
            return os.fstat(file).st_size
        finally:
            os.close(file)


def _open(incoming: Path, asked: WriteBlock) -> int:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        return os.open(incoming / asked.upload, flags)
    incoming.mkdir(mode=0o700, exist_ok=True)
    _forget_old(incoming)
    if len(os.listdir(incoming)) >= _MOST:
        raise FilesError(
            f"{_MOST} uploads to this app are not complete; let them end, or try again in two days",
            code="files.too_many",
        )
    return os.open(incoming / asked.upload, flags | os.O_CREAT, 0o600)


def _forget_old(incoming: Path) -> None:
    """Remove abandoned uploads. Their times are the file server's, as is the time of a file created now."""
    now = time.time()
    for left in os.scandir(incoming):
        with contextlib.suppress(OSError):
            if now - left.stat(follow_symlinks=False).st_mtime > _KEPT_S:
                os.unlink(left.path)


def commit(root: Path, incoming: Path, asked: CommitUpload) -> int:
    """Verify an upload and rename it to its place below `root`; return its size.  A repeat finds it there.  Raises
    FilesError."""
    *folders, name = names_of(asked.place.path) or ("",)
    if not name:
        raise FilesError("an upload needs a name; give the path of the file", code="files.question.malformed")
    with folder_for(root, tuple(folders)) as folder, _guarded(asked.place.path):
        try:
            file = os.open(incoming / asked.upload, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if asked.size and not _is_there(folder, name, asked):
                raise FilesError(
                    f"nothing of the upload of {asked.place.path} is left; copy it again", code="files.upload.lost"
                ) from None
            if asked.size:
                return asked.size
            file = _empty(incoming, asked)
        try:
            os.ftruncate(file, asked.size)
            _check_digest(incoming, file, asked)
            above = os.fstat(folder)
            if (above.st_uid, above.st_gid) != (os.getuid(), os.getgid()):
                os.fchown(file, above.st_uid, above.st_gid)
            os.fchmod(file, 0o700 if asked.executable else 0o600)
            if asked.modified:
                os.utime(file, ns=(asked.modified, asked.modified))
            os.fsync(file)
            _rename(incoming, folder, name, asked)
        finally:
            os.close(file)
    return asked.size


def _empty(incoming: Path, asked: CommitUpload) -> int:
    incoming.mkdir(mode=0o700, exist_ok=True)
    return os.open(incoming / asked.upload, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT, 0o600)


def _is_there(folder: int, name: str, asked: CommitUpload) -> bool:
    """Return whether the file is in its place: the answer to an earlier commit was lost."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        same = stat.S_ISREG(status.st_mode) and status.st_size == asked.size
        return same and digest_of(file, asked.size).of(asked.size) == asked.digest
    finally:
        os.close(file)


def _check_digest(incoming: Path, file: int, asked: CommitUpload) -> None:
    try:
        digest = digest_of(file, asked.size).of(asked.size)
    except EOFError:
        digest = ""
    if digest != asked.digest:
        os.unlink(incoming / asked.upload)  # Another try begins at the start.
        raise FilesError(
            f"{asked.place.path} did not arrive as it was sent; copy it again", code="files.upload.damaged"
        )


def _rename(incoming: Path, folder: int, name: str, asked: CommitUpload) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise FilesError(
                f"{asked.place.path} is a folder there, and a file cannot replace it; name a file in it",
                code="files.is_folder",
            )
    os.rename(incoming / asked.upload, name, dst_dir_fd=folder)


@contextlib.contextmanager
def _guarded(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            text = (
                f"{path}: there is no room for it in the shared folder; remove something, or ask the cluster's operator"
            )
            raise FilesError(text, code="files.no_room") from None
        raise FilesError(f"{path} can't be written: {error.strerror}", code="files.not_writable") from None
