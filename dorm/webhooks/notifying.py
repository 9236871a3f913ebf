"""Notifications that apps request in their specs (`notify`): which ones an event causes, and whether they may be sent.

An operator adds a webhook for `app.notify`.  Its URL is not an endpoint but a prefix for the endpoints that apps may name: the
same scheme, host and port, and a path that begins with its path.  So the cluster only calls URLs that an operator has
allowed on the log.  Each tenant has a limit per minute; further notifications are left out and counted.

Pure, except for the clock that is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from dorm.webhooks.choosing import message_id
from events import kinds as k
from events.cloudevents import cloud_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dorm.core.state import App
    from events.positions import Logged

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
    """Its `webhook-id`, the same for each attempt."""
    body: bytes
    time: int
    """When the event was stored (UTC ns)."""


def may_concern(event: k.Event) -> bool:
    """Return whether an app may have asked to be notified of an event."""
    return type(event) in _ENDS or (isinstance(event, k.Resized) and bool(event.changes))


def notifications(base: str, cluster: str, one: Logged, find: Callable[[str], App | None]) -> Iterator[Notification]:
    """Yield the notifications of an event under the URL `base`. `find` returns an app by its id, after the event."""
    event = one.event
    if isinstance(event, k.Resized):
        for change in event.changes:
            if change.placement and (app := find(change.app)) is not None:
                more = {"containers": len(change.placement), "adjustment": change.adjustment}
                yield from _of(base, cluster, one, app, "resized", more)
    elif type(event) in _ENDS and (app := find(event.app)) is not None:  # type: ignore[attr-defined]
        yield from _of(base, cluster, one, app, _ENDS[type(event)], {"reason": app.end_reason})


def _of(base: str, cluster: str, one: Logged, app: App, what: str, more: dict[str, Any]) -> Iterator[Notification]:
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
    envelope = {key: value for key, value in cloud_event(one).items() if key != "data"}
    envelope |= {
        "type": f"io.dorm.app.{what}.v1",
        "subject": f"app/{app.id}",
        "id": f"{one.position}.{app.id}",
        "data": data,
    }
    yield Notification(
        app.id, app.tenant, notify.url, f"{message_id(cluster, one)}-{app.id}", msgspec.json.encode(envelope), one.time
    )


def is_under(base: str, url: str) -> bool:
    """Return whether a URL lies under another one: the same scheme, host and port, and a path below its path.  A path
    that a server could read as another one (`..`, encoded or not) lies under none."""
    try:
        one, other = urlsplit(base), urlsplit(url)
        ports = [parts.port or _PORTS.get(parts.scheme) for parts in (one, other)]
    except ValueError:
        return False
    if (one.scheme, one.hostname, ports[0]) != (other.scheme, other.hostname, ports[1]) or not one.hostname:
        return False
    if other.username is not None or other.password is not None:
        return False
    path = unquote(unquote(other.path))
    if any(part in ("..", ".") for part in path.replace("\\", "/").split("/")):
        return False
    below = one.path.rstrip("/")
    return other.path == below or other.path.startswith(f"{below}/")


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
