"""What Dorm uses of nats-py although it is not public: the only module that touches it, and a parser of its own.

Any minor release of nats-py may change these names, so `pyproject.toml` bounds its version from above.  Raise that
bound once `tests/events/nats` passes with the new release.  Each item here says why Dorm needs it, and which public
API would replace it.

`DirectParser` has a fast path for a log's records.  nats-py passes each message through regular expressions, an e-mail
parser for its headers, an object, a queue and a task: some 7 µs of CPU, where a log's reader needs less than 2.  This
parser speaks the same protocol, and hands messages of some subscriptions to their takers at once, as bytes.  All
others take the usual path.  It extends `nats.protocol.parser.Parser`, whose names are public but not documented.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from ssl import SSLContext
    from urllib.parse import ParseResult

    from nats.aio.client import Srv


# --- the client -------------------------------------------------------------------------------------------------------

USED: Mapping[str, tuple[str, ...]] = {
    "Client": (
        *("_connect_to_server", "_pending", "_pending_data_size", "_pongs", "_process_msg", "_process_pong", "_ps"),
        *("_resp_map", "_server_info", "_transport"),
    ),
    "Parser": ("buf", "nc", "parse", "reset"),
    "Subscription": ("_id",),
    "TcpTransport": ("_io_reader", "_io_writer"),
}
"""The names that are used, by class."""


@cache
def missing() -> list[str]:
    """Return those of the names that the installed nats-py does not have."""
    client = Client()
    there = {
        "Client": client,
        "Parser": Parser(client),
        "Subscription": Subscription(client),
        "TcpTransport": TcpTransport(),  # type: ignore[no-untyped-call]
    }
    return [f"{owner}.{name}" for owner, names in USED.items() for name in names if not hasattr(there[owner], name)]


class Unencrypted(nats.errors.Error):
    """The server, or a man in the middle, offers no encryption although the identity demands it."""

    def __str__(self) -> str:
        return "the server offers no encryption, which these credentials demand"


class AbortingTransport(TcpTransport):
    """A transport that closes at once, and sends nothing in the clear that has to be encrypted.

    Why: a stream's own close first waits until the other side has received all output, which takes many minutes with a
    frozen server or a cut cable.
    Instead: `Client.close(abort=True)`, or a transport that `connect` accepts as an option.

    Why the latter: nats-py encrypts only if the server's greeting asks for it, which a machine between can change.
    Instead: an option of `connect` that demands TLS.
    """

    def __init__(self, *, encrypted: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._demanded = encrypted
        self._encrypted = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._encrypted = False
        await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """As the transport's own, but the stream knows from the start of the handshake that it is encrypted: otherwise it logs
        a warning when the other side closes it, which may be at any moment."""
        assert self._io_writer is not None, "connect comes first"
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=buffer_size)
        protocol = asyncio.StreamReaderProtocol(reader)
        protocol._over_ssl = True  # type: ignore[attr-defined]
        host = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(self._io_writer.transport, protocol, ssl_context, server_hostname=host)
        assert transport is not None, "the handshake was not interrupted"
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        self._encrypted = True

    def certificate(self) -> bytes:
        """Return the server's certificate, in DER; empty without encryption."""
        shown = self._io_writer.get_extra_info("ssl_object") if self._io_writer is not None else None
        return (shown.getpeercert(binary_form=True) or b"") if shown is not None else b""

    def write(self, payload: bytes) -> None:
        self._check_encrypted()
        super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: list[bytes]) -> None:
        self._check_encrypted()
        super().writelines(payload)  # type: ignore[no-untyped-call]

    def _check_encrypted(self) -> None:
        if self._demanded and not self._encrypted:
            raise Unencrypted

    def close(self) -> None:
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    def __bool__(self) -> bool:
        """Return True: the client would otherwise create its own transport."""
        return True


class AbortingClient(Client):
    """A client whose TCP connections close at once, by `AbortingTransport`, that reports each request before it is sent,
    and that stops reconnecting once it is abandoned.

    Why the reports: a server that forbids a request names only its subject (`events.nats.link`).
    Instead: requests of nats-py that fail by the permission error that the server sends.
    Why it stops: `asyncio.wait_for` of Python 3.11 loses a cancellation that arrives as its future ends.  The client's
    reconnecting task, or a second one next to it, then survives `close` and continues without end.
    Instead: a `close` that waits until these tasks have ended.
    Why its own pongs: the answer to a `flush` that was cancelled ends nats-py's reading of the connection.
    Instead: a `flush` that can be cancelled.
    """

    on_request: Callable[[str, str], None] = staticmethod(lambda subject, reply: None)
    """Called with subject and reply subject."""
    encrypted = False
    """Whether connections have to be encrypted."""
    abandoned = False
    """Set before `close`."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        if reply:
            self.on_request(subject, reply)
        await super().publish(subject, payload, reply, headers)

    async def _process_pong(self) -> None:
        """Take the answer to a ping.  Nobody may wait for it any more: nats-py would take that for an error of the
        connection, and stop reading."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _connect_to_server(self, s: Srv) -> None:
        if self.abandoned:
            raise asyncio.CancelledError
        if not self._transport and s.uri.scheme not in ("ws", "wss"):
            self._transport = AbortingTransport(encrypted=self.encrypted)
        await super()._connect_to_server(s)


def use_parser(client: Client, parser: Parser) -> None:
    """Make a client that is not connected yet parse with `parser`.

    Why: a log's reader needs a quarter of the CPU with a parser of its own (`events.nats.internals`).
    Instead: a subscription that hands over messages as bytes, from the reading task.
    """
    client._ps = parser


