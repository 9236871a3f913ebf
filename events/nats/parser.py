"""The NATS client's parser, with a fast path for a log's records.

nats-py passes each message through regular expressions, an e-mail parser for its headers, an object, a queue and a task: some
7 µs of CPU, where a log's reader needs less than 2.  This parser speaks the same protocol, and hands messages of some
subscriptions to their takers at once, as bytes.  All others take the usual path.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from events.nats.internals import deliver

if TYPE_CHECKING:
    from nats.aio.client import Client

_END = b"\r\n"
_MESSAGES = (b"HMSG", b"MSG")


class Taker(Protocol):
    """Called with each message, in order, from the client's reading task: it must neither wait nor raise."""

    def __call__(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None: ...


class DirectParser(Parser):
    """Replaces a client's own parser before it connects."""

    def __init__(self, client: Client) -> None:
        self.takers: dict[int, Taker] = {}
        """By subscription id."""
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
            words = data[position:line_end].split()
            begin = end = line_end + 2
            if len(words) > 3 and words[0] in _MESSAGES:
                # MSG <subject> <sid> [reply] <bytes>, HMSG <subject> <sid> [reply] <bytes of headers> <bytes with them>.
                with_headers = words[0] == b"HMSG"
                try:
                    sid, body = int(words[2]), begin + (int(words[-2]) if with_headers else 0)
                    end += int(words[-1]) + 2
                except ValueError:
                    raise ProtocolError("nats: malformed MSG") from None
                if end > size:
                    self._short_of = end - position
                    break
                reply = words[3] if len(words) == 5 + with_headers else b""
                take = self.takers.get(sid)
                if take is not None:
                    take(words[1], reply, data[begin:body], data[body : end - 2])
                else:
                    header = data[begin:body] if with_headers else None
                    await deliver(self.nc, sid, words[1], reply, data[body : end - 2], header)
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
