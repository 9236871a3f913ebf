"""A part of a log as the dashboard plays it offline: the first view, everything that changes after it, the span of time, and
what happened to single apps and nodes.

One fold gives the cluster, a second one the stories (`stories`).  A recording has bounds: on a long log or a large
cluster one change stands for several records, reports of progress are thinned, and a note lists the omissions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from events import kinds as k
from events.codec import decode
from events.log.interface import time_of
from events.log.records import LogRefused, LogUnavailable
from replay.moments import AtSequence, MomentError, not_in_log
from replay.page.changes import Change, Changes
from replay.page.stories import Stories, stories
from replay.page.timeline import WIDEST, TimelineView, timeline
from replay.page.view import View, decision_in
from replay.timeline.fold import Watcher
from replay.travel import fold, state_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from events.positions import Logged
    from replay import Progress
    from replay.moments import Moment
    from replay.timeline.lanes import Timeline

MOST_CHANGES = 20_000
"""Most changes of a recording; on large clusters fewer, since each may touch every app and node."""
MOST_WORK = 40_000_000
"""Changes times apps and nodes."""
MOST_RECORDS = 60_000
"""Most records that a recording lists; beyond them reports of progress and checkpoints are left out, then the earliest."""
MOST_POINTS = 400
"""Most points of an app's progress."""
MOST_LANES = 2000
_BULK = frozenset(("AppProgressed", "AppCheckpointed", "EpochCompleted", "ContainersPrepared"))


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One report of progress."""

    at: float
    """Milliseconds since 1970."""
    step: int
    loss: float | None = None
    samples_per_s: float | None = None


class Points(msgspec.Struct, frozen=True):
    points: list[Point]


class Recording(msgspec.Struct, frozen=True):
    """The contents of an offline page."""

    title: str
    first: View
    changes: list[Change]
    timeline: TimelineView
    progress: dict[str, Points]
    """Points by the app's id."""
    stories: Stories
    notes: list[str]
    """The omissions, in sentences."""


async def record(
    log: ReadableLog,
    title: str,
    since: Moment | None = None,
    until: Moment | None = None,
    *,
    progress: Progress | None = None,
) -> Recording:
    """Return the log between two moments, by default all of it.

    Raises MomentError for a moment that the log does not reach or an end before the start, what `log.read` raises, and
    GapError."""
    end = await log.end()
    begin = await _place(log, since, await log.start())
    last = await _place(log, until, end)
    if last < begin:
        raise MomentError(f"the end, sequence {last}, is before the start, {begin}", code="moment.end_before_start")
    state = await state_at(log, AtSequence(begin), progress=progress)
    seen = _Seen(state, await _decided(log, state), last)
    if last > begin:
        async with aclosing(log.read(after=begin)) as batches:
            async for batch in batches:
                reached = await asyncio.to_thread(seen.fold, state, batch)
                if progress:
                    progress(state.seq, last)
                if reached:
                    break
    await _beside(log, seen, begin, None if until is None else last)
    picture = await asyncio.to_thread(seen.picture, state)
    story_texts = await stories(log, begin, last, picture, progress=progress)
    return await asyncio.to_thread(seen.done, picture, story_texts, title)


async def _beside(log: ReadableLog, seen: _Seen, begin: int, last: int | None) -> None:
    """Hand on the apps' reports between two marks; a stream that can't be read is left out."""
    with contextlib.suppress(LogUnavailable, LogRefused):
        after = await log.progress.at_time(await time_of(log, begin)) if begin else 0
        latest = await time_of(log, last) if last is not None else None
        async with aclosing(log.progress.read(after=after)) as batches:
            async for batch in batches:
                seen.beside([record for record in batch if latest is None or record.time <= latest])


async def _place(log: ReadableLog, moment: Moment | None, otherwise: int) -> int:
    if moment is None:
        return otherwise
    if not isinstance(moment, AtSequence):
        return (await state_at(log, moment)).seq
    start, end = await log.start(), await log.end()
    if not start <= moment.seq <= end:
        raise not_in_log(moment.seq, start, end)
    return moment.seq


async def _decided(log: ReadableLog, state: State) -> Logged | None:
    """Return the last decision before a state, None if the log no longer holds it."""
    seq = state.figures.seq
    if not seq or seq <= await log.start():
        return None
    record = await log.record_at(seq)
    return decision_in(record) if record is not None else None


