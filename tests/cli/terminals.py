"""A program in its own terminal, with input and output as a person has them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

from tests.e2e.commands import environment

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 20.0


def _with_columns(env: dict[str, str], columns: str) -> dict[str, str]:
    return {**env, "COLUMNS": columns} if columns else {name: one for name, one in env.items() if name != "COLUMNS"}


class Terminal:
    """A program in its own terminal."""

    def __init__(self, *words: str, home: Path, columns: str = "80") -> None:
        """Without `columns` the program asks the terminal for its size."""
        self._end, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(inside)
        self.program = subprocess.Popen(
            words, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            env=_with_columns(environment(home, TERM="xterm-256color"), columns),
        )  # fmt: skip
        self.inside = inside
        self._ends = os.pidfd_open(self.program.pid)
        self._said = b""

    def until(self, words: str) -> None:
        """Wait until it has shown these since the last call."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self._plain():
            assert self._hear(deadline), self._plain()[-2000:]
        self._said = b""

    def _hear(self, deadline: float) -> bool:
        """Waits for what it says next; False once it has ended and has nothing more to say."""
        ready, _, _ = select.select([self._end, self._ends], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, self._plain()[-2000:]
        if self._end not in ready:
            return False
        self._said += os.read(self._end, 65536)
        return True

    def _plain(self) -> str:
        return re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|.)", "", self._said.decode("utf-8", "replace"))

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def ended(self) -> tuple[int, bytes]:
        """Exit code, and what was said since `until`."""
        deadline = time.monotonic() + PATIENCE_S
        while self._hear(deadline):
            pass
        return self.program.wait(), self._said

    def close(self) -> None:
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait()
        for descriptor in (self._end, self._ends, self.inside):
            os.close(descriptor)
