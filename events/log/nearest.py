"""Choose the snapshot to fold from: the nearest one at or before a moment that belongs to this log."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from events.log.records import Archived, LogError
from events.log.snapshots import identity
from events.logger import Logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.log.interface import ReadableLog
    from events.log.snapshots import SnapshotInfo, Snapshots

Loaded = TypeVar("Loaded")
_log = Logger(__name__)


async def nearest(
    log: ReadableLog,
    *,
    upto: int,
    latest: int | None = None,
    core: int,
    build: str,
    load: Callable[[SnapshotInfo, bytes], Loaded | None],
    drop_foreign_from: Snapshots | None = None,
) -> tuple[SnapshotInfo, Loaded] | None:
    """Return the newest snapshot of the log's part with record `upto` that is no later than this sequence and the log time
    `latest`, and what `load` makes of it (called in a thread; None refuses).  Return None if no snapshot is usable, for any
    reason: the log is then folded from the start, which takes longer and is never wrong.

    Snapshots of another `core` or `build` are skipped, except the one at the start of a part of a log: nothing else can be
    folded from there, so `load` decides; if a master has signed one, no other counts there.  The log's owner passes the
    store as `drop_foreign_from`: snapshots of another log or beyond this one's end are dropped from it.

    Raises LogUnavailable and LogRefused if the log's start is unknown, or only a snapshot leads past it.
    """
    while True:
        try:
            return await _nearest(await log.part_at(upto), upto, latest, (core, build), load, drop_foreign_from)
        except Archived:  # A rotation has removed the start since.
            if await log.start() >= upto:
                raise


async def _nearest(
    log: ReadableLog, upto: int, latest: int | None, fitting: tuple[int, str],
    load: Callable[[SnapshotInfo, bytes], Loaded | None], drop_foreign_from: Snapshots | None,
) -> tuple[SnapshotInfo, Loaded] | None:  # fmt: skip
    start, base = await log.start(), await log.base()
    try:
        infos = await log.snapshots.infos()
        for info in reversed(infos):
            if drop_foreign_from is not None and info.seq > upto:
                await drop_foreign_from.drop(info)
            fits = (info.core, info.build) == fitting or (0 < start == info.seq)
            if not fits or not start <= info.seq <= upto or (latest is not None and info.time > latest):
                continue
            if info.seq == start and base not in ("", info.content):
                _log.warning("a snapshot is not the one that a master has signed", seq=info.seq)
                continue
            if not await _is_of(log, info, start):
                _log.debug("a snapshot of another log", seq=info.seq)
                if drop_foreign_from is not None:
                    await drop_foreign_from.drop(info)
                continue
            found = await log.snapshots.fetch(info)
            loaded = None if found is None else await asyncio.to_thread(load, *found)
            if found is not None and loaded is not None:
                return found[0], loaded
            _log.debug("a snapshot is of no use", seq=info.seq, there=found is not None)
    except LogError as error:
        if start or isinstance(error, Archived):
            raise
        _log.debug("snapshots can't be read", reason=str(error))
    return None


async def _is_of(log: ReadableLog, info: SnapshotInfo, start: int) -> bool:
    """Return whether the log holds the record after which the snapshot was taken."""
    if not info.record or info.seq == start:
        return True
    async with contextlib.aclosing(log.read(after=info.seq - 1)) as batches:
        async for batch in batches:
            return batch[0].seq == info.seq and identity(batch[0]) == info.record
    return False
