"""The reader that deliverers of webhooks run as: it delivers and reports on that, and may do nothing else beyond reading."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from dorm.client.client import Client
from dorm.webhooks import webhook_requests
from dorm.webhooks.deliverer import Deliverer, place_of
from dorm.webhooks.sending import parse_networks
from dorm.webhooks.webhook_keys import Keys
from events.codec import decode, encode
from events.kinds import AppCompleted, Round, WebhookDisabled, WebhookTested
from events.nats.places import WEBHOOK
from events.subjects import rounds, who_of
from tests.security.hostile import CLUSTER, Guarded, witness
from tests.webhooks.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.nats
LOG = f"DORM-{CLUSTER}"


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    server = Guarded(tmp_path)
    await server.start()
    yield server
    server.stop()


@contextlib.asynccontextmanager
async def delivering(guarded: Guarded, keys: Keys) -> AsyncIterator[Deliverer]:
    async with guarded.connection("webhooks") as connection:
        deliverer = Deliverer(
            connection, keys, who="webhooks", clock=time.time_ns, allowed=parse_networks(["loopback"]), timeout_s=5.0
        )
        running = asyncio.create_task(deliverer.run())
        try:
            await asyncio.wait_for(deliverer.ready.wait(), 40.0)
            yield deliverer
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_it_delivers_and_reports(guarded: Guarded) -> None:
    keys = Keys(b"k" * 32, CLUSTER)
    async with guarded.connection("root") as root, guarded.connection("master") as master, Receiver() as receiver:
        client = Client(root.log, root.bus, CLUSTER, user="root", connection=root)
        async with delivering(guarded, keys) as deliverer:
            (check,) = await deliverer.checks()
            assert (check.ok, check.text) == (True, "0 webhooks are delivered")
            await webhook_requests.add(client, keys, "pager", receiver.url, ["app.ended"], 60)
            event = Round(
                id="m.1", by="m", at=1, epoch=1, basis=0, allocated=False, events=[AppCompleted(app="a", generation=1)]
            )
            await master.log.append(rounds(CLUSTER), encode(event), msg_id="m.1")
            assert (await receiver.count(1))[0].event["subject"] == "app/a"
            assert (await webhook_requests.try_out(client, "pager", 40.0)).delivered
            # Its place is the server's: what is done stays done, and one that is gone is removed.
            endpoint = await webhook_requests.find(client, "pager")
            place = place_of(endpoint, keys.hidden("pager"))
            async with asyncio.timeout(40):
                while await root.places.standing(place) != (0, 0):  # noqa: ASYNC110 - only the server knows
                    await asyncio.sleep(0.05)
            await webhook_requests.remove(client, "pager")
            async with asyncio.timeout(40):
                while await root.places.names(WEBHOOK):  # noqa: ASYNC110 - only the server knows
                    await asyncio.sleep(0.05)
        # Another file of keys than the webhook's: it says so in its own name.
        await webhook_requests.add(client, Keys(b"o" * 32, CLUSTER), "other", receiver.url, ["app.ended"], 60)
        async with delivering(guarded, keys), asyncio.timeout(40):
            while (await webhook_requests.find(client, "other")).state != "disabled":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        said = [record async for batch in root.log.read() for record in batch]
        reports = [one for one in said if isinstance(decode(one), WebhookDisabled | WebhookTested)]
        assert [who_of(one.subject) for one in reports] == ["webhooks", "webhooks"]


async def test_nothing_is_gained_by_its_acknowledgements(guarded: Guarded) -> None:
    """An acknowledgement can ask for the next record, and a server checks no reply subject."""
    async with guarded.attacker("root") as root, guarded.attacker("webhooks") as one:
        for number in range(10):
            await root.client.jetstream().publish(f"dorm.{CLUSTER}.AppSubmitted.root", str(number).encode())
        config = {"name": "theirs", "durable_name": "theirs", "ack_policy": "explicit"}
        await one.api(f"DORMJS.CONSUMER.CREATE.{LOG}.theirs", {"stream_name": LOG, "config": config})
        mine = await one.client.subscribe(guarded.credentials["webhooks"].inbox + ".>")
        pull = f"DORMJS.CONSUMER.MSG.NEXT.{LOG}.theirs"
        await one.client.publish(pull, b'{"batch": 1}', reply=guarded.credentials["webhooks"].inbox + ".x")
        first = await mine.next_msg(timeout=5)
        before = await witness(root)
        aims = [rounds(CLUSTER), f"dorm.{CLUSTER}.NodeDrainRequested.root", f"$JS.API.STREAM.DELETE.{LOG}"]
        for aim in (*aims, "_INBOX.user.bob.x"):
            await one.client.publish(first.reply, b"+NXT", reply=aim)
        await one.taken()
        assert await witness(root) == before
        # The control: in its own name it gets the next one.
        await one.client.publish(first.reply, b"+NXT", reply=guarded.credentials["webhooks"].inbox + ".y")
        assert (await mine.next_msg(timeout=5)).data
        # Other readers acknowledge nothing.
        async with guarded.attacker("rita") as rita:
            await rita.client.publish(first.reply, b"+ACK")
            await rita.taken()
            assert rita.forbidden == [first.reply.lower()]
