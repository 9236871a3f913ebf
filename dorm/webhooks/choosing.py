"""Which events a webhook delivers, and in which form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from events import kinds as k
from events import subjects
from events.cloudevents import cloud_event

if TYPE_CHECKING:
    from dorm.webhooks.endpoints import Endpoint
    from events.positions import Logged

LARGEST_BODY = 256 * 1024
"""Bytes.  A decision about thousands of apps may be larger; then the data is left out, and the receiver reads it by its
position."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def subjects_of(cluster: str) -> list[str]:
    """Return the subjects of everything that a webhook may want."""
    own = (k.AppWaitsLong, k.WebhookTestRequested)
    return [subjects.rounds(cluster), *(subjects.fact_pattern(cluster, kind.__name__) for kind in own)]


def wants(endpoint: Endpoint, event: k.Event) -> bool:
    topics = endpoint.events
    match event:
        case k.AppCompleted() | k.AppFailed() | k.AppCancelled():
            return "app.ended" in topics or ("app.failed" in topics and isinstance(event, k.AppFailed))
        case k.AppWaitsLong():
            return "app.waits" in topics and event.after_s == endpoint.waits_s
        case k.NodeLost():
            return "node.lost" in topics
        case k.NodeSuspected() | k.NodeTrusted():
            return "node.suspect" in topics
        case k.Resized():
            return "adjustment" in topics and bool(event.changes)
        case k.LiveResizeFailed():
            return "adjustment" in topics
        case k.WebhookTestRequested():
            return event.webhook == endpoint.name
        case _:
            return False


def message_id(cluster: str, logged: Logged) -> str:
    """Return the `webhook-id`: the event's position, without the full stop that separates the signed parts.  It
    is the same for each attempt, so a receiver that remembers ids handles each event once."""
    return f"{_UNSAFE.sub('_', cluster)}-{str(logged.position).replace('.', '-')}"


def body(logged: Logged) -> bytes:
    """Return the CloudEvent, at most `LARGEST_BODY` bytes long."""
    made = cloud_event(logged)
    encoded = msgspec.json.encode(made)
    if len(encoded) <= LARGEST_BODY:
        return encoded
    return msgspec.json.encode({**made, "data": {"kind": type(logged.event).__name__}, "dormtruncated": True})
