"""The state at a moment of a log, folded from its begin and always from what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from dorm.core.evolve import evolve
from dorm.core.state import State
from events.kinds import Event
from events.log import Record
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log import EventLog
    from replay import Progress
    from replay.moments import Moment

Seen = Callable[[State, Record, Event], None]
"""Told of each record, after it was folded: the state with it, and the event that it held."""


async def state_at(
    log: EventLog, moment: Moment | None = None, *, progress: Progress | None = None, seen: Seen | None = None
) -> State:
    """The state at a moment, without one at the log's end.  `seen` is shown each record as it is folded.

    Raises MomentError where the log ends before a sequence, what `log.read` raises, and GapError for a log whose
    sequences are not 1, 2, 3, …
    """
    end = await log.end()
    last, latest = await _bounds(log, end, moment)
    state = State()
    if last == 0:
        return state
    async with aclosing(log.read()) as batches:
        async for batch in batches:
            reached = await asyncio.to_thread(fold, state, batch, last, latest, seen)
            if progress:
                progress(state.seq, last)
            if reached:
                break
    return state


def fold(
    state: State, records: Sequence[Record], last: int, latest: int | None = None, seen: Seen | None = None
) -> bool:
    """Fold records up to the sequence `last` or the log time `latest`; true where one of them was reached.

    Log time never goes back in a state, so what follows a record that is too late is too late as well.
    """
    for record in records:
        if record.seq > last or (latest is not None and record.time > latest):
            return True
        event = evolve(state, record)
        if seen:
            seen(state, record, event)
    return state.seq >= last


async def _bounds(log: EventLog, end: int, moment: Moment | None) -> tuple[int, int | None]:
    """The last sequence and the latest log time to fold."""
    if isinstance(moment, AtSequence):
        if moment.seq > end:
            raise MomentError(f"the log ends at {end}, before {moment.seq}")
        return moment.seq, None
    if isinstance(moment, AtTime):
        return end, moment.time
    if isinstance(moment, BeforeEnd):
        return end, await _time_of(log, end) - moment.span
    return end, None


async def _time_of(log: EventLog, seq: int) -> int:
    """Log time of a record, 0 where there is none."""
    if seq:
        async with aclosing(log.read(after=seq - 1)) as batches:
            async for batch in batches:
                return batch[0].time
    return 0
