"""The state at a moment of a log, always from its records: the nearest snapshot before it, and a short fold from there.

A snapshot is used only if this very build would have folded the same (`dorm.core.snapshot`); otherwise an earlier one, or the
log's start.  So snapshots affect the duration, never the result.

What apps report is beside the log, and `reported_at` finds the reports of a moment: `ps` and others lay them over the state at
that moment, as they do for the present.  The log has a mark of each working app about once a minute, so the reports of the
last minute before the moment have everything newer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from dorm.core.evolve import evolve
from dorm.core.folded import Folded
from dorm.core.progress import newest_of
from dorm.core.snapshot import FOLDED_BY, load
from dorm.core.state import SCHEMA, State
from events.log.interface import nearest, time_of
from events.log.records import LogRefused, LogUnavailable, Record
from events.log.stores import upto
from events.quantities import SECOND
from events.sources import fingerprint
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError, not_in_log, time_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.progress import Newest
    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.moments import Moment


# --- states -----------------------------------------------------------------------------------------------------------

Seen = Callable[[State, Record, Folded], None]
"""Function that is called with each record after it was folded: the state after it, the record, and what the fold did."""


async def state_at(
    log: ReadableLog, moment: Moment | None = None, *, progress: Progress | None = None, seen: Seen | None = None
) -> State:
    """Return the state at a moment, by default at the log's end.  `seen` is called with each record as it is folded, from the
    log's first one on, so no later snapshot is used.

    Raises MomentError if the log does not reach the moment or starts after it, what `log.read` raises, and GapError for a log
    whose sequences are not 1, 2, 3, …
    """
    last, latest = await _bounds(log, await log.end(), moment)
    state = await _base(log, await log.start() if seen else last, latest)
    await fold_on(log, state, last, latest, progress=progress, seen=seen)
    return state


async def fold_on(
    log: ReadableLog,
    state: State,
    last: int,
    latest: int | None = None,
    *,
    progress: Progress | None = None,
    seen: Seen | None = None,
) -> None:
    """Fold a state of this log forward, in place, to the sequence `last` or the log time `latest`.  Raises as `state_at`."""
    first = state.seq
    if first >= last:
        return
    async with aclosing(log.read(after=first)) as batches:
        async for batch in batches:
            reached = await asyncio.to_thread(fold, state, batch, last, latest, seen)
            if progress:
                progress(state.seq - first, last - first)
            if reached:
                break


async def _base(log: ReadableLog, last: int, latest: int | None) -> State:
    """Return the state to fold from."""
    # `nearest` rejects snapshots by their build; the one at the start of a part of a log is accepted from any build.
    trusting = partial(load, build=None)
    snapshot = await nearest(log, upto=last, latest=latest, core=SCHEMA, build=fingerprint(*FOLDED_BY), load=trusting)
    if snapshot is not None:
        return snapshot[1]
    start = await log.start()
    if start == 0:
        return State()
    first = next((info for info in await log.snapshots.infos() if info.seq == start), None)
    if first is not None and latest is not None and first.time > latest:
        text = f"this part of a log starts after sequence {start}, which is later than this moment"
        raise MomentError(text, code="moment.before_start")
    text = f"this part of a log starts after sequence {start}, and the state there "
    if first is None or first.core == SCHEMA:
        raise MomentError(f"{text}can't be read", code="snapshot.missing")
    raise MomentError(f"{text}has version {first.core}; this build reads {SCHEMA}", code="snapshot.other_version")


def fold(
    state: State, records: Sequence[Record], last: int, latest: int | None = None, seen: Seen | None = None
) -> bool:
    """Fold records up to the sequence `last` or the log time `latest`; return whether one of them was reached.

    Log time never goes back in a state, so once a record is too late, all later ones are too.
    """
    if seen is None and latest is None and records and records[-1].seq <= last:
        # Nearly all batches of a long log: nothing to check for each record.
        for record in records:
            evolve(state, record)
        return state.seq >= last
    for record in records:
        if record.seq > last or (latest is not None and record.time > latest):
            return True
        folded = evolve(state, record)
        if seen:
            seen(state, record, folded)
    return state.seq >= last


async def _bounds(log: ReadableLog, end: int, moment: Moment | None) -> tuple[int, int | None]:
    """Return the last sequence and the latest log time to fold."""
    if isinstance(moment, AtSequence):
        if moment.seq > end:
            raise MomentError(f"the log ends at {end}, before {moment.seq}", code="moment.after_end")
        if moment.seq < (start := await log.start()):
            text = f"this part of a log starts after sequence {start}, so {moment.seq} is not in it"
            raise MomentError(text, code="moment.before_start")
        return moment.seq, None
    if isinstance(moment, AtTime):
        return end, moment.time
    if isinstance(moment, BeforeEnd):
        return end, await time_at(log, moment, end)
    return end, None


async def clock_of(log: ReadableLog, moment: AtSequence | AtTime) -> int:
    """Return the time of a moment (`replay.moments.parse_clock`), UTC ns.  Raises MomentError for a record not on the log."""
    if isinstance(moment, AtTime):
        return moment.time
    start, end = await log.start(), await log.end()
    if not start < moment.seq <= end:
        raise not_in_log(moment.seq, start, end)
    return await time_of(log, moment.seq)


# --- reports ----------------------------------------------------------------------------------------------------------

_MARK_S = 65
"""Seconds within which the log has a mark of a working app (`agents.progress`)."""
_PATIENCE_S = 10.0


async def reported_at(log: ReadableLog, state: State, moment: Moment | None) -> Newest:
    """Return the newest report of each app at a moment, by default now; empty if the stream can't be read."""
    with contextlib.suppress(LogUnavailable, LogRefused, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            if moment is None:
                return newest_of(await log.progress.newest())
            time = state.time
            if not isinstance(moment, AtSequence):
                time = await time_at(log, moment)
            return newest_of(await upto(log.progress, time, time - _MARK_S * SECOND))
    return {}
