"""HTTP/1.1 and server-sent events, without I/O."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from dorm.remote.errors import RemoteError, problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

AGENT = "dorm-remote"
TOKEN_VARIABLE = "DORM_TOKEN"
"""The environment variable with the secret of a token, for clusters that know their users."""
TRIES = 4
"""Number of times that a repeatable request is sent."""
PAUSE_S = 0.5
TIMEOUT_S = 60.0
SILENCE_S = 60.0
"""A stream sends a keep-alive every 15 seconds; one that is silent for longer is reopened."""
BUSY = (429, 503)
"""Statuses of a server that may answer later."""


class Server(NamedTuple):
    """Where requests go."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def server_of(url: str) -> Server:
    """Raises RemoteError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = url.rpartition("@")[2][:80]  # The text before it may be a password.
        raise RemoteError(f"{shown!r} is not an address of a server; write http://127.0.0.1:4280")
    tls = parts.scheme == "https"
    return Server(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def headers_of(given: Mapping[str, str], user: str | None) -> dict[str, str]:
    who = {"Dorm-User": user} if user else {}
    if token := os.environ.get(TOKEN_VARIABLE):
        who["Authorization"] = f"Bearer {token}"
    return {"User-Agent": AGENT, "Accept": "application/json", **who, **given}


class Broken(Exception):
    """The connection failed, or the answer is not HTTP."""


def broken(server: Server, error: BaseException) -> Broken:
    return Broken(f"no server answers at {server.name} ({str(error) or type(error).__name__})")


AGAIN = object()


def settled(status: int, body: bytes, tries_left: int, repeatable: bool) -> Any:
    """Return the document of an answer, or AGAIN if the request should be sent again.  Raises Problem, RemoteError."""
    if repeatable and tries_left and (status in BUSY or status == 504):
        return AGAIN
    if status >= 400:
        raise problem(status, document_of(body))
    try:
        return json.loads(body) if body else {}
    except ValueError:
        raise RemoteError("the answer is not JSON; is this the address of `dorm serve`?") from None


def document_of(body: bytes) -> dict[str, Any]:
    """Return a problem document; an empty one if the body is none, as of a proxy."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


class Head(NamedTuple):
    """The head of an answer."""

    status: int
    headers: dict[str, str]


def head_of(raw: bytes) -> Head:
    """Raises ValueError."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("this is not HTTP/1.1")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(int(rest[:3]), headers)


class Frames:
    """Takes pieces of a stream of server-sent events, and gives its events: id, kind, data."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[str, str, str]]:
        self._rest += piece
        while b"\n\n" in self._rest:
            raw, _, self._rest = self._rest.partition(b"\n\n")
            fields: dict[str, str] = {}
            data: list[str] = []
            for line in raw.decode().split("\n"):
                name, _, value = line.partition(":")
                if name == "data":
                    data.append(value[1:] if value.startswith(" ") else value)
                elif name:
                    fields[name] = value[1:] if value.startswith(" ") else value
            if data:
                yield fields.get("id", ""), fields.get("event", "message"), "\n".join(data)
