"""Server-sent events: bounded, and resumed exactly by `Last-Event-ID`.

**One stream.**  While a reader catches up, it is written to in its own time.  Afterwards it is one of many that get the
same bytes, which are encoded once and handed to each connection without waiting; how much may wait there is bounded.  A
reader that does not keep up is ended, and resumes: the log is one order, so the id of the last event that it has seen says
all that is needed.  A stream may have parts (`Shared`), each of which is written to like a stream of its own (`Part`).

**The log's events**, with the progress next to it.  Readers with the same filter share a channel, which filters and encodes
each record once.  A channel keeps its newest frames.  A reader that resumes further back reads the log, in its own time,
up to where the channel is, and takes the frames from there: nothing is lost and nothing comes twice, since a position says
exactly what was read.  The id of each event says how far a reader has come with both: `118.2~57`.

**Changes of the view**: what a page that draws the present follows.  One observer of the fold knows what the last view had
(`replay.page.changes`).  It is asked for changes only while they are read.  A change replaces whole entries, so a reader
that resumes between two changes takes the next one without the records that it has seen.  One that was away for longer
has to fetch the view again (`reset`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from aiohttp import HttpVersion11, web
from msgspec.structs import replace

from dorm.api.errors import Missing, NotAcceptable, Unavailable
from dorm.api.event_pages import Both, encoded
from dorm.api.responses import problem_of
from dorm.api.threads import apart_if_large
from dorm.client.tail import EVER, Filter, Tail
from events.log.interface import Places, time_of
from events.log.records import LogClosed, LogRefused, LogUnavailable
from events.positions import Logged, Position, logged, logged_progress, parse
from replay.page.changes import Change, Changes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from dorm.api.follower import Follower, RecentLog
    from dorm.api.options import Limits
    from dorm.core.progress import Newest
    from dorm.core.query.concerns import Concerns
    from dorm.core.state import State
    from events.log.records import Record
    from replay.page.view import View


# --- one stream -------------------------------------------------------------------------------------------------------

CONTENT_TYPE = "text/event-stream"
HEARTBEAT = b": still here\n\n"
_RETRY_MS = 1000
_TURN = 16
"""Streams that are written to at once.  A write takes the system some ten microseconds, so a thousand of them would hold a
processor for longer than a master's round takes: Linux lets a task finish its slice, whatever else wakes up."""


