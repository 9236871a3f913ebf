"""The operator's health program: whether this node is fit for new containers, as the operator judges it.

    exit code 0      it is
    anything else    it takes nothing new, and the first line of the program's output says why

The agent runs the program when it starts, every `every_s` seconds, and when the node joins again after it was cut off: until
the first answer, the node takes nothing new.  Containers that run are left alone whatever the program says.

The program is bounded in all respects.  It has `timeout_s` seconds and may write `MOST_OUTPUT` bytes; it runs in a session of
its own, and when it has ended, or must end, its whole process group is killed, with children that left the group as long as
their parents live.  It sees only a few variables (`environment`), since the agent's own may hold secrets, has no standard
input, and starts in `/`.  The agent's loop never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

import psutil
import structlog

from agents.config import HEALTH_EVERY_S, HEALTH_TIMEOUT_S

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable
    from pathlib import Path

_log = structlog.get_logger(__name__)
MOST_OUTPUT = 64 * 1024
"""Bytes; a program that writes more is killed, and counts as failed."""
LONGEST_LINE = 200
"""Characters to which its line is cut."""
_REST_S = 0.5
"""Seconds within which the output is read that the program left in the pipe when it ended."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Verdict(NamedTuple):
    """What the program said last."""

    fit: bool
    why: str = ""
    """Its line, or how it ended without one; "" if the node is fit."""


class HealthProgram:
    """Runs one program again and again."""

    def __init__(
        self,
        path: Path,
        *,
        every_s: float = HEALTH_EVERY_S,
        timeout_s: float = HEALTH_TIMEOUT_S,
        variables: dict[str, str] | None = None,
    ) -> None:
        """`variables`: what the program sees beside those of `environment`."""
        self.verdict: Verdict | None = None
        """None until it has answered since the node joined."""
        self._path = path
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._environment = environment(variables or {})
        self._answered = asyncio.Event()
        self._due = asyncio.Event()

    async def run(self, changed: Callable[[], None]) -> None:
        """Run the program until cancelled.  `changed` is called when the verdict has changed."""
        while True:
            self._due.clear()
            verdict = await self._ask()
            if self._due.is_set():
                continue  # The node joins again: only an answer from now on counts.
            differs = verdict != self.verdict
            self.verdict = verdict
            self._answered.set()
            if differs:
                changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._due.wait()

    async def again(self, patience_s: float) -> None:
        """Forget the verdict, have the program run now, and wait a moment for its answer."""
        self.verdict = None
        self._answered.clear()
        self._due.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._answered.wait()

    async def _ask(self) -> Verdict:
        """Run it once."""
        output = _Output()
        try:
            process = await asyncio.create_subprocess_exec(
                str(self._path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.writing,
                stderr=output.writing,
                cwd="/",
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            output.close()
            return Verdict(False, f"{self._path} can't be started: {error.strerror or type(error).__name__}")
        try:
            output.read()
            exited, flooded = asyncio.create_task(process.wait()), asyncio.create_task(output.flooded.wait())
            try:
                await asyncio.wait([exited, flooded], timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
                in_time = exited.done()
            finally:
                flooded.cancel()
                exited.cancel()
            if in_time:
                _kill_group(process.pid)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_REST_S):
                        await output.ended.wait()
                return _verdict(process.returncode, output.line())
            why = "it writes too much" if output.flooded.is_set() else f"it did not end within {self._timeout_s:g} s"
            line = output.line()
            return Verdict(False, f"{why} (its output: {line})" if line else why)
        finally:
            await _end(process)
            output.close()


class _Output:
    """The pipe that the program writes to, read as it comes."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.ended = asyncio.Event()
        self.flooded = asyncio.Event()
        self._read = bytearray()
        self._loop = asyncio.get_running_loop()

    def read(self) -> None:
        """Begin to read; the program has the other end now."""
        os.close(self.writing)
        self.writing = -1
        self._loop.add_reader(self.reading, self._more)

    def _more(self) -> None:
        try:
            piece = os.read(self.reading, MOST_OUTPUT)
        except BlockingIOError:
            return
        self._read += piece
        if not piece:
            self.ended.set()
        elif len(self._read) > MOST_OUTPUT:
            self.flooded.set()
        if not piece or self.flooded.is_set():
            self._loop.remove_reader(self.reading)

    def line(self) -> str:
        """Return the first line that says anything, fit for a log."""
        for line in bytes(self._read[:MOST_OUTPUT]).decode("utf-8", "replace").splitlines():
            shown = " ".join("".join(sign if sign.isprintable() else " " for sign in line).split())
            if shown:
                return shown if len(shown) <= LONGEST_LINE else shown[: LONGEST_LINE - 3] + "..."
        return ""

    def close(self) -> None:
        self._loop.remove_reader(self.reading)
        for end in (self.reading, self.writing):
            if end >= 0:
                os.close(end)


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return all variables that the program sees."""
    return {"PATH": _PATH, "LANG": "C.UTF-8", **variables}


def _verdict(code: int | None, line: str) -> Verdict:
    if code == 0:
        return Verdict(True)
    if line:
        return Verdict(False, line)
    if code is not None and code < 0:
        return Verdict(False, f"it was ended by signal {-code}")
    return Verdict(False, f"it ended with exit code {code}")


async def _end(process: Process) -> None:
    """Kill what is left of the program, and of its children."""
    if process.returncode is None:
        with contextlib.suppress(asyncio.CancelledError):  # The agent ends: the program ends first.
            for child in await asyncio.to_thread(_descendants, process.pid):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        _kill_group(process.pid)
        await process.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
