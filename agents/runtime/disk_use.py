"""How much room folders take that apps write to."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

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
