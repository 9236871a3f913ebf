"""A log and the stream of progress beside it, read as one.

Past records come in order of time. A reader that follows gets later records as they arrive from either stream.  A
place in both is the log's position and the stream's sequence, so a reader resumes exactly from the two, whatever the
clocks of their servers say.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from events.log.progress import EVERY
from events.log.records import LogRefused, LogUnavailable, Record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from events.log.interface import ReadableLog

_WAITING = 2
"""Batches that wait for the reader."""


class Piece(NamedTuple):
    """Consecutive records of one of the two."""

    records: Sequence[Record]
    beside: bool
    """Whether they are of the stream of progress."""


class Combined:
    """One reading of both: `async for piece in combined.pieces()`, once."""

    def __init__(
        self, log: ReadableLog, *, after: int, beside: int, subjects: Sequence[str] = (), app: str = EVERY,
        follow: bool = False, latest: int | None = None, beside_until: int | None = None,
    ) -> None:  # fmt: skip
        """It begins after a sequence of the log, and after one of the stream.  `subjects` are the patterns of the log's
        records; `app` restricts the stream to an app's id; `latest` ends it at a time (UTC ns), `beside_until` at a sequence
        of its own."""
        self._log = log
        self._after, self._beside = after, beside
        self._subjects, self._app = subjects, app
        self._follow, self._latest, self._beside_until = follow, latest, beside_until

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield existing records in order of time and, when following, later ones. Raises the errors of
        `ReadableLog.read`; an unreadable stream of progress is left out."""
        try:
            async with contextlib.aclosing(self._merged()) as merged:
                async for piece in merged:
                    self._note(piece)
                    yield piece
        except LogUnavailable:
            if not self._follow:
                raise
        if self._follow:
            async with contextlib.aclosing(self._arriving()) as arriving:
                async for piece in arriving:
                    yield piece

    def _note(self, piece: Piece) -> None:
        if piece.beside:
            self._beside = piece.records[-1].seq
        else:
            self._after = piece.records[-1].seq

    async def _merged(self) -> AsyncGenerator[Piece, None]:
        log = self._log.read(after=self._after, subjects=self._subjects)
        progress = self._progress(follow=False)
        async with contextlib.aclosing(log), contextlib.aclosing(progress):
            ours, theirs = await _next(log), await _next(progress)
            while ours or theirs:
                if not theirs or (ours and ours[0].time <= theirs[0].time):
                    taken = _upto(ours, theirs[0].time if theirs else None)
                    yield Piece(ours[:taken], beside=False)
                    ours = ours[taken:] or await _next(log)
                else:
                    taken = _before(theirs, ours[0].time if ours else None)
                    yield Piece(theirs[:taken], beside=True)
                    theirs = theirs[taken:] or await _next(progress)

    async def _progress(self, *, follow: bool) -> AsyncGenerator[list[Record], None]:
        with contextlib.suppress(LogRefused) if follow else contextlib.suppress(LogRefused, LogUnavailable):
            read = self._log.progress.read(after=self._beside, app=self._app, follow=follow)
            async with contextlib.aclosing(read) as batches:
                async for batch in batches:
                    wanted = [one for one in batch if self._within(one)]
                    if wanted:
                        yield wanted
                    if len(wanted) < len(batch):
                        return

    def _within(self, record: Record) -> bool:
        return (self._latest is None or record.time <= self._latest) and (
            self._beside_until is None or record.seq <= self._beside_until
        )

    async def _arriving(self) -> AsyncGenerator[Piece, None]:
        queue: asyncio.Queue[Piece | BaseException] = asyncio.Queue(_WAITING)

        async def pump(batches: AsyncGenerator[list[Record], None], *, beside: bool) -> None:
            try:
                async with contextlib.aclosing(batches) as found:
                    async for batch in found:
                        await queue.put(Piece(batch, beside))
            except Exception as error:  # For the reader, who may be waiting for the queue.
                await queue.put(error)

        log = self._log.read(after=self._after, subjects=self._subjects, follow=True)
        tasks = [
            asyncio.create_task(pump(log, beside=False)),
            asyncio.create_task(pump(self._progress(follow=True), beside=True)),
        ]
        try:
            while True:
                piece = await queue.get()
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _next(batches: AsyncIterator[list[Record]]) -> Sequence[Record]:
    return await anext(batches, [])


def _upto(records: Sequence[Record], time: int | None) -> int:
    """Return how many come first, up to a time."""
    return next((index for index, one in enumerate(records) if time is not None and one.time > time), len(records))


def _before(records: Sequence[Record], time: int | None) -> int:
    """Return how many come first, before a time; at least the first one does."""
    found = (index for index, one in enumerate(records) if index and time is not None and one.time >= time)
    return next(found, len(records))
