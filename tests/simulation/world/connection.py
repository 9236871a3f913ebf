"""`EventLog`, `Bus`, `Leadership` and `Snapshots` over a simulated connection, with the errors that the real ones raise."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from events.archive.whole import WholeLog
from events.chain import is_signed_cut
from events.codec import decode
from events.kinds import LogRotated
from events.log.interface import Answerer, Bus, EventLog
from events.log.leadership import Held, Leadership
from events.log.records import Appended, LogDamaged, LogRefused, LogUnavailable, NotSent, Record
from events.log.stores import Parts, SnapshotInfo, Snapshots, StoredPart
from events.subjects import rotations, token
from tests.simulation.world.network import Asked, Link
from tests.simulation.world.server import Subscription

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from tests.simulation.world.process import Process
    from tests.simulation.world.world import World

BATCH = 1000
SLOW_BATCH = 3
SLOW_PAUSE_S = 0.25
"""How many records a slow reader gets at a time, and the time between."""
PAUSE_S = 0.1
BLIP_S = 1.0
"""How long an append waits for a connection; it is not sent later."""
TIMEOUT_S = 5.0


class Connection:
    """The counterpart of `events.nats.connection.Connection`."""

    def __init__(self, world: World, process: Process) -> None:
        self.link = Link(world, process)
        process.connections.append(self)
        asker = Asker(world, self.link)
        self.log: EventLog = SimLog(world, asker)
        if world.archives is not None:
            self.log = WholeLog(self.log, world.cluster, place=str(world.archives))
        self.bus: Bus = SimBus(world, asker)
        self.leadership: Leadership = SimLeadership(world, asker)


class Asker:
    """Requests to the server: each has one answer, or none in time."""

    def __init__(self, world: World, link: Link) -> None:
        self.link = link
        self.world = world
        self.server = world.server

    async def ask(
        self,
        doing: str,
        question: Callable[..., None],
        *args: Any,
        timeout: float = TIMEOUT_S,
        back_s: float = TIMEOUT_S,
    ) -> Any:
        """`question` is a method of the server, which is called there with `args` and a function to reply.  If the connection
        is lost, wait for it within the timeout.  Raises LogUnavailable, and the server's error."""
        link = self.link
        if not link.process.alive:
            raise NotSent(f"{doing}: this process is gone")
        if not link.connected and not await link.back(back_s):
            raise NotSent(f"{doing}: the connection to the NATS server is lost")
        asked = Asked(self.world.loop.create_future())
        link.asking[asked] = None

        def reply(answer: object) -> None:
            link.down(partial(asked.take, answer))

        link.up(partial(question, *args, reply), reply)
        try:
            async with asyncio.timeout(timeout):
                return await asked.future
        except TimeoutError:
            raise LogUnavailable(f"{doing}: the NATS server does not answer") from None
        finally:
            del link.asking[asked]


