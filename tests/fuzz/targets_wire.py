"""Code that reads the network: the NATS parser, a log's reader, requests to agents, the engine's log frames."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec
from nats.aio.client import Client
from nats.errors import ProtocolError

from agents.answering import LogAnswerer
from agents.desired import Desired
from agents.runtime.docker.engine import Frames
from agents.runtime.interface import no_mark
from events.log.interface import AskRefused
from events.log.records import imported_upto, original
from events.nats.internals import DirectParser
from events.nats.reader import Reader
from events.requests import LogPiece, LogStretch
from tests.fuzz.edits import changed, encoded, json_of, spliced
from tests.fuzz.target import Target, one_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from agents.runtime.interface import Key, Runtime, Wanted
    from events.nats.link import Link
    from tests.fuzz.edits import Source

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


def _streams(source: Source) -> bytes:
    """Return a server's output with changes, cut into pieces at any place."""
    lines = bytearray()
    for _ in range(source.pick((1, 2, 3, 6))):
        body, header, reply = source.bytes(source.below(40)), source.pick(_STATUS), source.pick(_REPLIES)
        sid = source.pick((SID, 1, 9))
        match source.pick(range(6)):
            case 0:
                lines += source.pick((b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Unknown'\r\n", b"INFO {}\r\n"))
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
    data = bytes(lines) if source.one_in(8) else spliced(source, bytes(lines), _STATUS)
    cuts = sorted(source.pick(range(len(data) + 1)) for _ in range(source.pick((0, 1, 3))))
    pieces = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return msgspec.msgpack.encode(pieces)


class _Silent(Client):
    """A client without a connection: its answers and actions are left out."""

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
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


# --- a log's reader -----------------------------------------------------------------------------------------------------


class _NoLink:
    clustered = False
    api = "$JS.API"

    class client:
        max_payload = 8 << 20

        @staticmethod
        def new_inbox() -> str:
            return INBOX.decode()


def _reader() -> Reader:
    return Reader(cast("Link", _NoLink), "DORM-demo", 0, [], imported=3)


def _messages(source: Source) -> bytes:
    reply, header = source.pick(_REPLIES), source.pick(_STATUS)
    if source.one_in(2):
        reply = spliced(source, reply, _REPLIES)
    if not source.one_in(4):
        header = spliced(source, header, _STATUS)
    if source.one_in(10):
        header = spliced(source, header.decode("latin-1"), ["²", "٣"]).encode(errors="replace")
    return msgspec.msgpack.encode([reply, header, b"body"])


def _check_message(data: bytes) -> None:
    """The client's reading task calls the consumer, which must neither wait nor raise."""
    try:
        reply, header, body = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    _reader()._take(b"dorm.demo.x.y", reply, header, body)
    original(header)
    imported_upto({"dorm-imported": header.decode(errors="replace")})


# --- questions ----------------------------------------------------------------------------------------------------------


class _Logs:
    """The part of a runtime that requests use."""

    async def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        if key.slot:
            raise KeyError(key)
        yield f"{key.app} {follow} {tail}".encode(errors="replace")

    async def timed_logs(self, key: Key, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
        if wanted.after and not wanted.after.isdigit():
            raise no_mark(wanted.after)
        async for chunk in self.logs(key, follow=wanted.follow, tail=wanted.tail):
            yield LogPiece([LogStretch(wanted.since or 0, chunk)], wanted.after)


def _questions(source: Source) -> bytes:
    tree = {"app": "digits-abcdef", "generation": 1, "slot": 0, "follow": True, "tail": 10}
    tree |= {"since": 10**18, "timed": source.one_in(2), "after": "17"} if source.one_in(2) else {}
    if source.one_in(2):
        return json_of(changed(source, tree)).encode(errors="surrogatepass")
    return spliced(source, encoded(source, tree))


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


def _frames(source: Source) -> bytes:
    sizes = [source.pick((0, 1, 9, 300)) for _ in range(4)]
    frames = [bytes([at % 3, 0, 0, 0]) + n.to_bytes(4, "big") + bytes(n) for at, n in enumerate(sizes)]
    return spliced(source, b"".join(frames))


def _check_frames(data: bytes) -> None:
    whole, pieces = Frames(), Frames()
    found = whole.feed(data)
    by_piece = [frame for at in range(0, len(data), 7) for frame in pieces.feed(data[at : at + 7])]
    assert found == by_piece
    assert sum(map(len, found)) <= len(data)


TARGETS = [
    Target("nats-stream", 6, _streams, _check_stream),
    Target("nats-message", 12, _messages, _check_message),
    Target("question", 5, _questions, _check_question),
    Target("frames", 3, _frames, _check_frames),
]
