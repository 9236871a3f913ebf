"""The webhooks on the log, which events each of them delivers and in which form, and what apps ask to be notified of.

The webhooks are a fold of their own events, separate from the cluster's state; no decision depends on it.

Apps request notifications in their specs (`notify`).  An operator adds a webhook for `app.notify`, whose URL is not an
endpoint but a prefix for the endpoints that apps may name: the same scheme, host and port, and a path that begins with its
path.  So the cluster only calls URLs that an operator has allowed on the log.  Each tenant has a limit per minute; further
notifications are left out and counted.

Pure, except for the clock that is passed in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from events import kinds as k
from events import subjects
from events.cloudevents import cloud_event
from events.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dorm.core.state import App
    from events.log.records import Record
    from events.positions import Logged


# --- endpoints --------------------------------------------------------------------------------------------------------

TOPICS: dict[str, str] = {
    "app.ended": "an app completed, failed or was cancelled",
    "app.failed": "an app failed permanently",
    "app.waits": "an app has waited for long",
    "node.lost": "a node is silent",
    "node.suspect": "a node takes nothing new because apps failed there, or it is trusted again",
    "adjustment": "a decision that changes apps, or a live adjustment that failed",
    "app.notify": "what apps ask for in their specs (`notify`), at URLs under this one",
}
"""The events that a webhook can deliver."""
MOST = 200
"""Webhooks of one cluster; further ones are not delivered."""
_KINDS = (k.WebhookSet, k.WebhookRemoved, k.WebhookDisabled)


class Endpoint(msgspec.Struct, frozen=True):
    """One webhook."""

    name: str
    url: str
    events: tuple[str, ...]
    key: str
    previous_key: str
    previous_until: int
    """Log time, UTC ns."""
    waits_s: float
    added: int
    """Sequence of the record that added it; earlier events are not delivered."""
    set_by: str
    state: Literal["active", "disabled"] = "active"
    code: str = ""
    reason: str = ""
    changed_at: int = 0
    """Log time (UTC ns) of the last change."""


def subjects_of(cluster: str) -> list[str]:
    """Return the subjects that `Endpoints.fold` needs."""
    return [subjects.fact_pattern(cluster, kind.__name__) for kind in _KINDS]


class Endpoints:
    """All webhooks after some record."""

    def __init__(self) -> None:
        self.seq = 0
        self._all: dict[str, Endpoint] = {}

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(sorted(self._all.values(), key=lambda endpoint: endpoint.name))

    def get(self, name: str) -> Endpoint | None:
        return self._all.get(name)

    def fold(self, record: Record) -> str:
        """Fold one record; return the name of the webhook that it changed, "" for none."""
        self.seq = record.seq
        event = decode(record)
        match event:
            case k.WebhookSet():
                return self._set(event, record)
            case k.WebhookRemoved():
                return event.webhook if self._all.pop(event.webhook, None) is not None else ""
            case k.WebhookDisabled():
                return self._disable(event, record)
            case _:
                return ""

    def _set(self, event: k.WebhookSet, record: Record) -> str:
        before = self._all.get(event.webhook)
        if before is None and len(self._all) >= MOST:
            return ""
        self._all[event.webhook] = Endpoint(
            name=event.webhook,
            url=event.url,
            events=tuple(event.events),
            key=event.key,
            previous_key=event.previous_key,
            previous_until=event.previous_until,
            waits_s=event.waits_s,
            added=before.added if before is not None else record.seq,
            set_by=event.by,
            changed_at=record.time,
        )
        return event.webhook

    def _disable(self, event: k.WebhookDisabled, record: Record) -> str:
        before = self._all.get(event.webhook)
        if before is None or before.state == "disabled":
            return ""
        self._all[event.webhook] = msgspec.structs.replace(
            before, state="disabled", code=event.code, reason=event.reason, changed_at=record.time
        )
        return event.webhook


# --- which events a webhook delivers ----------------------------------------------------------------------------------

LARGEST_BODY = 256 * 1024
"""Bytes.  A decision about thousands of apps may be larger; then the data is left out, and the receiver reads it by its
position."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def delivered_subjects(cluster: str) -> list[str]:
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


