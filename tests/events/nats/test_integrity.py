"""What was done to a log behind Dorm's back, to the server's streams and to its files, is noticed and refused."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import nats
import pytest

from events.log.records import LogDamaged, LogError
from events.nats.connection import Connection
from events.nats.integrity import missing, unprotected
from events.nats.streams import log_stream, stream_configs
from tests.errors import raises
from tests.events.log.conformance import fill
from tests.events.log.readable_conformance import ALICE, CLUSTER, read_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.js import JetStreamContext

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
STREAM = log_stream(CLUSTER)


@contextlib.asynccontextmanager
async def owner(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """The server's owner, who may do what Dorm forbids itself."""
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def check(server: NatsServer) -> None:
    connection = await Connection.open(server.url, CLUSTER, create=True)
    try:
        await connection.log.check()
    finally:
        await connection.close()


async def filled(server: NatsServer, records: int = 9, size: int = 0) -> None:
    connection = await Connection.open(server.url, CLUSTER, create=True)
    for _ in range(records):
        await connection.log.append(ALICE, os.urandom(size))
    await connection.log.check()
    await connection.close()


async def test_a_whole_log_is_found_whole_whatever_ends_its_server(server: NatsServer) -> None:
    await check(server)
    await filled(server)
    for end in (server.kill, server.stop):
        await end()
        await server.start()
        await check(server)


@pytest.mark.parametrize("purge", [False, True])
async def test_removed_records(server: NatsServer, purge: bool) -> None:
    await filled(server)
    async with owner(server) as jetstream:
        # The server does not allow removing a stream's protection, so this one was created without it.
        await jetstream.delete_stream(STREAM)
        await jetstream.add_stream(name=STREAM, subjects=[f"dorm.{CLUSTER}.*.*"])
        for _ in range(9):
            await jetstream.publish(ALICE, b"")
        if purge:
            await jetstream.purge_stream(STREAM, seq=5)
        else:
            await jetstream.delete_msg(STREAM, 5)
    with raises(LogDamaged, "log.records_lost", "5" if purge else "1 of 9"):
        await check(server)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"max_msgs": 5}, "max_msgs is 5"),
        ({"max_age": 3600.0}, "max_age is"),
        ({"max_msgs_per_subject": 50}, "max_msgs_per_subject is 50"),
        ({"discard": "old"}, "discard is 'old'"),
        ({"allow_rollup_hdrs": True, "deny_purge": False}, "allow_rollup_hdrs is set"),
        ({"no_ack": True}, "no_ack is set"),
        ({"subjects": [f"dorm.{CLUSTER}.*.*", "more"]}, "it takes dorm.conform.*.*, more"),
    ],
)
async def test_a_stream_that_was_configured_otherwise(server: NatsServer, change: dict[str, Any], found: str) -> None:
    await filled(server)
    async with owner(server) as jetstream:
        config = (await jetstream.stream_info(STREAM)).config
        if "allow_rollup_hdrs" in change:
            await jetstream.delete_stream(STREAM)
            await jetstream.add_stream(config.evolve(**change))
        else:
            await jetstream.update_stream(config.evolve(**change))
    with pytest.raises(LogError) as error:  # One that takes other subjects is not a log of ours to begin with.
        await check(server)
    assert found in str(error.value).replace("holds", "it takes")


async def test_truncated_and_missing_files(server: NatsServer) -> None:
    await filled(server, 12, 1_000_000)  # The server begins another file after eight megabytes.
    for spoil, found in (("cut", "can't be read"), ("remove", "begins at")):
        await server.stop()
        first, *more = sorted((server.home / "data/jetstream/$G/streams" / STREAM / "msgs").glob("*.blk"))
        if spoil == "cut":
            os.truncate(more[-1], more[-1].stat().st_size // 2)
        else:
            first.unlink()
        await server.start()
        with raises(LogDamaged, "log.records_lost", found):
            await check(server)


async def test_a_stream_that_the_server_cannot_read_is_not_recreated(server: NatsServer) -> None:
    await filled(server, 12, 1_000_000)
    await server.kill()
    folder = server.home / "data/jetstream/$G/streams" / STREAM / "msgs"
    first = min(folder.glob("*.blk"))
    (folder / "index.db").unlink(missing_ok=True)  # With it the server would look only later.
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 0xFF
    first.write_bytes(content)
    await server.start()
    for _ in range(2):
        with pytest.raises(LogDamaged) as raised:
            await check(server)
        assert raised.value.code in ("log.gone", "log.records_lost")


async def test_a_changed_byte_is_found_when_it_is_read(server: NatsServer) -> None:
    await filled(server, 9, 1000)
    await server.stop()
    (file,) = (server.home / "data/jetstream/$G/streams" / STREAM / "msgs").glob("*.blk")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    await server.start()
    connection = await Connection.open(server.url, CLUSTER)
    with raises(LogDamaged, "log.records_missing", "4", "6"):
        await read_all(connection.log)
    await connection.close()


async def test_a_deleted_log_is_not_started_again(server: NatsServer) -> None:
    await filled(server)
    async with owner(server) as jetstream:
        await jetstream.delete_stream(STREAM)
        with raises(LogDamaged, "log.gone"):
            await check(server)
        for config in stream_configs(CLUSTER)[1:]:
            await jetstream.delete_stream(str(config.name))
    await check(server)  # Now nothing shows that there was one.


async def test_a_bounded_read_of_a_log_without_its_end_ends(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's count extends to a record that it no longer has."""
    monkeypatch.setattr("events.nats.log._OVERDUE_S", 0.2)
    monkeypatch.setattr("events.nats.reader._HEARTBEAT_S", 0.1)
    async with owner(server) as jetstream:
        await jetstream.add_stream(name=STREAM, subjects=[f"dorm.{CLUSTER}.*.*"])
        connection = await Connection.open(server.url, CLUSTER, create=True)
        await fill(connection.log, 5)
        await jetstream.delete_msg(STREAM, 5)
        with raises(LogDamaged, "log.records_missing", "4"):
            await read_all(connection.log)
        await connection.close()


def test_a_servers_state_of_an_intact_stream() -> None:
    assert missing({"messages": 0, "first_seq": 0, "last_seq": 0, "num_deleted": 1}) == ""
    assert missing({"messages": 9, "first_seq": 1, "last_seq": 9, "lost": {"msgs": None, "bytes": 100}}) == ""
    assert "3 of 9" in missing({"messages": 6, "first_seq": 1, "last_seq": 9, "lost": {"msgs": [7, 8, 9], "bytes": 1}})
    assert "8 are there" in missing({"messages": 8, "first_seq": 1, "last_seq": 9})
    assert "persist_mode is 'async'" in unprotected({"persist_mode": "async"}, CLUSTER)


async def test_a_changed_byte_in_the_last_record_is_found_when_it_is_read(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.nats.log._OVERDUE_S", 0.2)
    monkeypatch.setattr("events.nats.reader._HEARTBEAT_S", 0.1)
    await filled(server, 9, 1000)
    await server.stop()
    (file,) = (server.home / "data/jetstream/$G/streams" / STREAM / "msgs").glob("*.blk")
    content = bytearray(file.read_bytes())
    content[-500] ^= 0xFF
    file.write_bytes(content)
    await server.start()
    connection = await Connection.open(server.url, CLUSTER)
    with raises(LogDamaged, "log.records_missing", "8"):
        await read_all(connection.log)
    await connection.close()
