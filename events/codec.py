"""Events to bytes and back.

Bodies are MessagePack maps; a client that has no MessagePack may send JSON, and the first byte tells them apart ('{' and
white space are small integers in MessagePack, never maps).  The fast way is one reused msgspec decoder, which checks types
as it reads.  What it refuses goes the slow way: unpacked with `msgpack` (which reads foreign extension types and broken
UTF-8 too), upcast from older versions, and in the end either understood or turned into `Unknown` or `Unreadable`.
Nothing here raises for bad input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgpack
import msgspec

from events import subjects
from events.kinds import AppSubmitted, Event, MasterFact, Published, Round, Unknown, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.log import Record

VERSIONS: dict[str, int] = {cls.__name__: 1 for cls in (*get_args(Published), *get_args(MasterFact))}
"""The version of each kind that this build writes."""

Upcaster = "Callable[[dict[str, Any]], dict[str, Any]]"
UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From (kind, version) to a function that gives the map of the next version."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Published)
_json_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Published)
_JSON_START = frozenset(b"{ \t\r\n")
_MASTER_KINDS = {cls.__name__: cls for cls in get_args(MasterFact)}
_KINDS = {cls.__name__: cls for cls in get_args(Published)}


def encode(event: Event) -> bytes:
    """MessagePack with sorted maps: equal events have equal bytes."""
    return _encoder.encode(event)


def decode(record: Record) -> Event:
    """The event in a record: one of `Published`, or `Unknown`, or `Unreadable`.

    Missing id, time and author are filled from the record's sequence (or Nats-Msg-Id), log time and subject.
    """
    body = record.body
    try:
        event: Event = (_json_decoder if body[:1] in _JSON_BYTES else _decoder).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(record)
    if event.v != 1 or subjects.kind_of(record.subject) != type(event).__name__:
        return _decode_slowly(record)
    if event.id and event.at and event.by:
        return event
    return _filled(event, record)


_JSON_BYTES = frozenset(bytes([byte]) for byte in _JSON_START)


def document(record: Record) -> Any:
    """The body as plain maps and lists, for tools that show an event whatever its kind.  Raises ValueError."""
    body = record.body
    if not body:
        raise ValueError("the body is empty")
    try:
        if body[0] in _JSON_START:
            return msgspec.json.decode(body)
        return msgpack.unpackb(body, raw=False, strict_map_key=False, unicode_errors="replace", timestamp=1)
    except Exception:
        raise ValueError("the body is neither MessagePack nor JSON") from None


def _filled(event: Event, record: Record) -> Event:
    return msgspec.structs.replace(
        event,
        id=event.id or record.msg_id or f"{subjects.who_of(record.subject)}.{record.seq}",
        at=event.at or record.time,
        by=event.by or subjects.who_of(record.subject),
    )


def _decode_slowly(record: Record) -> Event:
    expected = subjects.kind_of(record.subject)
    try:
        body = document(record)
    except ValueError as error:
        return _unreadable(record, str(error))
    if not isinstance(body, dict):
        return _unreadable(record, f"an event is a map, not {type(body).__name__}")
    kind = body.get("kind", expected)
    body["kind"] = kind
    if kind != expected:
        return _unreadable(record, f"kind {str(kind)[:80]!r} is not allowed on subject {record.subject}")
    if kind not in _KINDS:
        return _filled(Unknown(subject=record.subject, name=str(kind)[:80]), record)
    try:
        upcast = _upcast(body)
        if kind == "Round":
            return _filled(_round(upcast), record)
        return _filled(msgspec.convert(upcast, _KINDS[kind]), record)
    except _NewerVersionError:
        return _filled(Unknown(subject=record.subject, name=f"{kind} v{body.get('v')}"), record)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        return _unreadable(record, f"{kind}: {str(error)[:300]}")


class _NewerVersionError(Exception):
    """The kind is known but a later build wrote it."""


def _upcast(body: dict[str, Any]) -> dict[str, Any]:
    kind, version = body["kind"], body.get("v", 1)
    known = VERSIONS[kind]
    if not isinstance(version, int):
        raise TypeError("v: a version is a whole number")
    if version > known:
        raise _NewerVersionError
    while version < known:
        body = UPCASTERS[kind, version](body)
        version += 1
    return body


def _round(body: dict[str, Any]) -> Round:
    """A round whose unknown kinds are left out, so that an older reader follows a newer master as far as it can."""
    facts = []
    for fact in body.get("events", []):
        if isinstance(fact, dict) and fact.get("kind") in _MASTER_KINDS:
            try:
                facts.append(msgspec.convert(_upcast(fact), _MASTER_KINDS[fact["kind"]]))
            except _NewerVersionError:
                continue
    return msgspec.structs.replace(msgspec.convert({**body, "events": []}, Round), events=facts)


def _unreadable(record: Record, reason: str) -> Event:
    return _filled(Unreadable(subject=record.subject, reason=reason), record)


def submission_of(event: Event) -> bool:
    """Whether this stands for a submission, readable or not, so that its sender is owed an answer."""
    if isinstance(event, Unreadable):
        return subjects.kind_of(event.subject) == AppSubmitted.__name__
    return isinstance(event, AppSubmitted)
