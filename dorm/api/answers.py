"""Answers: bodies as bytes, encoded and compressed in a thread, and kept while nothing changes."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from aiohttp import web

JSON = "application/json"
POSITION = "Dorm-Position"
"""The header that names the position of what an answer shows, or where a request is stored."""
_WORTH = 1400
"""Bytes from which on compression is worth its time: more than one packet."""
_LEVEL = 3


class Answer(msgspec.Struct, frozen=True):
    """An answer, ready to send."""

    body: bytes
    position: str
    status: int = 200
    media: str = JSON
    packed: bytes | None = None
    """The body in gzip."""
    headers: dict[str, str] = {}

    @property
    def size(self) -> int:
        return len(self.body) + len(self.packed or b"")


def answer(
    value: Any, position: int | str, *, pack: bool = False, status: int = 200, headers: dict[str, str] | None = None
) -> Answer:
    """Encode a value as JSON; `pack`: the client takes gzip.  For a thread if the value is large."""
    body = msgspec.json.encode(value)
    return Answer(body, str(position), status, packed=packed(body) if pack else None, headers=headers or {})


def packed(body: bytes) -> bytes | None:
    """Return the body in gzip, None if that is not worthwhile."""
    if len(body) < _WORTH:
        return None
    packer = zlib.compressobj(_LEVEL, wbits=31)
    return packer.compress(body) + packer.flush()


def packs(request: web.Request) -> bool:
    """Return whether the client takes gzip."""
    for part in request.headers.get("Accept-Encoding", "").lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class Kept:
    """The latest answers, up to a size."""

    def __init__(self, room: int) -> None:
        """`room` in bytes."""
        self._room = room
        self._kept: OrderedDict[tuple[str, bool], Answer] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, bool], position: int) -> Answer | None:
        """Return the answer at a position."""
        found = self._kept.get(key)
        if found is None or found.position != str(position):
            return None
        self._kept.move_to_end(key)
        return found

    def keep(self, key: tuple[str, bool], one: Answer) -> None:
        before = self._kept.pop(key, None)
        self._bytes += one.size - (before.size if before is not None else 0)
        self._kept[key] = one
        while self._bytes > self._room and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].size
