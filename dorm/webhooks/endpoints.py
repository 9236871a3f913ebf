"""The webhooks on the log: a fold of their events, separate from the cluster's state; no decision depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from events import kinds as k
from events import subjects
from events.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.log.records import Record

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
        return iter(sorted(self._all.values(), key=lambda one: one.name))

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
