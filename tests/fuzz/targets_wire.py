"""What reads the wire: the NATS parser, a log's reader, questions to agents, the engine's log frames."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec
from nats.aio.client import Client
from nats.errors import ProtocolError

from agents.desired import Desired
from agents.reporting.logs import LogAnswerer
from agents.runtime.docker.frames import Frames
from events.log.imported import imported_upto, original
from events.log.interface import AskRefused
from events.nats.parser import DirectParser
from events.nats.reader import Reader
from tests.fuzz.mutations import encoded, json_of, mutated_bytes, mutated_text, mutated_tree
from tests.fuzz.target import Simple, one_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from random import Random

    from agents.runtime.interface import Key, Runtime
    from events.nats.link import Link

INBOX = b"_INBOX.x.y"
SID = 7
_STATUS = (
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n",
    b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 12\r\nNats-Pending-Bytes: 0\r\n\r\n",
    b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 1\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: a.1\r\nDorm-Record: 1700000000000000000 a%2F1\r\n\r\n",
)
_REPLIES = (
    b"$JS.ACK.DORM-demo.c.1.1.1.1700000000000000000.5",
    b"$JS.ACK.hub.acct.DORM-demo.c.1.1.1.1700000000000000000.5.x",
    b"",
)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


# --- the protocol -------------------------------------------------------------------------------------------------------


def _make_stream(random: Random) -> bytes:
    """What a server sends, some of it changed, cut into pieces at any place."""
    lines = bytearray()
    for _ in range(random.choice((1, 2, 3, 6))):
        body, header, reply = (
            random.randbytes(random.choice((0, 3, 40))),
            random.choice(_STATUS),
            random.choice(_REPLIES),
        )
        sid = random.choice((SID, 1, 9))
        match random.randrange(6):
            case 0:
                lines += random.choice((b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Unknown'\r\n", b"INFO {}\r\n"))
            case 1 | 2:
                lines += b"MSG dorm.demo.x.y %d %b %d\r\n%b\r\n" % (sid, reply, len(body), body)
            case _:
                size = len(header)
                lines += b"HMSG dorm.demo.x.y %d %b %d %d\r\n%b%b\r\n" % (
                    sid,
                    reply,
                    size,
                    size + len(body),
                    header,
                    body,
                )
    data = bytes(lines) if random.randrange(8) == 0 else mutated_bytes(random, bytes(lines), _STATUS)
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 1, 3))))
    pieces = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return msgspec.msgpack.encode(pieces)


class _Silent(Client):
    """A client that is connected to nobody: what it would answer or do is left out."""

    async def _process_ping(self) -> None: ...
    async def _process_pong(self) -> None: ...
    async def _process_info(self, info: Any, initial_connection: bool = False) -> None: ...
    async def _process_err(self, err_msg: Any) -> None: ...
    async def _process_msg(self, *given: Any) -> None: ...


def _check_stream(data: bytes) -> None:
    try:
        pieces = msgspec.msgpack.decode(data, type=list[bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    parser = DirectParser(_Silent())
    reader = _reader()
    parser.takers[SID] = reader._take
    try:
        for piece in pieces:
            _run(parser.parse(piece))
    except ProtocolError as error:
        one_line(error)


def _run(work: Any) -> None:
    """A coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


# --- a log's reader -----------------------------------------------------------------------------------------------------


class _NoLink:
    clustered = False

    class client:
        max_payload = 8 << 20

        @staticmethod
        def new_inbox() -> str:
            return INBOX.decode()


def _reader() -> Reader:
    return Reader(cast("Link", _NoLink), "DORM-demo", 0, [], imported=3)


def _make_message(random: Random) -> bytes:
    reply = mutated_bytes(random, random.choice(_REPLIES), _REPLIES) if random.randrange(2) else random.choice(_REPLIES)
    header = mutated_bytes(random, random.choice(_STATUS), _STATUS) if random.randrange(4) else random.choice(_STATUS)
    if random.randrange(10) == 0:
        header = mutated_text(random, header.decode("latin-1"), ["²", "٣"]).encode(errors="replace")
    return msgspec.msgpack.encode([reply, header, b"body"])


def _check_message(data: bytes) -> None:
    """A taker is told by the client's reading task: it must neither wait nor raise."""
    try:
        reply, header, body = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    _reader()._take(b"dorm.demo.x.y", reply, header, body)
    original(header)
    imported_upto({"dorm-imported": header.decode(errors="replace")})


# --- questions ----------------------------------------------------------------------------------------------------------


class _Logs:
    """The part of a runtime that questions ask."""

    async def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        if key.slot:
            raise KeyError(key)
        yield f"{key.app} {follow} {tail}".encode(errors="replace")


def _make_question(random: Random) -> bytes:
    tree = {"app": "digits-abcdef", "generation": 1, "slot": 0, "follow": True, "tail": 10}
    if random.randrange(2):
        return json_of(mutated_tree(random, tree)).encode(errors="surrogatepass")
    return mutated_bytes(random, encoded(random, tree))


def _check_question(data: bytes) -> None:
    answerer = LogAnswerer(cast("Runtime", _Logs()), Desired("node-1"))

    async def asked() -> None:
        async for piece in answerer(data):
            assert isinstance(piece, bytes)

    try:
        _loop().run_until_complete(asked())
    except AskRefused as error:
        one_line(error)


# --- the engine ---------------------------------------------------------------------------------------------------------


def _make_frames(random: Random) -> bytes:
    frames = b"".join(
        bytes([random.randrange(3), 0, 0, 0]) + size.to_bytes(4, "big") + bytes(size)
        for size in (random.choice((0, 1, 9, 300)) for _ in range(4))
    )
    return mutated_bytes(random, frames)


def _check_frames(data: bytes) -> None:
    whole, pieces = Frames(), Frames()
    found = whole.feed(data)
    by_piece = [frame for at in range(0, len(data), 7) for frame in pieces.feed(data[at : at + 7])]
    assert found == by_piece
    assert sum(map(len, found)) <= len(data)


TARGETS = [
    Simple("nats-stream", 6, _make_stream, _check_stream),
    Simple("nats-message", 12, _make_message, _check_message),
    Simple("question", 5, _make_question, _check_question),
    Simple("frames", 3, _make_frames, _check_frames),
]
