"""Encode events to bytes and decode them.

Bodies are MessagePack maps.  A client without MessagePack may send JSON; the first byte tells them apart ('{' and white space
are small integers in MessagePack, never maps).  The fast path is one reused msgspec decoder, which checks types as it reads.
What it refuses takes the slow path: unpacked with `msgpack` (which also reads foreign extension types and broken UTF-8),
upcast from older versions, and then either understood or turned into `Unknown` or `Unreadable`.  Decoding never raises for
bad input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import msgpack
import msgspec

from events import subjects
from events.kinds import AppSubmitted, Event, MasterFact, PolicyChanged, Published, Round, Unknown, Unreadable
from events.limits import LONGEST_NAME

if TYPE_CHECKING:
    from events.log.records import Record

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the map of one version of a kind into the map of the next."""

VERSIONS: dict[str, int] = {cls.__name__: 1 for cls in (*get_args(Published), *get_args(MasterFact))}
"""The version of each kind that this build writes."""

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""Functions that upcast, by kind and the version that they upcast."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(Published).decode
_json_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Published)
_JSON_START = frozenset(b"{ \t\r\n")
_MASTER_KINDS = {cls.__name__: cls for cls in get_args(MasterFact)}
_KINDS = {cls.__name__: cls for cls in get_args(Published)}


def encode(event: Event) -> bytes:
    """Return MessagePack with sorted maps: equal events have equal bytes."""
    return _encoder.encode(event)


def decode(record: Record) -> Event:
    """Return the event in a record: one of `Published`, or `Unknown`, or `Unreadable`.

    Missing id, time and author are filled in from the record's sequence (or Nats-Msg-Id), log time and subject.
    """
    if len(record.body) > _SURELY_FLAT and _may_be_deep(record.body) and _is_deep(record):
        return _unreadable(record, _NO_DOCUMENT)
    try:
        event: Event = _decode(record.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_other(record)
    try:
        believed, version, open_fields = _BELIEVED[record.subject]
    except KeyError:
        believed, version, open_fields = _believe(record.subject)
    if type(event) is not believed or event.v != version or (believed is Round and not _all_current(event)):
        return _decode_slowly(record)
    if open_fields and _signs(record.body) > _DEEPEST and any(_too_deep(getattr(event, name)) for name in open_fields):
        return _unreadable(record, _NO_DOCUMENT)
    if event.id and event.at and event.by:
        return event
    return _filled(event, record)


_DEEPEST = 100
"""Levels of maps and lists within each other that a body may have.  How many a decoder takes differs between versions of
Python and with the stack that it is called on, and a log has to give the same state on all of them."""
_SURELY_FLAT = 400
"""Bytes, and signs of maps and lists, below which any decoder on any stack takes a body."""
_NO_DOCUMENT = "the body is neither MessagePack nor JSON"
_OPENING = frozenset(b"{[") | frozenset(range(0x80, 0xA0)) | frozenset(range(0xDC, 0xE0))
_NOT_OPENING = bytes(byte for byte in range(256) if byte not in _OPENING)
_OPEN_FIELDS: dict[type[Event], tuple[str, ...]] = {
    AppSubmitted: ("spec",),
    PolicyChanged: ("params", "set_params"),
}
"""Fields that hold what their author likes.  A round's facts hold what a fold has taken from these."""


def _may_be_deep(body: bytes) -> bool:
    """Return whether a body has so many signs of maps and lists, text included, that they may lie deep within each other."""
    return _signs(body) > _SURELY_FLAT


def _signs(body: bytes) -> int:
    """Return how many signs of maps and lists a body has, at least one for each level; text may look like some."""
    return len(body.translate(None, _NOT_OPENING))


def _is_deep(record: Record) -> bool:
    try:
        return _too_deep(document(record))
    except ValueError:
        return True


def _too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEEPEST):
        if not level:
            return False
        level = [
            part
            for container in level
            for part in (container.values() if isinstance(container, dict) else container)
            if isinstance(part, dict | list)
        ]
    return bool(level)


def _all_current(event: Any) -> bool:
    """Return whether every fact of a round has the version that this build writes."""
    for fact in event.events:  # noqa: SIM110  (a generator would cost more than the one or two facts of most rounds)
        if fact.v != _WRITTEN[type(fact)]:
            return False
    return True


class _Written(dict[type, int]):
    """`VERSIONS` by class, looked up by name only once per class."""

    def __missing__(self, cls: type) -> int:
        self[cls] = version = VERSIONS.get(cls.__name__, 0)
        return version


_WRITTEN = _Written()


_BELIEVED: dict[str, tuple[type[Event] | None, int, tuple[str, ...]]] = {}
"""Only class believed on a subject, the version of that class that this build writes, and its `_OPEN_FIELDS`, by subject."""
_MOST_SUBJECTS = 65536


