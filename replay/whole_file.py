"""Writes a file in a thread; the file appears under its name only once it is complete and durable.

A log has the specs, names and messages of all tenants, so only the owner can read such a file.  A file that
replaces another has that one's permissions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from events.durable import aside, put_in_place
from replay import ReplayError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

Result = TypeVar("Result")


class ExportError(ReplayError):
    """A file that cannot be written, or already exists."""

    code = "export.not_written"


@contextlib.asynccontextmanager
async def whole_file(path: Path, *, force: bool) -> AsyncIterator[BinaryIO]:
    """Yield a file to write, which gets its name if the body ends without an exception; `-` is standard output.

    Without `force` it never replaces an existing file.  Raises ExportError.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        await in_thread(sys.stdout.buffer.flush)
        return
    if not force and await asyncio.to_thread(os.path.lexists, path):
        raise _exists(path)
    unfinished = aside(path)
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
    """The same for callers without a loop to keep free.  Raises ExportError."""
    if not force and os.path.lexists(path):
        raise _exists(path)
    unfinished = aside(path)
    try:
        with _create(unfinished, path) as file:
            yield file
            _make_durable(file, path)
        _put_in_place(unfinished, path, force)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


async def in_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """Like `asyncio.to_thread`, but on cancellation it first waits for the work: a file is not closed while it is written."""
    working = asyncio.create_task(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        if not working.cancelled():
            working.exception()  # Mark it as retrieved.
        raise


def _create(unfinished: Path, path: Path) -> BinaryIO:
    try:
        file = open(unfinished, "xb", buffering=1 << 20, opener=_private)  # noqa: SIM115 - the caller's
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(file.fileno(), path.stat().st_mode & 0o666)
        return file
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _make_durable(file: BinaryIO, path: Path) -> None:
    try:
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def _put_in_place(unfinished: Path, path: Path, force: bool) -> None:
    try:
        put_in_place(unfinished, path, replace=force)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def _exists(path: Path) -> ExportError:
    text = f"{path} already exists; choose another name, or replace it with --force"
    return ExportError(text, code="file.exists")
