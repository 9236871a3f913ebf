"""Commands that people run next to a container's program, each under a keeper (`agents.runtime.process.keeper`)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from agents.runtime.interface import CHUNK, Command, End, Refused, Stream, Terminal, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEEPER: Final = str(Path(__file__).with_name("keeper.py"))
_START_S: Final = 30.0
_CLOSE_S: Final = 5.0
_KILLED: Final = End(137, with_container=False)
_END_OF_FILE: Final = b"\x04"


class ProcessExecution:
    """One command.  `start` makes it."""

    def __init__(self, process: asyncio.subprocess.Process, stream: Stream) -> None:
        self._process = process
        self._stream = stream
        self._control: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._input = process.stdin
        self._terminal: int | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._end: End | None = None

    @classmethod
    async def start(cls, folder: Path, container: int, command: Command) -> ProcessExecution:
        """Start it next to the container in this folder, whose supervisor's pidfd `container` is; the caller closes that.
        Raises `Refused` ("command") if it can't be executed, `Unavailable` if no keeper can be started."""
        our_end, keeper_end = socket.socketpair()
        terminal, streams = (None, (asyncio.subprocess.PIPE,) * 3)
        if command.terminal is not None:
            terminal, slave = _open_terminal(command.terminal)
            streams = (slave, slave, slave)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _KEEPER, str(keeper_end.fileno()), str(container), str(folder)),
                *(command.session, command.terminal.kind or "xterm" if command.terminal is not None else ""),
                *command.words,
                stdin=streams[0], stdout=streams[1], stderr=streams[2],
                pass_fds=(keeper_end.fileno(), container), env={"LANG": "C.UTF-8"}, cwd="/", start_new_session=True,
                limit=CHUNK,
            )  # fmt: skip
        except BaseException as failure:
            our_end.close()
            if terminal is not None:
                os.close(terminal)
            if not isinstance(failure, OSError):
                raise
            raise Unavailable(f"no command can be started: {failure}", code="session.keeper.failed") from failure
        finally:
            keeper_end.close()
            if terminal is not None:
                os.close(streams[0])
        made = cls(process, Stream())
        try:
            await made._attach(our_end, terminal)
        except BaseException:
            await made.close()
            raise
        return made

    async def _attach(self, control: socket.socket, terminal: int | None) -> None:
        self._control = await asyncio.open_connection(sock=control)
        if terminal is not None:
            await self._attach_terminal(terminal)
        else:
            out, err = self._process.stdout, self._process.stderr
            assert out is not None
            assert err is not None
            self._stream.add(1, lambda: out.read(CHUNK))
            self._stream.add(2, lambda: err.read(CHUNK))
        try:
            async with asyncio.timeout(_START_S):
                answer = (await self._control[0].readline()).decode(errors="replace").strip()
        except (TimeoutError, OSError) as failure:
            raise Unavailable("the command did not start in time", code="session.keeper.failed") from failure
        if not answer:
            raise Unavailable("the keeper of the command ended before it started", code="session.keeper.failed")
        if answer != "started":
            raise Refused("command", answer, code="container.command.not_found")

    async def _attach_terminal(self, terminal: int) -> None:
        loop = asyncio.get_running_loop()
        self._terminal = terminal
        reader = asyncio.StreamReader(limit=CHUNK)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(terminal), "rb", buffering=0)
        )
        self._transports.append(reading)
        writing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(os.dup(terminal), "wb", buffering=0)
        )
        self._transports.append(writing)
        self._input = asyncio.StreamWriter(writing, protocol, None, loop)
        self._stream.add(1, lambda: reader.read(CHUNK))

    async def read(self) -> tuple[int, bytes] | None:
        return await self._stream.read()

    async def write(self, data: bytes) -> None:
        if self._input is not None:
            with contextlib.suppress(OSError):  # It reads no more.
                self._input.write(data)
                await self._input.drain()

    async def end_input(self) -> None:
        if self._terminal is not None:
            await self.write(_END_OF_FILE)
        elif self._input is not None:
            self._input.close()
            with contextlib.suppress(OSError):
                await self._input.wait_closed()

    async def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                _set_size(self._terminal, columns, rows)

    async def signal(self, number: int) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control[1].write(b"%d\n" % number)
                await self._control[1].drain()

    async def ended(self) -> End:
        if self._end is None:
            assert self._control is not None
            answer: list[str] = []
            with contextlib.suppress(OSError):
                answer = (await self._control[0].readline()).decode(errors="replace").split()
            self._end = End(int(answer[0]), answer[1:] == ["container"]) if answer else _KILLED
        return self._end

    async def close(self) -> None:
        if self._control is not None:
            self._control[1].close()  # The keeper reads it as the end of the session.
        await self._stream.close()
        for transport in self._transports:
            transport.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None
        pipes = vars(self._process)["_transport"]  # While one is open, `wait` waits for its end as well.
        for number in (0, 1, 2):
            if (pipe := pipes.get_pipe_transport(number)) is not None:
                pipe.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._process.wait()

    @property
    def keeper(self) -> int:
        """The process below which everything of it runs."""
        return self._process.pid


def processes(tops: Iterable[int]) -> list[int]:
    """Return these processes and their descendants.  Blocks, briefly."""
    pids: list[int] = []
    for top in tops:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(top)
            pids += [top, *(child.pid for child in process.children(recursive=True))]
    return pids


def _open_terminal(wanted: Terminal) -> tuple[int, int]:
    try:
        master, slave = os.openpty()
    except OSError as failure:
        raise Unavailable(f"no terminal can be made: {failure.strerror}", code="session.terminal.failed") from failure
    _set_size(slave, wanted.columns, wanted.rows)
    return master, slave


def _set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