def _believe(subject: str) -> tuple[type[Event] | None, int, tuple[str, ...]]:
    """Add a subject to `_BELIEVED`, and return its entry.  Every record is looked up, so the cache is a plain dict."""
    if len(_BELIEVED) >= _MOST_SUBJECTS:
        _BELIEVED.clear()
    believed = _KINDS.get(subjects.kind_of(subject))
    fields = _OPEN_FIELDS.get(believed, ()) if believed else ()
    _BELIEVED[subject] = belief = believed, _WRITTEN[believed] if believed else 0, fields
    return belief


def _decode_other(record: Record) -> Event:
    """Decode a body that is not MessagePack of a current version: JSON, or one for the slow path."""
    if record.body[:1] not in _JSON_BYTES:
        return _decode_slowly(record)
    try:
        event: Event = _json_decoder.decode(record.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(record)
    believed, version, open_fields = _believe(record.subject)
    if type(event) is not believed or event.v != version or believed is Round:
        return _decode_slowly(record)
    if open_fields and _signs(record.body) > _DEEPEST and any(_too_deep(getattr(event, name)) for name in open_fields):
        return _unreadable(record, _NO_DOCUMENT)
    return _filled(event, record)


_JSON_BYTES = frozenset(bytes([byte]) for byte in _JSON_START)


def document(record: Record) -> Any:
    """Return the body as plain maps and lists, for tools that show events of any kind.  Raises ValueError."""
    body = record.body
    if not body:
        raise ValueError("the body is empty")
    try:
        if body[0] in _JSON_START:
            return msgspec.json.decode(body)
        return msgpack.unpackb(body, raw=False, strict_map_key=False, unicode_errors="replace", timestamp=1)
    except Exception:
        raise ValueError(_NO_DOCUMENT) from None


def _filled(event: Event, record: Record) -> Event:
    if event.id and event.at and event.by:
        return event
    who = subjects.who_of(record.subject)
    return msgspec.structs.replace(
        event,
        id=event.id or (record.msg_id if len(record.msg_id) <= LONGEST_NAME else "") or f"{who}.{record.seq}",
        at=event.at or record.time,
        by=event.by or who,
    )


def _decode_slowly(record: Record) -> Event:
    expected = subjects.kind_of(record.subject)
    try:
        body = document(record)
    except ValueError as error:
        return _unreadable(record, str(error))
    if _too_deep(body):
        return _unreadable(record, _NO_DOCUMENT)
    if not isinstance(body, dict):
        return _unreadable(record, f"an event is a map, not {type(body).__name__}")
    body.setdefault("kind", expected)
    kind = body["kind"]
    if kind != expected:
        return _unreadable(record, f"kind {_short(kind)} is not allowed on subject {record.subject}")
    if kind not in _KINDS:
        return _filled(Unknown(subject=record.subject, name=_short(kind)), record)
    try:
        upcast = _upcast(body)
        return _filled(_round(upcast) if kind == Round.__name__ else msgspec.convert(upcast, _KINDS[kind]), record)
    except _NewerVersionError:
        return _filled(Unknown(subject=record.subject, name=f"{kind} v{_short(body['v'])}"), record)
    # An upcaster may fail in any way on a malformed body.
    except Exception as error:
        return _unreadable(record, f"{kind}: {' '.join(str(error).split())[:300] or type(error).__name__}")


def _short(value: object) -> str:
    """Return foreign text on one line, cut to 80 characters."""
    return " ".join(value[:80].split()) if isinstance(value, str) else repr(value)[:80]


class _NewerVersionError(Exception):
    """The kind is known, but a later build wrote this version."""


def _upcast(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body in the version that this build writes.  Raises _NewerVersionError, TypeError, ValueError."""
    kind, version = body["kind"], body.get("v", 1)
    known = VERSIONS[kind]
    if not isinstance(version, int) or isinstance(version, bool):
        raise TypeError("v: a version is a whole number")
    if version > known:
        raise _NewerVersionError
    if version < 1:
        raise ValueError(f"v: there is no version {version}")
    for older in range(version, known):
        body = {**UPCASTERS[kind, older](body), "kind": kind, "v": older + 1}
    return body


def _round(body: dict[str, Any]) -> Round:
    """Return a round with `Unknown` in place of kinds that this build does not know, so that an older reader follows a newer
    master as far as it can."""
    facts: list[Any] = []
    for fact in body.get("events", []):
        if not isinstance(fact, dict):
            raise TypeError(f"events: a fact is a map, not {type(fact).__name__}")
        kind = str(fact.get("kind"))
        try:
            facts.append(msgspec.convert(_upcast(fact), _MASTER_KINDS[kind]))
        except (KeyError, _NewerVersionError):
            facts.append(Unknown(subject="", name=_short(kind)))
    return msgspec.structs.replace(msgspec.convert({**body, "events": []}, Round), events=facts)


def _unreadable(record: Record, reason: str) -> Event:
    return _filled(Unreadable(subject=record.subject, reason=reason), record)


def submission_of(event: Event) -> bool:
    """Return whether this stands for a submission, readable or not, so that its sender is owed an answer."""
    if isinstance(event, Unreadable):
        return subjects.kind_of(event.subject) == AppSubmitted.__name__
    return isinstance(event, AppSubmitted)
