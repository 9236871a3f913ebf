"""Read records of a stream one request at a time, from any server that holds it.

A consumer lives on one server and is created by the cluster's leader, so if either dies there is none for the length of an
election (4 to 9 s on three servers).  Meanwhile readers that follow the log use this path: it needs no leader, and a server's
copy of a stream is always a prefix without gaps.  It needs no consumer either, so it also serves if a stream has as many as
it may, and readers who shall not have any.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import nats.errors

from events.log.records import Record
from events.nats.reader import as_it_was, message_id, nanoseconds, status_of

if TYPE_CHECKING:
    from events.nats.link import Link

_BATCH = 500
_BATCH_BYTES = 2 * 1024 * 1024
_TIMEOUT_S = 1.0


async def read_directly(link: Link, stream: str, after: int, imported: int = 0, *, pattern: str = "") -> list[Record]:
    """Return the records right after that sequence; [] if there are none or no server answers.  `pattern`: of a stream that
    keeps the last message of each subject, those that match and whose sequences are later."""
    found: list[Record] = []
    over = asyncio.Event()

    def take(subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        del subject, reply
        status, _, headers = status_of(header)
        seq = headers.get("Nats-Sequence", "")
        if status or not seq.isdigit():
            over.set()  # No more records, or no server.
        elif int(seq) > (found[-1].seq if found else after) if pattern else int(seq) == after + len(found) + 1:
            time, said = nanoseconds(headers["Nats-Time-Stamp"]), headers.get("Nats-Subject", "")
            record = Record(int(seq), time, said, body, message_id(header))
            found.append(record if record.seq > imported else as_it_was(record, header))

    inbox = link.client.new_inbox()
    question: dict[str, int | str] = {"seq": after + 1, "batch": _BATCH, "max_bytes": _BATCH_BYTES}
    question |= {"next_by_subj": pattern} if pattern else {}
    with contextlib.suppress(nats.errors.Error, TimeoutError):
        subscription = await link.take(inbox, take)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await link.client.publish(f"{link.api}.DIRECT.GET.{stream}", json.dumps(question).encode(), reply=inbox)
                await over.wait()
        finally:
            await link.leave(subscription)
    return found
