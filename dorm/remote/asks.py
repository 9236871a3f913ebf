"""What can be asked: each verb as a request, and what reads its answer.  The two clients only send and await."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar
from urllib.parse import quote, urlencode

from dorm.remote.answers import App, Event, Node, Stored, Submitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
JSON = "application/json"
_NONE: Mapping[str, str] = {}


@dataclass(frozen=True)
class Ask(Generic[T]):
    """One request."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Whether sending it again does no harm."""


def _path(*parts: str, **query: Any) -> str:
    given = [
        (name.rstrip("_"), str(one).lower() if isinstance(one, bool) else one)
        for name, value in query.items()
        if value is not None
        for one in (value if isinstance(value, (list, tuple)) else [value])
    ]
    path = "/".join(("/v1", *(quote(part, safe="") for part in parts)))
    return f"{path}?{urlencode(given)}" if given else path


def _send(
    method: str,
    path: str,
    body: Any,
    read: Callable[[Any], T],
    *,
    repeatable: bool = True,
    headers: Mapping[str, str] = _NONE,
) -> Ask[T]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Ask(method, path, read, raw, {"Content-Type": JSON, **headers}, repeatable)


def submit(spec: Mapping[str, Any] | str, key: str | None) -> Ask[Submitted]:
    """`spec`: a document, or YAML as text.  Without a key it gets one, so that a repeat is the same app."""
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    if isinstance(spec, str):
        return Ask("POST", _path("apps"), Submitted.of, spec.encode(), {**headers, "Content-Type": "application/yaml"})
    return _send("POST", _path("apps"), dict(spec), Submitted.of, headers=headers)


def app(name_or_id: str, at: str | None, min_seq: str | None) -> Ask[App]:
    return Ask("GET", _path("apps", name_or_id, at=at, min_seq=min_seq), App.of)


def apps(after: str | None, ended: bool, at: str | None) -> Ask[tuple[list[App], str | None]]:
    def read(page: Any) -> tuple[list[App], str | None]:
        return [App.of(one) for one in page["items"]], page["next"]

    return Ask("GET", _path("apps", after=after, ended=ended, at=at, limit=500), read)


def nodes(after: str | None, at: str | None) -> Ask[tuple[list[Node], str | None]]:
    def read(page: Any) -> tuple[list[Node], str | None]:
        return [Node.of(one) for one in page["items"]], page["next"]

    return Ask("GET", _path("nodes", after=after, at=at, limit=500), read)


def update(app: str, change: Mapping[str, Any]) -> Ask[Stored]:
    given = {name: value for name, value in change.items() if value is not None}
    return _send("PATCH", _path("apps", app), given, Stored.of)


def cancel(app: str, reason: str) -> Ask[Stored]:
    return _send("POST", _path("apps", app, "cancel"), {"reason": reason}, Stored.of, repeatable=False)


def drain(node: str, on: bool, reason: str) -> Ask[Stored]:
    return _send("POST", _path("nodes", node, "drain" if on else "undrain"), {"reason": reason}, Stored.of)


def get(path: str, query: Mapping[str, Any]) -> Ask[Any]:
    """Anything else that can be read: `story`, `explain`, `state`, `policy` …"""
    return Ask("GET", _path(*path.strip("/").split("/"), **query), _whole)


def _whole(document: Any) -> Any:
    return document


def plan(assumed: Mapping[str, Any]) -> Ask[dict[str, Any]]:
    return _send("POST", _path("plan"), dict(assumed), dict)


def events(after: str | None, filters: Mapping[str, Sequence[str]]) -> Ask[Event]:
    """A stream."""
    headers = {"Accept": "text/event-stream"}
    return Ask("GET", _path("events", "stream", after=after, **filters), Event.of, headers=headers)


def logs(app: str, slot: int | None, tail: int | None) -> Ask[str]:
    return Ask("GET", _path("apps", app, "logs", slot=slot, tail=tail), str)