def frame(id: str, event: str, data: bytes) -> bytes:
    """Return one event.  `data` is JSON of one line."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {event}\ndata: ".encode() + data + b"\n\n"


def last_event_id(request: web.Request) -> str | None:
    """Return where the reader wants to resume."""
    return request.headers.get("Last-Event-ID") or None


def wanted(request: web.Request) -> bool:
    """Return whether the client asks for a stream."""
    return CONTENT_TYPE in request.headers.get("Accept", "")


class Stream:
    """An open stream."""

    def __init__(self, request: web.Request, limits: Limits) -> None:
        self._request = request
        self._limits = limits
        self._response = web.StreamResponse(
            headers={
                "Content-Type": f"{CONTENT_TYPE}; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        self._over = asyncio.Event()
        self._stuck_since: float | None = None
        self._waiting = 0

    async def open(self, headers: dict[str, str]) -> web.StreamResponse:
        """Send the head.  Raises NotAcceptable for a client of HTTP/1.0, ConnectionError for one that has gone."""
        if self._request.version < HttpVersion11:
            raise NotAcceptable("streams need HTTP/1.1", code="api.stream.http_version")
        self._response.enable_chunked_encoding()
        self._response.headers.update(headers)
        await self._response.prepare(self._request)
        await self.write([f"retry: {_RETRY_MS}\n\n".encode()])
        return self._response

    async def write(self, frames: Iterable[bytes]) -> None:
        """Write in the reader's own time.  Raises ConnectionError for one that has gone or takes nothing."""
        try:
            async with asyncio.timeout(self._limits.write_s):
                await self._response.write(b"".join(frames))
        except TimeoutError:
            self.end()
            raise ConnectionResetError("the reader takes nothing") from None

    def push(self, chunk: bytes) -> bool:
        """Hand on a chunk (see `chunked`) without waiting; return whether the stream continues.  A reader that has taken what
        came before gets it, however large it is."""
        transport = self._request.transport
        if self._over.is_set() or transport is None or transport.is_closing():
            self._over.set()
            return False
        if transport.get_write_buffer_size() > self._limits.waiting:
            self.end()
            return False
        transport.write(chunk)
        return True

    def check(self, now: float) -> bool:
        """Return whether the reader receives the output; called regularly."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            self._over.set()
            return False
        waiting = transport.get_write_buffer_size()
        if not waiting or waiting < self._waiting:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > self._limits.write_s:
            self.end()
            return False
        self._waiting = waiting
        return not self._over.is_set()

    def end(self) -> None:
        """End it at once, with what waits for its reader."""
        self._over.set()
        if self._request.transport is not None:
            self._request.transport.abort()

    def finish(self) -> None:
        """End it gracefully: the reader resumes elsewhere, or later."""
        self._over.set()

    async def over(self) -> None:
        """Wait until it has ended."""
        await self._over.wait()

    async def close(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._response.write_eof()


class Part(Stream):
    """A stream within another one, whose frames follow its name: `event: part`."""

    def __init__(self, whole: Stream, name: str) -> None:
        self._whole = whole
        self._over = asyncio.Event()
        self._head = frame("", "part", msgspec.json.encode(name))
        self._head_chunk = chunked(self._head)

    async def write(self, frames: Iterable[bytes]) -> None:
        await self._whole.write([self._head, *frames])

    def push(self, chunk: bytes) -> bool:
        # Both are handed on at once, so no other part comes between them.
        if self._over.is_set() or not self._whole.push(self._head_chunk + chunk):
            self._over.set()
            return False
        return True

    def check(self, now: float) -> bool:
        return not self._over.is_set() and self._whole.check(now)

    def end(self) -> None:
        """End the whole: its reader takes nothing."""
        self._over.set()
        self._whole.end()

    async def close(self) -> None:
        """The whole stays open for the others."""


class Shared:
    """An open stream whose parts come and go."""

    def __init__(self, user: str, request: web.Request, stream: Stream) -> None:
        """`request` has opened it, for `user`."""
        self.user = user
        self.request = request
        self.stream = stream
        self._parts: dict[str, asyncio.Task[None]] = {}

    @property
    def parts(self) -> list[str]:
        return sorted(self._parts)

    def follow(self, parts: dict[str, Callable[[Part], Awaitable[Any]]]) -> None:
        """Begin parts, in place of those of the same names, with what writes each."""
        self.end(list(parts))
        for name, serve in parts.items():
            self._parts[name] = asyncio.create_task(self._serve(name, serve), name=f"part {name}")

    def end(self, names: list[str]) -> None:
        for name in names:
            if (task := self._parts.pop(name, None)) is not None:
                task.cancel()

    async def _serve(self, name: str, serve: Callable[[Part], Awaitable[Any]]) -> None:
        """Write a part to its end, and say that or why it has ended."""
        part, last = Part(self.stream, name), frame("", "over", b"{}")
        with contextlib.suppress(ConnectionError):  # The reader has gone; the whole ends.
            try:
                await serve(part)
            except ConnectionError:
                return
            except Exception as error:
                last = frame("", "problem", msgspec.json.encode(problem_of(error)))
            if self._parts.get(name) is asyncio.current_task():
                del self._parts[name]
                await part.write([last])

    async def run(self, beat_s: float) -> None:
        """Give signs of life until the stream is over.  Raises ConnectionError."""
        while True:
            try:
                async with asyncio.timeout(beat_s):
                    await self.stream.over()
                return
            except TimeoutError:
                await self.stream.write([HEARTBEAT])

    def finish(self) -> None:
        """End it gracefully: its reader opens another one."""
        self.stream.finish()

    async def close(self) -> None:
        tasks = list(self._parts.values())
        self.end(list(self._parts))
        await asyncio.gather(*tasks, return_exceptions=True)


def chunked(body: bytes) -> bytes:
    """Return bytes as one chunk of HTTP/1.1, for all streams alike."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class Readers:
    """Streams that get the same bytes from here on."""

    def __init__(self) -> None:
        self._streams: dict[Stream, None] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        self._streams[stream] = None

    def drop(self, stream: Stream) -> None:
        self._streams.pop(stream, None)

    def push(self, body: bytes) -> None:
        """Hand on to all, and give way now and then to what waits for this processor."""
        chunk, over = chunked(body), list[Stream]()
        for number, stream in enumerate(self._streams, 1):
            if not stream.push(chunk):
                over.append(stream)
            if not number % _TURN:
                os.sched_yield()
        for stream in over:
            self.drop(stream)

    def check(self, now: float) -> None:
        for stream in [stream for stream in self._streams if not stream.check(now)]:
            self.drop(stream)

    def finish(self) -> None:
        for stream in self._streams:
            stream.finish()
        self._streams.clear()


