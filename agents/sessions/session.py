"""One session: its records on the log, and its processes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Final

from agents.runtime.execution import Command, Terminal
from agents.runtime.interface import Refused, RuntimeFault
from agents.sessions.forwarding import Forwarded
from events.kinds import SessionEnded, SessionStarted
from events.limits import clipped
from events.log.interface import AskRefused
from events.sessions import Alive, Begun, Connect, Ended, Input, Output, Resize, Signal, encoded, shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from agents.runtime.execution import End, Execution
    from agents.runtime.interface import Key, Runtime
    from events.sessions import Following, Open

_NOT_FOUND: Final = 127
_GONE = "the client has gone"


class Session:
    """One session of one person.  `now` is the loop's time."""

    def __init__(
        self, asked: Open, key: Key, who: str, node: str, runtime: Runtime, now: Callable[[], float],
        inside: Callable[[Key, tuple[str, ...]], tuple[str, ...]] = lambda key, command: command,
    ) -> None:  # fmt: skip
        """`inside` returns how a command runs in a container's environment."""
        self.id = secrets.token_hex(8)
        """On the log and on the session's processes: an id chosen by a client could be another session's."""
        self.asked = asked
        self.key = key
        self.who = who
        self._node = node
        self._runtime = runtime
        self._inside = inside
        self._now = now
        self._heard_at = now()
        self._execution: Execution | None = None
        self._over = asyncio.Event()
        self._taken = 0
        """The number of the last input."""
        self._taking = False
        self._connections: dict[int, Forwarded] = {}
        self._connected = 0
        self._received = self._sent = 0
        self._why = _GONE
        self._code: int | None = None

    # --- its records ----------------------------------------------------------------------------------------------------

    def started(self, at: int) -> SessionStarted:
        asked, key = self.asked, self.key
        return SessionStarted(
            id=f"{self._node}.session.{self.id}.started", at=at, by=self._node, node=self._node, app=key.app,
            generation=key.generation, slot=key.slot, session=self.id, user=self.who, what=asked.what,
            command=shown(asked.command), port=asked.port or 0,
        )  # fmt: skip

    def ended(self, at: int, why: str | None = None) -> SessionEnded:
        """Return its last record; `why` if it did not begin."""
        asked, key = self.asked, self.key
        return SessionEnded(
            id=f"{self._node}.session.{self.id}.ended", at=at, by=self._node, node=self._node, app=key.app,
            generation=key.generation, slot=key.slot, session=self.id, user=self.who, what=asked.what,
            exit_code=self._code, reason=clipped(self._why if why is None else why), connections=self._connected,
            received=self._received + sum(one.received for one in self._connections.values()),
            sent=self._sent + sum(one.sent for one in self._connections.values()),
        )  # fmt: skip

    # --- its answer -----------------------------------------------------------------------------------------------------

    async def run(self) -> AsyncGenerator[bytes, None]:
        """Yield the session's answer.  Its processes are killed when this is closed."""
        try:
            if self.asked.what == "forward":
                async for piece in self._forward():
                    yield piece
            else:
                async for piece in self._execute():
                    yield piece
        finally:
            if self._execution is not None:
                await self._execution.close()

    async def _execute(self) -> AsyncGenerator[bytes, None]:
        asked, size = self.asked, self.asked.terminal
        terminal = Terminal(size.columns, size.rows, asked.term) if size is not None else None
        try:
            words = self._inside(self.key, tuple(asked.command))
            execution = await self._runtime.execute(self.key, Command(words, self.id, terminal))
        except KeyError:
            yield self._end("session.container.not_running", self._not_running())
            return
        except Refused as error:
            self._code = _NOT_FOUND
            yield self._end(error.code, str(error))
            return
        except RuntimeFault as error:
            yield self._end(error.code, str(error))
            return
        self._execution = execution
        yield encoded(Begun())
        while (piece := await execution.read()) is not None:
            self._sent += len(piece[1])
            yield encoded(Output(*piece))
        ended = await execution.ended()
        yield self._last(ended)

    def _last(self, ended: End) -> bytes:
        if self._over.is_set():
            return self._end("session.silent", self._why)
        self._code = ended.exit_code
        if ended.refused:
            self._code = _NOT_FOUND
            return self._end("container.command.not_found", ended.refused)
        if ended.with_container:
            self._code = None
            return self._end("session.container.ended", f"the container has ended: {self._where()}")
        self._why = ""
        return encoded(Ended(ended.exit_code))

    def _end(self, code: str, reason: str) -> bytes:
        self._why = reason
        return encoded(Ended(self._code, code, reason))

    def _where(self) -> str:
        return f"slot {self.key.slot} of generation {self.key.generation} on node {self._node}"

    def _not_running(self) -> str:
        return (
            f"{self._where()} does not run: it has ended, or the app is being resized or restarted; "
            "`dorm describe` shows where the app runs now"
        )

    async def _forward(self) -> AsyncGenerator[bytes, None]:
        """Wait until the container or the session ends; connections are answers of their own."""
        yield encoded(Begun())
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._over.wait()
            try:
                runs = await self._runtime.runs(self.key)
            except RuntimeFault:
                continue  # The engine is silent, which says nothing about the container.
            if not runs:
                yield self._end("session.container.ended", f"the container has ended: {self._where()}")
                return
        yield self._end("session.silent", self._why)

    async def connect(self, asked: Connect) -> AsyncGenerator[bytes, None]:
        """Yield the data of one more connection."""
        if self.asked.port is None or asked.connection in self._connections or not asked.connection:
            raise AskRefused("no such connection can be opened", code="session.message.malformed")
        forwarded = self._connections[asked.connection] = Forwarded(self.key, self.asked.port, self._runtime)
        self._connected += 1
        try:
            await forwarded.open()
            yield encoded(Begun())
            async for data in forwarded.read():
                yield encoded(Output(1, data))
            yield encoded(Ended())
        except KeyError:
            yield encoded(Ended(None, "session.container.ended", f"the container has ended: {self._where()}"))
        except RuntimeFault as error:
            yield encoded(Ended(None, error.code, str(error)))
        finally:
            await forwarded.close()
            self._received += forwarded.received
            self._sent += forwarded.sent
            del self._connections[asked.connection]

    # --- what its person sends ------------------------------------------------------------------------------------------

    async def follow(self, asked: Following) -> None:
        """Take the client's input; return once the container has it."""
        self._heard_at = self._now()
        match asked:
            case Alive():
                return
            case Resize():
                if self._execution is not None:
                    await self._execution.resize(asked.size.columns, asked.size.rows)
            case Signal():
                if self._execution is not None:
                    await self._execution.signal(asked.number)
            case Input() if asked.connection:
                forwarded = self._connections.get(asked.connection)
                if forwarded is None:
                    raise AskRefused("the connection is closed", code="session.connection.closed")
                await forwarded.take(asked)
            case Input():
                await self._take(asked)
        self._heard_at = self._now()

    async def _take(self, asked: Input) -> None:
        if self._execution is None or self._taking or asked.number != self._taken + 1:
            raise AskRefused("an earlier part of the input is missing", code="session.input.out_of_order")
        self._taking, self._taken = True, asked.number
        try:
            if asked.data:
                await self._execution.write(asked.data)
                self._received += len(asked.data)
            if asked.last:
                await self._execution.end_input()
        finally:
            self._taking = False

    async def end_if_silent(self, silent_s: float) -> None:
        """End it if its client was silent for too long."""
        if self._now() - self._heard_at > silent_s and not self._taking and not self._over.is_set():
            self._why = f"the client was silent for {silent_s:.0f} s"
            self._over.set()
            for one in list(self._connections.values()):
                await one.close()
            if self._execution is not None:
                await self._execution.close()


_LOOK_S: Final = 2.0
"""Seconds between looks whether the container of forwarded connections still runs."""
