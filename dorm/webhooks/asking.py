"""The requests of the commands about webhooks, and their answers.

WebhookError
├── NoWebhook   no webhook of this name
└── NoAnswer    no deliverer has answered a test
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dorm.client.answers import facts_after
from dorm.webhooks import endpoints
from dorm.webhooks.endpoints import TOPIC, TOPICS, Endpoints
from events import subjects
from events.appending import append_event
from events.errors import DormError
from events.kinds import Event, WebhookRemoved, WebhookSet, WebhookTested, WebhookTestRequested
from events.spec.notify import url_fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.client.client import Client
    from dorm.webhooks.endpoints import Endpoint
    from dorm.webhooks.keys import Keys

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
Made = TypeVar("Made", bound=Event)


class WebhookError(DormError, ValueError):
    """A webhook cannot have the requested properties."""

    code = "webhook.malformed"


class NoWebhook(WebhookError):
    """No webhook of this name."""

    code = "webhook.not_found"


class NoAnswer(WebhookError):
    """No deliverer has answered a test."""

    code = "webhook.no_answer"


def check_name(name: str) -> str:
    """Return the name.  Raises WebhookError."""
    if not _NAME.fullmatch(name):
        text = f"webhook {name[:60]!r}: use up to 40 small letters and digits, with '-' between them"
        raise WebhookError(text, code="webhook.name.malformed")
    return name


def check_url(url: str) -> str:
    """Return the URL.  Raises WebhookError: a password does not belong on the log."""
    fault = url_fault(url)
    if fault is not None:
        text, problem = fault
        raise WebhookError(text, code=f"webhook.url.{problem}")
    return url


def check_events(events: Sequence[str]) -> list[str]:
    """Return the topics, each once.  Raises WebhookError."""
    for topic in events:
        if topic not in TOPICS:
            text = f"webhooks do not deliver {topic[:60]!r}; choose from {', '.join(TOPICS)}"
            raise WebhookError(text, code="webhook.event.unknown")
    if TOPIC in events and set(events) != {TOPIC}:
        text = (
            f"{TOPIC} needs a webhook of its own, whose URL is the base of apps' URLs; add another one for the others"
        )
        raise WebhookError(text, code="webhook.event.not_alone")
    return [topic for topic in TOPICS if topic in events]


async def all_endpoints(client: Client) -> Endpoints:
    """Return every webhook of the cluster.  Raises the log's errors."""
    current = Endpoints()
    wanted = endpoints.subjects_of(client.cluster)
    async with contextlib.aclosing(client.log.read(after=await client.log.start(), subjects=wanted)) as batches:
        async for batch in batches:
            for record in batch:
                current.fold(record)
    return current


async def find(client: Client, name: str) -> Endpoint:
    """Return one.  Raises NoWebhook, and the log's errors."""
    everything = await all_endpoints(client)
    endpoint = everything.get(name)
    if endpoint is None:
        names = ", ".join(each.name for each in everything)
        raise NoWebhook(
            f"there is no webhook {name[:60]!r}"
            + (f"; there are {names}" if names else "; `dorm webhooks add` adds one")
        )
    return endpoint


async def add(client: Client, keys: Keys, name: str, url: str, events: Sequence[str], waits_s: float) -> WebhookSet:
    """Add a webhook, or change one, which keeps its key.  Raises WebhookError, and the log's errors."""
    event = WebhookSet(
        webhook=check_name(name), url=check_url(url), events=check_events(events), key=keys.new_id(), waits_s=waits_s
    )
    before = (await all_endpoints(client)).get(name)
    if before is not None and keys.knows(before.key):
        event = msgspec.structs.replace(
            event, key=before.key, previous_key=before.previous_key, previous_until=before.previous_until
        )
    return await _publish_signed(client, event)


async def rotate(client: Client, keys: Keys, name: str, overlap_s: float) -> WebhookSet:
    """Give it another key; for this many seconds, the previous one also signs. Raises NoWebhook, and the log's
    errors."""
    before = await find(client, name)
    event = msgspec.structs.replace(
        _as_it_is(before),
        key=keys.new_id(),
        previous_key=before.key if overlap_s > 0 and keys.knows(before.key) else "",
        previous_until=time.time_ns() + int(overlap_s * 1e9),
    )
    return await _publish_signed(client, event)


async def enable(client: Client, name: str, *, skip: bool) -> None:
    """Deliver again, from where it stopped, or with `skip` from now on.  Raises NoWebhook, and the log's errors."""
    before = await find(client, name)
    if skip:
        await _publish_signed(client, WebhookRemoved(webhook=name))
    await _publish_signed(client, _as_it_is(before))


async def remove(client: Client, name: str) -> None:
    """Raises NoWebhook, and the log's errors."""
    await find(client, name)
    await _publish_signed(client, WebhookRemoved(webhook=name))


async def try_out(client: Client, name: str, timeout: float) -> WebhookTested:
    """Have the deliverer send a test, and return the outcome.  Raises NoWebhook, NoAnswer, and the log's errors."""
    endpoint = await find(client, name)
    if endpoint.state != "active":
        text = f"webhook {name!r} is disabled ({endpoint.reason}); `dorm webhooks enable {name}` enables it"
        raise WebhookError(text, code="webhook.disabled")
    after = await client.log.end()
    request = await _publish_signed(client, WebhookTestRequested(webhook=name))
    wanted = [subjects.fact_pattern(client.cluster, WebhookTested.__name__)]
    no_answer = NoAnswer(f"no deliverer has answered within {timeout:g} s; start one with `dorm webhooks run`")
    waited = facts_after(client.log, after, timeout=timeout, no_answer=no_answer, subjects=wanted)
    async with contextlib.aclosing(waited) as facts:
        async for fact in facts:
            if isinstance(fact, WebhookTested) and fact.test == request.id:
                return fact
    raise AssertionError("it returns or raises")


def _as_it_is(endpoint: Endpoint) -> WebhookSet:
    return WebhookSet(
        webhook=endpoint.name,
        url=endpoint.url,
        events=list(endpoint.events),
        key=endpoint.key,
        previous_key=endpoint.previous_key,
        previous_until=endpoint.previous_until,
        waits_s=endpoint.waits_s,
    )


async def _publish_signed(client: Client, event: Made) -> Made:
    signed = msgspec.structs.replace(
        event, id=f"{client.user}.{secrets.token_hex(8)}", at=time.time_ns(), by=client.user
    )
    await client.check_authority(signed)
    await append_event(client.log, subjects.fact(client.cluster, type(event).__name__, client.user), signed)
    return signed
