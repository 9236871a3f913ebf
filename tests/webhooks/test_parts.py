"""The pure parts: allowed addresses, keys, configuration, and the size of a body."""

from __future__ import annotations

import json
import os
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from dorm.webhooks import endpoints, webhook_requests
from dorm.webhooks.deliverer import overdue
from dorm.webhooks.endpoints import MOST, Endpoints
from dorm.webhooks.sending import NetworkError, Sender, parse_networks, permitted
from dorm.webhooks.webhook_keys import FILE_NAME, WebhookKeyError, open_keys
from events import subjects
from events.codec import decode, encode
from events.kinds import (
    AppFailed,
    AppWaitsLong,
    Event,
    NodeLost,
    NodeSuspected,
    NodeTrusted,
    Resized,
    Waiting,
    WebhookDisabled,
    WebhookRemoved,
    WebhookSet,
    WebhookTested,
)
from events.log.records import Record
from events.positions import Logged, Position
from events.quantities import SECOND
from replay.export.anonymize import anonymized
from tests.errors import raises
from tests.replay.made_log import Story, log_of
from tests.webhooks.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.20.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::a00:1", "2002:a00:1::", "192.0.2.1", "not an address",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not permitted(address, ())


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_public_addresses(address: str) -> None:
    assert permitted(address, ())


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "0", "localhost", "[::1]",
        "[::ffff:7f00:1]", "[::ffff:127.0.0.1]", "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021",
        "\u2460\u2461\u2466.0.0.1", "%31%32%37.0.0.1", "\u217c\u2134calhost", "localhos\u1d57",
    ],
)  # fmt: skip
async def test_this_machine_is_never_called_in_any_notation(host: str) -> None:
    async with Receiver() as receiver, Sender((), timeout_s=5.0) as sender:
        outcome = await sender.send(receiver.url.replace("127.0.0.1", host), {"webhook-id": "x"}, b"{}")
        assert not outcome.delivered
        assert receiver.requests == []
        async with Sender(parse_networks(["loopback"])) as allowed:  # The control.
            assert (await allowed.send(receiver.url, {"webhook-id": "x"}, b"{}")).delivered


def test_networks_that_are_allowed() -> None:
    allowed = parse_networks(["loopback", "10.1.0.0/16", "192.168.7.9"])
    assert all(permitted(one, allowed) for one in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "192.168.7.9"))
    assert not any(permitted(one, allowed) for one in ("10.2.0.1", "192.168.7.8", "169.254.169.254"))
    with raises(NetworkError, "webhook.network.malformed", "nowhere"):
        parse_networks(["nowhere"])


def test_keys_follow_from_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "data" / FILE_NAME
    keys, again = open_keys(file, "lab"), open_keys(file, "lab")
    key = keys.new_id()
    assert keys.secret("a", key) == again.secret("a", key)
    assert file.stat().st_mode & 0o777 == 0o600
    assert len({keys.secret(name, one) for name in ("a", "b") for one in (key, keys.new_id())}) == 4
    assert open_keys(file, "other").file_id != keys.file_id
    assert file.read_text().strip() not in key
    other = open_keys(tmp_path / "other", "lab")
    with raises(WebhookKeyError, "webhook.key.unknown", "'a'"):
        other.secret("a", key)


