"""The log as this node follows it: where it has read to, and its folded state on disk, from which a restart continues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from agents.desired import subjects_of
from agents.desired_file import DesiredFile, Doubt, still_there
from events.log.records import LogDamaged
from events.sources import fingerprint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agents.desired import Desired
    from agents.runtime.interface import Runtime
    from events.log.interface import EventLog
    from events.log.records import Record

_log = structlog.get_logger(__name__)
_AGAIN_S = 1.0
_SAVE_EVERY = 5_000
"""Records folded by this node between two saves of its state."""


class Follower:
    """One node's reader of the log, and keeper of `desired`, which the agent folds; `clock` returns UTC ns."""

    def __init__(
        self, log: EventLog, cluster: str, node: str, desired: Desired, root: Path, *, clock: Callable[[], int]
    ) -> None:
        self._log = log
        self._node = node
        self._desired = desired
        self._clock = clock
        self._file = DesiredFile(root / "desired", cluster, node)
        self._patterns = subjects_of(cluster, node)
        self._sources = ""
        self._last: Record | None = None
        self._folded_at = 0.0
        self._unsaved = 0

    async def recall(self, runtime: Runtime) -> None:
        """Start with the state that a previous agent saved, if it belongs to this log.  Raises LogDamaged if the log is not
        the one that the containers of `runtime` followed."""
        self._sources = await asyncio.to_thread(fingerprint, "agents", "events")
        kept = await asyncio.to_thread(self._file.load, self._sources)
        if kept is None:
            return
        desired, record = kept
        doubted = Doubt()
        while True:
            try:
                if not await still_there(self._log, self._patterns, desired.seq, record):
                    return
                break
            except LogDamaged as error:
                if not any(seen.state == "running" for seen in await runtime.list()):
                    return  # a recreated cluster, on a node where nothing of the old one is left
                if doubted.confirmed(asyncio.get_running_loop().time()):
                    raise self._not_this_log(error) from error
                await asyncio.sleep(_AGAIN_S)
        for name in desired.__struct_fields__:
            setattr(self._desired, name, getattr(desired, name))
        _log.debug("goes on from what was folded before", node=self._node, seq=desired.seq)

    async def follow(self, fold: Callable[[list[Record]], Awaitable[None]]) -> None:
        """Hand each later batch of records to `fold`, without end.  Raises LogDamaged if the log is not the one followed."""
        doubted = Doubt()
        self._folded_at = asyncio.get_running_loop().time()
        while True:
            try:
                async for batch in self._log.read(after=self._desired.seq, subjects=self._patterns, follow=True):
                    doubted.clear()
                    await fold(batch)
            except LogDamaged as error:
                if doubted.confirmed(asyncio.get_running_loop().time()):
                    raise self._not_this_log(error) from error
                _log.warning("the log ends too early, looking again", node=self._node, reason=str(error))
                await asyncio.sleep(_AGAIN_S)

    def folded(self, batch: list[Record]) -> None:
        """Note that `batch` is part of `desired` now.  Blocks for the time of a small file, now and then."""
        self._last, self._folded_at = batch[-1], asyncio.get_running_loop().time()
        self._unsaved += len(batch)
        if self._unsaved >= _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Save the folded state.  Blocks for the time of a small file."""
        if self._last is None or not self._unsaved:
            return
        try:
            self._file.save(self._desired, self._last, self._sources)
        except OSError as error:
            _log.warning("what was folded could not be kept", node=self._node, reason=str(error))
        self._unsaved = 0

    def log_time(self) -> int:
        """Estimate log time now (UTC ns), since this machine's clock may be off by hours."""
        since = asyncio.get_running_loop().time() - self._folded_at
        return self._desired.time + int(since * 1e9) if self._desired.time else self._clock()

    def _not_this_log(self, error: LogDamaged) -> LogDamaged:
        self._last = None  # so that its folded state is not saved
        return LogDamaged(
            f"{error}: this is not the log that node {self._node} has followed, so nothing was started or stopped; put "
            f"the log back, or, if it was recreated on purpose, stop the node's containers, remove {self._file.path} and "
            "start the agent again",
            code="log.another",
        )
