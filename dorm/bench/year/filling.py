"""Write a long history into a log quickly: with one acknowledgement for hundreds of records.

A client that appends record by record spends nearly all of its time waiting for acknowledgements.  A bench that is the only
writer needs only some of them: a server stores the messages of one connection in their order, so if the last record of a
window has the sequence that it must have, all before it are stored.  No cluster writes its log this way, because it has
several writers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.bench import BenchError
from events.nats.link import Link, as_log_errors
from events.nats.settings import api_request
from events.nats.streams import log_stream
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from events.log.records import Record

_WINDOW = 500
"""Records for each acknowledgement."""
_AHEAD = 4
"""Windows in flight. The server holds messages that it has not stored yet, and drops any beyond 10,000."""
_PATIENCE_S = 300.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Filler:
    """The only writer of a log."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inbox = link.client.new_inbox()
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        """The last sequence of each window on its way, and where its acknowledgement comes."""

    async def append(self, records: Sequence[Record]) -> None:
        """Append records under their own sequences; all are stored when this returns.  Raises BenchError if they are not, and
        LogUnavailable."""
        for begin in range(0, len(records), _WINDOW):
            await self._send(records[begin : begin + _WINDOW])
            while len(self._waiting) >= _AHEAD:
                await self._stored()
        while self._waiting:
            await self._stored()

    async def _send(self, window: Sequence[Record]) -> None:
        publish, last = self._link.client.publish, window[-1]
        self._waiting.append((last.seq, asyncio.get_running_loop().create_future()))
        with as_log_errors("filling the log"):
            for record in window:
                headers = {"Nats-Msg-Id": record.msg_id} if record.msg_id else None
                await publish(record.subject, record.body, reply=self._inbox if record is last else "", headers=headers)

    async def _stored(self) -> None:
        """Wait for the oldest window."""
        expected, answered = self._waiting[0]
        try:
            async with asyncio.timeout(_PATIENCE_S):
                seq = await answered
        except TimeoutError:
            raise BenchError("the NATS server stores nothing more", code="bench.no_answer") from None
        self._waiting.popleft()
        if seq != expected:
            raise BenchError(
                f"record {expected:,} was stored as {seq:,}: the server dropped some before it",
                code="bench.wrong_answer",
            )

    async def forget_ids_after(self, cluster: str, seconds: float) -> None:
        """Have the server remember messages' ids for this long instead of ten minutes: here a million records come in a
        minute, and a server takes some 200 bytes for each id that it remembers.  Raises LogUnavailable, LogRefused."""
        stream = log_stream(cluster)
        with as_log_errors("shortening the time for which ids are remembered"):
            info = await api_request(self._link, f"STREAM.INFO.{stream}", {}, _PATIENCE_S)
            config = {**info["config"], "duplicate_window": round(seconds * SECOND)}
            await api_request(self._link, f"STREAM.UPDATE.{stream}", config, _PATIENCE_S)

    def take(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        """Take an acknowledgement: they come in the order of the windows."""
        try:
            seq = _decode(body).get("seq", 0)
        except msgspec.MsgspecError:
            seq = 0
        for _, answered in self._waiting:
            if not answered.done():
                answered.set_result(seq)
                return

    @property
    def inbox(self) -> str:
        """The subject on which acknowledgements come."""
        return self._inbox


@contextlib.asynccontextmanager
async def filling(url: str) -> AsyncIterator[Filler]:
    """Yield a writer with a connection of its own.  Raises LogUnavailable."""
    link = await Link.open(url, name="dorm bench year", timeout=10.0)
    try:
        filler = Filler(link)
        subscription = await link.take(filler.inbox, filler.take)
        try:
            yield filler
        finally:
            await link.leave(subscription)
    finally:
        await link.close()