class SimLog(EventLog):
    """The log as one process sees it."""

    def __init__(self, world: World, asker: Asker) -> None:
        self._world = world
        self._asker = asker
        self._link = asker.link
        self._server = world.server
        self._snapshots = SimSnapshots(asker)
        self._parts = SimParts(asker)
        self._read: Record | None = None
        """The last record read by a reader that follows the whole log."""
        self._reached_again = False
        asker.link.on_break.append(self._note_reached)

    def _note_reached(self) -> None:
        self._reached_again = True

    async def _check_read(self) -> None:
        if self._reached_again and self._read is not None:
            await self._asker.ask("reading a record", self._server.still_there, self._read)
            self._reached_again = False

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Appended:
        if expected_last is not None:
            await self._check_read()
        question = self._server.append
        stored: Appended = await self._asker.ask(
            "append", question, subject, bytes(body), msg_id, expected_last, timeout=timeout, back_s=BLIP_S
        )
        self._world.note_stored(self._link.process, subject, msg_id, stored)
        return stored

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if not follow:
            found: list[Record] = await self._asker.ask("reading the log", self._server.read, after, tuple(subjects))
            for begin in range(0, len(found), BATCH):
                yield found[begin : begin + BATCH]
            return
        last: Record | None = None
        while True:
            reader = _Reader(self._asker, after, tuple(subjects))
            try:
                await reader.open()
                if last is not None:
                    await self._asker.ask("reading a record", self._server.still_there, last)
                while True:
                    batch = await reader.next()
                    if not subjects and [record.seq for record in batch] != list(range(after + 1, batch[-1].seq + 1)):
                        raise LogDamaged(f"after record {after} came {batch[0].seq}")
                    after = batch[-1].seq
                    last = batch[-1]
                    self._read = self._read if subjects else last
                    yield batch
            except LogUnavailable:
                if not self._link.process.alive:
                    raise
                await asyncio.sleep(PAUSE_S)
            finally:
                reader.close()

    async def end(self) -> int:
        end: int = await self._asker.ask("looking up the end of the log", _end, self._server)
        return end

    async def start(self) -> int:
        start: int = await self._asker.ask("looking up the start of the log", _start, self._server)
        return start

    async def base(self) -> str:
        cut = await self.cut()
        return cut.snapshot if cut is not None and cut.upto == await self.start() else ""

    async def cut(self) -> LogRotated | None:
        last = await self.last_on(rotations(self._world.cluster))
        event = decode(last) if last is not None else None
        return event if isinstance(event, LogRotated) and is_signed_cut(event) else None

    async def purge(self, upto: int) -> None:
        cut = await self.cut()
        if cut is None or upto > cut.upto:
            raise LogRefused(f"no cut covers {upto}", code="log.not_archived")
        await self._asker.ask("removing records", self._server.purge, upto)

    async def last_on(self, subject: str) -> Record | None:
        last: Record | None = await self._asker.ask("reading the last record", self._server.last_on, subject)
        return last

    async def record_at(self, seq: int) -> Record | None:
        record: Record | None = await self._asker.ask("reading a record", self._server.record_at, seq)
        return record

    @property
    def snapshots(self) -> Snapshots:
        return self._snapshots

    @property
    def parts(self) -> Parts:
        return self._parts

    async def close(self) -> None:
        return None


def _end(server: Any, reply: Callable[[Any], None]) -> None:
    reply(server.durable)


def _start(server: Any, reply: Callable[[Any], None]) -> None:
    server.start(reply)


class _Reader:
    """A consumer at the server, until the connection breaks or is silent for too long."""

    def __init__(self, asker: Asker, after: int, subjects: tuple[str, ...]) -> None:
        self._asker = asker
        self._link = asker.link
        self._buffer: list[Record] = []
        self._woken: asyncio.Future[None] | None = None
        self._broken = False
        self._at_server = Subscription(after, subjects, self._send)

    async def open(self) -> None:
        """Raises LogUnavailable, LogDamaged."""
        self._link.on_break.append(self._break)
        await self._asker.ask("reading the log", self._asker.server.subscribe, self._at_server)

    def _send(self, records: list[Record]) -> None:
        self._link.down(partial(self._take, records))

    def _take(self, records: list[Record]) -> None:
        if not self._broken:
            self._buffer += records
            self._wake()

    def _break(self) -> None:
        self._broken = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def next(self) -> list[Record]:
        """Raises LogUnavailable if it has to be reopened."""
        while not self._buffer:
            if self._broken:
                raise LogUnavailable("neither records nor heartbeats")
            self._woken = self._asker.world.loop.create_future()
            await self._woken
        most = BATCH
        if self._asker.world.now < self._link.process.host.reads_slowly_until:
            await asyncio.sleep(SLOW_PAUSE_S)
            most = SLOW_BATCH
        batch, self._buffer = self._buffer[:most], self._buffer[most:]
        return batch

    def close(self) -> None:
        self._broken = True
        self._asker.server.unsubscribe(self._at_server)
        self._link.on_break = [tell for tell in self._link.on_break if tell != self._break]


