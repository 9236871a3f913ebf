"""A command that a person runs in a container, beside the container's own program.

Its processes have the container's user, environment, folder and control group, and they end with the session: when the
container ends, when the session is closed, and when the agent dies.  For the last, each session has a keeper, a process
that outlives the agent and kills the remaining processes (`agents.runtime.process.keeper`,
`agents.runtime.docker.keeper`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MARK: Final = "DORM_SESSION"
"""The variable of its environment that shows which session a process belongs to."""
CHUNK: Final = 32 * 1024
"""Bytes of output that are read at once."""
_WAITING: Final = 2
"""Pieces of output that wait for the reader; then the program waits."""


class Terminal(NamedTuple):
    """A terminal's size in characters, and its kind (TERM)."""

    columns: int
    rows: int
    kind: str


class Command(msgspec.Struct, frozen=True):
    """What to run."""

    words: tuple[str, ...]
    session: str
    """A word that no other session has."""
    terminal: Terminal | None = None
    """None for a command with plain pipes, whose standard output and error are apart."""


class End(NamedTuple):
    """How a command ended."""

    exit_code: int
    """As a shell has it: 128 and the signal's number after a signal."""
    with_container: bool
    """Whether it was killed because its container ended."""
    refused: str = ""
    """Why it could not be executed, if an engine finds that out only after its start."""


class Execution(Protocol):
    """A command that runs.  Methods may be called in any order and after its end; `close` has to be."""

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next piece of output, with 1 for standard output or a terminal and 2 for standard error; None
        once all has been read.  A program whose output is not read has to wait."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to its standard input; return once the system has taken it.  A program that reads no more takes nothing,
        which is not an error."""
        ...

    async def end_input(self) -> None:
        """Close its standard input; of a terminal, send what Ctrl-D does."""
        ...

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal, if it has one."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        ...

    async def ended(self) -> End:
        """Wait for its end, once all output was read."""
        ...

    async def close(self) -> None:
        """Kill its remaining processes, and return when they are gone, or certainly will be soon."""
        ...


class Stream:
    """Output of several sources in the order in which it comes, in a bounded queue."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(_WAITING)
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False

    def add(self, number: int, read: Callable[[], Awaitable[bytes]]) -> None:
        """Read from a source, whose end is an empty piece or an OSError."""
        self._open += 1
        task = asyncio.create_task(self._pump(number, read))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next piece, None at the end of all sources."""
        if self._over:
            return None
        piece = await self._pieces.get()
        self._over = piece is None
        return piece

    async def close(self) -> None:
        """Read no more, and end a `read` that waits."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._pieces.empty():
            self._pieces.get_nowait()
        self._pieces.put_nowait(None)

    async def _pump(self, number: int, read: Callable[[], Awaitable[bytes]]) -> None:
        with contextlib.suppress(OSError):  # A terminal whose program has ended gives EIO.
            while data := await read():
                await self._pieces.put((number, data))
        self._open -= 1
        if not self._open:
            await self._pieces.put(None)
