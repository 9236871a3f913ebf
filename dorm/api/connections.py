"""One connection: limits per address, and a problem document for what cannot be read as HTTP.

The library closes a connection that sends no whole request in time, and bounds the request line and headers.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from dorm.api import problems
from dorm.api.errors import TooMany, Unavailable
from events.limits import Shares

if TYPE_CHECKING:
    import asyncio

    from dorm.api.options import Limits

_GIVE_UP_MS = 60_000
"""After this long without an acknowledgement the system gives a connection up."""


class Addresses:
    """How many connections and streams each address has."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._connections: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._shares: dict[str, Shares] = {}
        """Of users, by address."""

    def connect(self, address: str) -> None:
        """Raises TooMany, Unavailable."""
        if self._connections.total() >= self._limits.connections:
            raise Unavailable("the API has as many connections as it takes", code="api.connections.too_many")
        if self._connections[address] >= self._limits.connections_per_address:
            raise TooMany("your address has as many connections as the API takes", code="api.connections.too_many")
        self._connections[address] += 1

    def disconnect(self, address: str) -> None:
        _less(self._connections, address)

    @contextlib.contextmanager
    def stream(self, address: str, user: str = "") -> Any:
        """Count a stream for the length of the block. An address may be a proxy's, so a known user never gets more of its
        streams than remain for others.  Raises TooMany, Unavailable."""
        if self._streams.total() >= self._limits.streams:
            raise Unavailable("the API has as many streams as it takes", code="api.streams.too_many")
        if self._streams[address] >= self._limits.streams_per_address:
            raise TooMany(
                "your address has as many streams as the API takes; share one between pages",
                code="api.streams.too_many",
            )
        shares = self._shares.setdefault(address, Shares(self._limits.streams_per_address))
        if user and not shares.has_room_for(user):
            raise TooMany("you have as many streams as the API takes; end some", code="api.streams.too_many")
        self._streams[address] += 1
        try:
            with shares.held(user):
                yield
        finally:
            _less(self._streams, address)
            if address not in self._streams:
                self._shares.pop(address, None)

    @property
    def streams(self) -> int:
        return self._streams.total()


def _less(counter: Counter[str], address: str) -> None:
    counter[address] -= 1
    if counter[address] <= 0:
        del counter[address]


class Connection(web.RequestHandler):
    """The library's protocol, with this project's limits and answers."""

    __slots__ = ("_address", "_addresses", "_refused")

    def __init__(self, manager: web.Server, addresses: Addresses, **options: Any) -> None:
        super().__init__(manager, **options)
        self._addresses = addresses
        self._address = ""
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real = cast("asyncio.Transport", transport)
        address = address_of(real)
        try:
            self._addresses.connect(address)
        except (TooMany, Unavailable) as error:
            self._refused = True
            real.write(problems.raw(problems.problem_of(error)))
            real.close()
            return
        self._address = address
        give_up(real)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._refused:
            return
        self._addresses.disconnect(self._address)
        super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What cannot be read as a request, or failed outside of every handler."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        if status < 500:
            # What was read comes after the library's text, and says nothing to people.
            text = (message or "").partition("\n")[0].partition(": b")[0].strip(" :") or "this is not HTTP/1.1"
            problem = problems.make(status, "api.request.malformed", text)
        else:
            problem = problems.problem_of(exc or RuntimeError(message))
        made = problems.response(problem)
        made.force_close()
        return made


def address_of(transport: asyncio.BaseTransport | None) -> str:
    peer = transport.get_extra_info("peername") if transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) and peer else "local"


def give_up(transport: asyncio.Transport) -> None:
    """Let the system give up a peer that neither reads nor answers."""
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GIVE_UP_MS)
