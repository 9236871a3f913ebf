"""Import an archive's records into a new cluster's log, at their original sequences.

Records go in atomic batches: a server that syncs every write to its disk does so once for each batch, which is fifty times as
fast.  A batch is stored on the condition that the log's last sequence is the one before its first.  So no batch is stored
twice or out of place, whatever messages are lost, and no other writer can intervene.  An interrupted import is repeated, and
continues after the last batch stored.

Times and ids are those of the archive (`events.log.records`).  Subjects name the cluster, so under another name they change.
Seals hold for a name: the archive's seals then can't be checked any more (`ReadableLog.renamed_upto`), and the next seal
covers everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import nats.errors
import nats.js.errors

from events import subjects as names
from events.errors import code_of
from events.log.records import CLUSTER, HEADER, SOURCE, UPTO, LogRefused, LogUnavailable, Record, header, imported_upto
from events.log.stores import identity
from events.nats.link import Link, as_log_errors
from events.nats.reader import record_at
from events.nats.streams import stream_configs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nats.js.api import StreamInfo

    from events.log.interface import ReadableLog
    from events.nats.access import Credentials

_BATCH = 1000
"""Messages: the most that a server accepts in one batch."""
_BATCH_BYTES = 4 * 1024 * 1024
_SILENCE_S = 20.0
_TIMEOUT_S = 5.0


class Imported(msgspec.Struct, frozen=True):
    """The result of an import."""

    records: int
    """Records in the log now."""
    before: int
    """Number of them that an earlier, interrupted import had stored."""


async def import_log(
    log: ReadableLog,
    url: str,
    cluster: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    credentials: Credentials | None = None,
    replicas: int = 1,
) -> Imported:
    """Import the whole log, with this many copies on different servers.  Raises LogRefused if it is only a part, or the
    server has a cluster of this name with other records; LogUnavailable, after which the same call continues; and what
    `log.read` raises."""
    if log.sparse or await log.start():
        raise LogRefused(
            "only a whole log can become a cluster's; this archive is a part of one", code="archive.not_whole"
        )
    try:
        names.check_cluster(cluster)
    except ValueError as error:
        raise LogRefused(str(error), code=code_of(error)) from None
    end = await log.end()
    link = await Link.open(url, name="dorm import", timeout=_TIMEOUT_S, credentials=credentials)
    try:
        done = await _begin(link, log, cluster, end, replicas)
        await _publish(link, log, cluster, done, end, progress)
    finally:
        await link.close()
    return Imported(end, done)


async def _begin(link: Link, log: ReadableLog, cluster: str, end: int, replicas: int) -> int:
    """Create the streams, or find those of an interrupted import; return how many records are stored.  Raises LogRefused."""
    source, called = await _source(log, end)
    manager = link.jetstream(timeout=_TIMEOUT_S)
    # For an archive whose own seals can't be checked, no name would be right.
    metadata = {UPTO: str(end), SOURCE: source, CLUSTER: "" if await log.renamed_upto() else called or cluster}
    with as_log_errors(f"making cluster {cluster} at {link.url}"):
        for config in reversed(stream_configs(cluster)):
            assert config.name
            is_log = config.subjects == [names.log_subjects(cluster)]
            try:
                stream = await manager.stream_info(config.name)
            except nats.js.errors.NotFoundError:
                if replicas > 1:  # Servers do not replicate a stream that acknowledges before it persists.
                    config.num_replicas, config.persist_mode = replicas, None
                if is_log:
                    config.metadata, config.allow_atomic = metadata, True
                    config.max_msg_size = -1  # Old logs may hold larger records; the first master sets the limit.
                await manager.add_stream(config)
                continue
            if is_log:
                return await _continue(link, log, cluster, stream, metadata)
    return 0


async def _source(log: ReadableLog, end: int) -> tuple[str, str]:
    """Return an id of the log, from its length and last record, and its cluster's name, '' for an empty one."""
    async with aclosing(log.read(after=max(0, end - 1))) as batches:
        async for batch in batches:
            return f"{end}.{identity(batch[-1])}", names.cluster_of(batch[-1].subject)
    return "empty", ""


