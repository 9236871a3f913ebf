"""The output of an app's containers, asked of the agents that run them."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.client.errors import NotFound
from dorm.client.finding import no_rank
from dorm.client.tail import Filter, Tail
from dorm.core.app import App
from dorm.core.gates import reason_of
from events import subjects
from events.cloudevents import rfc3339
from events.kinds import ContainerExited, ContainerStarted
from events.log.records import LogUnavailable
from events.positions import Position
from events.requests import LogPiece, LogQuestion, LogStretch, plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from dorm.core.state import Generation
    from events.log.interface import Bus, ReadableLog
    from events.nats.connection import Connection

    Missed = Callable[[int | None, int], None]

_AGENT_BACK_S = 15.0
"""Seconds that an agent may take to answer again after an outage."""
_PAUSE_S = 0.2


_LONGEST = 1 << 16
"""Bytes of a line; a longer one is cut into several."""
STAMP = len("2026-11-21T09:00:00.000Z")
"""Characters of a line's time."""


def stamp(time: int) -> str:
    """Return the time of a line (UTC ns) as text, in milliseconds; `-` if it is not known."""
    return rfc3339(time)[: STAMP - 1] + "Z" if time else "-".ljust(STAMP)


class Line(NamedTuple):
    """A line of output without its line break."""

    text: bytes
    time: int | None = None
    """UTC ns, 0 if it is not known; None if it was not asked for."""
    whole: bool = True
    """Whether it has ended.  Otherwise, it is the line of a progress bar so far: after each carriage return a state of it."""


async def lines(chunks: AsyncIterator[bytes], *, bars: bool = False) -> AsyncIterator[Line]:
    """Yield the lines of some output; with `bars`, also the last line of each chunk that a progress bar has begun."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield Line(line)
        while len(rest) >= _LONGEST:
            end = _end_of_part(rest)
            yield Line(rest[:end], whole=not bars or end == _LONGEST)
            rest = rest[end:]
        if bars and b"\r" in rest:
            yield Line(rest, whole=False)
    if rest:
        yield Line(rest)


def _end_of_part(line: bytes) -> int:
    """Return where to cut a line that is too long: between two states of a progress bar, if it is one."""
    at = line.rfind(b"\r", 1, _LONGEST)
    return at if at > 0 else _LONGEST


async def timed_lines(pieces: AsyncIterator[LogPiece], *, bars: bool = False) -> AsyncIterator[Line]:
    """Yield the lines of some output with their times; a line has the time at which it begins.  With `bars`, also the last
    line of each stretch that a progress bar has begun, with the time of that stretch."""
    rest, began = b"", 0
    async for piece in pieces:
        for stretch in piece.stretches:
            if not rest:
                began = stretch.time
            *whole, rest = (rest + stretch.data).split(b"\n")
            for line in whole:
                yield Line(line, began)
                began = stretch.time
            while len(rest) >= _LONGEST:
                end = _end_of_part(rest)
                yield Line(rest[:end], began, not bars or end == _LONGEST)
                rest = rest[end:]
            if bars and b"\r" in rest:
                yield Line(rest, stretch.time, whole=False)
    if rest:
        yield Line(rest, began)


def started(app: App) -> list[Generation]:
    """Return the generations that the state still knows and that have started a container."""
    return [g for g in app.generations.values() if any(c.state != "desired" for c in g.containers.values())]


class Ran(msgspec.Struct, frozen=True):
    """A generation with started containers, for reading their output."""

    app: App
    number: int
    nodes: dict[int, str]
    """Nodes on which the containers run or ran, by slot."""

    def slot(self, *, slot: int | None = None, rank: int | None = None) -> int:
        """Return the slot to read: this one, or the container of this rank, or the first.  A rank is the position of a
        slot among the generation's slots.  Raises NotFound."""
        slots = sorted(self.nodes)
        if rank is not None:
            if rank >= len(slots):
                raise no_rank(self.app, f"generation {self.number} of {self.app.name}", rank, len(slots))
            return slots[rank]
        wanted = slots[0] if slot is None else slot
        if wanted not in self.nodes:
            raise NotFound(
                f"{self.app.name} has no slot {wanted}; it has {', '.join(map(str, slots))}", code="slot.not_found"
            )
        return wanted

    def named(self, slot: int) -> str:
        """Return how people call the container in a slot: by its rank, unless there is only one."""
        return self.app.name if len(self.nodes) == 1 else f"{self.app.name}, rank {sorted(self.nodes).index(slot)}"


