"""Sessions in containers, from the side of the person who enters them (`events.sessions`): which container an app and a rank
mean, and one session in it, its answer and what goes in.

    session = Session(client, place, "exec", ["nvidia-smi"])
    async for answer in session.answers():
        ...

It lasts as long as `answers` is read: closing that ends the session, and kills its processes.  A program that sends
nothing for `events.sessions.SILENT_S` has to `keep` it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from dorm.client.errors import ClientError
from dorm.client.finding import no_rank
from dorm.core.app import App
from events import subjects
from events.log.records import LogRefused, LogUnavailable
from events.sessions import ALIVE_S, Alive, Connect, Ended, Input, Open, Resize, Signal, answer, encoded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from dorm.client.client import Client
    from dorm.core.generation import Container, Generation
    from events.kinds.sessions import SessionIs
    from events.sessions import Answer, Following, Opening, Size


# --- which container --------------------------------------------------------------------------------------------------


class NotRunning(ClientError):
    """No such container runs now."""

    code = "session.container.not_running"


class Place(msgspec.Struct, frozen=True):
    """A container that runs, by the log."""

    app: App
    generation: int
    slot: int
    rank: int
    node: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.app.name}"


def running_place(app: App, rank: int | None = None) -> Place:
    """Return the container of this rank, by default the first that runs.  A rank is the position of a slot among those of its
    generation.  Raises NotRunning, and NotFound for a rank that the app does not have."""
    generation = _running_generation(app)
    ranked = [generation.containers[slot] for slot in sorted(generation.containers)]
    if rank is not None and rank >= len(ranked):
        raise no_rank(app, f"generation {generation.number} of {app.name}", rank, len(ranked))
    chosen = next(at for at, candidate in enumerate(ranked) if candidate.state == "running") if rank is None else rank
    container = ranked[chosen]
    if container.state != "running":
        raise NotRunning(
            f"rank {chosen} of {app.name} does not run: {_why(container)}; `dorm describe {app.name}` shows which do"
        )
    return Place(app, generation.number, container.slot, chosen, container.node)


def _running_generation(app: App) -> Generation:
    """Return the latest generation with a running container."""
    for number in sorted(app.generations, reverse=True):
        generation = app.generations[number]
        if any(container.state == "running" for container in generation.containers.values()):
            return generation
    if app.ended:
        how = "was cancelled" if app.ended == "cancelled" else f"has {app.ended}"
        raise NotRunning(f"nothing of {app.name} runs: it {how}")
    why = f": {app.waiting.text}" if app.waiting is not None else ""
    hint = f"; `dorm wait {app.name} --for running` waits until it does"
    raise NotRunning(f"nothing of {app.name} runs, it is {app.phase}{why}{hint}")


def _why(container: Container) -> str:
    if container.state == "exited":
        code = "" if container.exit_code is None else f" with exit code {container.exit_code}"
        return f"it has ended{code}"
    return "it has not started yet"


# --- one session ------------------------------------------------------------------------------------------------------

_DENIED: Final = "log.no_permission"


class SessionFailed(ClientError):
    """A session did not begin, or ended otherwise than its command."""

    code = "session.failed"


class Session:
    """One session of the client's user.  `port` is the port of forwarded connections, `terminal` the size of a
    terminal."""

    def __init__(
        self,
        client: Client,
        place: Place,
        what: SessionIs,
        command: Sequence[str] = (),
        *,
        terminal: Size | None = None,
        term: str = "",
        port: int | None = None,
    ) -> None:
        self.place = place
        self._client = client
        self._id = secrets.token_hex(16)
        self._open = Open(
            self._id, place.app.id, place.generation, place.slot, what, list(command), terminal, term, port
        )
        self._numbers: dict[int, int] = {}

    async def answers(self) -> AsyncGenerator[Answer, None]:
        """Yield `Begun`, `Output` … and at last `Ended`.  Raises SessionFailed if the agent does not answer or the server
        forbids it."""
        async with contextlib.aclosing(self._ask("session", self._open)) as opened:
            async for each in opened:
                yield each

    async def connect(self, connection: int) -> AsyncGenerator[Answer, None]:
        """Yield `Output` … and `Ended` of one more forwarded connection, under a number that this session did not have."""
        async with contextlib.aclosing(self._ask("session", Connect(self._id, connection))) as opened:
            async for each in opened:
                yield each
        self._numbers.pop(connection, None)

    async def write(self, data: bytes, *, last: bool = False, connection: int = 0) -> bool:
        """Send at most `CHUNK` bytes to the command, or over a connection; return once they are taken, and whether they were:
        an ended session accepts nothing more."""
        number = self._numbers[connection] = self._numbers.get(connection, 0) + 1
        return await self._send(Input(self._id, number, data, last, connection))

    async def resize(self, size: Size) -> None:
        """Change the size of the command's terminal."""
        await self._send(Resize(self._id, size))

    async def signal(self, number: int) -> None:
        """Send a signal to the command's processes."""
        await self._send(Signal(self._id, number))

    async def keep(self) -> None:
        """Say from time to time that the client is there, until cancelled."""
        while True:
            await asyncio.sleep(ALIVE_S)
            await self._send(Alive(self._id))

    async def _send(self, message: Following) -> bool:
        """Send a message; return whether it was taken.  The session's answer states its error."""
        try:
            async with contextlib.aclosing(self._client.bus.ask(self._subject("input"), encoded(message))) as pieces:
                async for _ in pieces:
                    pass
        except (LogRefused, LogUnavailable):
            return False
        return True

    async def _ask(self, what: str, message: Opening) -> AsyncGenerator[Answer, None]:
        begun = False
        try:
            async with contextlib.aclosing(self._client.bus.ask(self._subject(what), encoded(message))) as pieces:
                async for piece in pieces:
                    begun = True
                    yield (given := answer(piece))
                    if isinstance(given, Ended):
                        return
        except LogUnavailable as error:
            raise await self._unanswered(error, begun) from error
        except LogRefused as error:
            raise self._refused(error) from error
        raise SessionFailed(f"the session on node {self.place.node} ended without an answer; try again")

    def _subject(self, what: str) -> str:
        client, place = self._client, self.place
        return subjects.session(client.cluster, place.node, what, place.app.tenant, client.user)

    async def _unanswered(self, error: LogUnavailable, begun: bool) -> SessionFailed:
        """Return what to say if the node's agent is silent: an agent of an earlier release serves no sessions."""
        node = self.place.node
        if begun or error.code != "agent.no_answer":
            return SessionFailed(f"the session is lost: node {node}: {error}", code="session.lost")
        state = await self._client.state()
        known = state.nodes.get(node)
        if known is not None and known.condition == "up":
            return SessionFailed(
                f"the agent of node {node} lets nobody into its containers: it is of a release before 0.6.0, or the NATS "
                "server's permissions are; upgrade it, and have an admin run a `dorm user` or `dorm node` command, which "
                "writes them again (`dorm doctor` names what is older)",
                code="session.agent_too_old",
            )
        return SessionFailed(f"node {node} does not answer; `dorm nodes` shows how it is", code="session.node.silent")

    def _refused(self, error: LogRefused) -> SessionFailed:
        if error.code != _DENIED:
            return SessionFailed(str(error), code=error.code)
        place = self.place
        return SessionFailed(
            f"{self._client.user} may not enter containers of {place.app.name}: users enter those of their own tenant, "
            "operators and admins all, readers none; if the NATS server's permissions are from a release before 0.6.0, "
            "nobody may, until an admin writes them again with any `dorm user` command",
            code="session.forbidden",
        )
