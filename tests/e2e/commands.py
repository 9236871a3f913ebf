"""`dorm` commands as separate processes, as people and service managers run them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil

from tests.e2e import forked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
DORM = [sys.executable, "-c", "from dorm.cli.main import main; main()"]


def environment(home: Path, **more: str) -> dict[str, str]:
    """The tests' own environment, as in a shell with an active virtual environment, without settings of a cluster that may
    run on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DORM_", "DOCKER_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "DORM_HOME": str(home), "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **more}


class Started(Protocol):
    """A command that runs, forked or started from scratch."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """None while it runs; -N after signal N."""

    def send_signal(self, number: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    async def wait(self) -> int: ...


async def dorm(
    home: Path,
    *arguments: str,
    stdin: str | bytes = "",
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    """Run one command to its end, as a process that is forked (see `forked`): exit code, stdout, stderr."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    code, out, err = await forked.command(arguments, environment(home, **(env or {})), given, timeout)
    return code, out.decode(), err.decode()


async def done(home: Path, *arguments: str, stdin: str | bytes = "", env: Mapping[str, str] | None = None) -> str:
    """Run one command that has to succeed and to have nothing to complain about; what it printed."""
    code, out, err = await dorm(home, *arguments, stdin=stdin, env=env)
    assert (code, err) == (0, ""), f"{arguments}: {code}\n{out}\n{err}"
    return out


async def refused(
    home: Path, *arguments: str, code: int, stdin: str | bytes = "", env: Mapping[str, str] | None = None
) -> str:
    """Run one command that has to end with this code and one line of reason, which this gives."""
    ended, out, err = await dorm(home, *arguments, stdin=stdin, env=env)
    assert (ended, out) == (code, ""), f"{arguments}: {ended}\n{out}\n{err}"
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    return lines[0].removeprefix("error: ")


@contextlib.asynccontextmanager
async def running(
    home: Path,
    log: Path,
    *arguments: str,
    enter: Callable[[Iterable[str]], list[str]] | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[Started]:
    """A command that runs until the block is left; its output goes to `log`.  It is forked (see `forked`), unless `enter`
    changes its command line."""
    full = environment(home, **(env or {}))
    process: Started
    with log.open("wb") as out:
        if enter is None:
            process = await forked.start(arguments, full, out)
        else:
            process = await asyncio.create_subprocess_exec(
                *enter([*DORM, *arguments]), stdout=out, stderr=out, env=full
            )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 20.0)
            except TimeoutError:
                process.kill()
                await process.wait()


async def until_printed(log: Path, words: str, process: Started, *, timeout: float = 90.0) -> str:
    """Wait until a running command has printed these words; return all its output."""
    async with asyncio.timeout(timeout):
        while True:
            text = log.read_text(errors="replace")
            if words in text:
                return text
            if process.returncode is not None:
                raise AssertionError(f"it ended with {process.returncode} without saying {words!r}:\n{text}")
            await asyncio.sleep(0.05)


def processes_of(folder: Path) -> dict[int, str]:
    """Every process that has to do with a folder, by its command line or its environment; this one and its parents left
    out."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            concerned = str(folder) in command or any(str(folder) in value for value in process.environ().values())
            if process.pid not in mine and concerned and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = command
    return found


async def until_gone(folder: Path, *, timeout: float = 10.0) -> None:
    """Wait until no process has to do with a folder any more."""
    try:
        async with asyncio.timeout(timeout):
            while processes_of(folder):  # noqa: ASYNC110  # nothing tells of other programs' ends
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"these were left behind: {processes_of(folder)}") from None
