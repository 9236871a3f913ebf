"""Sessions in this node's containers: commands, shells and forwarded connections of people (`events.sessions`).

*Who may.*  The server that guards subjects lets each person ask on subjects that end in the own name, and name the own
tenant, unless an operator asks (`dorm.security.roles`).  So an agent has to know no users: it takes the tenant and the
person from the subject, and nothing from a message.  A container of another tenant counts as absent.  Sessions are
kept by person, so no one can add to another's, and each begins with a record on the log, so an old request asked again
is a session of its own, or names a container that has ended.

*A session* has its records on the log, and its processes.  *A connection* to a port of a container comes from the
node's own network, which its containers share.  A port says nothing about whose it is, so the connection is made only
to a socket that a process of this container holds, and only kept if it still does after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from agents.runtime.interface import Command, Key, Refused, RuntimeFault, Terminal
from events import subjects
from events.appending import append_event
from events.errors import DormError
from events.kinds import SessionEnded, SessionStarted
from events.limits import clipped
from events.log.interface import AskRefused
from events.log.records import LogError, LogRefused
from events.sessions import (
    ALIVE_S,
    CHUNK,
    SILENT_S,
    Alive,
    Begun,
    Connect,
    Ended,
    Input,
    MessageMalformed,
    Open,
    Output,
    Resize,
    Signal,
    encoded,
    following,
    opening,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from agents.desired import Desired
    from agents.outbox import Outbox
    from agents.runtime.interface import End, Execution, Runtime
    from events.log.interface import Answerer, Bus, EventLog
    from events.sessions import Following


# --- how many at once -------------------------------------------------------------------------------------------------

MOST_SESSIONS: Final = 64
MOST_OF_ONE: Final = 16
MOST_CONNECTIONS: Final = 128
MOST_CONNECTIONS_OF_ONE: Final = 64


class TooMany(DormError):
    """There are too many already."""

    code = "session.too_many"


class Bound:
    """Counts what exists at once, for each person and for all.  `what` names it in the plural."""

    def __init__(self, what: str, most: int, most_of_one: int) -> None:
        self._what = what
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, who: str) -> Iterator[None]:
        """Count one more of this person's while this is open.  Raises TooMany."""
        if self._of[who] >= self._most_of_one:
            raise TooMany(f"{who} has {self._most_of_one} {self._what} on this node already; end one of them first")
        if self._of.total() >= self._most:
            raise TooMany(f"this node has {self._most} {self._what} already; try again later")
        self._of[who] += 1
        try:
            yield
        finally:
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]


# --- one connection to a port -----------------------------------------------------------------------------------------

_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 2.0
"""Seconds that the last output may take to be read."""


class NotListening(RuntimeFault):
    """No process of the container listens on the port."""

    code = "session.port.not_listening"


class Forwarded:
    """One connection."""

    def __init__(self, key: Key, port: int, runtime: Runtime) -> None:
        self._key = key
        self._port = port
        self._runtime = runtime
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._taken = 0
        self._taking = False
        self.received = self.sent = 0
        """Bytes into the container, and out of it."""

    async def read(self) -> AsyncIterator[bytes]:
        """Yield incoming data, once it is open."""
        assert self._streams is not None
        with contextlib.suppress(OSError):  # Reset by the peer: as good as an end.
            while data := await self._streams[0].read(CHUNK):
                self.sent += len(data)
                yield data

    async def open(self) -> None:
        """Connect.  Raises KeyError if the container does not run, NotListening."""
        before = await self._runtime.listener(self._key, self._port)
        if before is None:
            raise NotListening(f"no process of the container listens on port {self._port}")
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(before.address, self._port, limit=CHUNK)
        except (OSError, TimeoutError) as error:
            raise NotListening(
                f"port {self._port} of the container does not take connections: {str(error) or 'no answer'}",
                code="session.port.refused",
            ) from error
        if await self._runtime.listener(self._key, self._port) != before:
            writer.close()
            raise NotListening(f"the process that listened on port {self._port} has just ended")
        self._streams = reader, writer

    async def take(self, asked: Input) -> None:
        """Send bytes over it; return once the system has taken them."""
        if self._streams is None or self._taking or asked.number != self._taken + 1:
            raise AskRefused("an earlier part of the input is missing", code="session.input.out_of_order")
        self._taking, self._taken = True, asked.number
        writer = self._streams[1]
        try:
            with contextlib.suppress(OSError):
                if asked.data:
                    writer.write(asked.data)
                    await writer.drain()
                    self.received += len(asked.data)
                if asked.last and writer.can_write_eof():
                    writer.write_eof()
        finally:
            self._taking = False

    async def close(self) -> None:
        """Close it.  A program that reads nothing holds up neither the connection nor those who wait for its end."""
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._streams[1].wait_closed()
            self._streams[1].transport.abort()


