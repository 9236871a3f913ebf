"""Folds a cluster's log in the background of a process, for the metrics of the cluster.

The fold runs in threads, batch by batch, with its own state: a master's loop never waits for it, and nothing that it does
can end the process.  The tally is kept in a file, with the record that it belongs to.  After a restart the fold starts at a
snapshot at or before that record and counts what comes after it, so counters go on as if nothing had happened.  Without the
file, or if the log no longer has that record, counting starts at the newest snapshot (`dorm_counted_from_sequence`).
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dorm.core.fold.evolve import GapError, evolve
from dorm.core.snapshot import FOLDED_BY, load
from dorm.core.state import SCHEMA, State
from dorm.metrics.cluster import LogFigures, cluster_metrics, log_metrics
from dorm.metrics.tally import Tally
from events.durable import write_whole
from events.log.interface import nearest
from events.log.records import LogClosed, LogError, until_answered
from events.log.stores import identity
from events.logger import Logger
from events.sources import fingerprint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from prometheus_client import Metric

    from events.log.interface import ReadableLog
    from events.log.records import Record
    from events.nats.settings import Room

VERSION = 1
"""Of the file: raised when what is counted changes, so that counters of two meanings are never added."""
_SAVE_S = 15.0
_ASK_S = 2.0
_AGAIN_S = 5.0
_log = Logger(__name__)
Given = TypeVar("Given")
Made = TypeVar("Made")


class Kept(msgspec.Struct, frozen=True):
    """The file."""

    version: int
    record: str
    """Identity of the last record that was counted; "" before the first."""
    tally: Tally


class Follower:
    """One cluster's figures in one process.  `file` keeps the tally, None keeps it in memory;  `clock` returns UTC ns;
    `room` returns how many bytes the log uses, and may use."""

    def __init__(
        self,
        log: ReadableLog,
        *,
        file: Path | None,
        clock: Callable[[], int],
        room: Callable[[], Awaitable[Room]] | None = None,
    ) -> None:
        self._log = log
        self._file = file
        self._clock = clock
        self._room = room
        self._state = State()
        self._tally = Tally()
        self._record = ""
        self._lock = asyncio.Lock()
        """Held while the state changes or is read, since both happen in threads."""
        self.ready = asyncio.Event()
        """Set once everything that the log held at the start is counted."""

    async def run(self) -> None:
        """Follow the log until cancelled.  A log that cannot be folded is logged, and tried again."""
        closed = False
        while not closed:
            try:
                await until_answered(self._open, "reading the log's end for the metrics")
                async with asyncio.TaskGroup() as tasks:
                    saving = tasks.create_task(self._save_at_times())
                    await self._follow()
                    saving.cancel()
            except* LogClosed:
                closed = True
            except* (LogError, GapError) as errors:
                _log.error("the metrics do not follow the log", reason=str(errors.exceptions[0]))
            except* Exception:
                _log.exception("the metrics do not follow the log; please report this")
            self.ready.clear()
            await asyncio.sleep(_AGAIN_S)

    async def metrics(self) -> list[Metric]:
        """Return what `families.CLUSTER` and `families.LOG` name; those of the cluster only once the log is folded."""
        figures = await self._figures()
        if not self.ready.is_set():
            return list(log_metrics(figures, 0))
        return await self._alone(self._collect, figures)

    def _collect(self, figures: LogFigures) -> list[Metric]:
        now = max(self._clock(), self._state.time)
        return [*cluster_metrics(self._state, self._tally, now), *log_metrics(figures, self._state.seq)]

    async def _figures(self) -> LogFigures:
        end = room = None
        with contextlib.suppress(LogError, TimeoutError):
            async with asyncio.timeout(_ASK_S):
                end = await self._log.end()
                room = await self._room() if self._room is not None else None
        return LogFigures(end, room)

    async def _alone(self, function: Callable[[Given], Made], given: Given) -> Made:
        """Call it in a thread, while nothing else reads or changes the state.  A thread cannot be cancelled, so a cancelled
        caller waits for it."""
        async with self._lock:
            calling = asyncio.create_task(asyncio.to_thread(function, given))
            try:
                return await asyncio.shield(calling)
            finally:
                await asyncio.wait([calling])

    # --- folding --------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Take the state to start from, and the tally that belongs to the log.  Raises LogUnavailable, LogRefused,
        LogDamaged."""
        kept = await asyncio.to_thread(self._load)
        if kept is not None and not await self._is_of_this_log(kept):
            _log.warning(
                "counters start again: the log is not the one that they were counted from", file=str(self._file)
            )
            kept = None
        # `nearest` rejects snapshots by their build, except one at a cut, which a master has signed.
        build = fingerprint(*FOLDED_BY)
        upto = kept.tally.seq if kept is not None else await self._log.end()
        found = await nearest(self._log, upto=upto, core=SCHEMA, build=build, load=partial(load, build=None))
        self._state = found[1] if found is not None else State()
        self._tally = kept.tally if kept is not None else Tally.begin(self._state)
        self._record = kept.record if kept is not None else ""

    def _load(self) -> Kept | None:
        if self._file is None:
            return None
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("counters start again: their file can't be read", file=str(self._file), reason=str(error))
            return None
        return kept if kept.version == VERSION else None

    async def _is_of_this_log(self, kept: Kept) -> bool:
        if not kept.record:
            return False
        record = await self._log.record_at(kept.tally.seq)
        return record is not None and identity(record) == kept.record

    async def _follow(self) -> None:
        end = await self._log.end()
        if self._state.seq >= end:
            self.ready.set()
        async with contextlib.aclosing(self._log.read(after=self._state.seq, follow=True)) as batches:
            async for batch in batches:
                await self._alone(self._fold, batch)
                if self._state.seq >= end:
                    self.ready.set()

    def _fold(self, batch: list[Record]) -> None:
        for record in batch:
            event, folded = evolve(self._state, record)
            self._tally.see(self._state, record, event, folded)
        if self._tally.seq == batch[-1].seq:
            self._record = identity(batch[-1])

    # --- the file -------------------------------------------------------------------------------------------------------

    async def _save_at_times(self) -> None:
        try:
            while True:
                await asyncio.sleep(_SAVE_S)
                await self._save()
        finally:
            await self._save()

    async def _save(self) -> None:
        if self._file is None or not self._record:
            return
        try:
            await self._alone(self._write, self._file)
        except OSError as error:
            _log.warning("the counters can't be kept", file=str(self._file), reason=str(error))

    def _write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, msgspec.json.encode(Kept(VERSION, self._record, self._tally)), sync=False)
