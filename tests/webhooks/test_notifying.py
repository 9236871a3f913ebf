"""Notifications of apps: under an operator's URL, about the app alone, signed, retried, bounded."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from aiohttp import web

from dorm.core.admission import app_id
from dorm.webhooks import webhook_requests
from dorm.webhooks.endpoints import Allowance, is_under
from dorm.webhooks.webhook_requests import WebhookError
from events.kinds import AppAccepted, AppCompleted, AppFailed, AppSubmitted, Placed, Resize, Resized
from events.spec import check_spec
from tests.core.records import document
from tests.errors import raises
from tests.webhooks.receiver import Receiver
from tests.webhooks.setting import Setting, setting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.lab.machines.nats_server import NatsServer


@pytest.mark.parametrize(
    ("base", "url", "under"),
    [
        ("https://h.org/teams/", "https://h.org/teams/a", True),
        ("https://h.org/teams", "https://h.org/teams/a?x=1#y", True),
        ("https://h.org/teams", "https://h.org/teams", True),
        ("https://h.org", "https://H.ORG:443/any", True),
        ("https://h.org", "https://h.org", True),
        ("https://h.org/teams", "https://h.org/teamsters", False),
        ("https://h.org/teams", "https://h.org/", False),
        ("https://h.org/teams", "http://h.org/teams/a", False),
        ("https://h.org/teams", "https://h.org:8443/teams/a", False),
        ("https://h.org/teams", "https://h.org.evil.org/teams/a", False),
        ("https://h.org/teams", "https://h.org@evil.org/teams/a", False),
        ("https://h.org/teams", "https://u@h.org/teams/a", False),
        ("https://h.org/teams", "https://h.org/teams/../admin", False),
        ("https://h.org/teams", "https://h.org/teams/%2e%2e/admin", False),
        ("https://h.org/teams", "https://h.org/teams/%252e%252e/admin", False),
        ("https://h.org/teams", "https://h.org/teams/..%5cadmin", False),
        ("https://h.org/teams", "https://[/teams/a", False),
    ],
)
def test_urls_under_a_base(base: str, url: str, under: bool) -> None:
    assert is_under(base, url) is under


def test_a_tenants_requests_per_minute_are_limited() -> None:
    now = 0.0
    allowance = Allowance(lambda: now, most=3)
    assert [allowance.take("ann") for _ in range(5)] == [True] * 3 + [False] * 2
    assert allowance.take("bob"), "another's own"
    now = 20.0
    assert [allowance.take("ann") for _ in range(2)] == [True, False]
    now = 1000.0
    assert [allowance.take("ann") for _ in range(4)] == [True] * 3 + [False]


def test_notifications_of_apps_need_a_webhook_of_their_own() -> None:
    assert webhook_requests.check_events(["app.notify"]) == ["app.notify"]
    with raises(WebhookError, "webhook.event.not_alone"):
        webhook_requests.check_events(["app.notify", "app.ended"])


@pytest_asyncio.fixture
async def hooks(nats_server: NatsServer) -> AsyncIterator[Setting]:
    async with setting(nats_server.url, f"notify-{secrets.token_hex(4)}") as made:
        yield made


async def accepted(hooks: Setting, name: str, **fields: Any) -> str:
    spec = document(name, **fields)
    seq = await hooks.say(AppSubmitted(id=f"s.{name}", spec=spec))
    app = app_id(name, f"s.{name}")
    await hooks.round(AppAccepted(app=app, spec=check_spec(spec).stored(), submission=f"s.{name}", cause=str(seq)))
    return app


@pytest.mark.nats
async def test_apps_notify_only_urls_that_an_operator_allows(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        made = await webhook_requests.add(hooks.client, hooks.keys, "teams", receiver.url, ["app.notify"], 60)
        place = [Placed(slot=0, node="n1", address="a", port=1)]
        mine = await accepted(hooks, "mine", notify={"url": f"{receiver.url}?team=1", "on": ["completed", "resized"]})
        other = await accepted(hooks, "other", notify=receiver.url)
        away = await accepted(hooks, "away", notify=receiver.url.replace("/hook", "/secret"))
        silent = await accepted(hooks, "silent")
        await hooks.round(
            Resized(
                changes=[
                    Resize(app=app, from_generation=0, to_generation=1, placement=place, adjustment="start")
                    for app in (mine, other)
                ],
                policy="static",
                policy_version=1,
                params={},
                solver="",
                reasons={},
                utilization=0,
                fairness_loss=0,
                fairness_budget=0,
                excess=0,
                overhead=0,
                overhead_budget=0,
                status="",
                bound=0,
                digest="",
            )
        )
        await hooks.round(
            AppCompleted(app=mine, generation=1),
            AppFailed(app=other, generation=1, reason="out of memory"),
            AppFailed(app=away, generation=1, reason="no"),
            AppCompleted(app=silent, generation=1),
        )
        found = await receiver.count(3)
        assert [(one.event["type"], one.event["subject"]) for one in found] == [
            ("io.dorm.app.resized.v1", f"app/{mine}"), ("io.dorm.app.completed.v1", f"app/{mine}"),
            ("io.dorm.app.failed.v1", f"app/{other}"),
        ]  # fmt: skip
        assert found[0].event["data"]["containers"] == 1
        assert other not in found[0].body.decode(), "a decision is about others too"
        assert found[2].event["data"]["reason"] == "out of memory"
        for one in found:
            assert one.verified(hooks.keys.secret("teams", made.key)) == one.event
        assert len({one.id for one in found}) == 3


@pytest.mark.nats
async def test_a_failing_webhook_is_given_up_and_delays_no_other(hooks: Setting, nats_server: NatsServer) -> None:
    async with Receiver() as receiver, hooks.delivering(nats_server.url):
        await webhook_requests.add(hooks.client, hooks.keys, "teams", receiver.url, ["app.notify"], 60)
        apps = [await accepted(hooks, name, notify=receiver.url) for name in ("bad", "good")]
        receiver.answer = lambda got: web.Response(status=500 if apps[0] in got.body.decode() else 204)
        await hooks.round(*(AppCompleted(app=app, generation=1) for app in apps))
        last = await accepted(hooks, "last", notify=receiver.url)
        await hooks.round(AppCompleted(app=last, generation=1))
        # The first try and one for each pause of the schedule, then never again.
        await receiver.until(lambda found: sum(apps[0] in one.body.decode() for one in found) == 4, timeout=40)
        await receiver.until(lambda found: any(last in one.body.decode() for one in found), timeout=20)
        assert sum(apps[1] in one.body.decode() for one in receiver.requests) == 1
        async with asyncio.timeout(20):
            while True:
                standing = await hooks.connection.places.standing(await place_name(hooks))
                if standing is not None and not standing.pending and not standing.unread:
                    break
                await asyncio.sleep(0.1)
        assert (await webhook_requests.find(hooks.client, "teams")).state == "active"


@pytest.mark.nats
async def test_no_tenant_holds_back_another(hooks: Setting, nats_server: NatsServer) -> None:
    """However many of its notifications fail, ask to be sent later, or are not answered at all."""
    async with Receiver() as receiver, hooks.delivering(nats_server.url, schedule_s=(3600.0,) * 4, timeout_s=600.0):
        await webhook_requests.add(hooks.client, hooks.keys, "teams", receiver.url, ["app.notify"], 60)
        bad = [await accepted(hooks, f"bad-{n}", user=f"m{n % 3}", notify=receiver.url) for n in range(180)]
        slow = [await accepted(hooks, f"slow-{n}", user="eve", notify=receiver.url) for n in range(40)]
        good = await accepted(hooks, "good", user="alice", notify=receiver.url)
        receiver.answer = lambda got: web.Response(
            status=204 if good in got.body.decode() else 503, headers={"Retry-After": "86400"}
        )
        receiver.hangs = lambda got: b"slow-" in got.body
        for app in (*bad, *slow[1:]):
            await hooks.round(AppCompleted(app=app, generation=1))
        await hooks.round(AppCompleted(app=slow[0], generation=1), AppCompleted(app=good, generation=1))
        await receiver.until(lambda found: any(good in one.body.decode() for one in found), timeout=60)
        assert sum(b"bad-" in one.body for one in receiver.requests) == len(bad)


async def place_name(hooks: Setting) -> str:
    from dorm.webhooks.deliverer import place_of

    return place_of(await webhook_requests.find(hooks.client, "teams"))
