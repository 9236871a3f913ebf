"""Open the files that hold archives; their errors become the log's.

Archives and backups have the specs, names and messages of all tenants, so new ones can be read by their owner alone.  In a
folder with the set-group-ID bit (`chmod 2750`), the folder's group can read them too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from events.errors import code_of
from events.log.records import LogRefused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def open_file(path: Path) -> int:
    """Return a descriptor to read the file.  Raises LogRefused for one that can't be opened, and for all but regular files."""
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would block.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise LogRefused(f"{path}: {error.strerror}", code=code_of(error)) from None
    with closed_on_error(file, str(path)):
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise LogRefused(
                f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'not a file'}", code="archive.not_a_file"
            )
    return file


def create(path: Path) -> BinaryIO:
    """Return a new file to write.  Raises OSError."""
    file = open(path, "xb", opener=_private)  # noqa: SIM115 - the caller's
    _share(file.fileno(), path.parent, stat.S_IRGRP)
    return file


def make_folder(path: Path) -> None:
    """Make a folder for archives, with its parents, if it is not there.  Raises OSError."""
    with contextlib.suppress(FileExistsError):
        if not path.parent.exists():
            make_folder(path.parent)
        path.mkdir(mode=0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _share(folder, path.parent, stat.S_IRGRP | stat.S_IXGRP | stat.S_ISGID)
        finally:
            os.close(folder)


def share(file: BinaryIO, folder: Path) -> None:
    """Let the group of a folder that is shared with it read a file that is made there.  Raises OSError."""
    _share(file.fileno(), folder, stat.S_IRGRP)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _share(made: int, folder: Path, bits: int) -> None:
    mode = folder.stat().st_mode
    if mode & stat.S_ISGID and mode & stat.S_IRGRP:
        os.fchmod(made, stat.S_IMODE(os.fstat(made).st_mode) | bits)


@contextlib.contextmanager
def closed_on_error(file: int, name: str) -> Iterator[None]:
    """Close the descriptor if the body raises, and turn an OSError into LogRefused."""
    try:
        with refusing(name):
            yield
    except BaseException:
        os.close(file)
        raise


@contextlib.contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn an OSError of the body into LogRefused."""
    try:
        yield
    except OSError as error:
        raise LogRefused(f"{name}: {error.strerror}", code=code_of(error)) from None
