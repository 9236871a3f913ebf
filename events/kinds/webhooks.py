"""Webhooks: their configuration by operators, and the events of the process that delivers them. These events contain
no secrets: a webhook's keys are named by ids, and derived from a file that the delivering process has
(`dorm.webhooks.keys`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from events.fields import AppId, Code, CutText, WebhookName, holds
from events.kinds.base import Event, Kind
from events.limits import Moment, Name, Seconds

Url = Annotated[str, msgspec.Meta(max_length=2000), holds("own")]
KeyId = Annotated[str, msgspec.Meta(max_length=64), holds("own")]


class WebhookSet(Event, frozen=True):
    """An operator adds a webhook, changes all of it, or enables it again."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", folded=False)

    webhook: WebhookName
    url: Url
    events: Annotated[list[Code], msgspec.Meta(max_length=64)]
    """Names of the events that it delivers: `app.ended`, `app.failed`, `app.waits`, `node.lost`, `node.suspect`, `adjustment`;
    other words are ignored."""
    key: KeyId
    """Id of the key that signs."""
    previous_key: KeyId = ""
    """Id of the key before a rotation, which also signs until `previous_until`."""
    previous_until: Moment = 0
    waits_s: Seconds = 3600.0
    """Waiting time after which an app is reported, if `events` has `app.waits`."""


class WebhookRemoved(Event, frozen=True):
    """An operator removes a webhook: its undelivered events are dropped."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", folded=False)

    webhook: WebhookName


class WebhookTestRequested(Event, frozen=True):
    """An operator requests one delivery of this event, as a test."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", folded=False)

    webhook: WebhookName


# --- the delivering process -----------------------------------------------------------------------------------------


class WebhookTested(Event, frozen=True):
    """The result of the delivery that a WebhookTestRequested requested."""

    KIND: ClassVar[Kind] = Kind(writers=("deliverer",), rule="delivers", on="cluster", folded=False)

    webhook: WebhookName
    test: Annotated[Name, holds("own")]
    """Id of the request."""
    delivered: bool
    status: Annotated[int, msgspec.Meta(ge=0, le=999)] = 0
    """The HTTP status of the answer; 0 for no answer."""
    reason: CutText = ""


class WebhookDisabled(Event, frozen=True):
    """Nothing more is delivered until an operator enables the webhook again."""

    KIND: ClassVar[Kind] = Kind(writers=("deliverer",), rule="delivers", on="cluster", folded=False)

    webhook: WebhookName
    code: Code
    """`webhook.gone`, `webhook.dead` or `webhook.key.unknown`."""
    reason: CutText


class AppWaitsLong(Event, frozen=True):
    """An app has had no partition for the time that a webhook names: an event, so that it can be delivered like any
    other."""

    KIND: ClassVar[Kind] = Kind(writers=("deliverer",), rule="delivers", on="app", folded=False)

    app: AppId
    since: Moment
    """Time at which its wait began (log time)."""
    after_s: Seconds
    """The waiting time that the webhook names."""
    code: Code = ""
    """Code of the reason in the last decision."""
    reason: CutText = ""


OfWebhooks = WebhookSet | WebhookRemoved | WebhookTestRequested | WebhookTested | WebhookDisabled | AppWaitsLong
