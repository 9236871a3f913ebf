"""Changes of the view as a stream: what a page that draws the present follows.

One observer of the fold knows what the last view had (`replay.page.changes`).  It is asked for changes only while
they are read.  A change replaces whole entries, so a reader that resumes between two changes takes the next one
without the records that it has seen.  One that was away for longer is told to fetch the view again (`reset`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.api.streams.sse import HEARTBEAT, Readers, frame
from events.positions import Position, parse
from replay.page.changes import Change, Changes

if TYPE_CHECKING:
    from dorm.api.follower import Follower
    from dorm.api.options import Limits
    from dorm.api.streams.sse import Stream
    from dorm.core.state import State
    from replay.page.view import View

_PAUSE_S = 0.1
"""Between two changes, at least; four times as long as one takes to compute if that is longer, at most `_LONGEST_S`: a
single slow one (a first decision loads the solver, on a busy machine for seconds) must not silence what follows.  A page shows
a resize within a second of its event, even if a change takes a fifth of a second to compute."""
_LONGEST_S = 0.35
_MOST_FRAMES = 2000
_FRAMES_ROOM = 16 << 20
_CHECK_S = 2.0


class _Frame(NamedTuple):
    """A change from one sequence to another."""

    begin: int
    upto: int
    change: Change
    body: bytes


class ViewStream:
    """The view at the log's end, and its changes."""

    def __init__(self, follower: Follower, limits: Limits) -> None:
        self._follower = follower
        self._limits = limits
        self._readers = Readers()
        self._open = 0
        """Streams, among them those that catch up."""
        self._changes: Changes | None = None
        self._upto = 0
        """In the state's thread: the sequence of the last change."""
        self._outbox: deque[_Frame] = deque()
        """From the state's thread to the loop, in order."""
        self._frames: deque[_Frame] = deque()
        self._bytes = 0
        self._floor = 0
        self._position = 0
        follower.on_ready.append(self._begin)
        follower.on_restart.append(self.finish)

    # --- in the state's thread ------------------------------------------------------------------------------------------

    def _begin(self, state: State) -> None:
        self._changes = Changes(state, self._follower.decided)
        self._follower.observers.append(self._changes.see)
        self._outbox.clear()
        self._upto = self._floor = self._position = state.seq

    def _step(self, state: State) -> None:
        assert self._changes is not None
        change = self._changes.take(state)
        if change is not None:
            body = frame(change.position, "change", msgspec.json.encode(change))
            self._outbox.append(_Frame(self._upto, state.seq, change, body))
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
            await asyncio.sleep(min(max(_PAUSE_S, 4 * (loop.time() - began)), _LONGEST_S))

    def publish(self) -> None:
        """Hand on the changes that were taken."""
        while self._outbox:
            one = self._outbox.popleft()
            self._frames.append(one)
            self._bytes += len(one.body)
            self._position = one.upto
            self._readers.push(one.body)
        while len(self._frames) > _MOST_FRAMES or self._bytes > _FRAMES_ROOM:
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
            waiting = [one for one in self._frames if one.upto > position]
            if not waiting:
                self._readers.add(stream)
                return
            await stream.write(_from(one, position) for one in waiting)
            position = waiting[-1].upto


def _reset(position: int) -> bytes:
    return frame(str(position), "reset", msgspec.json.encode({"position": str(position)}))


def _from(one: _Frame, position: int) -> bytes:
    """Return a change for a reader that has seen a part of its records."""
    if one.begin >= position:
        return one.body
    records = [record for record in one.change.records if parse(record.position).seq > position]
    # What is left out is earlier than all that is listed: a reader that has seen some of these misses none of it.
    more = one.change.more_records if len(records) == len(one.change.records) else 0
    change = msgspec.structs.replace(one.change, records=records, more_records=more)
    return frame(change.position, "change", msgspec.json.encode(change))
