"""An archive's records put into a new cluster's log, at the sequences that they had.

Each message is published on the condition that the log's last sequence is the one before its own, so none can be stored
twice or out of place, whatever is lost on the way, and nobody else can get in between.  A window of them is on its way at a
time.  Whoever breaks off does the same again later and goes on after the last record that was stored.

Times and ids are those of the archive (`events.imported`).  Subjects name the cluster, so under another name they are changed;
seals, which hold for a name, then don't hold any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import nats.errors
import nats.js.errors

from events import subjects as names
from events.imported import HEADER, SOURCE, UPTO, header, imported_upto
from events.jetstream import stream_configs
from events.jetstream_reader import record_at
from events.log import LogRefused, LogUnavailable, Record
from events.nats_link import Link, as_log_errors
from events.snapshots import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.js.api import StreamInfo

    from events.log import EventLog

_WINDOW = 512
_WINDOW_BYTES = 8 * 1024 * 1024
"""On the way at a time, as messages and as bytes of their bodies."""
_SILENCE_S = 10.0
_TIMEOUT_S = 5.0


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    records: int
    """Of the log now."""
    before: int
    """How many of them an earlier, broken off import had stored."""


async def import_log(
    log: EventLog, url: str, cluster: str, *, progress: Callable[[int, int], None] | None = None
) -> Imported:
    """Raises LogRefused where the log is not a whole one, or the server has a cluster of this name with other records;
    LogUnavailable, from which the same call goes on; and what `log.read` raises."""
    if log.sparse or await log.start():
        raise LogRefused("only a whole log can become a cluster's; this archive is a part of one")
    try:
        names.check_cluster(cluster)
    except ValueError as error:
        raise LogRefused(str(error)) from None
    end = await log.end()
    link = await Link.open(url, name="dorm import", timeout=_TIMEOUT_S)
    try:
        done = await _begin(link, log, cluster, end)
        await _publish(link, log, cluster, done, end, progress)
    finally:
        await link.close()
    return Imported(end, done)


async def _begin(link: Link, log: EventLog, cluster: str, end: int) -> int:
    """Make the streams, or find those of an import that was broken off; how many records are there.  Raises LogRefused."""
    source = await _source(log, end)
    manager = link.client.jetstream(timeout=_TIMEOUT_S)
    metadata = {UPTO: str(end), SOURCE: source}
    with as_log_errors(f"making cluster {cluster} at {link.url}"):
        for config in reversed(stream_configs(cluster)):
            assert config.name
            is_log = config.subjects == [names.log_subjects(cluster)]
            try:
                found = await manager.stream_info(config.name)
            except nats.js.errors.NotFoundError:
                if is_log:
                    config.metadata = metadata
                await manager.add_stream(config)
                continue
            if is_log:
                return await _continue(link, log, cluster, found, metadata)
    return 0


async def _source(log: EventLog, end: int) -> str:
    """Which log this is: its last record, and so many."""
    async with aclosing(log.read(after=max(0, end - 1))) as batches:
        async for batch in batches:
            return f"{end}.{identity(batch[-1])}"
    return "empty"


async def _continue(link: Link, log: EventLog, cluster: str, found: StreamInfo, metadata: dict[str, str]) -> int:
    """How many records are there already.  Raises LogRefused where they are not this archive's."""
    assert found.config.name
    last = found.state.last_seq
    theirs = found.config.metadata or {}
    if theirs.get(SOURCE) != metadata[SOURCE] or last > int(metadata[UPTO]):
        raise LogRefused(
            f"there is a cluster {cluster!r} at {link.url} already, with {last} records; name another one with --cluster"
        )
    if last:
        stored = await record_at(link, found.config.name, last, imported=imported_upto(theirs))
        async with aclosing(log.read(after=last - 1)) as batches:
            async for batch in batches:
                if stored != _renamed(batch[0], cluster):
                    raise LogRefused(f"record {last} of cluster {cluster!r} at {link.url} is not that of this archive")
                break
    return last


def _renamed(record: Record, cluster: str) -> Record:
    """Raises LogRefused for a subject that is no log's."""
    parts = record.subject.split(".", 2)
    subject = f"dorm.{cluster}.{parts[-1]}"
    if len(parts) < 3 or not names.valid(subject) or not names.matches(names.log_subjects(cluster), subject):
        raise LogRefused(f"record {record.seq} has the subject {record.subject[:200]!r}, which no cluster's log takes")
    return Record(record.seq, record.time, subject, record.body, record.msg_id)


class _Answer(msgspec.Struct):
    seq: int = 0
    error: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_Answer).decode


class _Window:
    """What is on its way, and what came back; answers come in the order of what was published."""

    def __init__(self, done: int) -> None:
        self.done = done
        self.broken: LogRefused | LogUnavailable | None = None
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._answered = asyncio.Event()

    def sent(self, record: Record) -> None:
        self._sizes[record.seq] = len(record.body)
        self._bytes += len(record.body)

    def take(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        """An answer of the server."""
        self._answered.set()
        if self.broken is not None:
            return
        try:
            answer = _decode(body)
        except msgspec.MsgspecError:
            self.broken = LogUnavailable(f"the server's answer is none: {(body or header)[:80]!r}")
            return
        if answer.error is not None or answer.seq != self.done + 1:
            why = (answer.error or {}).get("description", f"stored as {answer.seq}")
            self.broken = LogRefused(
                f"record {self.done + 1} can't be stored: {why}; does somebody else write to this cluster?"
            )
            return
        self.done = answer.seq
        self._bytes -= self._sizes.pop(answer.seq, 0)

    def interrupt(self, what: str) -> None:
        """The connection, and with it what was on the way."""
        self.broken = self.broken or LogUnavailable(f"the connection was {what}")
        self._answered.set()

    async def room(self, messages: int = _WINDOW, size: int = _WINDOW_BYTES) -> None:
        """Until less than that is on its way.  Raises LogRefused, LogUnavailable."""
        while self.broken is None and self._sizes and (len(self._sizes) >= messages or self._bytes >= size):
            self._answered.clear()
            try:
                async with asyncio.timeout(_SILENCE_S):
                    await self._answered.wait()
            except TimeoutError:
                self.broken = LogUnavailable("the NATS server does not answer")
        if self.broken is not None:
            raise self.broken


async def _publish(
    link: Link, log: EventLog, cluster: str, done: int, end: int, progress: Callable[[int, int], None] | None
) -> None:
    if done == end:
        return
    window = _Window(done)
    inbox = link.client.new_inbox()
    subscription = await link.take(inbox, window.take)
    link.on_outage = lambda lost: window.interrupt("lost") if lost else None
    try:
        async with aclosing(log.read(after=done)) as batches:
            async for batch in batches:
                for record in batch:
                    await window.room()
                    await _send(link, _renamed(record, cluster), inbox)
                    window.sent(record)
                if progress:
                    progress(window.done, end)
        await window.room(1, 0)
    except LogUnavailable as error:
        raise LogUnavailable(
            f"{error}; {window.done} of {end} records are stored, the same command goes on from there"
        ) from None
    finally:
        with contextlib.suppress(nats.errors.Error):
            await link.leave(subscription)


async def _send(link: Link, record: Record, inbox: str) -> None:
    headers = {"Nats-Expected-Last-Sequence": str(record.seq - 1), HEADER: header(record)}
    link.check_size(record.body, sum(map(len, headers.values())))
    with as_log_errors("importing"):
        await link.client.publish(record.subject, record.body, reply=inbox, headers=headers)
