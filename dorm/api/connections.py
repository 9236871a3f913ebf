"""What a connection may: how much, how it is encrypted, and which requests are refused before they are read.

Limits hold for each address, and for each user behind it.  The library closes a connection that sends no whole request in
time, and bounds the request line and headers; what cannot be read as HTTP gets a problem document.

Each new connection is encrypted by the newest certificate and key that belong together; connections that exist keep what
they began with.  The server looks at its files every few seconds, and at once on SIGHUP.  It compares what the file system
says of them only for equality, so a clock that was set changes nothing.  Programs write a certificate and its key one
after the other: a pair that does not match, or that can't be read, leaves the earlier one in use, and is reported once.

Requests that a browser makes on behalf of another site are refused:

    Hosts       a page of another name whose DNS entry points here (DNS rebinding) sends its own name as `Host`
    Origins     a page of another origin sends its own as `Origin`; there is no CORS, so it could not read an answer anyway
    Types       a form of a foreign page can only send a few content types, so what changes something needs another one
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from dorm.api import answers
from dorm.api.errors import CannotListen, Forbidden, Misdirected, TooMany, Unavailable, Unsupported
from events.limits import Shares

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.api.options import Limits, Options

    Seen = tuple[tuple[int, ...] | None, ...]


# --- limits -----------------------------------------------------------------------------------------------------------

_GIVE_UP_MS = 60_000
"""Milliseconds without an acknowledgement after which the system gives a connection up."""


class Addresses:
    """How many connections and streams each address has."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._connections: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._shares: dict[str, Shares] = {}
        """The users' shares, by address."""

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
            real.write(answers.raw(answers.problem_of(error)))
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
            problem = answers.make(status, "api.request.malformed", text)
        else:
            problem = answers.problem_of(exc or RuntimeError(message))
        made = answers.response(problem)
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


# --- encryption -------------------------------------------------------------------------------------------------------

LOOK_S = 5.0
_log = structlog.get_logger(__name__)


class Encryption(ssl.SSLContext):
    """What a listening socket needs to know: it passes each connection on to the newest usable context."""

    certificate: Path
    key: Path | None
    clients: Path | None
    _newest: ssl.SSLContext
    _seen: Seen

    @classmethod
    def of(cls, options: Options) -> Encryption | None:
        """Return the encryption that the options name, None for none.  It reads files.  Raises CannotListen."""
        if options.certificate is None:
            return None
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.certificate, made.key, made.clients = options.certificate, options.key, options.clients
        made._seen = made._look()
        try:
            made._newest = made._load()
        except (OSError, ValueError) as error:  # An SSLError is an OSError.
            raise CannotListen(
                f"{made._files}: {error}; name PEM files of a certificate, its key and the clients' authority",
                code="api.certificate.unusable",
            ) from None
        return made

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection."""
        return self._newest.wrap_bio(*args, **options)

    async def follow(self, hurry: asyncio.Event) -> None:
        """Use renewed files, until cancelled.  `hurry` is set to look at once."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await hurry.wait()
            hurry.clear()
            await asyncio.to_thread(self.renew)

    def renew(self) -> bool:
        """Use the files if they have changed and belong together; return whether that is so.  It reads files."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._newest = self._load()
        except (OSError, ValueError) as error:
            _log.warning(
                "the renewed certificate can't be used; connections keep the earlier one",
                files=self._files,
                reason=str(error),
            )
            return False
        _log.info("new connections use the renewed certificate", files=self._files)
        return True

    def _load(self) -> ssl.SSLContext:
        """Raises OSError, ValueError."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.load_cert_chain(self.certificate, self.key)
        if self.clients is not None:
            made.load_verify_locations(self.clients)
            made.verify_mode = ssl.CERT_OPTIONAL
        return made

    @property
    def _paths(self) -> tuple[Path, ...]:
        return tuple(file for file in (self.certificate, self.key, self.clients) if file is not None)

    @property
    def _files(self) -> str:
        return ", ".join(map(str, self._paths))

    def _look(self) -> Seen:
        """Return what changes with the content of the files, or with whether this process may read them."""
        return tuple(map(_state_of, self._paths))


def _state_of(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# --- guards -----------------------------------------------------------------------------------------------------------

JSON = "application/json"
YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Server": "dorm",
}
"""Headers of every answer."""


class Hosts:
    """The names by which the API may be called."""

    def __init__(self, options: Options) -> None:
        names = {"localhost", options.host.lower(), *(name.lower() for name in options.allow_hosts)}
        if not options.loopback:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._names = names
        self._loopback = options.loopback

    def check(self, request: web.Request) -> None:
        """Raises Misdirected."""
        given = request.headers.get("Host", "")
        name = _host_in(given)
        if name in self._names or self._is_own_address(name):
            return
        raise Misdirected(
            f"this API does not answer for the host {given[:80]!r}; call it as localhost, or allow the name with "
            "`dorm serve --allow-host`"
        )

    def _is_own_address(self, name: str) -> bool:
        """An IP address is not a name that a foreign DNS entry could point here."""
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback


def check_origin(request: web.Request) -> None:
    """Refuse requests that change something if a page of another origin makes them.  Raises Forbidden."""
    if request.method not in _WRITES:
        return
    origin = request.headers.get("Origin")
    host = request.headers.get("Host", "")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise Forbidden("a page of another origin may not change anything here", code="api.origin.foreign")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("a page of another site may not change anything here", code="api.origin.foreign")


def check_type(request: web.Request, *, yaml: bool) -> bool:
    """Check the body's type; return whether it is YAML.  Raises Unsupported."""
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if given == JSON:
        return False
    if yaml and given in YAML:
        return True
    takes = f"{JSON} or {YAML[0]}" if yaml else JSON
    raise Unsupported(f"send the body as Content-Type: {takes}, even an empty one ({{}})", code="api.body.unsupported")


def _host_in(given: str) -> str:
    """Return the name or address in a `Host` header, without the port."""
    try:
        return (urlsplit(f"//{given}").hostname or "").lower()
    except ValueError:
        return ""
