"""The figures of a cluster's log, counted in the background of a process, for the metrics of the cluster.

The fold (`dorm.live_fold`) runs in a thread with its own state: a master's loop never waits for it, and nothing that it does
can end the process.  The tally is kept in a file, with the record that it belongs to.  After a restart the fold starts at a
snapshot at or before that record and counts what comes after it, so counters go on as if nothing had happened.  Without the
file, or if the log no longer has that record, counting starts at the newest snapshot (`dorm_counted_from_sequence`).
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dorm.core.snapshot import FOLDED_BY, load
from dorm.core.state import SCHEMA, State
from dorm.live_fold import LiveFold, NotFolded, Thread
from dorm.metrics.cluster import LogFigures, cluster_metrics, log_metrics
from dorm.metrics.tally import Tally
from events.durable import write_whole
from events.log.interface import nearest
from events.log.records import LogClosed, LogError
from events.log.stores import identity
from events.logger import Logger
from events.sources import fingerprint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from prometheus_client import Metric

    from dorm.core.folded import Folded
    from events.kinds import Event
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from events.nats.settings import Room

VERSION = 1
"""Version of the file: raised when what is counted changes, so that counters of two meanings are never added."""
_SAVE_S = 15.0
_ASK_S = 2.0
_AGAIN_S = 5.0
_log = Logger(__name__)


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
        self._tally = Tally()
        self._kept: Kept | None = None
        """The tally of the file, from which the fold starts."""
        self._record = ""
        """Identity of the record at which the tally started; "" before the first."""
        self._last: Record | None = None
        """The last record that was counted since."""
        self._thread = Thread("dorm-metrics")
        self._fold = LiveFold(log, begin=self._open, thread=self._thread, few=0, again_s=_AGAIN_S)
        self._fold.on_begin.append(self._count_from)
        self.ready = self._fold.caught_up
        """Event that is set once everything that the log held at the start is counted."""

    async def run(self) -> None:
        """Follow the log until cancelled, or until the connection is closed permanently."""
        saving = asyncio.create_task(self._save_at_times())
        try:
            with contextlib.suppress(LogClosed):
                await self._fold.run()
        finally:
            saving.cancel()
            await asyncio.wait({saving})
            await self._save()
            self._thread.close()

    async def metrics(self) -> list[Metric]:
        """Return what `families.CLUSTER` and `families.LOG` name; those of the cluster only once the log is folded."""
        figures = await self._figures()
        try:
            return await self._fold.look(lambda state: self._collect(state, figures))
        except NotFolded:
            return list(log_metrics(figures, 0))

    def _collect(self, state: State, figures: LogFigures) -> list[Metric]:
        now = max(self._clock(), state.time)
        return [*cluster_metrics(state, self._tally, now), *log_metrics(figures, state.seq)]

    async def _figures(self) -> LogFigures:
        end = room = None
        with contextlib.suppress(LogError, TimeoutError):
            async with asyncio.timeout(_ASK_S):
                end = await self._log.end()
                room = await self._room() if self._room is not None else None
        return LogFigures(end, room)

    # --- folding --------------------------------------------------------------------------------------------------------

    async def _open(self) -> State:
        """Return the state to start from, and keep the tally that belongs to it.  Raises LogUnavailable, LogRefused,
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
        snapshot = await nearest(self._log, upto=upto, core=SCHEMA, build=build, load=partial(load, build=None))
        self._kept = kept
        return snapshot[1] if snapshot is not None else State()

    def _count_from(self, state: State) -> None:
        self._tally = self._kept.tally if self._kept is not None else Tally.begin(state)
        self._record, self._last = self._kept.record if self._kept is not None else "", None
        self._fold.observers.append(self._observe)

    def _observe(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        self._tally.see(state, record, event, folded)
        self._last = record

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

    # --- the file -------------------------------------------------------------------------------------------------------

    async def _save_at_times(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            await self._save()

    async def _save(self) -> None:
        if self._file is None:
            return
        try:
            await self._thread.run(partial(self._write, self._file))
        except OSError as error:
            _log.warning("the counters can't be kept", file=str(self._file), reason=str(error))

    def _write(self, file: Path) -> None:
        if self._last is not None and self._last.seq == self._tally.seq:
            self._record = identity(self._last)
        if not self._record:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, msgspec.json.encode(Kept(VERSION, self._record, self._tally)), sync=False)
