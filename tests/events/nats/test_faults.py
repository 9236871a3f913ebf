"""What the log on JetStream does when the server is killed, its consumers vanish, or a reader is slow or cancelled."""
# ruff: noqa: ASYNC110 - only the server knows what it does, and it has to be asked

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

import nats
import nats.js.errors
import pytest
import pytest_asyncio

from events.log.records import LogDamaged, LogError, LogRefused, LogUnavailable, Record
from events.nats.connection import Connection
from events.nats.reader import BATCH_BYTES, Reader
from events.nats.settings import LARGEST_RECORD
from tests.errors import raises
from tests.events.log.conformance import fill, follow_until
from tests.events.log.readable_conformance import ALICE, BOB, CLUSTER, read_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.js import JetStreamContext

    from events.log.interface import EventLog, ReadableLog
    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
STREAM = f"DORM-{CLUSTER}"


@pytest_asyncio.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    connection = await Connection.open(server.url, CLUSTER, create=True)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def jetstream(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """The server's owner, who may look at and delete what the log holds there."""
    client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0)
    yield client.jetstream()
    await client.close()


async def consumers(jetstream: JetStreamContext) -> list[str]:
    return [info.name for info in await jetstream.consumers_info(STREAM)]


async def no_consumers(jetstream: JetStreamContext) -> None:
    """Returns when the deletions in the background are done."""
    async with asyncio.timeout(10):
        while await consumers(jetstream):
            await asyncio.sleep(0.01)


class Writer:
    """Appends numbered records, each until it is acknowledged."""

    def __init__(self, log: EventLog, name: str) -> None:
        self.log = log
        self.name = name
        self.stored: dict[str, int] = {}
        self.refused = 0

    async def write(self, count: int, progress: asyncio.Semaphore) -> None:
        for number in range(count):
            msg_id = f"{self.name}-{number}"
            while msg_id not in self.stored:
                try:
                    appended = await self.log.append(ALICE, msg_id.encode(), msg_id=msg_id, timeout=0.5)
                except LogUnavailable:
                    self.refused += 1
                else:
                    self.stored[msg_id] = appended.seq
            progress.release()


