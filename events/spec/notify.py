"""Notifications for an app's owner: a URL, and the events to send.

The cluster calls only URLs under a webhook that an operator added for them (`app.notify`, `dorm.webhooks`), so a spec cannot
make it call anything else.  The URL is on the log with the spec.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from events.quantities import short
from events.spec.faults import SpecError

LONGEST_URL = 2000
NotifyOn = Literal["completed", "failed", "cancelled", "resized"]
ON_DEFAULT: tuple[NotifyOn, ...] = ("completed", "failed", "cancelled")


class Notify(msgspec.Struct, frozen=True, omit_defaults=True):
    """The notifications of an app, and their URL. A URL alone stands for `url`."""

    url: Annotated[
        str,
        msgspec.Meta(
            max_length=LONGEST_URL,
            description="called with POST; has to be under a webhook that an operator added for `app.notify`",
            examples=["https://hooks.example.org/teams/vision"],
        ),
    ]
    on: Annotated[
        list[NotifyOn],
        msgspec.Meta(min_length=1, max_length=4, description="default: completed, failed and cancelled"),
    ] = msgspec.field(default_factory=lambda: [*ON_DEFAULT])


def as_map(document: dict[Any, Any]) -> dict[Any, Any]:
    """Return a spec's document whose `notify` is a map, if it is a URL alone."""
    url = document.get("notify")
    return {**document, "notify": {"url": url}} if isinstance(url, str) else document


def check_notify(notify: Notify | None) -> None:
    """Refuse a value that is not an HTTP URL, or that holds a secret. Raises SpecError."""
    if notify is None:
        return
    fault = url_fault(notify.url)
    if fault is not None:
        text, problem = fault
        raise SpecError(f"notify: {text}", code=f"spec.notify.{problem}")


def url_fault(url: str) -> tuple[str, str] | None:
    """Return why a URL can't be called, in words and as the last word of a code (`malformed` or `secret`); None if it can."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    del port
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > LONGEST_URL or not url.isprintable():
        return f"{short(url)} is no URL; write https://HOST/PATH", "malformed"
    if not parts.hostname.isascii():
        return f"the host of {short(url)} holds other than ASCII characters; write it as xn--...", "malformed"
    if " " in url or "\\" in url:
        return f"{short(url)} holds a space or a backslash; write them as %20 and %5C", "malformed"
    if parts.username is not None or parts.password is not None:
        text = "the URL holds a user name or a password, which everybody who reads the log would see; leave it out"
        return text, "secret"
    return None
