"""The parser with a fast path agrees with nats-py's own, wherever the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from events.nats.internals import DirectParser
from tests.tries import tries

if TYPE_CHECKING:
    from nats.aio.client import Client

Call = tuple[object, ...]


class Heard:
    """In the client's place: records the calls of a parser."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.parser: Parser | None = None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        await asyncio.sleep(0)
        self.calls.append(("msg", sid, subject, reply, data, headers or b""))

    async def _process_err(self, error: str) -> None:
        self.calls.append(("err", error))
        if self.parser is not None and "stale" in error:
            self.parser.reset()

    async def _process_ping(self) -> None:
        self.calls.append(("ping",))

    async def _process_pong(self) -> None:
        self.calls.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.calls.append(("info", info))


TOKEN = st.from_regex(rb"[A-Za-z0-9_$.-]{1,12}", fullmatch=True)
BODY = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG a 1 3\r\nxyz\r\n", b"", b"PING\r\n"])
HEADER = st.sampled_from([b"NATS/1.0\r\nNats-Msg-Id: a-1\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\nX: y\r\n\r\n"])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    subject, sid, body = draw(TOKEN), draw(st.integers(1, 4)), draw(BODY)
    header = draw(st.none() | HEADER)
    reply = draw(st.just(b"") | TOKEN.map(lambda token: token + b" "))
    gap = draw(st.sampled_from([b" ", b"  ", b"\t"]))
    if header is None:
        return b"MSG%s%s %d %s%d\r\n%s\r\n" % (gap, subject, sid, reply, len(body), body)
    size = len(header) + len(body)
    return b"HMSG%s%s %d %s%d %d\r\n%s%s\r\n" % (gap, subject, sid, reply, len(header), size, header, body)


LINES = st.sampled_from(
    [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'permissions violation'\r\n", b'INFO {"a b": "MSG c 1 2"}\r\n']
)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


async def heard(parser: Parser, pieces: list[bytes]) -> None:
    for piece in pieces:
        await parser.parse(piece)


def direct(client: Heard, *sids: int) -> DirectParser:
    parser = DirectParser(cast("Client", client))
    for sid in sids:

        def take(subject: bytes, reply: bytes, header: bytes, body: bytes, sid: int = sid) -> None:
            client.calls.append(("msg", sid, subject, reply, body, header))

        parser.takers[sid] = take
    return parser


@settings(max_examples=tries(13, 2000), deadline=None)
@given(st.lists(messages() | LINES, max_size=12), st.lists(st.integers(0, 2000), max_size=8))
def test_the_same_is_understood_in_the_same_order(stream: list[bytes], places: list[int]) -> None:
    own, ours = Heard(), Heard()
    pieces = cut(b"".join(stream), places)
    asyncio.run(heard(Parser(own), pieces))
    asyncio.run(heard(direct(ours, 1, 2), pieces))
    assert ours.calls == own.calls


@settings(max_examples=tries(6, 1000), deadline=None)
@given(messages(), st.lists(messages() | LINES, max_size=3), st.integers(0, 100))
def test_nothing_of_an_old_connection_is_left(broken_off: bytes, stream: list[bytes], place: int) -> None:
    ours, own = Heard(), Heard()
    parser = direct(ours, 1)
    asyncio.run(heard(parser, [broken_off[: place % len(broken_off)]]))
    parser.reset()
    ours.calls.clear()
    asyncio.run(heard(parser, stream))
    asyncio.run(heard(Parser(own), stream))
    assert ours.calls == own.calls


def test_input_after_the_end_of_the_connection_is_ignored() -> None:
    client = Heard()
    client.parser = parser = direct(client, 1)
    asyncio.run(heard(parser, [b"-ERR 'stale connection'\r\nMSG a 1 1\r\nx\r\n"]))
    assert [call[0] for call in client.calls] == ["err"]
    asyncio.run(heard(parser, [b"MSG b 1 1\r\ny\r\n"]))
    assert client.calls[1:] == [("msg", 1, b"b", b"", b"y", b"")]


def test_a_large_message_is_put_together_once() -> None:
    client = Heard()
    body = bytes(range(256)) * 4096
    stream = b"MSG a 1 %d\r\n%s\r\nPING\r\n" % (len(body), body)
    asyncio.run(heard(direct(client, 1), [stream[place : place + 1000] for place in range(0, len(stream), 1000)]))
    assert client.calls == [("msg", 1, b"a", b"", body, b""), ("ping",)]


@pytest.mark.parametrize(
    "wrong", [b"MSG a 1 x\r\n", b"MSG\r\n", b"HMSG a 1 x 4\r\nabcd\r\n", b"WHAT\r\n", b"\r\n", b"MSG a b 1\r\nx\r\n"]
)
def test_invalid_protocol(wrong: bytes) -> None:
    with pytest.raises(ProtocolError):
        asyncio.run(heard(direct(Heard(), 1), [wrong]))