# --- one session ------------------------------------------------------------------------------------------------------

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
        """Id on the log and on the session's processes: one chosen by a client could be another session's."""
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
        opening, key = self.asked, self.key
        return SessionStarted(
            id=f"{self._node}.session.{self.id}.started", at=at, by=self._node, node=self._node, app=key.app,
            generation=key.generation, slot=key.slot, session=self.id, user=self.who, what=opening.what,
            command=shown(opening.command), port=opening.port or 0,
        )  # fmt: skip

    def ended(self, at: int, why: str | None = None) -> SessionEnded:
        """Return its last record; `why` if it did not begin."""
        opening, key = self.asked, self.key
        return SessionEnded(
            id=f"{self._node}.session.{self.id}.ended", at=at, by=self._node, node=self._node, app=key.app,
            generation=key.generation, slot=key.slot, session=self.id, user=self.who, what=opening.what,
            exit_code=self._code, reason=clipped(self._why if why is None else why), connections=self._connected,
            received=self._received + sum(connection.received for connection in self._connections.values()),
            sent=self._sent + sum(connection.sent for connection in self._connections.values()),
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
        opening, size = self.asked, self.asked.terminal
        terminal = Terminal(size.columns, size.rows, opening.term) if size is not None else None
        try:
            command = self._inside(self.key, tuple(opening.command))
            execution = await self._runtime.execute(self.key, Command(command, self.id, terminal))
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
            for connection in list(self._connections.values()):
                await connection.close()
            if self._execution is not None:
                await self._execution.close()


_LOOK_S: Final = 2.0
"""Seconds between looks whether the container of forwarded connections still runs."""


# --- who asks, and whether they may -----------------------------------------------------------------------------------

_RECORD_S: Final = 5.0
"""Seconds within which the log has to take a session's first record."""
_log = structlog.get_logger(__name__)


class _Asker(NamedTuple):
    """Who asks about whose containers: tokens of the subject."""

    tenant: str
    who: str


class Sessions:
    """All sessions on one node.  `clock` returns UTC ns."""

    def __init__(
        self, cluster: str, runtime: Runtime, desired: Desired, log: EventLog, outbox: Outbox, clock: Callable[[], int],
        inside: Callable[[Key, tuple[str, ...]], tuple[str, ...]] = lambda key, command: command,
    ) -> None:  # fmt: skip
        """`inside` returns how a command runs in a container's environment."""
        self._cluster = cluster
        self._runtime = runtime
        self._desired = desired
        self._log = log
        self._outbox = outbox
        self._clock = clock
        self._inside = inside
        self._sessions: dict[tuple[_Asker, str], Session] = {}
        self._any = asyncio.Event()
        """Event that is set while there is a session."""
        self._bound = Bound("sessions", MOST_SESSIONS, MOST_OF_ONE)
        self._connections = Bound("forwarded connections", MOST_CONNECTIONS, MOST_CONNECTIONS_OF_ONE)

    async def serve(self, bus: Bus) -> None:
        """Serve sessions until cancelled.  A server that forbids it, whose permissions are older, or a lost connection, ends
        nothing but this."""
        node = self._desired.node
        try:
            async with asyncio.TaskGroup() as tasks:
                for what, answerer in (("session", self._opener), ("input", self._follower)):
                    pattern = subjects.session(self._cluster, node, what, "*", "*")
                    tasks.create_task(bus.answer_each(pattern, answerer))
                tasks.create_task(self._end_silent())
        except* LogError as errors:
            _log.warning("nobody can enter containers of this node", reason=str(errors.exceptions[0]))

    async def _end_silent(self) -> None:
        while True:
            await self._any.wait()
            await asyncio.sleep(ALIVE_S)
            for session in list(self._sessions.values()):
                await session.end_if_silent(SILENT_S)

    # --- opening --------------------------------------------------------------------------------------------------------

    def _opener(self, subject: str) -> Answerer:
        asker = _Asker(*subject.split(".")[-2:])

        async def answer(question: bytes) -> AsyncIterator[bytes]:
            try:
                request = opening(question)
                if isinstance(request, Open):
                    with self._bound.held(asker.who):
                        async with contextlib.aclosing(self._open(asker, request)) as pieces:
                            async for piece in pieces:
                                yield piece
                    return
                session = self._sessions.get((asker, request.session))
                if session is None:
                    raise AskRefused("the session is over", code="session.over")
                with self._connections.held(asker.who):
                    async with contextlib.aclosing(session.connect(request)) as pieces:
                        async for piece in pieces:
                            yield piece
            except (MessageMalformed, TooMany) as error:
                yield encoded(Ended(None, error.code, str(error)))

        return answer

    async def _open(self, asker: _Asker, asked: Open) -> AsyncGenerator[bytes, None]:
        key = Key(asked.app, asked.generation, asked.slot)
        loop = asyncio.get_running_loop()
        session = Session(asked, key, asker.who, self._desired.node, self._runtime, loop.time, self._inside)
        place = (asker, asked.session)
        if (refused := await self._refusal(asker, place, key)) is not None:
            yield encoded(refused)
            return
        if (unrecorded := await self._record(session)) is not None:
            yield encoded(unrecorded)
            return
        self._sessions[place] = session
        self._any.set()
        try:
            async with contextlib.aclosing(session.run()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            del self._sessions[place]
            if not self._sessions:
                self._any.clear()
            await self._outbox.put(session.ended(self._clock()))

    async def _refusal(self, asker: _Asker, place: tuple[_Asker, str], key: Key) -> Ended | None:
        """Return why this session can't begin, None if it can."""
        if place in self._sessions:
            return Ended(None, "session.exists", "a session with this id exists already; ask again with another id")
        owner = self._desired.owner_of(key.app)
        runs = False
        if owner is not None and subjects.token(owner) == asker.tenant:
            try:
                runs = await self._runtime.runs(key)
            except RuntimeFault as error:
                return Ended(None, error.code, f"the engine on node {self._desired.node} does not answer: {error}")
        if runs:
            return None
        return Ended(
            None,
            "session.container.not_running",
            f"slot {key.slot} of generation {key.generation} does not run on node {self._desired.node}: it has ended, or the "
            "app is being resized or restarted; `dorm describe` shows where the app runs now",
        )

    async def _record(self, session: Session) -> Ended | None:
        """Put its start on the log.  Return why that can't be done, None once it is stored."""
        event = session.started(self._clock())
        subject = subjects.fact(self._cluster, type(event).__name__, self._desired.node)
        try:
            async with asyncio.timeout(_RECORD_S):
                await append_event(self._log, subject, event)
        except (LogError, TimeoutError) as error:
            if not isinstance(error, LogRefused):  # It may be stored all the same.
                await self._outbox.put(session.ended(self._clock(), "it did not begin: the log was not available"))
            return Ended(
                None,
                "session.not_recorded",
                "the log did not store the record of the session's start, so the session does not start: "
                f"{str(error) or 'no answer in time'}",
            )
        return None

    # --- what follows ---------------------------------------------------------------------------------------------------

    def _follower(self, subject: str) -> Answerer:
        asker = _Asker(*subject.split(".")[-2:])

        async def answer(question: bytes) -> AsyncIterator[bytes]:
            try:
                request = following(question)
            except MessageMalformed as error:
                raise AskRefused(str(error), code=error.code) from None
            session = self._sessions.get((asker, request.session))
            if session is None:
                raise AskRefused("the session is over", code="session.over")
            await session.follow(request)
            return
            yield b""

        return answer
