"""Requests, as data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
JSON = "application/json"
_NONE: Mapping[str, str] = {}


@dataclass(frozen=True)
class Ask(Generic[T]):
    """One request."""

    method: str
    path: str
    read: Callable[[Any], T]
    """Turns the document that the server sends into the answer."""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Whether it can be sent again without harm."""


def path_of(*parts: str, **query: Any) -> str:
    """Return a path with its query; what is None is left out."""
    given = [
        (name.rstrip("_"), str(item).lower() if isinstance(item, bool) else item)
        for name, value in query.items()
        if value is not None
        for item in (value if isinstance(value, (list, tuple)) else [value])
    ]
    path = "/".join(("/v1", *(quote(part, safe="") for part in parts)))
    return f"{path}?{urlencode(given)}" if given else path


def sending(
    method: str,
    path: str,
    body: Any,
    read: Callable[[Any], T],
    *,
    repeatable: bool = True,
    headers: Mapping[str, str] = _NONE,
) -> Ask[T]:
    """Return a request with a body in JSON."""
    return Ask(method, path, read, json.dumps(body).encode(), {"Content-Type": JSON, **headers}, repeatable)
