"""The log's events as streams, with the progress beside it.

Readers with the same filter share a channel, which filters and encodes each record once.  A channel keeps its newest frames.
A reader that resumes further back reads the log, in its own time, up to where the channel is, and takes the frames from there:
nothing is lost and nothing comes twice, since a position says exactly what was read.  The id of each event says how far a
reader has come with both: `118.2~57`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dorm.api.following.lists.both import Both
from dorm.api.following.threads import apart_if_large
from dorm.api.items import encoded
from dorm.api.streams.sse import HEARTBEAT, Readers, frame
from msgspec.structs import replace

from dorm.api.errors import Missing, Unavailable
from dorm.client.tail import EVER, Filter, Tail
from events.log.interface import time_of
from events.log.records import LogClosed, LogRefused, LogUnavailable
from events.positions import Logged, Position, logged, logged_beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.api.following.follower import Follower
    from dorm.api.following.recent import RecentLog
    from dorm.api.streams.sse import Stream

    from dorm.api.options import Limits
    from dorm.core.query.concerns import Concerns
    from dorm.core.state import State
    from events.log.records import Record

_PAUSE_S = 0.05
"""Between two pieces of news, at least.  If handing one on takes long, the pause is `_PAUSE_TIMES` as long, up to
`_LONGEST_S`: a thousand readers cost a twentieth of a processor, since a master and the log's server may run on the same
machine.  Only computing counts: on a busy machine, waiting for a processor is no reason to wait longer."""
_PAUSE_TIMES = 19
_LONGEST_S = 0.25
_MOST_FRAMES = 5000
_FRAMES_ROOM = 8 << 20
"""Frames that a channel keeps, and their bytes."""
_MOST_CHANNELS = 64
_UNUSED_S = 30.0
"""How long a channel without readers continues, for readers that come back."""
_MOST_WAITING = 50_000
"""Records that wait for a channel; if there are more, its readers resume from the log."""
_WRITTEN_AT_ONCE = 256 << 10
_CHECK_S = 2.0


class _Waits(NamedTuple):
    record: Record
    beside: bool
    """Whether it is of the stream of progress."""


class _Frame(NamedTuple):
    position: Position
    reached: Position
    """What a reader has read of both, once it has this event."""
    body: bytes


class _Channel:
    """All readers with one filter."""

    def __init__(self, wanted: Filter, beside: int | None) -> None:
        """It takes the progress after that record; None if there is none."""
        self.wanted = wanted
        self.readers = Readers()
        self.queue: list[_Waits] = []
        self.floor = self.position = Position(0, None, beside)
        """Frames are kept of everything after `floor`, up to `position`."""
        self.begun = asyncio.Event()
        self.unused_since = 0.0
        self._frames: deque[_Frame] = deque()
        self._bytes = 0
        self._concerns: Concerns | None = wanted.concerns() if wanted != Filter() else None

    def know(self, state: State) -> int:
        """Learn from a state what earlier events would have taught; return its sequence."""
        if self._concerns is not None:
            self._concerns.know(state)
        return state.seq

    def begin(self, seq: int) -> None:
        """Start after a record."""
        self.floor = self.position = replace(self.position, seq=seq)
        self.begun.set()

    def encode(self, waiting: Sequence[_Waits]) -> tuple[list[_Frame], Position]:
        """Filter and encode, in a thread.  Return the frames, and the position behind all that waited."""
        found: list[_Frame] = []
        reached = self.position
        for record, beside in waiting:
            if beside:
                reached = replace(reached, beside=record.seq)
            elif record.seq <= reached.seq:
                continue
            for one in [logged_beside(record, reached.seq)] if beside else logged(record):
                reached = reached if beside else replace(one.position, beside=reached.beside)
                if self._concerns is None or self._concerns.wants(one):
                    found.append(_Frame(one.position, reached, frame(str(reached), "event", encoded(one))))
            reached = replace(reached, seq=reached.seq if beside else record.seq, index=None)
        return found, reached

    def publish(self, frames: list[_Frame], upto: Position) -> None:
        for one in frames:
            self._frames.append(one)
            self._bytes += len(one.body)
        while len(self._frames) > _MOST_FRAMES or self._bytes > _FRAMES_ROOM:
            gone = self._frames.popleft()
            self._bytes -= len(gone.body)
            self.floor = gone.reached
        self.position = upto
        if frames:
            self.readers.push(b"".join(one.body for one in frames))

    def reaches_back_to(self, position: Position) -> bool:
        """Return whether all frames after a position are kept."""
        floor = self.floor
        if floor.beside is not None and (position.beside is None or position.beside < floor.beside):
            return False
        if position.seq != floor.seq or position.index is None:
            return position.seq >= floor.seq
        return floor.index is not None and position.index >= floor.index

    def after(self, position: Position) -> list[_Frame]:
        """Return the frames after a position, as many as are written at once."""
        found = [one for one in self._frames if not position.covers(one.position)]
        size = 0
        for index, one in enumerate(found):
            size += len(one.body)
            if size > _WRITTEN_AT_ONCE:
                return found[: index + 1]
        return found


class EventStreams:
    """All streams of events."""

    def __init__(self, follower: Follower, recent: RecentLog, limits: Limits) -> None:
        self._follower = follower
        self._recent = recent
        self._limits = limits
        self._channels: dict[Filter, _Channel] = {}
        self._both = Both(recent, follower)
        self._beside: int | None = None
        """How far the stream of progress is read; None where it can't be."""
        self._news = asyncio.Event()
        follower.watch(self._take)
        follower.on_restart.append(self.finish)

    def _take(self, batch: list[Record]) -> None:
        self._hand_on([_Waits(record, beside=False) for record in batch])

    def _hand_on(self, batch: list[_Waits]) -> None:
        for channel in self._channels.values():
            channel.queue += batch
        if self._channels:
            self._news.set()

    async def _follow_progress(self) -> None:
        progress = self._both.progress
        with contextlib.suppress(LogRefused, LogClosed):
            self._beside = await progress.end()
            async with aclosing(progress.read(after=self._beside, follow=True)) as batches:
                async for batch in batches:
                    self._beside = batch[-1].seq
                    self._hand_on([_Waits(record, beside=True) for record in batch])
        self._beside = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pump(), name="pump")
            tasks.create_task(self._follow_progress(), name="progress")
            tasks.create_task(self._watch(), name="heartbeats")

    async def _pump(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            began = time.thread_time()
            for channel in list(self._channels.values()):
                if not channel.begun.is_set() or not channel.queue:
                    continue
                waiting, channel.queue = channel.queue, []
                if len(waiting) > _MOST_WAITING:
                    self._drop(channel)
                    continue
                size = sum(len(one.record.body) for one in waiting)
                frames, upto = await apart_if_large(4 * size, partial(channel.encode, waiting))
                if self._channels.get(channel.wanted) is channel:
                    channel.publish(frames, upto)
            # With many readers, fewer and larger pieces: a piece costs each of them a write, and the loop is for others too.
            await asyncio.sleep(min(max(_PAUSE_S, _PAUSE_TIMES * (time.thread_time() - began)), _LONGEST_S))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        beat = loop.time()
        while True:
            await asyncio.sleep(_CHECK_S)
            now = loop.time()
            beats = now - beat >= self._limits.heartbeat_s
            beat = now if beats else beat
            for channel in list(self._channels.values()):
                channel.readers.check(now)
                if beats:
                    channel.readers.push(HEARTBEAT)
                if len(channel.readers):
                    channel.unused_since = 0.0
                elif not channel.unused_since:
                    channel.unused_since = now
                elif now - channel.unused_since > _UNUSED_S:
                    self._drop(channel)

    def _drop(self, channel: _Channel) -> None:
        self._channels.pop(channel.wanted, None)
        channel.begun.set()
        channel.readers.finish()

    def finish(self) -> None:
        """End all streams gracefully."""
        for channel in list(self._channels.values()):
            self._drop(channel)

    async def begin(self, text: Position | None) -> Position:
        """Return where a stream starts: at a position, or at the end.  Raises Missing for one beyond the log."""
        if text is None:
            return Position(self._follower.seq, None, self._beside)
        if text.seq > self._follower.seq:
            end = await self._follower.log.end()
            if text.seq > end:
                raise Missing(f"the log ends at {end}, before {text}", code="moment.after_end")
            await self._follower.reach(text.seq, self._limits.behind_s)
        if self._beside is None:
            return text
        if text.beside is None:
            time = await time_of(self._both, text.seq) if text.seq > await self._both.start() else 0
            with contextlib.suppress(LogRefused, LogUnavailable):
                return replace(text, beside=min(self._beside, await self._both.progress.at_time(time)) if time else 0)
        return replace(text, beside=min(self._beside, text.beside or 0))

    async def serve(self, stream: Stream, wanted: Filter, after: Position) -> None:
        """Write the events after a position, until the stream is over.  Raises ConnectionError, Unavailable, and what reading
        the log raises."""
        channel = await self._channel(wanted)
        try:
            await self._catch_up(stream, channel, after)
            await stream.over()
        finally:
            channel.readers.drop(stream)

    async def _channel(self, wanted: Filter) -> _Channel:
        found = self._channels.get(wanted)
        if found is None:
            if len(self._channels) >= _MOST_CHANNELS:
                raise Unavailable("too many different filters are being followed", code="api.streams.too_many")
            found = self._channels[wanted] = _Channel(wanted, self._beside)
            try:
                # Records that arrive in between wait in its queue; those that the state includes are left out.
                found.begin(
                    await self._follower.look(found.know) if wanted.users or wanted.nodes else self._follower.seq
                )
            except BaseException:
                self._drop(found)
                raise
            self._news.set()
        await found.begun.wait()
        return found

    async def _catch_up(self, stream: Stream, channel: _Channel, position: Position) -> None:
        while True:
            if not channel.reaches_back_to(position):
                upto = channel.position
                await self._write_from_log(stream, channel.wanted, position, upto)
                position = upto if upto.seq >= position.seq else replace(position, beside=upto.beside)
                continue
            if _is_behind(channel.position, position) and self._channels.get(channel.wanted) is channel:
                await asyncio.sleep(_PAUSE_S)  # What it publishes next would come twice.
                continue
            frames = channel.after(position)
            if not frames:
                if self._channels.get(channel.wanted) is not channel:
                    stream.finish()  # It was dropped in between; the reader resumes.
                channel.readers.add(stream)
                return
            await stream.write(one.body for one in frames)
            position = frames[-1].reached

    async def _write_from_log(self, stream: Stream, wanted: Filter, after: Position, upto: Position) -> None:
        """Write the events between two positions."""
        log, latest = (self._recent, None) if upto.beside is None else (self._both, EVER)
        tail = Tail(
            log, self._follower.cluster, wanted, after=after, until=upto.seq, latest=latest, beside_until=upto.beside
        )
        reached, piece = after, list[tuple[Position, Logged]]()
        async with aclosing(tail.events()) as events:
            async for one in events:
                beside = one.position.beside
                if beside is not None:
                    reached = replace(reached, beside=beside)
                else:
                    reached = replace(one.position, beside=reached.beside)
                piece.append((reached, one))
                if len(piece) >= 200:
                    await stream.write(await asyncio.to_thread(_frames, piece))
                    piece = []
        if piece:
            await stream.write(await asyncio.to_thread(_frames, piece))


def _is_behind(channel: Position, reader: Position) -> bool:
    return channel.seq < reader.seq or (channel.beside is not None and channel.beside < (reader.beside or 0))


def _frames(events: Sequence[tuple[Position, Logged]]) -> list[bytes]:
    return [frame(str(reached), "event", encoded(one)) for reached, one in events]
