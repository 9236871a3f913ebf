"""Earlier releases, taken from this repository's history and run as separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

from tests.e2e.commands import REPOSITORY, environment
from tests.lab.machines.engines import unavailable

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

COMMITS = {
    "0.6.0": "10afb4c45719850abe4b1c9220bd91e8f1ab9032",
}
"""The commit of each release that the present one works together with."""
_END_S = 20.0


def sources(release: str, folder: Path) -> Path:
    """The sources of a release; if the history does not go back to it, tests skip, and in CI they fail."""
    done = subprocess.run(
        ["git", "archive", COMMITS[release], "dorm", "events", "agents", "replay", "compose"],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        unavailable(f"release {release} is not in this repository's history: {done.stderr.decode().strip()[:200]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


class Program:
    """`dorm` of some release, with one data folder through all of its restarts."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.log = folder / f"{name}.log"
        self._home = folder / f"{name}-home"
        self._arguments = arguments
        self._process: Process | None = None

    async def start(self, release: Path) -> None:
        """Start it from these sources."""
        with self.log.open("ab") as log:
            log.write(f"--- {release}\n".encode())
            log.flush()
            self._process = await asyncio.create_subprocess_exec(
                *_command(self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=release,
                env=environment(self._home, PYTHONPATH=str(release)),
                start_new_session=True,
            )

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise

    async def becomes(self, release: Path) -> None:
        """Stop it, and start it from other sources."""
        await self.stop()
        await self.start(release)

    async def end(self) -> None:
        with contextlib.suppress(TimeoutError):
            await self.stop()


async def dorm_of(release: Path, home: Path, *arguments: str) -> str:
    """One command of a release; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *_command(arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=release,
        env=environment(home, PYTHONPATH=str(release)),
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, f"{arguments}: {err.decode()}"
    return out.decode()


def _command(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-c", "from dorm.cli.main import main; main()", *arguments]
