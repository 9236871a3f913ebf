"""`dorm` commands and programs of apps as processes forked off one that has imported what they need.

Starting an interpreter and importing all of `dorm` takes most of a second of CPU, and numpy alone takes a fifth; hundreds of
commands and workers would take minutes for nothing else.  What is forked is a process in all other ways: with an environment,
streams, signals and an end of its own, and `/proc` shows its own command line and environment.  What importing itself does is
left to commands that are started from scratch (`commands.running` with `enter`, terminals, pipes of the documentation).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from multiprocessing import reduction
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from multiprocessing.process import BaseProcess
    from pathlib import Path

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["tests.e2e.imported", __name__])
_COMMAND = ("-c", "from dorm.cli.main import main; main()")
_PYTHON: tuple[str, ...] = ()
"""What `/proc` shows between the interpreter and the words of a command, and of a program."""
_FIRST_ADDRESS = 45
"""The place, after the name of the command in /proc/PID/stat, of the addresses of its arguments and its environment: the start
and the end of both."""


async def command(
    words: tuple[str, ...], env: Mapping[str, str], stdin: bytes, timeout: float, folder: Path | None = None
) -> tuple[int, bytes, bytes]:
    """Run `dorm` with these words in this folder to its end: exit code, stdout, stderr.  Raises TimeoutError."""
    with _files(3) as (given, out, err):
        given.write(stdin)
        given.seek(0)
        process = await asyncio.to_thread(_start, _COMMAND, words, dict(env), folder, (given, out, err))
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


class _Forked:
    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self._process = process
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N after signal N."""
        return self._process.exitcode

    def send_signal(self, number: int, /) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Running(_Forked):
    """A command that runs, with what the tests use of `asyncio.subprocess.Process`."""

    async def wait(self) -> int:
        if self.returncode is None:
            await _ended(self._process)
        assert self.returncode is not None
        return self.returncode


async def start(words: tuple[str, ...], env: Mapping[str, str], output: IO[bytes]) -> Running:
    """Start `dorm` with these words; it has no input, and its output goes to this file."""
    with _files(1) as (nothing,):
        streams = (nothing, output, output)
        return Running(await asyncio.to_thread(_start, _COMMAND, words, dict(env), None, streams))


class Program(_Forked):
    """A program of an app that runs, with what the tests use of `subprocess.Popen`."""

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self.returncode


def program(
    words: tuple[str, ...], env: Mapping[str, str], out: IO[bytes], err: IO[bytes], folder: Path | None = None
) -> Program:
    """Start what `python` with these words runs, a script or `-m` and a module, in a session of its own and without input."""
    with _files(1) as (nothing,):
        return Program(_start(_PYTHON, words, dict(env), folder, (nothing, out, err)))


@contextlib.contextmanager
def _files(count: int) -> Iterator[list[IO[bytes]]]:
    with contextlib.ExitStack() as files:
        yield [files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]


def _start(
    before: tuple[str, ...],
    words: tuple[str, ...],
    env: dict[str, str],
    folder: Path | None,
    streams: tuple[IO[bytes], ...],
) -> BaseProcess:
    # What is given to a process may be pickled only while it is started, for file descriptors go with it.
    process = _forking.Process(target=_run, args=(before, words, env, folder, _Descriptors(streams)))
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


def _run(
    before: tuple[str, ...], words: tuple[str, ...], env: dict[str, str], folder: Path | None, descriptors: list[int]
) -> None:
    """In the new process: as a fresh interpreter begins."""
    assert "tests.e2e.imported" in sys.modules, (
        "the process that this one is forked off could not import what it should"
    )
    os.environ.clear()
    os.environ.update(env)
    _show((sys.executable, *before, *words), env)
    if folder is not None:
        os.chdir(folder)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if before == _COMMAND:
        sys.argv = ["dorm", *words]
        from dorm.cli.main import main

        main()
    os.setsid()
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")


def _show(command: Iterable[str], env: Mapping[str, str]) -> None:
    """Let /proc show this command line and environment instead of those of the process that this one is forked off.  They
    are written into the memory that holds those, and what is too long is cut off."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    addresses = [int(field) for field in fields[_FIRST_ADDRESS : _FIRST_ADDRESS + 4]]
    folders_first = sorted(env.items(), key=lambda item: (not item[0].startswith("DORM_"), item[0]))
    _write(command, *addresses[:2])
    _write((f"{name}={value}" for name, value in folders_first), *addresses[2:])


def _write(texts: Iterable[str], start: int, end: int) -> None:
    shown = b"".join(os.fsencode(text) + b"\0" for text in texts)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)