# --- the log's events -------------------------------------------------------------------------------------------------

_PAUSE_S = 0.05
"""Least seconds between two pieces of news.  If handing one on takes long, the pause is `_PAUSE_TIMES` as long, up to
`_LONGEST_S`: a thousand readers cost a twentieth of a processor, since a master and the log's server may run on the same
machine.  Only computing counts: on a busy machine, waiting for a processor is no reason to wait longer."""
_PAUSE_TIMES = 19
_LONGEST_S = 0.25
_MOST_FRAMES = 5000
_FRAMES_ROOM = 8 << 20
"""Frames that a channel keeps, and their bytes."""
_MOST_CHANNELS = 64
_UNUSED_S = 30.0
"""Seconds for which a channel without readers continues, for readers that come back."""
_MOST_WAITING = 50_000
"""Records that wait for a channel; if there are more, its readers resume from the log."""
_WRITTEN_AT_ONCE = 256 << 10
_CHECK_S = 2.0


class _Waits(NamedTuple):
    record: Record
    place: int | None = None
    """Of a record of the stream of progress, the sequence of the log behind which it lies."""


class _Frame(NamedTuple):
    position: Position
    reached: Position
    """Position in both streams that a reader has read up to, once it has this event."""
    body: bytes


class _Channel:
    """All readers with one filter."""

    def __init__(self, wanted: Filter, progress: int | None) -> None:
        """It takes the progress after that record; None if there is none."""
        self.wanted = wanted
        self.readers = Readers()
        self.queue: list[_Waits] = []
        self.floor = self.position = Position(0, None, progress)
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
        frames: list[_Frame] = []
        reached = self.position
        for record, place in waiting:
            if place is not None:
                reached = replace(reached, beside=record.seq)
            elif record.seq <= reached.seq:
                continue
            for logged_event in logged(record) if place is None else [logged_progress(record, place)]:
                reached = reached if place is not None else replace(logged_event.position, beside=reached.beside)
                if self._concerns is None or self._concerns.wants(logged_event):
                    frames.append(
                        _Frame(logged_event.position, reached, frame(str(reached), "event", encoded(logged_event)))
                    )
            reached = replace(reached, seq=reached.seq if place is not None else record.seq, index=None)
        return frames, reached

    def publish(self, frames: list[_Frame], upto: Position) -> None:
        for made in frames:
            self._frames.append(made)
            self._bytes += len(made.body)
        while len(self._frames) > _MOST_FRAMES or self._bytes > _FRAMES_ROOM:
            gone = self._frames.popleft()
            self._bytes -= len(gone.body)
            self.floor = gone.reached
        self.position = upto
        if frames:
            self.readers.push(b"".join(made.body for made in frames))

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
        frames = [made for made in self._frames if not position.covers(made.position)]
        size = 0
        for index, made in enumerate(frames):
            size += len(made.body)
            if size > _WRITTEN_AT_ONCE:
                return frames[: index + 1]
        return frames