def deliver(
    client: Client, subscription: int, subject: bytes, reply: bytes, body: bytes, header: bytes | None
) -> Awaitable[None]:
    """Give a parsed message to the client, which passes it on to the subscription with this id.

    Why: our parser sees all messages, and takes only some of them.
    Instead: as `use_parser`; no parser would then be needed.
    """
    # Without headers, nats-py's own parser passes None as well; the annotation is too narrow.
    return client._process_msg(subscription, subject, reply, body, header)  # type: ignore[arg-type]


def id_of(subscription: Subscription) -> int:
    """Return the id that the server names in each message to a subscription.

    Why: our parser recognizes by it what it takes.
    Instead: a public `Subscription.id`.
    """
    return subscription._id


def server_info(client: Client) -> Mapping[str, Any]:
    """Return what the connected server announced of itself (`INFO`).

    Why: it names the server and its start, and says whether JetStream is on and whether it belongs to a cluster.
    Instead: public properties such as `connected_server_name`; other NATS clients have them.
    """
    return client._server_info


def server_certificate(client: Client) -> bytes:
    """Return the certificate that the connected server showed, in DER; empty if the connection is not encrypted, or goes over
    WebSockets.

    Why: `dorm doctor` and metrics say when it ends.
    Instead: a public property with the connection's TLS session.
    """
    transport = client._transport
    return transport.certificate() if isinstance(transport, AbortingTransport) else b""


def discard_unsent(client: Client) -> None:
    """Discard what has been written and not been sent; subscriptions are renewed from the client's own list.

    Why: an append whose caller knows it as failed must not be stored after a reconnect, much later.
    Instead: an option of `connect` that drops unsent messages when the connection is lost.
    """
    client._pending.clear()
    client._pending_data_size = 0


def fail_request(client: Client, reply: str, error: Exception) -> bool:
    """Raise `error` in the request whose answer would come on `reply`, and return whether there is such a request.

    Why: the server forbids a request by an error of its own, and nats-py lets the request wait until its timeout.
    Instead: as for `AbortingClient`.
    """
    answer = client._resp_map.get(reply.rpartition(".")[2])
    if answer is None or answer.done():
        return False
    answer.set_exception(error)
    answer.exception()  # The caller may have gone meanwhile.
    return True


def fail_requests(client: Client, error: Exception) -> None:
    """Raise `error` in every request that waits for its answer.

    Why: an answer is lost with its connection, and a request would go on waiting until its timeout.
    Instead: requests that raise `ConnectionClosedError` or the like when the connection is lost.
    """
    for answer in list(client._resp_map.values()):
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # The caller may have gone meanwhile.


def tap(client: Client, note: Callable[[int], None]) -> None:
    """Call `note` with the number of bytes whenever some arrive.

    Why: measurements of what a server sends to each of a thousand agents.
    Instead: a counter of bytes that covers headers and protocol; `Client.stats` has those of payloads.
    """
    parser: Any = client._ps
    parse = parser.parse

    async def counted(data: bytes = b"") -> None:
        note(len(data))
        await parse(data)

    parser.parse = counted


# --- the parser -------------------------------------------------------------------------------------------------------

_END = b"\r\n"
_MESSAGES = (b"HMSG", b"MSG")


class Taker(Protocol):
    """Called with each message, in order, from the client's reading task: it must neither wait nor raise."""

    def __call__(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None: ...


class DirectParser(Parser):
    """Replaces a client's own parser before it connects."""

    def __init__(self, client: Client) -> None:
        self.takers: dict[int, Taker] = {}
        """Takers by subscription id."""
        self.used = False
        """Whether the client uses this parser, which it does not know (`internals.use_parser`)."""
        self._connections = 0
        super().__init__(client)

    def reset(self) -> None:
        """Start a new connection: leftover bytes of the last one are meaningless."""
        super().reset()
        self._connections += 1
        self._short_of = 0
        """Bytes needed before the next parsing, so that a large message is not parsed with every piece."""

    async def parse(self, data: bytes = b"") -> None:
        """Parse received bytes.  Raises nats.errors.ProtocolError."""
        self.used = True
        if self.buf:
            self.buf.extend(data)
            if len(self.buf) < self._short_of:
                return
            data = bytes(self.buf)
        connection, position, size = self._connections, 0, len(data)
        self._short_of = 0
        while (line_end := data.find(_END, position)) >= 0:
            arguments = data[position:line_end].split()
            begin = end = line_end + 2
            if len(arguments) > 3 and arguments[0] in _MESSAGES:
                # MSG <subject> <sid> [reply] <bytes>, HMSG <subject> <sid> [reply] <bytes of headers> <bytes with them>.
                with_headers = arguments[0] == b"HMSG"
                try:
                    sid, body = int(arguments[2]), begin + (int(arguments[-2]) if with_headers else 0)
                    end += int(arguments[-1]) + 2
                except ValueError:
                    raise ProtocolError("nats: malformed MSG") from None
                if end > size:
                    self._short_of = end - position
                    break
                reply = arguments[3] if len(arguments) == 5 + with_headers else b""
                take = self.takers.get(sid)
                if take is not None:
                    take(arguments[1], reply, data[begin:body], data[body : end - 2])
                else:
                    header = data[begin:body] if with_headers else None
                    await deliver(self.nc, sid, arguments[1], reply, data[body : end - 2], header)
            else:
                self.buf = bytearray(data[position:end])
                try:
                    # The PONG for a flush that was cancelled or given up: nats-py sets its result all the same, and would
                    # end its reading by that.
                    with contextlib.suppress(asyncio.InvalidStateError):
                        await super().parse()
                except (ValueError, AttributeError):  # INFO that is not JSON, -ERR that is not text, or is empty.
                    raise ProtocolError("nats: malformed line") from None
            if connection != self._connections:
                return
            position = end
        self.buf = bytearray(data[position:])