async def _continue(link: Link, log: ReadableLog, cluster: str, stream: StreamInfo, metadata: dict[str, str]) -> int:
    """Return how many records are already stored.  Raises LogRefused if they are not this archive's."""
    assert stream.config.name
    last = stream.state.last_seq
    existing = stream.config.metadata or {}
    if existing.get(SOURCE) != metadata[SOURCE] or last > int(metadata[UPTO]):
        raise LogRefused(
            f"there is a cluster {cluster!r} at {link.url} already, with {last} records; name another one with --cluster",
            code="cluster.exists",
        )
    if last:
        stored = await record_at(link, stream.config.name, last, imported=imported_upto(existing))
        async with aclosing(log.read(after=last - 1)) as batches:
            async for batch in batches:
                if stored != _renamed(batch[0], cluster):
                    raise LogRefused(
                        f"record {last} of cluster {cluster!r} at {link.url} differs from the one in this archive",
                        code="import.differs",
                    )
                break
    return last


def _renamed(record: Record, cluster: str) -> Record:
    """Return the record under the new cluster's subject.  Raises LogRefused for a subject that no log accepts."""
    parts = record.subject.split(".", 2)
    subject = f"dorm.{cluster}.{parts[-1]}"
    if len(parts) < 3 or not names.valid(subject) or not names.matches(names.log_subjects(cluster), subject):
        raise LogRefused(
            f"record {record.seq} has the subject {record.subject[:200]!r}, which no cluster's log takes",
            code="import.subject",
        )
    return Record(record.seq, record.time, subject, record.body, record.msg_id)


class _Answer(msgspec.Struct):
    seq: int = 0
    error: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_Answer).decode


class _Answers:
    """The server's answer to the batch in flight."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[_Answer] | None = None

    def take(self, subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        if self._answer is None or self._answer.done() or (not body and b" 503" not in header):
            return  # An empty answer acknowledges the start of the batch.
        try:
            self._answer.set_result(_decode(body) if body else _Answer(error={"description": "no stream takes it"}))
        except msgspec.MsgspecError:
            self.interrupt(f"the server's answer is none: {body[:80]!r}")

    def interrupt(self, what: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LogUnavailable(what))

    def expect(self) -> asyncio.Future[_Answer]:
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer


async def _publish(
    link: Link, log: ReadableLog, cluster: str, done: int, end: int, progress: Callable[[int, int], None] | None
) -> None:
    if done == end:
        return
    answers = _Answers()
    inbox = link.client.new_inbox()
    subscription = await link.take(inbox, answers.take)
    link.on_outage = lambda lost: answers.interrupt("the connection was lost") if lost else None
    try:
        async with aclosing(log.read(after=done)) as batches:
            async for batch in batches:
                for part in _parts(batch):
                    await _store(link, answers, [_renamed(record, cluster) for record in part], inbox)
                    done = part[-1].seq
                    if progress:
                        progress(done, end)
    except LogUnavailable as error:
        stored = f"{done} of {end} records are stored, the same command continues from there"
        raise LogUnavailable(f"{error}; {stored}", code=error.code) from None
    finally:
        with contextlib.suppress(nats.errors.Error):
            await link.leave(subscription)


def _parts(records: Sequence[Record]) -> Iterator[list[Record]]:
    part: list[Record] = []
    size = 0
    for record in records:
        if part and (len(part) == _BATCH or size + len(record.body) > _BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(record)
        size += len(record.body)
    if part:
        yield part


async def _store(link: Link, answers: _Answers, records: list[Record], inbox: str) -> None:
    """Store all records or none.  Raises LogUnavailable if the outcome is unknown, and LogRefused."""
    stored = answers.expect()
    try:
        await _send(link, records, inbox)
        async with asyncio.timeout(_SILENCE_S):
            answer = await stored
    except TimeoutError:
        raise LogUnavailable("the NATS server does not answer") from None
    finally:
        if not stored.cancel() and not stored.cancelled():
            stored.exception()  # If sending failed first, nothing else retrieves it.
    if answer.error is not None or answer.seq != records[-1].seq:
        why = (answer.error or {}).get("description", f"the last one was stored as {answer.seq}")
        raise LogRefused(
            f"records {records[0].seq} to {records[-1].seq} can't be stored: {why}; does someone else write to this cluster?",
            code="import.conflict",
        )


async def _send(link: Link, records: list[Record], inbox: str) -> None:
    batch = secrets.token_hex(8)
    for number, record in enumerate(records, 1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number), HEADER: header(record)}
        if number == 1:
            headers["Nats-Expected-Last-Sequence"] = str(record.seq - 1)
        if number == len(records):
            headers["Nats-Batch-Commit"] = "1"
        link.check_size(record.body, sum(map(len, headers.values())))
        # Between the first and the last record the server reports only errors, and it repeats them at the end.
        answered = number in (1, len(records))
        with as_log_errors("importing"):
            await link.client.publish(record.subject, record.body, reply=inbox if answered else "", headers=headers)
