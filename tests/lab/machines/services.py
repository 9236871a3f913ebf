"""Commands that are kept running, as by a service manager: whenever one ends, it is restarted after a while.

The holder of a `Service` may also kill or freeze it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping, Sequence
    from pathlib import Path

AGAIN_S = 0.5
"""From an unrequested end to the next start."""
_GENTLE_S = 20.0


class End(NamedTuple):
    """One end of a service's process."""

    code: int
    """Like Python's: negative for a signal."""
    asked: bool
    """Whether it was killed on purpose."""


class Service:
    """One command; keep a task with `run` as long as it is needed.  Its output is appended to `output`."""

    def __init__(self, name: str, command: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.output = output
        self.ends: list[End] = []
        self._command = command
        self._environment = environment
        self._process: Process | None = None
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._asked = False

    async def run(self) -> NoReturn:
        """Start it again and again.  When cancelled, ask it to end, and kill it if it does not."""
        try:
            while True:
                await self._allowed.wait()
                self._asked = False
                with self.output.open("ab") as output:
                    self._process = await asyncio.create_subprocess_exec(
                        *self._command,
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env=self._environment,
                        start_new_session=True,  # a Ctrl-C at the terminal is its owner's to handle
                    )
                code = await self._process.wait()
                self.ends.append(End(code, self._asked))
                self._process = None
                if not self._asked:
                    await asyncio.sleep(AGAIN_S)
        finally:
            await self._end()

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._asked = True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(process.wait(), _GENTLE_S)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await process.wait()

    @property
    def running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.returncode is None

    def kill(self) -> None:
        """Send SIGKILL."""
        self._asked = True
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Send SIGSTOP: it is silent, and its connections stay open, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._signal(signal.SIGCONT)

    def hold(self) -> None:
        """From now on, do not restart it before `allow`."""
        self._allowed.clear()
        self._asked = True

    def allow(self) -> None:
        """Undo `hold`."""
        self._allowed.set()

    def _signal(self, number: signal.Signals) -> None:
        # Not with `send_signal`, which takes the exit status from the loop if the process has ended.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)