class SimBus(Bus):
    """Heartbeats.  Requests to agents get no answer: no promise depends on them."""

    def __init__(self, world: World, asker: Asker) -> None:
        self._world = world
        self._asker = asker
        self._link = asker.link
        self._server = world.server

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = TIMEOUT_S) -> None:
        await self._asker.ask("report", self._server.report, subject, bytes(body), timeout=timeout, back_s=BLIP_S)

    async def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        """Yield heartbeats.  Those during outages are missed, and a few at random, as by a slow reader."""
        queue: asyncio.Queue[Record] = asyncio.Queue()
        chance = self._world.chance(f"reports to {self._link.process.name}")

        def deliver(record: Record) -> None:
            drawn = chance.random()
            if drawn > 0.02:
                self._link.down(partial(queue.put_nowait, record), in_order=drawn > 0.04)

        entry = (subject, deliver)
        self._server.report_readers.append(entry)
        try:
            while True:
                yield await queue.get()
        finally:
            self._server.report_readers = [one for one in self._server.report_readers if one is not entry]

    async def last_report(self, subject: str) -> Record | None:
        last: Record | None = await self._asker.ask("the last heartbeat", _report_of, self._server, subject)
        return last

    async def ask(self, subject: str, question: bytes, *, timeout: float = TIMEOUT_S) -> AsyncGenerator[bytes, None]:
        raise LogUnavailable("no agent answers for this node; is it running?")
        yield b""

    async def answer(self, subject: str, answerer: Answerer) -> None:
        await asyncio.Event().wait()


def _report_of(server: Any, subject: str, reply: Callable[[Any], None]) -> None:
    reply(server.reports.get(subject))


class SimLeadership(Leadership):
    """The lease, over the same connection."""

    def __init__(self, world: World, asker: Asker) -> None:
        self._asker = asker
        self._server = world.server

    async def look(self) -> Held | None:
        held: Held | None = await self._asker.ask("looking who leads", self._server.look)
        return held

    async def take(self, holder: str, ttl_s: float, over: Held | None) -> Held | None:
        held: Held | None = await self._asker.ask("taking the lead", self._server.take, holder, ttl_s, over)
        return held

    async def renew(self, held: Held) -> Held | None:
        renewed: Held | None = await self._asker.ask("renewing the lead", self._server.renew, held)
        return renewed

    async def give_back(self, held: Held) -> None:
        await self._asker.ask("giving back the lead", self._server.give_back, held)


class SimParts(Parts):
    """The nodes' parts, over the same connection."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._link = asker.link
        self._server = asker.server

    async def all(self) -> list[StoredPart]:
        parts: list[StoredPart] = await self._asker.ask("reading the parts", self._server.all_parts)
        return parts

    async def last(self, node: str) -> StoredPart | None:
        part: StoredPart | None = await self._asker.ask("reading a part", self._server.last_part, token(node))
        return part

    async def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        last = 0
        while True:
            arrived: asyncio.Queue[StoredPart | None] = asyncio.Queue()
            deliver = partial(self._deliver, arrived)

            def broken(queue: asyncio.Queue[StoredPart | None] = arrived) -> None:
                queue.put_nowait(None)

            self._link.on_break.append(broken)
            try:
                await self._asker.ask("following a part", self._server.follow_part, token(node), deliver)
                while (part := await arrived.get()) is not None:
                    if part.revision > last or self._server.repeat_parts:
                        last = max(last, part.revision)
                        yield part
            except LogUnavailable:
                if not self._link.process.alive:
                    raise
            finally:
                self._link.on_break = [tell for tell in self._link.on_break if tell is not broken]
                self._server.part_readers = [one for one in self._server.part_readers if one[1] is not deliver]
            await asyncio.sleep(PAUSE_S)

    def _deliver(self, queue: asyncio.Queue[StoredPart | None], part: StoredPart) -> None:
        self._link.down(partial(queue.put_nowait, part))

    async def written(self) -> bool | None:
        held: Held | None = await self._asker.ask("looking who leads", self._server.look)
        return held.parts if held is not None and held.holder else None

    async def put(self, node: str, body: bytes, expected: int) -> int:
        revision: int = await self._asker.ask(
            "storing a part", self._server.put_part, token(node), body, expected, back_s=BLIP_S
        )
        return revision

    def writes(self, parts: bool) -> None:
        return None


class SimSnapshots(Snapshots):
    """Snapshots beside the log at the server."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._kept = asker.server.snapshots

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        await self._asker.ask("storing a snapshot", _answered)
        await self._kept.put(info, body)

    async def infos(self) -> Sequence[SnapshotInfo]:
        await self._asker.ask("listing snapshots", _answered)
        return await self._kept.infos()

    async def get(self, info: SnapshotInfo) -> bytes | None:
        await self._asker.ask("reading a snapshot", _answered)
        return await self._kept.get(info)

    async def drop(self, info: SnapshotInfo) -> None:
        await self._asker.ask("dropping a snapshot", _answered)
        await self._kept.drop(info)


def _answered(reply: Callable[[Any], None]) -> None:
    reply(None)
