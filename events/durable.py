"""A file written whole or not at all, so that it survives a loss of power.

`write_whole` writes the content under another name in the same folder, syncs it to the disk, gives it its name, and syncs the
folder.  Each step has a reason:

* A reader, or a process that starts after a crash, finds the earlier content or the new one, never a part.
* Without the sync of the file, the name may reach the disk before the content: the file is empty after a loss of power.
* Without the sync of the folder, the name may never reach it: the file has gone.  What was published meanwhile under a key or
  an identity of such a file could never be verified or continued.
* Without `replace`, the name is given by a link, which never replaces a file that appeared meanwhile: of two processes that
  make the same key at once, both use the first.

Callers that write while they read, or in steps, use `aside`, `put_in_place` and `sync_folder`.

Two kinds of writers have their own code: the supervisors of plain processes (`agents.runtime.process.supervisor`), which run
outside the virtual environment, and `dorm.elastic`, a distribution of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    owner: tuple[int, int] | None = None,
    replace: bool = True,
    sync: bool = True,
) -> bool:
    """Write a file whole or not at all; return whether it was written.  Blocks.  Raises OSError.

    `mode` holds whatever the umask is; without it, the umask decides.  `owner` are a user's and a group's id, kept where this
    process may not give files away.  Without `replace`, an existing file stays, and the answer is False.  Without `sync`, a
    loss of power may take the file away or empty it: for what can be made again.
    """
    unfinished = aside(path)
    try:
        # As few people as possible can read it until it has its owner and its mode.
        descriptor = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else mode & 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if owner is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, *owner)
            if mode is not None:
                os.fchmod(descriptor, mode)
            if sync:
                os.fsync(descriptor)
        put_in_place(unfinished, path, replace=replace, sync=sync)
    except FileExistsError:
        if replace:
            raise
        return False
    finally:
        unfinished.unlink(missing_ok=True)
    return True


def aside(path: Path) -> Path:
    """Return a name in the file's folder for its content until it is complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")


def put_in_place(unfinished: Path, path: Path, *, replace: bool = True, sync: bool = True) -> None:
    """Give a complete file its name.  Raises OSError, and FileExistsError without `replace` if there is such a file."""
    if replace:
        unfinished.replace(path)
    else:
        _link(unfinished, path)
        unfinished.unlink(missing_ok=True)  # it is gone where there are no links
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.  Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(unfinished: Path, path: Path) -> None:
    """Link the file into place: unlike a rename, a link never replaces a file.  Not all file systems have links."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        unfinished.rename(path)
