"""Events reach a real receiver at least once, with the same id each time, signed; trouble of one webhook is its own."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp import web
from standardwebhooks import WebhookVerificationError

from dorm.webhooks import webhook_requests
from dorm.webhooks.deliverer import place_of
from dorm.webhooks.webhook_keys import Keys
from events.cloudevents import cloud_event
from events.kinds import AppCompleted, AppFailed, AppWaitsLong, NodeLost, WebhookDisabled
from events.nats import places
from events.positions import logged
from tests.errors import raises
from tests.webhooks.receiver import Receiver
from tests.webhooks.setting import Setting, setting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats
ENDED = ["app.ended"]


@pytest_asyncio.fixture
async def hooks(nats_server: NatsServer) -> AsyncIterator[Setting]:
    async with setting(nats_server.url, f"hooks-{secrets.token_hex(4)}") as made:
        yield made


async def state_of(hooks: Setting, name: str) -> str:
    found = (await webhook_requests.all_endpoints(hooks.client)).get(name)
    assert found is not None
    return found.state


async def until_disabled(hooks: Setting, name: str) -> str:
    async with asyncio.timeout(40):
        while await state_of(hooks, name) != "disabled":  # noqa: ASYNC110  # the server's own state changes without a word
            await asyncio.sleep(0.1)
    found = await webhook_requests.find(hooks.client, name)
    return found.code


async def test_an_event_is_delivered_as_the_cloud_event_that_the_log_has(
    hooks: Setting, nats_server: NatsServer
) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        made = await webhook_requests.add(
            hooks.client, hooks.keys, "all", receiver.url, ["app.failed", "node.lost"], 60
        )
        seq = await hooks.round(
            AppCompleted(app="a-1", generation=1),
            AppFailed(app="b-1", generation=1, reason="no"),
            NodeLost(node="n1", last_heard=0),
        )
        failed, lost = await receiver.count(2)
        record = await hooks.connection.log.record_at(seq)
        assert record is not None
        assert [failed.event, lost.event] == [cloud_event(one) for one in logged(record)][1:]
        assert [failed.id, lost.id] == [f"{hooks.cluster}-{seq}-1", f"{hooks.cluster}-{seq}-2"]
        assert failed.headers["Content-Type"].startswith("application/cloudevents+json")
        secret = hooks.keys.secret("all", made.key)
        assert failed.verified(secret) == failed.event
        with pytest.raises(WebhookVerificationError):
            failed.verified(hooks.keys.secret("all", hooks.keys.new_id()))


async def test_events_before_a_webhook_are_not_delivered(hooks: Setting, nats_server: NatsServer) -> None:
    await hooks.round(AppCompleted(app="before", generation=1))
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        await webhook_requests.add(hooks.client, hooks.keys, "late", receiver.url, ENDED, 60)
        await hooks.round(AppCompleted(app="after", generation=1))
        assert [one.event["subject"] for one in await receiver.count(1)] == ["app/after"]


async def test_a_killed_deliverer_loses_nothing_and_repeats_under_the_same_id(
    hooks: Setting, nats_server: NatsServer
) -> None:
    """The first one ends while its request is under way, so it is unknown whether the endpoint has the event."""
    async with Receiver() as receiver:
        await webhook_requests.add(hooks.client, hooks.keys, "one", receiver.url, ENDED, 60)
        receiver.delay_s = 60.0
        async with hooks.delivering(nats_server.url, timeout_s=30.0):
            seqs = [await hooks.round(AppCompleted(app=f"a-{n}", generation=1)) for n in range(5)]
            await receiver.count(1)
        receiver.delay_s = 0.0
        place = place_of(await webhook_requests.find(hooks.client, "one"))
        standing = await hooks.connection.places.standing(place)
        assert standing is not None
        assert (standing.pending, standing.pending + standing.unread) == (1, 5)
        # The server gives the interrupted one out again only after its time; the others come at once.
        async with hooks.delivering(nats_server.url):
            await receiver.until(lambda found: len({one.id for one in found}) == 5, timeout=40)
            await receiver.until(lambda found: len(found) >= 6, timeout=100)
        ids = [f"{hooks.cluster}-{seq}-0" for seq in seqs]
        assert {one.id for one in receiver.requests} == set(ids)
        assert [one.id for one in receiver.requests].count(ids[0]) == 2


async def test_failures_are_tried_again_and_events_of_a_round_are_not_repeated(
    hooks: Setting, nats_server: NatsServer
) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        receiver.answer = lambda one: web.Response(
            status=503 if one.id.endswith("-1") and len(receiver.requests) < 4 else 200
        )
        await webhook_requests.add(hooks.client, hooks.keys, "flaky", receiver.url, ENDED, 60)
        await hooks.round(AppCompleted(app="a", generation=1), AppCompleted(app="b", generation=1))
        await receiver.until(lambda found: [one.id[-1] for one in found] == ["0", "1", "1", "1"])
        await hooks.round(AppCompleted(app="c", generation=1))
        assert (await receiver.count(5))[-1].event["subject"] == "app/c"


async def test_a_dead_endpoint_delays_no_other_and_is_disabled_and_enabled(
    hooks: Setting, nats_server: NatsServer
) -> None:
    async with Receiver() as receiver, Receiver() as dead, hooks.delivering(nats_server.url, timeout_s=0.5):
        dead.answer = lambda _: web.Response(status=500)
        await webhook_requests.add(hooks.client, hooks.keys, "dead", dead.url, ENDED, 60)
        await webhook_requests.add(hooks.client, hooks.keys, "alive", receiver.url, ENDED, 60)
        for number in range(20):
            await hooks.round(AppCompleted(app=f"a-{number}", generation=1))
        await receiver.count(20)
        assert len(receiver.requests) == 20
        assert await until_disabled(hooks, "dead") == "webhook.dead"
        assert await state_of(hooks, "alive") == "active"
        with raises(webhook_requests.WebhookError, "webhook.disabled", "dead"):
            await webhook_requests.try_out(hooks.client, "dead", 1.0)
        dead.answer = lambda _: web.Response(status=200)
        dead.requests.clear()
        await webhook_requests.enable(hooks.client, "dead", skip=True)
        await hooks.round(AppCompleted(app="later", generation=1))
        await dead.until(lambda found: [one.event["subject"] for one in found] == ["app/later"])


async def test_only_the_event_that_keeps_failing_is_given_up(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        poison = "app/poison"
        receiver.answer = lambda one: web.Response(status=400 if one.event["subject"] == poison else 200)
        await webhook_requests.add(hooks.client, hooks.keys, "picky", receiver.url, ENDED, 60)
        await hooks.round(AppCompleted(app="poison", generation=1))
        await hooks.round(AppCompleted(app="fine", generation=1))
        await receiver.until(lambda found: sum(one.event["subject"] == poison for one in found) == 4)
        place = place_of(await webhook_requests.find(hooks.client, "picky"))
        async with asyncio.timeout(30):
            while (standing := await hooks.connection.places.standing(place)) is None or standing.pending:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await state_of(hooks, "picky") == "active"


async def test_410_ends_a_webhook(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        receiver.answer = lambda _: web.Response(status=410)
        await webhook_requests.add(hooks.client, hooks.keys, "gone", receiver.url, ENDED, 60)
        await hooks.round(AppCompleted(app="a", generation=1))
        assert await until_disabled(hooks, "gone") == "webhook.gone"
        assert len(receiver.requests) == 1


async def test_redirects_are_not_followed(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, Receiver() as elsewhere, hooks.delivering(nats_server.url):
        receiver.answer = lambda _: web.Response(status=307, headers={"Location": elsewhere.url})
        await webhook_requests.add(hooks.client, hooks.keys, "moved", receiver.url, ENDED, 60)
        tested = await webhook_requests.try_out(hooks.client, "moved", 30)
        assert (tested.delivered, tested.status) == (False, 307)
        assert "redirect" in tested.reason
        assert not elsewhere.requests


async def test_private_addresses_are_refused_unless_allowed(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url, allow=("10.0.0.0/8",)):
        port = receiver.url.split(":")[2]
        for number, host in enumerate(("127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]")):
            await webhook_requests.add(hooks.client, hooks.keys, f"inside-{number}", f"http://{host}:{port}", ENDED, 60)
            tested = await webhook_requests.try_out(hooks.client, f"inside-{number}", 30)
            assert not tested.delivered
            assert "not public" in tested.reason, host
        assert not receiver.requests


async def test_a_rotation_signs_with_both_keys_for_a_while(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        first = await webhook_requests.add(hooks.client, hooks.keys, "turn", receiver.url, ENDED, 60)
        second = await webhook_requests.rotate(hooks.client, hooks.keys, "turn", 3600)
        assert first.key != second.key
        await hooks.round(AppCompleted(app="a", generation=1))
        (received,) = await receiver.count(1)
        old, new = (hooks.keys.secret("turn", key) for key in (first.key, second.key))
        assert received.verified(old) == received.verified(new) == received.event
        assert len(received.headers["webhook-signature"].split(" ")) == 2
        third = await webhook_requests.rotate(hooks.client, hooks.keys, "turn", 0)
        await hooks.round(AppCompleted(app="b", generation=1))
        received = (await receiver.count(2))[1]
        assert received.verified(hooks.keys.secret("turn", third.key)) == received.event
        with pytest.raises(WebhookVerificationError):
            received.verified(new)


async def test_a_key_of_another_file_is_reported(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        await webhook_requests.add(hooks.client, Keys(b"x" * 32, hooks.cluster), "foreign", receiver.url, ENDED, 60)
        assert await until_disabled(hooks, "foreign") == "webhook.key.unknown"


async def test_a_removed_webhook_leaves_nothing_behind(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver:
        async with hooks.delivering(nats_server.url):
            await webhook_requests.add(hooks.client, hooks.keys, "brief", receiver.url, ENDED, 60)
            await hooks.round(AppCompleted(app="a", generation=1))
            await receiver.count(1)
        await webhook_requests.remove(hooks.client, "brief")
        assert await hooks.connection.places.names("webhook-") != []
        async with hooks.delivering(nats_server.url), asyncio.timeout(30):
            while await hooks.connection.places.names("webhook-"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        with raises(webhook_requests.NoWebhook, "webhook.not_found", "brief"):
            await webhook_requests.remove(hooks.client, "brief")


async def test_a_long_wait_is_stated_once_and_delivered(hooks: Setting, nats_server: NatsServer) -> None:
    from events.kinds import AppAccepted
    from events.spec import check_spec

    async with Receiver() as receiver:
        await webhook_requests.add(hooks.client, hooks.keys, "waits", receiver.url, ["app.waits"], 0.5)
        spec = check_spec({"name": "long", "command": ["x"], "demand": {"cpu": 1}})
        await hooks.submit("long")
        submission = next(iter((await hooks.fold()).submissions))
        await hooks.round(AppAccepted(app="long-aaaaaa", spec=spec, submission=submission))
        async with hooks.delivering(nats_server.url):
            (received,) = await receiver.count(1)
            assert received.event["type"] == "io.dorm.app.waits_long.v1"
            assert received.event["subject"] == "app/long-aaaaaa"
        async with hooks.delivering(nats_server.url):
            await hooks.round()  # Something to look at.
            await asyncio.sleep(1.0)
        stated = [record for batch in [b async for b in hooks.connection.log.read()] for record in batch]
        assert sum(AppWaitsLong.__name__ in record.subject for record in stated) == 1
        assert len(receiver.requests) == 1


async def test_a_void_round_is_not_delivered(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        await webhook_requests.add(hooks.client, hooks.keys, "real", receiver.url, ENDED, 60)
        await hooks.round(AppCompleted(app="never", generation=1), epoch=7)
        await hooks.round(AppCompleted(app="real", generation=1))
        assert [one.event["subject"] for one in await receiver.count(1)] == ["app/real"]


async def test_a_report_is_on_the_log(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        await webhook_requests.add(hooks.client, hooks.keys, "tried", receiver.url, ENDED, 60)
        tested = await webhook_requests.try_out(hooks.client, "tried", 30)
        assert (tested.delivered, tested.status, tested.by) == (True, 204, "deliverer")
        assert receiver.requests[0].event["type"] == "io.dorm.webhook.test_requested.v1"
        assert WebhookDisabled.__name__ not in str([b async for b in hooks.connection.log.read()])


async def test_two_deliverers_that_state_the_same_wait_deliver_it_once(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver:
        await webhook_requests.add(hooks.client, hooks.keys, "waits", receiver.url, ["app.waits", "app.ended"], 60)
        async with (
            hooks.delivering(nats_server.url, who="one"),
            hooks.delivering(nats_server.url, who="two"),
        ):
            for since in (5, 9):
                for who in ("one", "two"):
                    event = AppWaitsLong(id=f"{who}.{since}", app="a-1", since=since, after_s=60, by=who)
                    await hooks.say(event, who)
            await hooks.round(AppCompleted(app="a-1", generation=1))
            found = await receiver.until(
                lambda all: len(all) > 2 and any("completed" in one.event["type"] for one in all)
            )
            waits = [one.event["data"] for one in found if "waits_long" in one.event["type"]]
            assert sorted((one["since"], one["by"]) for one in waits) == [(5, "one"), (9, "one")]


async def test_a_killed_server_does_not_shorten_the_pause_before_the_next_attempt(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps what was postponed some moments later, and until then gives it out again after `again_s`."""
    monkeypatch.setattr(places, "_IDLE_S", 0.5)  # A request that the server forgot ends sooner.
    pause_s = 8.0
    async with setting(server.url, "killed") as hooks, Receiver() as receiver:
        receiver.answer = lambda _: web.Response(status=503 if len(receiver.requests) < 2 else 200)
        async with hooks.delivering(server.url, schedule_s=(pause_s,), timeout_s=0.5, again_s=1.0) as deliverer:
            await webhook_requests.add(hooks.client, hooks.keys, "one", receiver.url, ENDED, 60)
            await hooks.round(AppCompleted(app="a", generation=1))
            await receiver.count(1)
            await asyncio.sleep(0.02)  # The postponement reaches the server, and not its disk.
            await server.kill()
            await server.start()
            # The second attempt is the schedule's last: what came too early counts as none.
            first, second = await receiver.count(2)
            sent = [int(one.headers["webhook-timestamp"]) for one in (first, second)]
            assert sent[1] - sent[0] >= pause_s - 2 - 1
            assert await state_of(hooks, "one") == "active"
            found = {one.name: one.samples for one in await deliverer.metrics()}
    attempts = {one.labels["outcome"]: one.value for one in found["dorm_webhook_attempts"]}
    assert attempts == {"delivered": 1, "refused": 0, "failed": 1, "no_answer": 0, "gone": 0}
    states = {one.labels["state"]: one.value for one in found["dorm_webhooks"]}
    assert states == {"active": 1, "disabled": 0}
    counts = {one.name: one.value for name in ("request", "delivery") for one in found[f"dorm_webhook_{name}_seconds"]}
    assert (counts["dorm_webhook_request_seconds_count"], counts["dorm_webhook_delivery_seconds_count"]) == (2, 1)
    assert counts["dorm_webhook_delivery_seconds_sum"] >= pause_s - 2