class EventStreams:
    """All streams of events."""

    def __init__(self, follower: Follower, recent: RecentLog, limits: Limits) -> None:
        self._follower = follower
        self._recent = recent
        self._limits = limits
        self._channels: dict[Filter, _Channel] = {}
        self._both = Both(recent, follower)
        self._progress_read: int | None = None
        """Sequence up to which the stream of progress is read; None if it can't be read."""
        self._news = asyncio.Event()
        follower.watchers.append(self._take)
        follower.on_restart.append(self.finish)

    def _take(self, batch: list[Record]) -> None:
        self._hand_on([_Waits(record) for record in batch])

    def _hand_on(self, batch: list[_Waits]) -> None:
        for channel in self._channels.values():
            channel.queue += batch
        if self._channels:
            self._news.set()

    async def _follow_progress(self) -> None:
        progress = self._both.progress
        with contextlib.suppress(LogRefused, LogClosed):
            self._progress_read = await progress.end()
            async with aclosing(progress.read(after=self._progress_read, follow=True)) as batches:
                async for batch in batches:
                    # With nobody to hand them on to, where they lie does not matter.
                    places = await self._places(batch) if self._channels else [0] * len(batch)
                    self._progress_read = batch[-1].seq
                    self._hand_on([_Waits(*one) for one in zip(batch, places, strict=True)])
        self._progress_read = None

    async def _places(self, batch: list[Record]) -> list[int]:
        """Return where reports lie in the log, as its pages have it, however long the log can't be reached."""
        while True:
            try:
                return await Places(self._both).of(batch)
            except LogClosed:
                raise
            except LogUnavailable:
                await asyncio.sleep(_CHECK_S)

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
                size = sum(len(waits.record.body) for waits in waiting)
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
            return Position(self._follower.seq, None, self._progress_read)
        if text.seq > self._follower.seq:
            end = await self._follower.log.end()
            if text.seq > end:
                raise Missing(f"the log ends at {end}, before {text}", code="moment.after_end")
            await self._follower.reach(text.seq, self._limits.behind_s)
        if self._progress_read is None:
            return text
        if text.beside is None:
            time = await time_of(self._both, text.seq) if text.seq > await self._both.start() else 0
            with contextlib.suppress(LogRefused, LogUnavailable):
                return replace(
                    text, beside=min(self._progress_read, await self._both.progress.at_time(time)) if time else 0
                )
        return replace(text, beside=min(self._progress_read, text.beside or 0))

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
        channel = self._channels.get(wanted)
        if channel is None:
            if len(self._channels) >= _MOST_CHANNELS:
                raise Unavailable("too many different filters are being followed", code="api.streams.too_many")
            channel = self._channels[wanted] = _Channel(wanted, self._progress_read)
            try:
                # Records that arrive in between wait in its queue; those that the state includes are left out.
                channel.begin(
                    await self._follower.look(channel.know) if wanted.users or wanted.nodes else self._follower.seq
                )
            except BaseException:
                self._drop(channel)
                raise
            self._news.set()
        await channel.begun.wait()
        return channel

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
            await stream.write(made.body for made in frames)
            position = frames[-1].reached

    async def _write_from_log(self, stream: Stream, wanted: Filter, after: Position, upto: Position) -> None:
        """Write the events between two positions."""
        log, latest = (self._recent, None) if upto.beside is None else (self._both, EVER)
        tail = Tail(
            log, self._follower.cluster, wanted, after=after, until=upto.seq, latest=latest, beside_until=upto.beside
        )
        reached, piece = after, list[tuple[Position, Logged]]()
        async with aclosing(tail.events()) as events:
            async for event in events:
                progress = event.position.beside
                if progress is not None:
                    reached = replace(reached, beside=progress)
                else:
                    reached = replace(event.position, beside=reached.beside)
                piece.append((reached, event))
                if len(piece) >= 200:
                    await stream.write(await asyncio.to_thread(_frames, piece))
                    piece = []
        if piece:
            await stream.write(await asyncio.to_thread(_frames, piece))


def _is_behind(channel: Position, reader: Position) -> bool:
    return channel.seq < reader.seq or (channel.beside is not None and channel.beside < (reader.beside or 0))


def _frames(events: Sequence[tuple[Position, Logged]]) -> list[bytes]:
    return [frame(str(reached), "event", encoded(event)) for reached, event in events]


# --- changes of the view ----------------------------------------------------------------------------------------------

_VIEW_PAUSE_S = 0.1
"""Least seconds between two changes; four times as long as one takes to compute if that is longer, at most `_VIEW_LONGEST_S`:
a single slow one (a first decision loads the solver, on a busy machine for seconds) must not silence what follows.  A page
shows a resize within a second of its event, even if a change takes a fifth of a second to compute."""
_VIEW_LONGEST_S = 0.35
_MOST_VIEW_FRAMES = 2000
_VIEW_FRAMES_ROOM = 16 << 20


class _ViewFrame(NamedTuple):
    """A change from one sequence to another."""

    begin: int
    upto: int
    change: Change
    body: bytes


