"""Limits of a cluster's streams: the size of a message, the disk space of a stream, and how long an unused consumer
stays.

The log's own size has no limit of Dorm's: a log never forgets.  `dorm log limit` gives it one (`set_limit`), so that a flood
fills the log and not the disk that the other streams need.  A full log refuses records and loses none; `room` is how one sees
it come.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import nats.errors
import nats.js.errors

from events.limits import LEAST_MAX_PAYLOAD
from events.log.records import LogError, LogRefused
from events.nats.link import as_log_errors
from events.nats.stream_state import api_request, checked_info

if TYPE_CHECKING:
    from nats.js.api import StreamConfig

    from events.nats.link import Link

MOST_READERS = 25_000
"""Readers of the log, and of the nodes' parts, at one time.  Each agent is one, and a cluster takes 20,000 connections of
nodes.  Servers since 2.15 allow a thousand unless the stream sets a limit.  It bounds the cost of one hostile reader: a
consumer takes 40 KB of the server's memory, and time of each append."""
LARGEST_RECORD = LEAST_MAX_PAYLOAD
"""Bytes of a record with its headers.  Masters write no larger one, so the server refuses it before it takes any room, even if
its `max_payload` is more."""
LARGEST_REPORT = 512 * 1024
"""Bytes of a heartbeat: one with 4,096 containers has less than half."""
REPORTS_BYTES = 256 * 1024 * 1024
"""What heartbeats may take; the oldest give way.  A thousand nodes fill it in an hour, and then heartbeats expire anyway.
On a server that has less room than that the stream has no limit of its own."""
LARGEST_PROGRESS = 8 * 1024
"""Bytes of one report of progress with its headers."""
PROGRESS_AGE_S = 7 * 86_400.0
"""How long reports between two marks are kept, in seconds; the marks stay on the log."""
PROGRESS_BYTES = 1024 * 1024 * 1024
"""What all of them may take; the oldest give way.  200 apps that report each second fill it in five hours."""
PROGRESS_OF_APP = 50_000
"""What one app may have on one node: at a report each second, fourteen hours."""
LARGEST_PIECE = 512 * 1024
"""Bytes of a piece of a snapshot, or of their index; pieces have half of it."""
LARGEST_PART_PIECE = 512 * 1024
"""Bytes of a piece of a node's part; pieces have three quarters of it."""
LARGEST_FILE = 1000 * 1024
"""Bytes of a part of a shipped folder as it is stored, with its headers."""
FILES_BYTES = 1024 * 1024 * 1024
"""What all shipped folders may take.  More is refused; nothing gives way by itself, since apps may need it."""
LARGEST_LEASE = 4096
UNUSED_S = 30 * 86_400.0
"""Seconds without a request after which a log's consumer is removed, a webhook's place as well as a stranger's consumer."""
_ACCOUNT_S = 1.0
"""Seconds: a server does not answer who may not ask for this."""
ALARM = 0.8
"""The part of its limit that a log may take before masters and `dorm masters` warn."""
_UPDATED = ("max_msg_size", "max_bytes", "max_consumers")
"""Limits that streams of earlier releases get as well."""


class Room(NamedTuple):
    """What a log takes on the server that answers, in bytes."""

    taken: int
    limit: int | None
    """At which its server refuses more: by the stream's limit, or by what is left of the account's. None if neither has one,
    and the disk is the limit."""

    @property
    def scarce(self) -> bool:
        return self.limit is not None and self.taken >= ALARM * self.limit


async def update_limits(link: Link, found: StreamConfig, wanted: StreamConfig, timeout: float) -> None:
    """Give a stream that was made without limits those of this release.  Smaller ones, which an operator has set, stay.  A
    server that refuses is older and has no such limits."""
    missing = {
        name: limit
        for name in _UPDATED
        if (limit := getattr(wanted, name) or 0) > 0 and _raises(name, getattr(found, name) or -1, limit)
    }
    if missing:
        config = (await api_request(link, f"STREAM.INFO.{found.name}", {}, timeout))["config"]
        with contextlib.suppress(nats.js.errors.BadRequestError, nats.js.errors.ServerError):
            await api_request(link, f"STREAM.UPDATE.{found.name}", config | missing, timeout)


def _raises(name: str, present: int, limit: int) -> bool:
    return present <= 0 or (name == "max_consumers" and present < limit)  # Each agent is one.


async def room(link: Link, stream: str, timeout: float) -> Room:
    """Return what the stream takes and may take.  Raises LogUnavailable, LogRefused."""
    with as_log_errors("looking up the size of the log"):
        info = await checked_info(link, stream, timeout)
    taken, limit = int(info["state"]["bytes"]), int(info["config"].get("max_bytes", -1))
    return Room(taken, limit if limit > 0 else await _limit_of_account(link, taken, timeout))


async def _limit_of_account(link: Link, taken: int, timeout: float) -> int | None:
    """Return how large the stream may become by the account's limit; None without one, or if it may not be asked for."""
    try:
        account = await api_request(link, "INFO", {}, min(timeout, _ACCOUNT_S))
    except (nats.errors.Error, TimeoutError, LogError):
        return None
    limit = int((account.get("limits") or {}).get("max_storage", -1))
    return taken + max(0, limit - int(account.get("storage", 0))) if limit > 0 else None


def nearly_full(now: Room) -> str:
    """Return in one line what to do about a log that its limit will soon stop; "" if there is time."""
    if not now.scarce or not now.limit:
        return ""
    return (
        f"the log takes {100 * now.taken / now.limit:.0f}% of the {now.limit:,} bytes that it may, and a full log stops the "
        "cluster: make room on the servers' disks and raise its limit with `dorm log limit`"
    )


async def set_limit(link: Link, stream: str, limit: int | None, timeout: float) -> None:
    """Set the stream's limit in bytes, or remove it. Raises LogRefused if the stream is already larger,
    LogUnavailable."""
    with as_log_errors("limiting the log"):
        info = await checked_info(link, stream, timeout)
        taken = int(info["state"]["bytes"])
        if limit is not None and limit <= taken:
            raise LogRefused(
                f"the log takes {taken:,} bytes already, so a limit of {limit:,} would stop the cluster; take a larger one",
                code="log.limit.too_small",
            )
        changed = info["config"] | {"max_bytes": limit or -1}
        await api_request(link, f"STREAM.UPDATE.{stream}", changed, timeout)
