"""Append an event so that it is surely stored, and never confused with another publisher's record.

A log stores one record for each message id, and acknowledges any later append under that id as a duplicate.  On an open
cluster ids can be guessed or read: if a stranger uses one first, the log acknowledges an event that it never stored.  So a
duplicate counts only if the stored record states the same on the same subject; otherwise the event is appended under another
id.  If publishers have keys, the log makes ids that nobody else can know (`events.nats.access`).

The other ids derive from the event's own (`<id>~1`, `<id>~2`, …), so that a publisher that retries after a lost answer, or
after a crash, meets its own record there.  After `FIXED_IDS` of them they are random, which defeats a stranger who keeps
guessing.  Two records of one event then do no harm, since folds recognize a repeat by its content.  The id in the event's
body never changes: it names the event; the message id only deduplicates.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from events.codec import decode, encode
from events.log.records import LogUnavailable, Record
from events.logger import Logger

if TYPE_CHECKING:
    from events.kinds import Event
    from events.log.interface import EventLog, ReadableLog
    from events.log.records import Appended

FIXED_IDS = 8
"""Number of other ids that derive from an event's own."""
_HOW_IT_WAS_SEEN = (
    "at", "cause", "started_at", "exited_at", "exit_code", "asked", "killed", "reason", "message", "loss", "samples_per_s",
    "noise", "usage",
)  # fmt: skip
"""Fields in which two reports of one fact by the same publisher may differ, for example after a restart."""
_log = Logger(__name__)


async def append_event(
    log: EventLog, subject: str, event: Event, *, expected_last: int | None = None, timeout: float = 5.0
) -> Appended:
    """Store the event, which has an id.  Return where it is stored, by this append or an earlier one of the same publisher.
    Raises as `EventLog.append` does."""
    body = encode(event)
    taken = 0
    while True:
        msg_id = _other_id(event.id, taken)
        stored = await log.append(subject, body, msg_id=msg_id, expected_last=expected_last, timeout=timeout)
        if not stored.duplicate or await is_stored_at(log, stored.seq, subject, event):
            return stored
        _log.warning("a message id was taken by another record", id=msg_id, taken_by=stored.seq)
        taken += 1


def _other_id(id: str, taken: int) -> str:
    if not taken:
        return id
    return f"{id}~{taken}" if taken <= FIXED_IDS else f"{id}~{secrets.token_hex(8)}"


async def is_stored_at(log: ReadableLog, seq: int, subject: str, event: Event) -> bool:
    """Return whether the record `seq` is this publisher's report of this event.  Raises LogUnavailable, LogRefused."""
    record = await log.record_at(seq)
    if record is None:
        raise LogUnavailable(f"record {seq} can't be read yet; try again")
    return is_of(record, subject, event)


def is_of(record: Record, subject: str, event: Event) -> bool:
    """Return whether this record reports this event on this subject."""
    if record.subject != subject:
        return False
    body = encode(event)
    return record.body == body or _what(record) == _what(Record(record.seq, record.time, subject, body, record.msg_id))


def _what(record: Record) -> tuple[type, list[object]]:
    """Return the event's type and the fields that every report of it shares."""
    event = decode(record)
    return type(event), [getattr(event, name) for name in event.__struct_fields__ if name not in _HOW_IT_WAS_SEEN]