# --- what apps ask to be notified of ----------------------------------------------------------------------------------

TOPIC = "app.notify"
MOST_IN_A_MINUTE = 60
"""Notifications of one tenant."""
_MOST_TENANTS = 10_000
_PORTS = {"http": 80, "https": 443}
_ENDS = {k.AppCompleted: "completed", k.AppFailed: "failed", k.AppCancelled: "cancelled"}


class Notification(NamedTuple):
    """One request to be made."""

    app: str
    tenant: str
    url: str
    message: str
    """The `webhook-id`, the same for each attempt."""
    body: bytes
    time: int
    """Time at which the event was stored (UTC ns)."""


def may_concern(event: k.Event) -> bool:
    """Return whether an app may have asked to be notified of an event."""
    return type(event) in _ENDS or (isinstance(event, k.Resized) and bool(event.changes))


def notifications(base: str, cluster: str, logged: Logged, find: Callable[[str], App | None]) -> Iterator[Notification]:
    """Yield the notifications of an event under the URL `base`. `find` returns an app by its id, after the event."""
    event = logged.event
    if isinstance(event, k.Resized):
        for change in event.changes:
            if change.placement and (app := find(change.app)) is not None:
                more = {"containers": len(change.placement), "adjustment": change.adjustment}
                yield from _of(base, cluster, logged, app, "resized", more)
    elif type(event) in _ENDS and (app := find(event.app)) is not None:  # type: ignore[attr-defined]
        yield from _of(base, cluster, logged, app, _ENDS[type(event)], {"reason": app.end_reason})


def _of(base: str, cluster: str, logged: Logged, app: App, what: str, more: dict[str, Any]) -> Iterator[Notification]:
    notify = app.spec.notify
    if notify is None or what not in notify.on or not is_under(base, notify.url):
        return
    data = {
        "app": app.id,
        "name": app.name,
        "user": app.user,
        "event": what,
        "step": app.step,
        "loss": app.loss,
        **more,
    }
    # The event may also be about others' apps; the notification is about one app.
    envelope = {key: value for key, value in cloud_event(logged).items() if key != "data"}
    envelope |= {
        "type": f"io.dorm.app.{what}.v1",
        "subject": f"app/{app.id}",
        "id": f"{logged.position}.{app.id}",
        "data": data,
    }
    yield Notification(
        app.id,
        app.tenant,
        notify.url,
        f"{message_id(cluster, logged)}-{app.id}",
        msgspec.json.encode(envelope),
        logged.time,
    )


def is_under(base: str, url: str) -> bool:
    """Return whether a URL lies under another one: the same scheme, host and port, and a path below its path.  A path
    that a server could read as another one (`..`, encoded or not) lies under none."""
    try:
        upper, lower = urlsplit(base), urlsplit(url)
        ports = [parts.port or _PORTS.get(parts.scheme) for parts in (upper, lower)]
    except ValueError:
        return False
    if (upper.scheme, upper.hostname, ports[0]) != (lower.scheme, lower.hostname, ports[1]) or not upper.hostname:
        return False
    if lower.username is not None or lower.password is not None:
        return False
    path = unquote(unquote(lower.path))
    if any(part in ("..", ".") for part in path.replace("\\", "/").split("/")):
        return False
    below = upper.path.rstrip("/")
    return lower.path == below or lower.path.startswith(f"{below}/")


class Allowance:
    """How many notifications each tenant may send: a burst of this size, and as many again within a minute."""

    def __init__(self, clock: Callable[[], float], most: int = MOST_IN_A_MINUTE) -> None:
        """`clock` returns seconds that only go forward."""
        self._clock = clock
        self._most = most
        self._left: dict[str, tuple[float, float]] = {}
        """Each tenant's remaining requests, and when they were counted."""

    def take(self, tenant: str) -> bool:
        """Return whether one more may be sent, and count it."""
        now = self._clock()
        left, at = self._left.pop(tenant, (float(self._most), now))
        left = min(float(self._most), left + (now - at) * self._most / 60)
        self._left[tenant] = (left - 1 if left >= 1 else left, now)
        while len(self._left) > _MOST_TENANTS:
            del self._left[next(iter(self._left))]
        return left >= 1
