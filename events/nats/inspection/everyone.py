"""A question to all listeners on a subject: the number of answers is not known in advance."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple

import nats.errors

from events.nats.link import as_log_errors, cancellable

if TYPE_CHECKING:
    from events.nats.link import Link

_MOST = 100_000


class Said(NamedTuple):
    """One answer."""

    body: bytes
    before: float
    """When the question was sent (seconds, UTC)."""
    after: float
    """When the answer had come."""


async def ask_everyone(link: Link, subject: str, question: bytes, *, wait_s: float) -> list[Said]:
    """Return the answers that come within `wait_s` seconds, at most one of each who answers; those of one piece alone.
    Raises LogUnavailable, and LogRefused if this identity may not ask."""
    client = link.client
    await link.connected(wait_s)
    inbox = client.new_inbox()
    with as_log_errors("asking"):
        subscription = await client.subscribe(inbox, pending_msgs_limit=_MOST)
    found: list[Said] = []
    try:
        before = time.time()
        with as_log_errors("asking"):
            await client.publish(subject, question, reply=inbox)
            await link.taken()
        link.permissions.check_request(subject, inbox)
        ends = asyncio.get_running_loop().time() + wait_s
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            try:
                with cancellable():
                    message = await subscription.next_msg(timeout=left)
            except nats.errors.Error:  # No more came, or the connection is lost.
                break
            if (message.headers or {}).get("Status") == "503":
                break  # Nobody listens.
            if message.data and "Dorm-Refused" not in (message.headers or {}):
                found.append(Said(message.data, before, time.time()))
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
    return found
