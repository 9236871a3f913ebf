"""A file that appears whole and durable under its name or not at all, and writing to it in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import sys
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from replay import ReplayError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

Result = TypeVar("Result")


class ExportError(ReplayError):
    """A file that can't be written, or is there already."""


@contextlib.asynccontextmanager
async def whole_file(path: Path, *, force: bool) -> AsyncIterator[BinaryIO]:
    """A file to write, which is put under its name where the body ends well; `-` is standard output.

    Without `force` it never takes the place of one that is there.  Raises ExportError.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        await in_thread(sys.stdout.buffer.flush)
        return
    if not force and await asyncio.to_thread(os.path.lexists, path):
        raise _there(path)
    unfinished = _unfinished(path)
    try:
        with await asyncio.to_thread(_create, unfinished, path) as file:
            yield file
            await in_thread(_make_durable, file, path)
        await in_thread(_put_in_place, unfinished, path, force)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


@contextlib.contextmanager
def whole_file_now(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """The same for whoever has no loop to keep free.  Raises ExportError."""
    if not force and os.path.lexists(path):
        raise _there(path)
    unfinished = _unfinished(path)
    try:
        with _create(unfinished, path) as file:
            yield file
            _make_durable(file, path)
        _put_in_place(unfinished, path, force)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")


async def in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """`asyncio.to_thread`, but whoever is cancelled first waits for it: a file is not closed while it is written."""
    working = asyncio.create_task(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        if not working.cancelled():
            working.exception()  # Nobody asks for it any more.
        raise


def _create(unfinished: Path, path: Path) -> BinaryIO:
    try:
        return open(unfinished, "xb", buffering=1 << 20)
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def _make_durable(file: BinaryIO, path: Path) -> None:
    try:
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def _put_in_place(unfinished: Path, path: Path, force: bool) -> None:
    try:
        if force:
            unfinished.replace(path)
        else:
            _link(unfinished, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except FileExistsError:
        raise _there(path) from None
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def _link(unfinished: Path, path: Path) -> None:
    """Unlike a rename, a link never replaces what somebody else put there in the meantime; not all file systems have it."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if os.path.lexists(path):
            raise FileExistsError from None
        unfinished.replace(path)


def _there(path: Path) -> ExportError:
    return ExportError(f"{path} is there already; choose another name, or replace it with --force")