class ViewStream:
    """The view at the log's end, and its changes."""

    def __init__(self, follower: Follower, limits: Limits, newest: Callable[[], Newest]) -> None:
        """`newest`: what apps have reported beside the log."""
        self._follower = follower
        self._limits = limits
        self._newest = newest
        self._readers = Readers()
        self._open = 0
        """Streams, among them those that catch up."""
        self._changes: Changes | None = None
        self._upto = 0
        """Sequence of the last change; belongs to the state's thread."""
        self._outbox: deque[_ViewFrame] = deque()
        """Frames on the way from the state's thread to the loop, in order."""
        self._frames: deque[_ViewFrame] = deque()
        self._bytes = 0
        self._floor = 0
        self._position = 0
        follower.on_ready.append(self._begin)
        follower.on_restart.append(self.finish)

    # --- in the state's thread ------------------------------------------------------------------------------------------

    def _begin(self, state: State) -> None:
        self._changes = Changes(state, self._follower.decided, self._newest)
        self._follower.observers.append(self._changes.see)
        self._outbox.clear()
        self._upto = self._floor = self._position = state.seq

    def _step(self, state: State) -> None:
        assert self._changes is not None
        change = self._changes.take(state)
        if change is not None:
            body = frame(change.position, "change", msgspec.json.encode(change))
            self._outbox.append(_ViewFrame(self._upto, state.seq, change, body))
            self._upto = state.seq

    def view(self, state: State) -> View:
        """Return the present view; changes continue exactly there."""
        self._step(state)
        assert self._changes is not None
        return self._changes.view()

    # --- on the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pump(), name="pump")
            tasks.create_task(self._watch(), name="heartbeats")

    async def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        seen = -1
        while True:
            while self._follower.seq == seen:
                await self._follower.moved()
            seen, began = self._follower.seq, loop.time()
            if self._open and self._follower.ready:
                await self._follower.look(self._step, self._step.__qualname__)
                self.publish()
            await asyncio.sleep(min(max(_VIEW_PAUSE_S, 4 * (loop.time() - began)), _VIEW_LONGEST_S))

    def publish(self) -> None:
        """Hand on the changes that were taken."""
        while self._outbox:
            change = self._outbox.popleft()
            self._frames.append(change)
            self._bytes += len(change.body)
            self._position = change.upto
            self._readers.push(change.body)
        while len(self._frames) > _MOST_VIEW_FRAMES or self._bytes > _VIEW_FRAMES_ROOM:
            gone = self._frames.popleft()
            self._bytes -= len(gone.body)
            self._floor = gone.upto

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        beat = loop.time()
        while True:
            await asyncio.sleep(_CHECK_S)
            now = loop.time()
            self._readers.check(now)
            if now - beat >= self._limits.heartbeat_s:
                beat = now
                self._readers.push(HEARTBEAT)

    def finish(self) -> None:
        """End all streams gracefully."""
        self._readers.finish()
        self._frames.clear()
        self._bytes = 0

    async def serve(self, stream: Stream, after: Position | None) -> None:
        """Write the changes after a position, until the stream is over.  Raises ConnectionError, Unavailable."""
        self._open += 1
        try:
            await self._catch_up(stream, after)
            await stream.over()
        finally:
            self._open -= 1
            self._readers.drop(stream)

    async def _catch_up(self, stream: Stream, after: Position | None) -> None:
        if after is not None and after.seq > self._follower.seq and after.seq <= await self._follower.log.end():
            await self._follower.reach(after.seq, self._limits.behind_s)
        await self._follower.look(self._step, self._step.__qualname__)
        self.publish()
        position = self._position if after is None else after.seq
        while True:
            if not self._floor <= position <= self._position:
                position = self._position
                await stream.write([_reset(position)])
                continue
            waiting = [change for change in self._frames if change.upto > position]
            if not waiting:
                self._readers.add(stream)
                return
            await stream.write(_from(change, position) for change in waiting)
            position = waiting[-1].upto


def _reset(position: int) -> bytes:
    return frame(str(position), "reset", msgspec.json.encode({"position": str(position)}))


def _from(made: _ViewFrame, position: int) -> bytes:
    """Return a change for a reader that has seen a part of its records."""
    if made.begin >= position:
        return made.body
    records = [record for record in made.change.records if parse(record.position).seq > position]
    # What is left out is earlier than all that is listed: a reader that has seen some of these misses none of it.
    more = made.change.more_records if len(records) == len(made.change.records) else 0
    change = msgspec.structs.replace(made.change, records=records, more_records=more)
    return frame(change.position, "change", msgspec.json.encode(change))
