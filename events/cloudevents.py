"""Events as CloudEvents 1.0 in JSON, for tools that read that format.

    specversion      1.0
    id               the position in the log: 118, or 118.2 in a round
    source           /dorm/<cluster>; unique together with the id, as the specification requires
    type             io.dorm.app.submitted.v1: the kind, its first word apart, and the version of its schema
    time             log time, to the nanosecond
    subject          app/<id> or node/<name>, if the event is about one
    datacontenttype  application/json
    data             the event itself, with its own id, author and time

The extensions are `sequence` (from the specification: positions that sort as text), `dormby` (who published it),
`dormcause` (the position or id of its cause) and, for facts of the master, `dormepoch` and `dormbasis` (the sequence it
had read up to).  An unknown extension value is left out.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from events import subjects
from events.kinds import ContainerExited, ContainerStarted, Event

if TYPE_CHECKING:
    from events.positions import Logged

_WORD = re.compile(r"[A-Z][a-z0-9]*")
_NOUNS = ("App", "Node", "Container", "Generation", "Policy", "Master", "Log", "Webhook", "Session")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_LATEST = 253_402_300_799_999_999_999
"""The last nanosecond with a four-digit year."""
_DEEPEST = 100


@lru_cache(maxsize=256)
def type_of(kind: str, version: int = 1) -> str:
    """Return the CloudEvents type: `AppCancelRequested` is `io.dorm.app.cancel_requested.v1`, `Resized` is
    `io.dorm.resized.v1`."""
    parts = _WORD.findall(kind)
    noun = parts[:1] if len(parts) > 1 and parts[0] in _NOUNS else []
    return ".".join(["io.dorm", *map(str.lower, noun), "_".join(map(str.lower, parts[len(noun) :])), f"v{version}"])


def cloud_event(logged: Logged) -> dict[str, Any]:
    """Return one event as a map that `msgspec.json.encode` (or any other encoder) turns into a CloudEvent's JSON."""
    event, position, said_in = logged.event, logged.position, logged.round
    made: dict[str, Any] = {
        "specversion": "1.0",
        "id": str(position),
        "source": f"/dorm/{subjects.cluster_of(logged.subject)}",
        "type": type_of(type(event).__name__, event.v),
        "time": rfc3339(logged.time),
        "datacontenttype": "application/json",
        "sequence": f"{position.seq:018d}.{position.index or 0:06d}",
    }
    if subject := _subject(event):
        made["subject"] = _attribute(subject)
    by = event.by or said_in.by if said_in is not None else subjects.author_of(logged.subject, event.by)
    if by:
        made["dormby"] = _attribute(by)
    if event.cause:
        made["dormcause"] = _attribute(event.cause)
    if said_in is not None:
        # As text: the specification's integers have 32 bits.
        made["dormepoch"], made["dormbasis"] = str(said_in.epoch), str(said_in.basis)
    return {**made, "data": plain(event)}


def _subject(event: Event) -> str:
    if isinstance(event, ContainerStarted | ContainerExited):
        return f"app/{event.app}"
    for what in ("app", "node"):
        if name := getattr(event, what, ""):
            return f"{what}/{name}"
    return ""


def _attribute(text: str) -> str:
    """Replace characters that the specification forbids in attributes; foreign names may hold them."""
    return text if text.isprintable() else _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def rfc3339(time: int) -> str:
    """Format UTC nanoseconds with all nine digits, so that texts sort as times do."""
    seconds, rest = divmod(min(max(time, 0), _LATEST), 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def plain(event: Event) -> dict[str, Any]:
    """Return an event as a map with its kind, restricted to JSON's types.  Foreign specs may hold others: bytes become
    base64, keys become text, and anything else is shown as text."""
    try:
        made: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        return {"kind": type(event).__name__, **{name: _tamed(value, _DEEPEST) for name, value in fields.items()}}
    return made


def _tamed(value: Any, depth: int) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {str(_tamed(key, 0)): _tamed(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tamed(item, depth - 1) for item in value]
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return str(value)
