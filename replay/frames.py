"""Snapshots for an archive, made while it is written, so a reader of the archive reaches any moment quickly.

If the log has snapshots of its own that lie close enough together, these are copied.  Otherwise the records are folded, with a
snapshot every `EVERY` records.  Folding that many takes a quarter of a second, which bounds the time to reach a moment of the
past, and a snapshot is small compared with the records between two of them.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import msgspec

from dorm.core.evolve import GapError, evolve
from dorm.core.snapshot import FOLDED_BY, dump, load
from dorm.core.state import SCHEMA, State
from events.chain import Chain
from events.log.interface import nearest
from events.log.records import LogDamaged
from events.log.stores import SnapshotInfo, identity
from events.sources import fingerprint
from replay.whole_file import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.interface import EventLog, ReadableLog
    from events.log.records import Record
    from replay import Progress

EVERY = 100_000


Snapshot = tuple[SnapshotInfo, bytes]


class Frames(Protocol):
    """Snapshots along the records of an archive."""

    async def due(self, records: Sequence[Record]) -> list[Snapshot]:
        """Return the snapshots at the sequences of the next records, in order.  Raises LogDamaged for a gap in sequences."""
        ...


class NoFrames(Frames):
    async def due(self, records: Sequence[Record]) -> list[Snapshot]:
        return []


class FoldedFrames(Frames):
    """Snapshots made by folding from the state before the first record."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def due(self, records: Sequence[Record]) -> list[Snapshot]:
        return await in_thread(self._fold, records)

    def _fold(self, records: Sequence[Record]) -> list[Snapshot]:
        due = []
        for record in records:
            try:
                evolve(self._state, record)
            except GapError as error:
                raise LogDamaged(str(error)) from None
            if record.seq % EVERY == 0:
                due.append(dump(self._state, build=build()))
        return due


class TakenFrames(Frames):
    """Copies of the log's own snapshots."""

    def __init__(self, log: ReadableLog, infos: Sequence[SnapshotInfo]) -> None:
        self._log = log
        self._left = deque(infos)

    async def due(self, records: Sequence[Record]) -> list[Snapshot]:
        due = []
        while self._left and self._left[0].seq <= records[-1].seq:
            info = self._left.popleft()
            body = await self._log.snapshots.fetch(info)
            if body is not None:
                due.append(body)
        return due


def build() -> str:
    """Return the fingerprint of the sources that fold here, as snapshots record it."""
    return fingerprint(*FOLDED_BY)


async def state_after(log: ReadableLog, seq: int, progress: Progress | None = None) -> tuple[State, str]:
    """Return the state after a record, and the log's hash chain there ('' if unknown).  Raises what `log.read` raises, and
    GapError."""
    nearest_snapshot = await nearest(
        log, upto=seq, core=SCHEMA, build=build(),
        load=partial(load, build=None),  # `nearest` rejects other builds, except at the start of a part.
    )  # fmt: skip
    state, chain = State(), Chain()
    if nearest_snapshot is not None:
        info, state = nearest_snapshot
        chain = Chain(info.seq, bytes.fromhex(info.chain))
    known = nearest_snapshot is None or bool(nearest_snapshot[0].chain)

    def take(batch: Sequence[Record]) -> None:
        for record in batch:
            if record.seq > seq:
                return
            evolve(state, record)
            if known:
                chain.follow(record)
                chain.forget(record.seq)

    if state.seq < seq:
        async with aclosing(log.read(after=state.seq)) as batches:
            async for batch in batches:
                await in_thread(take, batch)
                if progress:
                    progress(state.seq, seq)
                if state.seq >= seq:
                    break
    return state, chain.value.hex() if known else ""


async def own_snapshots(log: ReadableLog, after: int, end: int) -> list[SnapshotInfo] | None:
    """Return the log's own snapshots in a range if they lie close enough to make folding unnecessary; else None."""
    infos = [info for info in await log.snapshots.infos() if after < info.seq <= end]
    infos = [info for info in infos if (info.core, info.build) == (SCHEMA, build())]
    last, chosen = after, []
    for index, info in enumerate(infos):
        if index == len(infos) - 1 or infos[index + 1].seq - last > EVERY:
            chosen.append(info)
            last = info.seq
    apart = max(b - a for a, b in pairwise([after, *(info.seq for info in chosen), end]))
    return chosen if apart <= EVERY + EVERY // 2 else None


async def leave_snapshot(log: EventLog, progress: Progress | None = None) -> State:
    """Fold a log up to its present end, and store the state among its snapshots, so the next reader need not fold it.

    This is for a copy: snapshots of the original are claims about its records, and only the records count.
    Raises what `log.read` raises, and GapError."""
    end = await log.end()
    state, chain = await state_after(log, end, progress)
    last = await log.record_at(end)
    if last is not None:
        info, body = await in_thread(partial(dump, state, build=build(), chain=chain))
        await log.snapshots.put(msgspec.structs.replace(info, record=identity(last)), body)
    return state
