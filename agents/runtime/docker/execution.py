"""Commands that people run next to a container's program, each with a keeper (`agents.runtime.docker.keeper`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agents.runtime.docker.engine import Rejected
from agents.runtime.interface import MARK, Command, End, Refused, Unavailable

if TYPE_CHECKING:
    from agents.runtime.docker.engine import Engine, ExecStream, Json

_KEEPER: Final = str(Path(__file__).with_name("keeper.py"))
_CLOSE_S: Final = 5.0
_SETTLE_S: Final = 0.02
_CONTAINER_S: Final = 1.0
"""Seconds for which a container may seem to run after the kernel has killed its processes."""
_KILLED: Final = 137
_END_OF_FILE: Final = b"\x04"
_NOT_FOUND: Final = (126, 127)
_NOT_EXECUTED: Final = b"OCI runtime exec failed: "
"""Text that engines before 28 write to the command's output instead of refusing it."""


class DockerExecution:
    """One command.  `start` makes it."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        stream: ExecStream,
        terminal: bool,
        control: socket.socket,
        keeper: _Process,
    ) -> None:
        self._engine = engine
        self._container = container
        self._stream = stream
        self._terminal = terminal
        self._control = control
        self._keeper = keeper
        self._end: End | None = None
        self._fresh = True
        self._refused = ""

    @classmethod
    async def start(cls, engine: Engine, container: Json, command: Command) -> DockerExecution:
        """Start it in a container that the engine has described.  Raises `Refused` ("command") if there is no such command,
        `Unavailable`, and KeyError if the container has ended."""
        name, pid = str(container["Id"]), int(container["State"].get("Pid") or 0)
        if not await asyncio.to_thread(_is_visible, pid, name):
            raise Unavailable(
                "the agent does not see the processes of its engine, which is on another machine or hides them, so it could "
                "not end what runs there: sessions need both on one machine",
                code="session.engine.out_of_view",
            )
        control, keeper = await _start_keeper(name, command.session)
        terminal = command.terminal
        variables = {MARK: command.session} | ({"TERM": terminal.kind or "xterm"} if terminal is not None else {})
        size = (terminal.columns, terminal.rows) if terminal is not None else None
        try:
            stream = await engine.exec_attach(name, command.words, variables, terminal=size)
        except BaseException as failure:
            control.close()
            if not isinstance(failure, Rejected):
                raise
            if failure.status == 400:
                raise Refused("command", _why(failure.message), code="container.command.not_found") from failure
            raise KeyError(name) from failure
        return cls(engine, name, stream, terminal is not None, control, keeper)

    async def read(self) -> tuple[int, bytes] | None:
        try:
            piece = await self._stream.read()
        except Unavailable:  # The engine has gone, or has closed the stream; `ended` finds out.
            return None
        if self._fresh and piece is not None and piece[1].startswith(_NOT_EXECUTED):
            self._refused = _why(piece[1].decode(errors="replace"))
            return None
        self._fresh = False
        return piece

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(Unavailable):  # It reads no more.
            await self._stream.write(data)

    async def end_input(self) -> None:
        if self._terminal:
            await self.write(_END_OF_FILE)
        else:
            self._stream.end_input()

    async def resize(self, columns: int, rows: int) -> None:
        if self._terminal:
            with contextlib.suppress(Unavailable):
                await self._stream.resize(columns, rows)

    async def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._control, b"%d\n" % number)

    async def ended(self) -> End:
        if self._end is None:
            code = await self._exit_code()
            with_container = code == _KILLED and await self._engine.wait(self._container, _CONTAINER_S)
            self._end = End(code, with_container, self._refused if code in _NOT_FOUND else "")
        return self._end

    async def _exit_code(self) -> int:
        """The engine closes the streams a moment before it notes the exit."""
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while (state := await self._stream.inspect())["Running"]:  # noqa: ASYNC110  (the engine reports no exit)
                    await asyncio.sleep(_SETTLE_S)
                return int(state["ExitCode"] or 0)
        return _KILLED

    async def close(self) -> None:
        if self._end is not None:
            with contextlib.suppress(OSError):
                self._control.send(b"over\n")
        self._control.close()
        await self._stream.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._keeper.wait()


_Process = asyncio.subprocess.Process


async def _start_keeper(container: str, session: str) -> tuple[socket.socket, _Process]:
    our_end, keeper_end = socket.socketpair()
    our_end.setblocking(False)
    try:
        keeper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", _KEEPER, str(keeper_end.fileno()), container, session),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(keeper_end.fileno(),),
            env={"LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except BaseException as failure:
        our_end.close()
        if not isinstance(failure, OSError):
            raise
        raise Unavailable(f"no keeper can be started: {failure}", code="session.keeper.failed") from failure
    finally:
        keeper_end.close()
    return our_end, keeper


def _is_visible(pid: int, container: str) -> bool:
    """Return whether this machine shows the container's processes."""
    try:
        return pid > 1 and container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _why(message: str) -> str:
    """Return the engine's words without the names of its parts: `exec: "nope": executable file not found in $PATH`."""
    return message.strip().partition("exec: ")[2].removesuffix(": unknown") or message
