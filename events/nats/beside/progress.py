"""The stream of progress on NATS JetStream: what apps report between two marks on the log (`events.log.progress`).

    dorm.<cluster>.progress.<node>.<app>   five tokens, of which the log's stream takes none

Its oldest records give way: to age, to the stream's size, and to newer ones of the same app.  It is never full, so no report
waits, and the log is not touched by any of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy, PersistMode, StorageType, StreamConfig

from events import subjects as names
from events.log.progress import EVERY, Progress
from events.log.records import LogClosed, LogDamaged, LogRefused, LogUnavailable, Record
from events.nats.link import as_log_errors
from events.nats.reader import EndsBefore, Reader, ReopenReader, first_since, last_record
from events.nats.settings.limits import LARGEST_PROGRESS, MOST_READERS, PROGRESS_AGE_S, PROGRESS_BYTES, PROGRESS_OF_APP
from events.nats.stream_state import stream_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from events.nats.link import Link

_TIMEOUT_S = 5.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_OVERDUE_S = 5.0
_DUPLICATES_S = 120.0


def progress_stream(cluster: str) -> str:
    """Return a name that no cluster's log can have."""
    return f"DORM_progress-{cluster}"


def progress_config(cluster: str) -> StreamConfig:
    return StreamConfig(
        name=progress_stream(cluster),
        subjects=[names.progress_of(cluster)],
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=PROGRESS_AGE_S,
        max_bytes=PROGRESS_BYTES,
        max_msgs_per_subject=PROGRESS_OF_APP,
        max_msg_size=LARGEST_PROGRESS,
        max_consumers=MOST_READERS,
        duplicate_window=_DUPLICATES_S,
        allow_direct=True,
        # As for heartbeats: a server that syncs each write stores some hundred a second, and what a killed server loses here
        # are milliseconds of curves.
        persist_mode=PersistMode.ASYNC,
    )


class JetStreamProgress(Progress):
    """The progress of one cluster.  If there is no such stream, as on a cluster that an earlier release made, readers find
    nothing, and `put` raises LogUnavailable."""

    def __init__(self, link: Link, cluster: str) -> None:
        self._link = link
        self._cluster = cluster
        self._stream = progress_stream(cluster)

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = _TIMEOUT_S) -> None:
        if not names.matches(names.progress_of(self._cluster), subject):
            raise LogRefused(f"{subject[:200]!r} is not a subject of progress", code="log.subject.malformed")
        headers = {"Nats-Msg-Id": msg_id} if msg_id else None
        self._link.check_size(body, len(msg_id), LARGEST_PROGRESS)
        await self._link.sendable("progress", timeout)
        with as_log_errors("storing progress"):
            await self._link.jetstream().publish(subject, body, timeout=timeout, headers=headers)

    async def read(
        self, *, after: int = 0, app: str = EVERY, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        pattern = names.progress_of(self._cluster, app)
        until = None if follow else await self._last(pattern)
        pause = _PAUSE_S
        while until is None or after < until:
            try:
                first, end = await self._bounds()
                # The stream was made again, as when its replicas were raised: all of it is new.
                after = 0 if after > end and follow else after
                async with Reader(self._link, self._stream, max(after, first - 1), [pattern]) as reader:
                    pause = _PAUSE_S
                    while until is None or after < until:
                        batch = await reader.next(None if until is None else _OVERDUE_S)
                        after = batch[-1].seq
                        if wanted := [record for record in batch if until is None or record.seq <= until]:
                            yield wanted
                return
            except (ReopenReader, LogUnavailable, LogDamaged) as error:  # Of a stream that forgets, nothing is damage.
                if self._link.client.is_closed:
                    raise LogClosed(f"the connection to {self._link.url} is closed") from None
                if not follow:
                    if isinstance(error, EndsBefore | LogDamaged):
                        return
                    raise LogUnavailable(f"reading progress: {error}") from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def newest(self, app: str = EVERY) -> list[Record]:
        pattern = names.progress_of(self._cluster, app)
        last = await self._last(pattern)
        found: dict[str, Record] = {}
        if not last:
            return []
        try:
            async with _Newest(self._link, self._stream, 0, [pattern]) as reader:
                while not found or max(record.seq for record in found.values()) < last:
                    for record in await reader.next(_OVERDUE_S):
                        found[record.subject] = record
        except (ReopenReader, LogDamaged) as error:
            raise LogUnavailable(f"reading progress: {error}") from None
        return sorted(found.values(), key=lambda record: record.seq)

    async def end(self) -> int:
        return (await self._bounds())[1]

    async def at_time(self, time: int) -> int:
        try:
            found = await first_since(self._link, self._stream, time + 1)
        except LogDamaged:
            return 0
        return await self.end() if found is None else found.seq - 1

    async def _bounds(self) -> tuple[int, int]:
        """Return the first and the last sequence; zeros if there is no such stream."""
        await self._link.connected(_TIMEOUT_S)
        with as_log_errors("looking up the progress"):
            try:
                state = await stream_state(self._link, self._stream, _TIMEOUT_S)
            except nats.js.errors.NotFoundError:
                return 0, 0
        return int(state["first_seq"]), int(state["last_seq"])

    async def _last(self, pattern: str) -> int:
        """Return the sequence of the last record on these subjects, 0 for none."""
        try:
            record = await last_record(self._link, self._stream, pattern)
        except LogDamaged:  # There is no such stream.
            return 0
        return record.seq if record is not None else 0


class _Newest(Reader):
    """Reads the last record on each subject."""

    def consumer(self) -> ConsumerConfig:
        config = super().consumer()
        return config.evolve(
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, opt_start_seq=None, ack_policy=AckPolicy.NONE
        )
