"""`dorm` commands as processes forked off one that has the program imported already.

Starting an interpreter and importing all of it takes most of a second of CPU; hundreds of commands would take minutes for
nothing else.  What is forked is a process in all other ways: with an environment, streams, signals and an end of its own.
What importing itself does is left to commands that are started from scratch (`commands.running`, `test_help`).
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import tempfile
from multiprocessing import reduction
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.process import BaseProcess
    from pathlib import Path

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["tests.e2e.imported", __name__])


async def command(
    words: tuple[str, ...], env: Mapping[str, str], stdin: bytes, timeout: float, folder: Path | None = None
) -> tuple[int, bytes, bytes]:
    """Run `dorm` with these words in this folder to its end: exit code, stdout, stderr.  Raises TimeoutError."""
    with _files(3) as (given, out, err):
        given.write(stdin)
        given.seek(0)
        process = await asyncio.to_thread(_start, words, dict(env), folder, (given, out, err))
        try:
            async with asyncio.timeout(timeout):
                await _ended(process)
        finally:
            if process.is_alive():
                process.kill()
            await asyncio.to_thread(process.join)
        assert process.exitcode is not None
        out.seek(0)
        err.seek(0)
        return process.exitcode, out.read(), err.read()


@contextlib.contextmanager
def _files(count: int) -> Iterator[list[IO[bytes]]]:
    with contextlib.ExitStack() as files:
        yield [files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]


def _start(
    words: tuple[str, ...], env: dict[str, str], folder: Path | None, streams: tuple[IO[bytes], ...]
) -> BaseProcess:
    # What is given to a process may be pickled only while it is started, for file descriptors go with it.
    process = _forking.Process(target=_run, args=(words, env, folder, _Descriptors(streams)))
    process.start()
    return process


async def _ended(process: BaseProcess) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)


class _Descriptors:
    """Open files, on their way to another process."""

    def __init__(self, files: tuple[IO[bytes], ...]) -> None:
        self._files = files

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, tuple(reduction.DupFd(file.fileno()) for file in self._files)


def _detached(*duplicates: Any) -> list[int]:
    return [duplicate.detach() for duplicate in duplicates]


def _run(words: tuple[str, ...], env: dict[str, str], folder: Path | None, descriptors: list[int]) -> None:
    """In the new process: as a fresh interpreter begins."""
    os.environ.clear()
    os.environ.update(env)
    if folder is not None:
        os.chdir(folder)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.argv = ["dorm", *words]
    from dorm.cli.main import main

    main()
