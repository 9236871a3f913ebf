"""Events of a log in order, filtered, from any position: what `Client.events` and `dorm events` read.

An interrupted reader resumes exactly where it was, even within a round: pass `Tail.position` as `after` to continue.
The progress that lies beside the log comes between its records, by the order of the times.  The log handles outages
(`events.log.interface.ReadableLog.read`): a tail that follows outlives them, and sees every event once.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from collections import deque
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from dorm.core.query.concerns import KINDS, Concerns, is_id, known_kind
from dorm.core.snapshot import load
from events.errors import DormError
from events.kinds import AppProgressed
from events.log.interface import Combined, Piece, time_of
from events.log.records import LogRefused, LogUnavailable
from events.log.stores import EVERY_APP
from events.positions import Position, logged, logged_progress, parse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from events.log.interface import ReadableLog
    from events.positions import Logged

BEGIN = Position(0)
EVER = 2**63 - 1
"""A time that is later than all (UTC ns)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOW = 1000
"""Records in the first window that is searched for the last events."""
_WIDER = 8
_TRIES = 12
_PAUSE_S = 0.2


class TailError(DormError, ValueError):
    """What to read is not said clearly; the message is one line that says how to."""

    code = "tail.malformed"


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events: all given filters have to match, each by any of its values (`dorm.core.query.concerns`)."""

    kinds: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def concerns(self) -> Concerns:
        return Concerns(kinds=self.kinds, apps=self.apps, users=self.users, nodes=self.nodes)


class Tail:
    """One reading of a log, with the progress beside it: `async for logged in tail.events()`, once."""

    def __init__(
        self, log: ReadableLog, cluster: str, wanted: Filter, *, after: Position = BEGIN, until: int | None = None,
        latest: int | None = None, beside_until: int | None = None, follow: bool = False,
    ) -> None:  # fmt: skip
        """`until` is the last sequence to read; without it and without `follow`, reading ends at the log's end as of its
        start.  `latest` is the last time (UTC ns) that is read beside the log, by default, with `until`, the time of
        the log's record there; `beside_until` is the last sequence of it.  `cluster` may be `*` where the log is a
        file."""
        self._log, self._cluster, self._wanted = log, cluster, wanted
        self._follow = follow
        self._latest, self._beside_until = latest, beside_until
        self.until = until
        self.position = after
        """Everything up to here was yielded and the consumer came back for more, or it was filtered out."""

    async def events(self) -> AsyncGenerator[Logged, None]:
        """Yield the events.  Raises what `ReadableLog.read` raises.  To stop early, close the generator or drop it."""
        after = self.position
        # A round that was left in the middle is read again from its start: the filter learns from its first facts.
        first = after.seq if after.index is None else max(0, after.seq - 1)
        concerns = self._wanted.concerns()
        await self._learn_in_time(concerns, first)
        async with aclosing(self._pieces(concerns, first)) as pieces:
            async for piece in pieces:
                for record in piece.records:
                    if piece.beside:
                        event = logged_progress(record, self.position.seq)
                        if concerns.wants(event):
                            yield event
                        self.position = msgspec.structs.replace(self.position, beside=record.seq)
                        continue
                    if self.until is not None and record.seq > self.until:
                        break
                    for event in logged(record):
                        if concerns.wants(event) and not after.covers(event.position):
                            yield event
                        self._reach(after, event.position)
                    self._reach(after, Position(record.seq))
                reached = self.until is not None and not piece.beside and piece.records[-1].seq >= self.until
                if reached and self._latest is None:
                    return

    def _reach(self, after: Position, position: Position) -> None:
        if not after.covers(position):
            self.position = msgspec.structs.replace(position, beside=self.position.beside)

    async def _pieces(self, concerns: Concerns, first: int) -> AsyncGenerator[Piece, None]:
        """Yield records of the log after a sequence, with the progress beside it if the filter can want any."""
        subjects = concerns.subjects(self._cluster)
        progress = await self._beside()
        if progress is None:
            async with aclosing(self._log.read(after=first, subjects=subjects, follow=self._follow)) as batches:
                async for batch in batches:
                    yield Piece(batch, beside=False)
            return
        self.position = msgspec.structs.replace(self.position, beside=progress)
        latest = self._latest
        if latest is None and self.until is not None:
            latest = await time_of(self._log, self.until)
        app = self._wanted.apps[0] if len(self._wanted.apps) == 1 and is_id(self._wanted.apps[0]) else EVERY_APP
        both = Combined(
            self._log, after=first, beside=progress, subjects=subjects, app=app, follow=self._follow, latest=latest,
            beside_until=self._beside_until,
        )  # fmt: skip
        async with aclosing(both.pieces()) as pieces:
            async for piece in pieces:
                yield piece

    async def _beside(self) -> int | None:
        """Return the sequence after which to read the progress beside the log; None if none is wanted, or can be read."""
        if self._wanted.kinds and AppProgressed.__name__ not in self._wanted.kinds:
            return None
        after, progress = self.position, self._log.progress
        with contextlib.suppress(LogUnavailable, LogRefused):
            if after.beside is not None:
                return after.beside
            if not await progress.end():
                return 0 if self._follow else None
            return (
                await progress.at_time(await time_of(self._log, after.seq))
                if after.seq > await self._log.start()
                else 0
            )
        return 0 if self._follow else None

    async def _learn_in_time(self, concerns: Concerns, upto: int) -> None:
        """Learn, retrying through an outage when following; learning the same twice is harmless."""
        for _ in range(_TRIES if self._follow else 0):
            with contextlib.suppress(LogUnavailable):
                return await self._learn(concerns, upto)
            await asyncio.sleep(_PAUSE_S)
        await self._learn(concerns, upto)

    async def _learn(self, concerns: Concerns, upto: int) -> None:
        """Feed the filter with the earlier events that it depends on, up to a sequence."""
        known = concerns.knowledge(self._cluster)
        if not known or not upto:
            return
        begin = max(await self._log.start(), await self._start_from_snapshot(concerns, upto))
        async with aclosing(self._log.read(after=begin, subjects=known)) as batches:
            async for batch in batches:
                for record in batch:
                    if record.seq > upto:
                        return
                    for event in logged(record):
                        concerns.wants(event)

    async def _start_from_snapshot(self, concerns: Concerns, upto: int) -> int:
        """Start from the latest snapshot that is not beyond `upto`; return its sequence, 0 if none can be read.

        A snapshot of any build will do: the filter takes only the apps' owners and nodes from it."""
        snapshots = self._log.snapshots
        for info in reversed([info for info in await snapshots.infos() if info.seq <= upto]):
            snapshot = await snapshots.fetch(info)
            state = await asyncio.to_thread(load, *snapshot, build=None) if snapshot is not None else None
            if state is not None:
                concerns.know(state)
                return info.seq
        return 0


