"""The server refuses oversized records, which take no room; a log with a limit warns when it gets near, and continues."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import nats
import nats.js.errors
import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from events import subjects
from events.log.records import LogFull, LogRefused
from events.nats.connection import Connection
from events.nats.settings import LARGEST_RECORD, LARGEST_REPORT, UNUSED_S, Room, nearly_full
from events.nats.streams import log_stream, report_stream
from tests.errors import raises
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.js import JetStreamContext

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
CLUSTER = "limits"
LOG = log_stream(CLUSTER)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """One that takes larger messages than any log of Dorm's."""
    made = NatsServer(tmp_path, max_payload=8 * 2**20)
    await made.start()
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def anybody(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def connect(server: NatsServer) -> Connection:
    return await Connection.open(server.url, CLUSTER, create=True)


async def test_oversized_records_are_refused_before_they_are_stored(server: NatsServer) -> None:
    connection = await connect(server)
    async with anybody(server) as jetstream:
        for subject, most in (
            (subjects.fact(CLUSTER, "AppSubmitted", "eve"), LARGEST_RECORD),
            (subjects.report(CLUSTER, "n1"), LARGEST_REPORT),
            (f"$KV.DORM_leadership-{CLUSTER}.master", 4096),
            (f"dorm.{CLUSTER}.snapshot.body.a.0", 512 * 1024),
        ):
            with pytest.raises(nats.js.errors.APIError, match="exceeds maximum"):
                await jetstream.publish(subject, bytes(most + 1))
            await jetstream.publish(subject, bytes(most - 1024))
    assert await connection.log.end() == 1
    with raises(LogRefused, "log.message.too_large"):
        await connection.log.append(subjects.fact(CLUSTER, "AppSubmitted", "eve"), bytes(LARGEST_RECORD + 1))
    await connection.close()


async def test_streams_of_earlier_releases_get_the_limits_and_keep_an_operators_own(server: NatsServer) -> None:
    async with anybody(server) as jetstream:
        await jetstream.add_stream(StreamConfig(name=LOG, subjects=[subjects.log_subjects(CLUSTER)]))
        own = StreamConfig(name=report_stream(CLUSTER), subjects=[subjects.reports(CLUSTER)], max_bytes=10**6)
        await jetstream.add_stream(own)
        connection = await connect(server)
        log, reports = await log_config(jetstream, LOG), await log_config(jetstream, report_stream(CLUSTER))
        assert (log.max_msg_size, log.max_consumers) == (LARGEST_RECORD, 25_000)
        assert (reports.max_msg_size, reports.max_bytes) == (LARGEST_REPORT, 10**6)
        await connection.close()


async def log_config(jetstream: JetStreamContext, name: str) -> StreamConfig:
    return (await jetstream.stream_info(name)).config


async def test_unused_consumers_are_removed(server: NatsServer) -> None:
    connection = await connect(server)
    async with anybody(server) as jetstream:
        made = await jetstream.add_consumer(LOG, ConsumerConfig(durable_name="strangers"))
        assert made.config.inactive_threshold == UNUSED_S
        with pytest.raises(nats.js.errors.APIError):
            await jetstream.add_consumer(LOG, ConsumerConfig(durable_name="longer", inactive_threshold=2 * UNUSED_S))
        place = connection.places.reader("hook", [], after=0, most=10)
        await place.open()
        await place.close()
        assert (await jetstream.consumer_info(LOG, "hook")).config.inactive_threshold == UNUSED_S
    await connection.close()


async def test_a_log_at_its_limit_warns_refuses_and_continues_with_a_larger_limit(server: NatsServer) -> None:
    connection = await connect(server)
    assert (await connection.stream.room()).limit is None
    subject = subjects.fact(CLUSTER, "AppSubmitted", "eve")
    await connection.log.append(subject, bytes(100_000))
    with raises(LogRefused, "log.limit.too_small"):
        await connection.stream.set_limit(100_000)
    await connection.stream.set_limit(1_000_000)
    await connection.log.check()
    assert await connection.endangered() == ""
    with raises(LogFull, "log.full"):
        while True:
            await connection.log.append(subject, bytes(100_000))
    room = await connection.stream.room()
    assert (room.limit, room.scarce) == (1_000_000, True)
    assert "dorm log limit" in await connection.endangered()
    end = await connection.log.end()
    await connection.stream.set_limit(None)
    assert (await connection.log.append(subject, bytes(100_000))).seq == end + 1
    assert await connection.endangered() == ""
    await connection.log.check()
    await connection.close()


async def test_an_accounts_limit_counts_as_the_logs(tmp_path: Path) -> None:
    account = {"users": [{"user": "a", "password": "b"}], "jetstream": {"max_file": 400 * 2**20}}
    server = NatsServer(tmp_path, settings={"accounts": {"a": account}, "no_auth_user": "a"})
    await server.start()
    try:
        connection = await connect(server)
        room = await connection.stream.room()
        assert room.limit is not None
        assert 0 < room.limit <= 400 * 2**20
        await connection.close()
    finally:
        await server.stop()


@pytest.mark.parametrize(("taken", "limit", "warns"), [(79, 100, False), (80, 100, True), (10**9, None, False)])
def test_a_warning_appears_from_four_fifths_of_the_limit(taken: int, limit: int | None, warns: bool) -> None:
    assert bool(nearly_full(Room(taken, limit))) == warns