@pytest.mark.slow
async def test_a_killed_server_loses_and_doubles_nothing_and_followers_continue(
    server: NatsServer, connection: Connection
) -> None:
    count, kills = 300, 3
    writers = [Writer(connection.log, f"w{number}") for number in range(8)]
    total = count * len(writers)
    other = await Connection.open(server.url, CLUSTER, create=True)
    progress = asyncio.Semaphore(0)
    async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
        followers = [tasks.create_task(follow_until(reader.log, total)) for reader in (connection, other)]
        filtered = tasks.create_task(follow_until(other.log, total, subjects=[ALICE]))
        for writer in writers:
            tasks.create_task(writer.write(count, progress))
        for _ in range(kills):
            for _ in range(total // (kills + 1)):
                await progress.acquire()
            await server.restart()
    await other.close()
    acknowledged = {msg_id: seq for writer in writers for msg_id, seq in writer.stored.items()}
    records = await read_all(connection.log)
    assert {record.msg_id: record.seq for record in records} == acknowledged
    assert [record.seq for record in records] == list(range(1, total + 1))
    assert [record.body for record in records] == [record.msg_id.encode() for record in records]
    for follower in (*followers, filtered):
        assert follower.result() == records
    assert sum(writer.refused for writer in writers) > 0, "the kills hit nothing"


async def test_a_follower_resumes_by_the_reconnect_not_by_its_timeouts(
    server: NatsServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.nats.reader._SILENCE_S", 3600.0)
    await fill(connection.log, 3)
    async with asyncio.timeout(20), aclosing(connection.log.read(follow=True)) as batches:
        assert [record.seq for record in await anext(batches)] == [1, 2, 3]
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        await server.restart()
        while True:  # The client may not have noticed yet that its connection is lost.
            try:
                await fill(connection.log, 1)
                break
            except LogUnavailable:
                await connection.connected()
        assert (await waiting)[0].seq == 4


async def test_a_silent_server_is_noticed(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stands, but neither records nor heartbeats come: another reader is opened."""
    monkeypatch.setattr("events.nats.reader._SILENCE_S", 0.3)
    monkeypatch.setattr("events.nats.reader._HEARTBEAT_S", 10.0)
    seen = []
    async with asyncio.timeout(20), aclosing(connection.log.read(follow=True)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        done, _ = await asyncio.wait({waiting}, timeout=1.0)
        assert not done
        await fill(connection.log, 2)
        seen += await waiting
        while len(seen) < 2:
            seen += await anext(batches)
    assert [record.seq for record in seen] == [1, 2]


async def test_a_reader_outlives_its_consumer(connection: Connection, jetstream: JetStreamContext) -> None:
    await fill(connection.log, 3)
    seen: list[Record] = []
    async with asyncio.timeout(20), aclosing(connection.log.read(follow=True)) as batches:
        seen += await anext(batches)
        for _ in range(3):
            for consumer in await consumers(jetstream):
                await jetstream.delete_consumer(STREAM, consumer)
            await fill(connection.log, 2)
            while len(seen) < await connection.log.end():
                seen += await anext(batches)
    assert [record.seq for record in seen] == list(range(1, 10))
    await no_consumers(jetstream)


async def test_a_reader_whose_request_expires_asks_again(
    connection: Connection, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.nats.reader._EXPIRES_S", 0.2)
    monkeypatch.setattr("events.nats.reader._HEARTBEAT_S", 0.05)
    async with asyncio.timeout(20), aclosing(connection.log.read(follow=True)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        try:
            while not (named := await consumers(jetstream)):
                await asyncio.sleep(0.01)
            await asyncio.wait({waiting}, timeout=1.0)  # Five generations of requests.
            # Both of a generation end at once, so for a moment there is none.
            while not (requests := (await jetstream.consumer_info(STREAM, named[0])).num_waiting):
                await asyncio.sleep(0.01)
            assert requests <= 2
            await fill(connection.log, 1)
            assert [record.seq for record in await waiting] == [1]
            assert await consumers(jetstream) == named, "it was opened again"
        finally:  # What still reads can't be closed, and that would hide what failed.
            waiting.cancel()
            await asyncio.wait({waiting})


async def test_a_heartbeat_arrives_regardless_of_open_requests(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other request asks for heartbeats.  Records use the requests up in many ways, and one with heartbeats is always
    among those that are left."""
    monkeypatch.setattr("events.nats.reader.BATCH", 4)
    monkeypatch.setattr("events.nats.reader._HEARTBEAT_S", 0.02)
    beats = asyncio.Event()
    on_status = Reader._on_status

    def noted(reader: Reader, header: bytes) -> None:
        if header.startswith(b"NATS/1.0 100"):
            beats.set()
        on_status(reader, header)

    monkeypatch.setattr(Reader, "_on_status", noted)
    seen: list[int] = []
    async with asyncio.timeout(60), aclosing(connection.log.read(follow=True)) as batches:
        for count in (1, 1, 1, 1, 2, 3, 4, 5, 7, 9, 16, 1, 4, 4):
            await fill(connection.log, count)
            while len(seen) < await connection.log.end():
                seen += [record.seq for record in await anext(batches)]
            waiting = asyncio.ensure_future(anext(batches))
            try:
                beats.clear()
                await beats.wait()
                await fill(connection.log, 1)
                seen += [record.seq for record in await waiting]
            finally:
                waiting.cancel()
                await asyncio.wait({waiting})
    assert seen == list(range(1, len(seen) + 1))


async def test_a_slow_reader_is_sent_no_more_than_it_asked_for(
    connection: Connection, jetstream: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.nats.reader.BATCH", 500)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(fill(connection.log, 300))
    async with asyncio.timeout(30), aclosing(connection.log.read()) as batches:
        handed_on = len(await anext(batches))
        (consumer,) = await consumers(jetstream)
        while True:  # Until nothing more is sent, for all that was asked has been.
            info = await jetstream.consumer_info(STREAM, consumer)
            if not info.num_waiting:
                break
            await asyncio.sleep(0.01)
        assert info.delivered is not None
        assert info.delivered.consumer_seq <= handed_on + 2 * 500
        rest = [record async for batch in batches for record in batch]
    assert handed_on + len(rest) == 6000


async def test_a_slow_reader_of_big_records_is_sent_few(connection: Connection, jetstream: JetStreamContext) -> None:
    size = 1_000_000
    for _ in range(48):
        await connection.log.append(ALICE, bytes(size))
    async with asyncio.timeout(30), aclosing(connection.log.read()) as batches:
        handed_on = len(await anext(batches))
        (consumer,) = await consumers(jetstream)
        info = await jetstream.consumer_info(STREAM, consumer)
        while info.num_waiting:
            await asyncio.sleep(0.01)
            info = await jetstream.consumer_info(STREAM, consumer)
        assert info.delivered is not None
        assert (info.delivered.consumer_seq - handed_on) * size <= 3 * max(BATCH_BYTES, 8 * 1024 * 1024)
        rest = [record async for batch in batches for record in batch]
    assert handed_on + len(rest) == 48


async def test_no_consumer_is_left_behind(connection: Connection, jetstream: JetStreamContext) -> None:
    await fill(connection.log, 3)
    await read_all(connection.log)
    await follow_until(connection.log, 3)
    for pauses in range(120):  # Cancelled at each step of its opening, also together with an answer, and as it waits.
        following = asyncio.create_task(follow_until(connection.log, 10))
        for _ in range(pauses):
            await asyncio.sleep(0)
        following.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait({following})
        assert following.cancelled()
    await no_consumers(jetstream)


async def test_readers_end_when_the_connection_is_closed(server: NatsServer) -> None:
    connection = await Connection.open(server.url, CLUSTER, create=True)
    following = asyncio.create_task(follow_until(connection.log, 1))
    reports = asyncio.ensure_future(anext(connection.bus.reports("dorm.conform.report.*.NodeReported")))
    await connection.log.end()
    await connection.close()
    async with asyncio.timeout(10):
        for task in (following, reports):
            with raises(LogUnavailable, "log.closed"):
                await task
    with pytest.raises(LogUnavailable):
        await connection.log.append(ALICE, b"late")


async def test_a_long_outage_fails_bounded_requests(server: NatsServer, connection: Connection) -> None:
    await fill(connection.log, 1)
    await server.kill()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for attempt in (
            connection.log.append(ALICE, b"one", timeout=0.5),
            connection.log.end(),
            connection.log.last_on(ALICE),
            read_all(connection.log),
        ):
            tasks.create_task(unavailable(attempt))


async def unavailable(attempt: object) -> None:
    with pytest.raises(LogUnavailable) as error:
        await attempt  # type: ignore[misc]  # any of the log's coroutines
    one_line(error.value)


def one_line(error: BaseException) -> str:
    assert isinstance(error, LogError)
    assert str(error)
    assert "\n" not in str(error)
    return str(error)


async def test_a_log_replaced_by_another_is_damage(connection: Connection, jetstream: JetStreamContext) -> None:
    await fill(connection.log, 5)
    async with asyncio.timeout(20), aclosing(connection.log.read(follow=True)) as batches:
        assert len(await anext(batches)) == 5
        config = (await jetstream.stream_info(STREAM)).config
        await jetstream.delete_stream(STREAM)
        await jetstream.add_stream(config)
        await jetstream.publish(BOB, b"of another log")
        with pytest.raises(LogError) as error:
            await anext(batches)
    assert isinstance(error.value, LogDamaged), one_line(error.value)


async def test_a_log_that_is_gone_is_damage(connection: Connection, jetstream: JetStreamContext) -> None:
    await fill(connection.log, 5)
    async with asyncio.timeout(20), aclosing(connection.log.read(follow=True)) as batches:
        assert len(await anext(batches)) == 5
        await jetstream.delete_stream(STREAM)
        with raises(LogDamaged, "log.gone"):
            await anext(batches)


async def test_late_records_are_not_damage(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is so fast: all that it sends is overdue, and what it has is there."""
    await fill(connection.log, 3)
    with monkeypatch.context() as patched:
        patched.setattr("events.nats.log._OVERDUE_S", -1.0)
        for subjects in ([], [ALICE]):
            with raises(LogUnavailable, "log.unavailable", "record 0", "too slow"):
                await read_all(connection.log, subjects=subjects)
    assert len(await read_all(connection.log)) == 3


async def read_into(log: ReadableLog, seen: list[Record]) -> None:
    async for batch in log.read():
        seen += batch


async def test_removed_records_are_damage(server: NatsServer, jetstream: JetStreamContext) -> None:
    await jetstream.add_stream(name=STREAM, subjects=["dorm.conform.*.*"])
    connection = await Connection.open(server.url, CLUSTER, create=True)
    await fill(connection.log, 10)
    await jetstream.delete_msg(STREAM, 4)
    seen: list[Record] = []
    with raises(LogDamaged, "log.records_missing", "3", "5"):
        await read_into(connection.log, seen)
    assert [record.seq for record in seen] == [1, 2, 3]
    await jetstream.purge_stream(STREAM, seq=7)
    for attempt in (read_all(connection.log), follow_until(connection.log, 1), connection.log.end()):
        with raises(LogDamaged, "log.records_removed", "7"):
            await attempt
    assert [record.seq for record in await read_all_of(connection.log, 8)] == [9, 10]
    await connection.close()


async def read_all_of(log: ReadableLog, after: int) -> list[Record]:
    """As a follower reads, who asks for nothing that was removed."""
    return await follow_until(log, 10 - after, after)


async def test_a_message_too_large_is_refused_and_harms_nothing(connection: Connection) -> None:
    for size in (LARGEST_RECORD, LARGEST_RECORD + 1, 20_000_000):  # With its headers the first is too large as well.
        with pytest.raises(LogRefused) as error:
            await connection.log.append(ALICE, bytes(size), msg_id="big")
        assert f"{size:,} bytes" in one_line(error.value)
    assert (await connection.log.append(ALICE, bytes(LARGEST_RECORD - 2048), msg_id="large")).seq == 1
    assert len((await read_all(connection.log))[0].body) == LARGEST_RECORD - 2048


@pytest.mark.parametrize(
    "subject",
    ["dorm.conform.App Submitted.x", "", "dorm.conform..x", "dorm.conform.*.x", "dorm.conform.A", "dorm.elsewhere.A.x"],
)
async def test_a_bad_subject_is_refused(connection: Connection, subject: str) -> None:
    with pytest.raises(LogRefused) as error:
        await connection.log.append(subject, b"")
    one_line(error.value)


@pytest.mark.parametrize("msg_id", ["a\nb", " a", "ü", "a\x00"])
async def test_an_id_that_is_not_a_valid_header_is_refused(connection: Connection, msg_id: str) -> None:
    with raises(LogRefused, "log.id.malformed"):
        await connection.log.append(ALICE, b"", msg_id=msg_id)


async def test_the_streams_forbid_deleting(connection: Connection, jetstream: JetStreamContext) -> None:
    await fill(connection.log, 1)
    with pytest.raises(nats.js.errors.APIError):
        await jetstream.delete_msg(STREAM, 1)
    assert await connection.log.end() == 1
    assert await connection.log.start() == 0
    with contextlib.suppress(nats.js.errors.NotFoundError):
        await jetstream.delete_stream("nothing")
