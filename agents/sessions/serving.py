"""Who asks, and whether they may.

The server that guards subjects lets each person ask on subjects that end in the own name, and name the own tenant, unless an
operator asks (`dorm.security.roles`).  So an agent has to know no users: it takes the tenant and the person from the
subject, and nothing from a message.  A container of another tenant counts as absent.  Sessions are kept by person, so
no one can add to another's, and each begins with a record on the log, so an old request asked again is a session of its
own, or names a container that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from agents.runtime.interface import Key, RuntimeFault
from agents.sessions.bounds import (
    MOST_CONNECTIONS,
    MOST_CONNECTIONS_OF_ONE,
    MOST_OF_ONE,
    MOST_SESSIONS,
    Bound,
    TooMany,
)
from agents.sessions.session import Session
from events import subjects
from events.appending import append_event
from events.log.interface import AskRefused
from events.log.records import LogError, LogRefused
from events.sessions import ALIVE_S, SILENT_S, Ended, MessageMalformed, Open, encoded, following, opening

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from agents.desired import Desired
    from agents.reporting.outbox import Outbox
    from agents.runtime.interface import Runtime
    from events.log.interface import Answerer, Bus, EventLog

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
        """Set while there is a session."""
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
                asked = opening(question)
                if isinstance(asked, Open):
                    with self._bound.held(asker.who):
                        async with contextlib.aclosing(self._open(asker, asked)) as pieces:
                            async for piece in pieces:
                                yield piece
                    return
                session = self._sessions.get((asker, asked.session))
                if session is None:
                    raise AskRefused("the session is over", code="session.over")
                with self._connections.held(asker.who):
                    async with contextlib.aclosing(session.connect(asked)) as pieces:
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
                asked = following(question)
            except MessageMalformed as error:
                raise AskRefused(str(error), code=error.code) from None
            session = self._sessions.get((asker, asked.session))
            if session is None:
                raise AskRefused("the session is over", code="session.over")
            await session.follow(asked)
            return
            yield b""

        return answer
