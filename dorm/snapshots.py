"""Snapshots of a cluster's log: which one to start from, and when the master takes another.

The state is copied between two records, where it is consistent; checking, compressing and storing the copy run next to the
fold.  At most one snapshot is in progress: while a store is slow or unavailable, fewer are taken and nothing waits for it.
Snapshots only save time, so a missing one is logged and is not an error.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from dorm.core.snapshot import FOLDED_BY, Copy, copy, load, pack
from dorm.core.state import SCHEMA
from events.log.interface import nearest
from events.log.records import LogError
from events.log.stores import SNAPSHOT_EVERY, SnapshotInfo, identity, surplus
from events.logger import Logger
from events.sources import fingerprint

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.interface import EventLog, ReadableLog
    from events.log.records import Record
    from events.log.stores import Snapshots

QUIET_EVERY = 1000
"""Records after which one is taken while the log is quiet: folding fewer takes no time worth saving."""

_log = Logger(__name__)


async def newest(log: ReadableLog, *, drop_foreign_from: Snapshots | None = None) -> tuple[SnapshotInfo, State] | None:
    """Return the state to start from instead of the start of the log, or None.  Snapshots of other logs are skipped; the
    log's owner passes the store to drop them from (`drop_foreign_from`).  Raises LogUnavailable, LogRefused."""
    # `nearest` rejects snapshots by their build; the one at a cut of the log, which a master signed, counts from any build.
    return await nearest(
        log,
        upto=await log.end(),
        core=SCHEMA,
        build=fingerprint(*FOLDED_BY),
        load=partial(load, build=None),
        drop_foreign_from=drop_foreign_from,
    )


async def drop_surplus(log: EventLog) -> None:
    """Drop the snapshots that are not worth their room.  Those where the stream begins, and where it will once what
    is archived has been removed, stay: nothing else can be folded from there.  Raises LogUnavailable, LogRefused."""
    start = await (await log.part_at(await log.end())).start()
    cut = await log.cut()
    kept = {start, cut.upto if cut is not None else start}
    for old in surplus(await log.snapshots.infos(), start=start, kept=kept):
        await log.snapshots.drop(old)


class SnapshotTaker:
    """Takes snapshots for a process that folds one log from start to end and follows it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._build = fingerprint(*FOLDED_BY)
        self._latest = 0
        """Sequence of the latest one, stored or in progress."""
        self._waiting: asyncio.Queue[tuple[Copy, str, str]] = asyncio.Queue(1)
        self._busy = False

    async def newest(self) -> tuple[SnapshotInfo, State] | None:
        """Return the state to start from, as `newest`, for the log's owner."""
        latest = await newest(self._log, drop_foreign_from=self._log.snapshots)
        self._latest = latest[0].seq if latest else 0
        return latest

    def offer(self, state: State, last: Record, *, chain: str = "", quiet: bool = False) -> None:
        """Take a snapshot if one is due.  `last` is the record that was folded last, `chain` the log's hash chain after it;
        `quiet`: the log is quiet."""
        if self._busy or state.seq - self._latest < (QUIET_EVERY if quiet else SNAPSHOT_EVERY):
            return
        self._latest, self._busy = state.seq, True
        self._waiting.put_nowait((copy(state), chain, identity(last)))

    async def run(self) -> None:
        """Store snapshots as they are taken, until cancelled."""
        while True:
            taken, chain, record = await self._waiting.get()
            try:
                await self._store(taken, chain, record)
            except LogError as error:
                _log.warning("a snapshot could not be stored", seq=taken.seq, reason=str(error))
            finally:
                self._busy = False

    async def _store(self, taken: Copy, chain: str, record: str) -> None:
        info, body = await asyncio.to_thread(pack, taken, build=self._build, chain=chain, record=record)
        if await asyncio.to_thread(load, info, body, build=self._build) is None:
            _log.error("a snapshot does not give back its state, please report this", seq=taken.seq, digest=info.digest)
            return
        await self._log.snapshots.put(info, body)
        await drop_surplus(self._log)
        _log.debug("snapshot", seq=info.seq, state_bytes=len(taken.encoded), bytes=info.size)
