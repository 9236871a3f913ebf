"""The store of shipped folders: the contract of every implementation, and errors of a full one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from events.log.records import LogFull, LogRefused
from events.log.stores import Files, MemoryFiles
from events.nats.connection import Connection
from events.nats.settings import api_request
from events.workdir import Limits, hash_of, seal_blob
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.lab.machines.nats_server import NatsServer


pytestmark = pytest.mark.nats


@pytest.fixture(params=["memory", "nats"])
async def files(request: pytest.FixtureRequest, nats_server: NatsServer) -> AsyncIterator[Files]:
    if request.param == "memory":
        yield MemoryFiles(time.time_ns)
        return
    connection = await Connection.open(nats_server.url, "shipped-store", create=True)
    yield connection.stream.files
    for blob in await connection.stream.files.listed():
        await connection.stream.files.remove(blob)
    await connection.close()


async def test_a_store_keeps_parts_by_tenant(files: Files) -> None:
    bodies = {hash_of(b"%d" % number): seal_blob(b"%d" % number) for number in range(20)}
    for name, body in bodies.items():
        await files.put("alice", name, body)
    name, body = next(iter(bodies.items()))
    await files.put("bob", name, body)
    found = await files.get("alice", name)
    assert found is not None
    assert found[0] == body
    assert abs(found[1] - time.time_ns()) < 60 * 10**9
    assert await files.get("alice", hash_of(b"another")) is None
    assert [(blob.tenant, blob.name) for blob in await files.listed()] == [
        *(("alice", one) for one in sorted(bodies)), ("bob", name),
    ]  # fmt: skip
    (only,) = await files.listed("bob")
    assert len(body) <= only.size
    assert await files.listed("nobody") == []


async def test_parts_stored_again_since_the_listing_are_not_removed(files: Files) -> None:
    name, body = hash_of(b"x"), seal_blob(b"x")
    await files.put("alice", name, body)
    (before,) = await files.listed("alice")
    await files.put("alice", name, body)
    await files.remove(before)
    (after,) = await files.listed("alice")
    assert after.seq != before.seq
    assert after.time >= before.time
    await files.remove(after)
    assert await files.get("alice", name) is None
    assert await files.listed("alice") == []


async def test_a_tenant_loses_parts_that_were_not_stored_again(files: Files) -> None:
    name, body = hash_of(b"y"), seal_blob(b"y")
    await files.put("alice", name, body)
    (before,) = await files.listed("alice")
    await files.put("alice", name, body)
    await files.give_up(before)
    assert await files.get("alice", name) is not None
    (after,) = await files.listed("alice")
    await files.give_up(after)
    assert await files.get("alice", name) is None
    (empty,) = await files.listed("alice")
    assert (empty.size, empty.takes < 300) == (0, True)


async def test_limits_are_the_clusters(files: Files) -> None:
    assert await files.limits() == Limits()
    await files.set_limits(Limits(count=7))
    assert await files.limits() == Limits(count=7)
    assert await files.listed() == []
    await files.set_limits(Limits())


async def test_a_full_store_refuses_and_a_missing_one_gives_advice(nats_server: NatsServer) -> None:
    connection = await Connection.open(nats_server.url, "full-store", create=True)
    link, stream = connection._link, "DORM_files-full-store"
    config = (await api_request(link, f"STREAM.INFO.{stream}", {}, 5.0))["config"]
    await api_request(link, f"STREAM.UPDATE.{stream}", config | {"max_bytes": 4096}, 5.0)
    files = connection.stream.files
    with raises(LogFull, "files.full"):
        for number in range(100):
            await files.put("alice", f"{number:064}", bytes(1000))
    await api_request(link, f"STREAM.DELETE.{stream}", {}, 5.0)
    for act in (files.get("alice", "0" * 64), files.put("alice", "0" * 64, b"x"), files.listed("alice")):
        with raises(LogRefused, "files.no_store"):
            await act
    await connection.close()
