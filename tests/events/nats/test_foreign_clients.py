"""A client that has only nats-py, and `msgpack` or only JSON, publishes and tails; none of our code runs on its
side."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgpack
import nats
import pytest
import pytest_asyncio
from nats.js.api import DeliverPolicy

from events import subjects
from events.codec import decode, encode
from events.kinds import AppRejected, AppSubmitted, MasterFact, NodeLost, Round, Unknown
from events.nats.connection import Connection
from events.spec import SpecError, check_spec
from tests.errors import raises
from tests.events.log.readable_conformance import read_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nats.aio.client import Client

    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats
SPEC: dict[str, Any] = {"name": "digits", "command": ["python", "train.py"], "demand": {"cpu": 0.5}, "n_max": 4}
ENCODERS = {"msgpack": msgpack.packb, "json": lambda body: json.dumps(body, indent=1).encode()}


@pytest.fixture(params=ENCODERS)
def pack(request: pytest.FixtureRequest) -> Callable[[Any], bytes]:
    return ENCODERS[request.param]  # type: ignore[no-any-return]  # msgpack has no types


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    return "foreign-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[-40:]


@pytest_asyncio.fixture
async def connection(nats_server: NatsServer, cluster: str) -> AsyncIterator[Connection]:
    connection = await Connection.open(nats_server.url, cluster, create=True)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()


async def test_it_submits_an_app(
    connection: Connection, client: Client, cluster: str, pack: Callable[[Any], bytes]
) -> None:
    body = pack({"kind": "AppSubmitted", "spec": SPEC})
    acknowledged = await client.jetstream().publish(f"dorm.{cluster}.AppSubmitted.alice", body)
    (record,) = await read_all(connection.log)
    event = decode(record)
    assert isinstance(event, AppSubmitted)
    assert (event.id, event.at, event.by) == (f"alice.{acknowledged.seq}", record.time, "alice")
    assert check_spec(event.spec).n_max == 4


async def test_it_publishes_without_jetstream_as_nats_pub_does(
    connection: Connection, client: Client, cluster: str, pack: Callable[[Any], bytes]
) -> None:
    following = connection.log.read(follow=True)
    await client.publish(f"dorm.{cluster}.AppSubmitted.alice", pack({"spec": SPEC}))
    async with asyncio.timeout(20):
        (record,) = await anext(following)
    await following.aclose()
    event = decode(record)
    assert isinstance(event, AppSubmitted)
    assert check_spec(event.spec).name == "digits"


async def test_its_message_id_is_the_event_s_and_stores_it_once(
    connection: Connection, client: Client, cluster: str, pack: Callable[[Any], bytes]
) -> None:
    for _ in range(2):
        await client.jetstream().publish(
            f"dorm.{cluster}.AppSubmitted.alice", pack({"spec": SPEC}), headers={"Nats-Msg-Id": "alice-laptop-1"}
        )
    (record,) = await read_all(connection.log)
    assert decode(record).id == "alice-laptop-1"


async def test_its_bad_spec_is_refused_with_a_reason(
    connection: Connection, client: Client, cluster: str, pack: Callable[[Any], bytes]
) -> None:
    await client.jetstream().publish(f"dorm.{cluster}.AppSubmitted.alice", pack({"spec": {**SPEC, "n_min": -1}}))
    (record,) = await read_all(connection.log)
    event = decode(record)
    assert isinstance(event, AppSubmitted)
    with raises(SpecError, "spec.n_min.out_of_range"):
        check_spec(event.spec)


async def test_it_tails_records_of_others(connection: Connection, client: Client, cluster: str) -> None:
    facts: list[MasterFact | Unknown] = [
        AppRejected(app="digits", submission="alice-1", reason="no node"),
        NodeLost(node="n1", last_heard=5),
    ]
    written = Round(id="master-1", at=1, by="master", epoch=1, basis=0, allocated=False, events=facts)
    submitted = AppSubmitted(id="bob-1", at=2, by="bob", spec={**SPEC, "labels": {"Grüße": "ü"}})
    await connection.log.append(subjects.rounds(cluster), encode(written), msg_id=written.id)
    await connection.log.append(subjects.fact(cluster, "AppSubmitted", "bob"), encode(submitted), msg_id=submitted.id)
    subscription = await client.jetstream().subscribe(
        f"dorm.{cluster}.>", ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
    )
    first, second = [msgpack.unpackb((await subscription.next_msg(timeout=10)).data) for _ in range(2)]
    await subscription.unsubscribe()
    assert first["kind"] == "Round"
    assert first["events"] == [
        {"kind": "AppRejected", "app": "digits", "submission": "alice-1", "reason": "no node"},
        {"kind": "NodeLost", "node": "n1", "last_heard": 5},
    ]
    assert second == {"kind": "AppSubmitted", "id": "bob-1", "at": 2, "by": "bob", "spec": submitted.spec}
