"""Open the files that hold archives; their errors become the log's."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

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