def test_an_invalid_file_of_keys_is_refused(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.write_text("secret")
    file.chmod(0o600)
    with raises(WebhookKeyError, "webhook.key.malformed", str(file)):
        open_keys(file, "lab")
    file.chmod(0o644)
    with raises(WebhookKeyError, "webhook.key.not_private", "chmod"):
        open_keys(file, "lab")
    assert os.listdir(tmp_path) == [FILE_NAME]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://\uff11.0.0.1/",
        "ftp://a/b",
        "https://",
        "https://a:b@c/d",
        "https://a/\n",
        "https://a:99999/",
        "x" * 3000,
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(webhook_requests.WebhookError):
        webhook_requests.check_url(url)


def test_names_and_events_that_are_refused() -> None:
    for name in ("", "-a", "a-", "A", "a" * 41, "a b"):
        with raises(webhook_requests.WebhookError, "webhook.name.malformed"):
            webhook_requests.check_name(name)
    with raises(webhook_requests.WebhookError, "webhook.event.unknown", "app.ended"):
        webhook_requests.check_events(["app.exploded"])
    assert webhook_requests.check_events(["node.lost", "app.ended", "node.lost"]) == ["app.ended", "node.lost"]


def test_a_suspect_node_and_its_return_are_delivered_to_those_who_want_them() -> None:
    wanting = folded(WebhookSet(webhook="a", url="https://x", events=["node.suspect"], key="k")).get("a")
    others = folded(WebhookSet(webhook="b", url="https://x", events=["node.lost"], key="k")).get("b")
    assert wanting is not None
    assert others is not None
    for event in (NodeSuspected(node="n1", reason="apps failed there"), NodeTrusted(node="n1", how="probe")):
        assert endpoints.wants(wanting, event)
        assert not endpoints.wants(others, event)
    assert not endpoints.wants(wanting, NodeLost(node="n1", last_heard=0))


def folded(*events: Event) -> Endpoints:
    found = Endpoints()
    for seq, event in enumerate(events, 1):
        found.fold(Record(seq, seq, subjects.fact("c", type(event).__name__, "me"), encode(event)))
    return found


def a_set(name: str = "a", url: str = "https://x") -> WebhookSet:
    return WebhookSet(webhook=name, url=url, events=["app.ended"], key="k")


def test_webhooks_are_added_changed_removed_and_disabled() -> None:
    one = folded(a_set(), a_set(url="https://y")).get("a")
    assert one is not None
    assert (one.url, one.added) == ("https://y", 1), "a change keeps its place"
    again = folded(a_set(), WebhookRemoved(webhook="a"), a_set()).get("a")
    assert again is not None
    assert again.added == 3
    dead = folded(a_set(), WebhookDisabled(webhook="a", code="webhook.dead", reason="r")).get("a")
    assert dead is not None
    assert dead.state == "disabled"
    back = folded(a_set(), WebhookDisabled(webhook="a", code="webhook.dead", reason="r"), a_set()).get("a")
    assert back is not None
    assert (back.state, back.added) == ("active", 1)
    assert len(list(folded(*(a_set(f"w{number}") for number in range(MOST + 5))))) == MOST


def test_a_body_has_its_limit() -> None:
    small = AppFailed(app="a", generation=1, reason="no")
    place = Position(5, 0)
    shown = json.loads(endpoints.body(Logged(place, 0, "dorm.c.round.master", small)))
    assert shown["data"]["reason"] == "no"
    reasons = {f"app-{number}": Waiting("resources", "x" * 200) for number in range(2000)}
    large = Resized(
        policy="dorm", policy_version=1, params={}, solver="", changes=[], reasons=reasons, utilization=0, fairness_loss=0,
        fairness_budget=0, excess=0, overhead=0, overhead_budget=0, status="", bound=0, digest="",
    )  # fmt: skip
    body = endpoints.body(Logged(place, 0, "dorm.c.round.master", large))
    assert len(body) <= endpoints.LARGEST_BODY
    assert json.loads(body)["dormtruncated"] is True
    assert json.loads(body)["id"] == "5.0"


def test_each_wait_is_stated_once_it_exceeds_its_time() -> None:
    story = Story(nodes=1)
    story.submit("one", n_min=3, n_max=3)
    story.submit("two", n_min=3, n_max=3)
    story.settle()
    (waiting,) = [app for app in story.state.live_apps() if app.waiting_since]
    since = waiting.waiting_since
    assert list(overdue(story.state, since + 59 * SECOND, [60.0])) == []
    stated = list(overdue(story.state, since + 60 * SECOND, [60.0, 10.0, 60.0, 3600.0]))
    assert [(one.app, one.after_s, one.since) for one in stated] == [
        (waiting.id, 10.0, since),
        (waiting.id, 60.0, since),
    ]
    assert len({one.id for one in stated}) == 2
    assert all(one.code and one.reason for one in stated)


async def test_an_anonymized_log_reveals_neither_places_nor_keys() -> None:
    story = Story(nodes=1)
    told = (
        "pager-of-ops",
        "https://hooks.internal.example/T0ken",
        "0011aabb-key",
        "f00d0bad-old",
        "because-of-dns",
        "request-77",
    )
    name, url, key, old, reason, test = told
    story.say(WebhookSet(webhook=name, url=url, events=["app.failed"], key=key, previous_key=old), "operator-x")
    story.say(WebhookTested(webhook=name, test=test, delivered=False, reason=reason), "operator-x")
    story.say(WebhookDisabled(webhook=name, code="webhook.dead", reason=reason), "operator-x")
    story.say(AppWaitsLong(app="secret-app-aaaaaa", since=1, after_s=60, code="resources", reason=reason), "operator-x")
    story.say(WebhookRemoved(webhook=name), "operator-x")
    made: list[Record] = []
    async with aclosing((await anonymized(log_of(story.records))).read()) as batches:
        async for batch in batches:
            made += batch
    raw = b"".join(record.subject.encode() + record.body + record.msg_id.encode() for record in made)
    assert not [word for word in (*told, "secret-app", "operator-x") if word.encode() in raw]
    events = [decode(record) for record in made]
    (configured,) = [event for event in events if isinstance(event, WebhookSet)]
    (disabled,) = [event for event in events if isinstance(event, WebhookDisabled)]
    assert configured.webhook == disabled.webhook != ""
    assert (configured.events, disabled.code) == (["app.failed"], "webhook.dead")