class _Seen:
    """Observes the fold for everything that a recording holds."""

    def __init__(self, state: State, decided: Logged | None, last: int) -> None:
        self._last = last
        self._from = state.seq
        self._changes = Changes(state, decided)
        self._watcher = Watcher(state)
        self._first = self._changes.view()
        self._taken: list[Change] = []
        self._since = 0
        self._every = 1
        self._points: dict[str, list[Point]] = {}
        self._strides: dict[str, list[int]] = {}
        """Numbers by app: one report in how many is kept, and how many came since the last that was."""

    def fold(self, state: State, batch: Sequence[Record]) -> bool:
        # The cluster grows while it is read, so the number of records in a change is chosen batch by batch.
        size = len(state.apps) + len(state.nodes) + 1
        most = max(min(MOST_CHANGES, MOST_WORK // size), 200)
        self._every = max(self._every, -(-(self._last - self._from) // most))
        reached = fold(state, batch, self._last, seen=self._see)
        self._watcher.keep_within_bounds()
        return reached

    def _see(self, state: State, record: Record, folded: Folded) -> None:
        event = folded.event
        self._changes.see(state, record, folded)
        self._watcher.see(state, record, folded)
        if isinstance(event, k.AppProgressed) and folded.outcome == "applied":
            self._progressed(event, record.time)
        self._since += 1
        if self._since >= self._every or record.seq == self._last:
            self._since = 0
            change = self._changes.take(state)
            if change is not None:
                self._taken.append(change)

    def _progressed(self, event: k.AppProgressed, time: int) -> None:
        points = self._points.setdefault(event.app, [])
        stride = self._strides.setdefault(event.app, [1, 0])
        stride[1] += 1
        if stride[1] < stride[0]:
            return
        stride[1] = 0
        points.append(Point(time / 1e6, event.step, event.loss, event.samples_per_s))
        if len(points) > MOST_POINTS:
            del points[1::2]
            stride[0] *= 2

    def beside(self, records: Sequence[Record]) -> None:
        """Take the apps' reports between two marks."""
        for record in records:
            event = decode(record)
            if isinstance(event, k.AppProgressed):
                self._progressed(event, record.time)

    def picture(self, state: State) -> Timeline:
        return self._watcher.done(state)

    def done(self, picture: Timeline, story_texts: Stories, title: str) -> Recording:
        notes = []
        if self._every > 1:
            notes.append(f"Moments are {self._every} records apart, since there are so many.")
        changes, left_out = _listed(self._taken)
        if left_out:
            notes.append(left_out)
        return Recording(
            title=title,
            first=self._first,
            changes=changes,
            timeline=_all_pages(picture),
            progress={app: Points(sorted(points, key=lambda point: point.at)) for app, points in self._points.items()},
            stories=story_texts,
            notes=[*notes, *picture.notes, *story_texts.notes],
        )


def _all_pages(picture: Timeline) -> TimelineView:
    """Return the whole picture, with the apps of every page."""
    first = timeline(picture, width=WIDEST)
    apps, after = list(first.apps), first.next
    while after is not None and len(apps) < MOST_LANES:
        page = timeline(picture, width=WIDEST, page=after)
        apps += page.apps
        after = page.next
    return msgspec.structs.replace(first, apps=apps, next=None)


def _listed(changes: list[Change]) -> tuple[list[Change], str]:
    """Leave out records until few enough are listed; the figures of every moment stay."""
    counted = Counter(entry.kind for change in changes for entry in change.records)
    total = sum(counted.values())
    more = sum(change.more_records for change in changes)
    if total <= MOST_RECORDS:
        return changes, f"{more} records are only counted." if more else ""
    bulk = sum(count for kind, count in counted.items() if kind in _BULK)
    drop = max(0, total - bulk - MOST_RECORDS)
    parts = [f"{bulk} reports of progress"] + ([f"the first {drop} of the other records"] if drop else [])
    listed = []
    for change in changes:
        kept = [entry for entry in change.records if entry.kind not in _BULK]
        away = min(drop, len(kept))
        drop -= away
        gone = len(change.records) - len(kept) + away
        listed.append(
            msgspec.structs.replace(change, records=kept[away:], more_records=change.more_records + gone)
            if gone
            else change
        )
    return listed, f"Not listed: {' and '.join(parts)}."
