"""`dorm` commands as processes of their own, as people and service managers run them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
DORM = [sys.executable, "-c", "from dorm.cli.main import main; main()"]


def environment(home: Path, **more: str) -> dict[str, str]:
    """The tests' own environment, with nothing of a cluster that may run on this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DORM_", "DOCKER_"))}
    return {**kept, "DORM_HOME": str(home), "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **more}


async def dorm(
    home: Path, *arguments: str, stdin: str = "", timeout: float = 60.0, env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run one command to its end: exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        *DORM,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(home, **(env or {})),
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), timeout)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def running(
    home: Path, log: Path, *arguments: str, enter: Callable[[Iterable[str]], list[str]] = list
) -> AsyncIterator[Process]:
    """A command that runs until the block is left; its output goes to `log`."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *enter([*DORM, *arguments]), stdout=out, stderr=out, env=environment(home)
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


async def until_said(log: Path, words: str, process: Process, *, timeout: float = 30.0) -> str:
    """Wait until a running command has printed these words; gives all it printed."""
    async with asyncio.timeout(timeout):
        while True:
            text = log.read_text(errors="replace")
            if words in text:
                return text
            if process.returncode is not None:
                raise AssertionError(f"it ended with {process.returncode} without saying {words!r}:\n{text}")
            await asyncio.sleep(0.05)