async def before_last(
    log: ReadableLog, cluster: str, wanted: Filter, count: int, end: int, latest: int | None = None
) -> Position:
    """Return the position after which there are `count` matching events up to the sequence `end` (`latest` as for `Tail`); the
    start of the log if there are fewer.  Reads backwards in growing windows, so the last few of a long log are found
    fast."""
    begin = await log.start()
    window = max(_WINDOW, count)
    while count:
        first = max(begin, end - window)
        last: deque[Position] = deque(maxlen=count + 1)
        async with aclosing(
            Tail(log, cluster, wanted, after=Position(first), until=end, latest=latest).events()
        ) as events:
            async for logged in events:
                last.append(logged.position)
        if len(last) > count:
            return last[0]
        if first == begin:
            return Position(begin)
        window *= _WIDER
    return Position(end)


async def begin(log: ReadableLog, after: Position | str | int | None, since: datetime | timedelta | None) -> Position:
    """Return the position to start after, given as one or by log time.  Raises TailError, PositionError."""
    if after is not None and since is not None:
        raise TailError("start from a position or from a time, not from both", code="tail.begin.given_twice")
    if after is not None:
        return after if isinstance(after, Position) else parse(str(after))
    if since is None:
        return Position(await log.start())
    if isinstance(since, timedelta):
        return await at_time(log, await time_of(log, await log.end()) - since // timedelta(microseconds=1) * 1000)
    if since.tzinfo is None:
        raise TailError("the time has no time zone; pass one, as in datetime.now(UTC)", code="tail.since.no_zone")
    return await at_time(log, (since - _EPOCH) // timedelta(microseconds=1) * 1000)


async def at_time(log: ReadableLog, time: int) -> Position:
    """Return the position before the first record at or after this log time (UTC nanoseconds)."""
    return Position(await log.at_time(time - 1))


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises TailError for an unknown kind, with similar names."""
    for kind in kinds:
        if not known_kind(kind):
            near = (
                difflib.get_close_matches(kind, KINDS, n=3)
                or [known for known in KINDS if kind.lower() in known.lower()][:3]
            )
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(KINDS)}"
            raise TailError(f"there is no kind of event {kind!r}{hint}", code="tail.kind.unknown")