def _ran(app: App, generation: Generation) -> Ran:
    return Ran(app, generation.number, {slot: container.node for slot, container in generation.containers.items()})


def _ignored(lines: int | None, size: int) -> None:
    """What readers do who don't ask what they missed."""


class Output:
    """How output is asked for.  `outages` returns how often the connection was lost so far."""

    def __init__(
        self, bus: Bus, log: ReadableLog, cluster: str, connection: Connection | None, outages: Callable[[], int]
    ) -> None:
        self._bus = bus
        self._log = log
        self._cluster = cluster
        self._connection = connection
        self._outages = outages

    async def generation(self, app: App, number: int | None = None, *, previous: bool = False) -> Ran:
        """Return the generation with this number, else the latest that started, or the `previous` one before that.

        The state forgets a generation once the next one is released; its nodes then come from the starts and ends of its
        containers, which the log is read for from the app's submission on.  Agents keep the output itself for the retention
        of ended apps.  Raises NotFound if it has not started."""
        known = {generation.number: generation for generation in started(app)}
        latest = max(known, default=0)
        if previous:
            earlier = await self._earlier(app, 1, (latest or app.generation) - 1)
            if earlier is None:
                raise NotFound(
                    f"no generation of {app.name} before its {'latest' if latest else 'next'} one has started; leave out "
                    "--previous",
                    code="generation.not_found",
                )
            return earlier
        if number is None and not latest:
            reason = reason_of(app, time.time_ns())
            because = f": {reason.text}" if reason is not None else ""
            raise NotFound(f"{app.name} has not started yet ({app.phase}){because}", code="app.not_started")
        wanted = latest if number is None else number
        if wanted in known:
            return _ran(app, known[wanted])
        earlier = await self._earlier(app, wanted, wanted)
        if earlier is None:
            raise NotFound(
                f"nothing of generation {wanted} of {app.name} has started; its latest is {app.generation}",
                code="generation.not_found",
            )
        return earlier

    async def _earlier(self, app: App, least: int, most: int) -> Ran | None:
        """Return the latest generation in this range that has started a container, by the log."""
        if least > most:
            return None
        begin = Position(max(await self._log.start(), app.seq - 1))
        # Of a container that ended at once only the end may be on the log.
        wanted = Filter(kinds=(ContainerStarted.__name__, ContainerExited.__name__), apps=(app.id,))
        number, nodes = 0, dict[int, str]()
        async with aclosing(Tail(self._log, self._cluster, wanted, after=begin).events()) as events:
            async for logged in events:
                event = logged.event
                if not isinstance(event, ContainerStarted | ContainerExited):
                    continue
                if not max(least, number) <= event.generation <= most:
                    continue
                if event.generation > number:
                    number, nodes = event.generation, {}
                nodes[event.slot] = event.node
        return Ran(app, number, nodes) if nodes else None

    async def read(
        self,
        app: App,
        *,
        slot: int | None,
        follow: bool,
        tail: int | None,
        generation: int | None = None,
        since: int | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the output of one container, as `Client.logs` says."""
        ran = await self.generation(app, generation)
        async for piece in self.read_slot(ran, ran.slot(slot=slot), follow=follow, tail=tail, since=since):
            yield piece

    async def read_slot(
        self,
        ran: Ran,
        slot: int,
        *,
        follow: bool,
        tail: int | None,
        since: int | None = None,
        missed: Missed = _ignored,
    ) -> AsyncIterator[bytes]:
        """Yield the output of the container in a slot that the generation has; `since` and `missed` as for `read_timed`."""
        answers = self.read_timed(ran, slot, follow=follow, tail=tail, since=since, missed=missed)
        heard = False
        try:
            async with aclosing(answers):
                async for piece in answers:
                    heard = True
                    yield plain(piece)
        except NotFound as error:
            if heard or since is not None or error.code != "logs.no_times":
                raise
        else:
            return
        async for chunk in self._read_plain(ran, slot, follow=follow, tail=tail):
            yield chunk

    async def _read_plain(self, ran: Ran, slot: int, *, follow: bool, tail: int | None) -> AsyncIterator[bytes]:
        """Yield the output as an agent before 0.6.0 sends it, which knows no times."""
        question = LogQuestion(app=ran.app.id, generation=ran.number, slot=slot, follow=follow, tail=tail)
        retry = _Retry(self._connection, self._outages) if follow else None
        taken = skip = 0
        while True:
            try:
                async for piece in self._ask(ran, question):
                    if retry is not None:
                        retry.note_piece()
                    if len(piece) > skip:
                        yield piece[skip:]
                        taken += len(piece) - skip
                    skip -= min(skip, len(piece))
            except LogUnavailable:
                if retry is None or not await retry.may_retry():
                    raise
            else:
                return
            if tail is None:
                skip = taken
            else:
                question = msgspec.structs.replace(question, tail=0)

    async def read_timed(
        self,
        ran: Ran,
        slot: int,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: int | None = None,
        missed: Missed = _ignored,
    ) -> AsyncGenerator[LogPiece, None]:
        """Yield the output of a container with the times of its lines, which its node took.  `since` (UTC ns) leaves out lines
        that are surely older.  `missed` is called with the lines and bytes that are missing before the next piece, because the
        container wrote faster than the pieces were taken; None for a number of lines that is not known.

        An answer interrupted by a lost connection, or a long pause of the reader, continues after its last piece.
        Raises NotFound if the node's agent is of a release without times."""
        question = LogQuestion(
            app=ran.app.id, generation=ran.number, slot=slot, follow=follow, tail=tail, since=since, timed=True
        )
        retry, at_break = _Retry(self._connection, self._outages), True
        while True:
            begin = question.after
            try:
                async with aclosing(self._ask(ran, question)) as answers:
                    async for answer in answers:
                        retry.note_piece()
                        piece = _timed(answer, ran.nodes[slot])
                        question = msgspec.structs.replace(question, after=piece.mark)
                        if piece.lost:
                            missed(piece.lost_lines, piece.lost)
                            if not at_break:  # The rest of that line is missing too.
                                piece = msgspec.structs.replace(
                                    piece, stretches=[LogStretch(piece.stretches[0].time, b"\n"), *piece.stretches]
                                )
                        at_break = piece.stretches[-1].data.endswith(b"\n") if piece.stretches else at_break
                        yield piece
            except LogUnavailable:
                more = question.after != begin
                if not (follow or more) or not await retry.may_retry(more=more):
                    raise
            else:
                return

    def _ask(self, ran: Ran, question: LogQuestion) -> AsyncGenerator[bytes, None]:
        tenant = ran.app.tenant if self._bus.guarded else ""
        subject = subjects.ask(self._cluster, ran.nodes[question.slot], "logs", tenant)
        return self._bus.ask(subject, msgspec.json.encode(question))


def _timed(answer: bytes, node: str) -> LogPiece:
    """Decode a piece of an answer.  Raises NotFound for plain output: agents of earlier releases ignore that times are
    wanted."""
    try:
        return msgspec.msgpack.decode(answer, type=LogPiece)
    except msgspec.MsgspecError:
        raise NotFound(
            f"the agent of node {node} is of a release that keeps no times of output; upgrade it, or leave out the times "
            "(--since, --timestamps)",
            code="logs.no_times",
        ) from None


class _Retry:
    """Whether an interrupted answer is asked for again: after an outage of the connection, for as long as an agent may take to
    answer again."""

    def __init__(self, connection: Connection | None, outages: Callable[[], int]) -> None:
        self._connection = connection
        self._count = outages
        self._outages = 0
        self._patience = 0.0

    def note_piece(self) -> None:
        """Note that a piece of the answer has come."""
        self._patience = 0.0

    async def may_retry(self, *, more: bool = False) -> bool:
        """Wait until the question may be repeated; return False if that is of no use.  `more`: the last one brought something,
        so its reader may have paused for longer than an agent waits, or the agent has started again."""
        now = asyncio.get_running_loop().time()
        if self._count() > self._outages:
            self._outages, self._patience = self._count(), math.inf
        elif more:
            self._patience = now + _AGENT_BACK_S
        if now > self._patience or self._connection is None:
            return False
        await self._connection.connected()
        # The agent has to reconnect too.
        self._patience = min(self._patience, asyncio.get_running_loop().time() + _AGENT_BACK_S)
        await asyncio.sleep(_PAUSE_S)
        return True
