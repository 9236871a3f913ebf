"""Sealed logs to rotate, in memory, and their invariants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.rotation.rotation_due import Policy
from dorm.rotation.rotator import Rotator
from events.archive.stores import FolderStore
from events.archive.whole import WholeLog
from events.log.memory import MemoryLog
from tests.master.sealed import CLUSTER, START, SealedLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from events.archive.stores import ArchiveStore
    from events.chain import SealKey
    from events.log.interface import ReadableLog
    from events.log.records import Record

ALL = Policy(keep_records=0, keep_s=0.0)
"""Moves all that is sealed."""


class Rotating:
    """A sealed log, a folder for its archives, and a master's key."""

    def __init__(self, sealed: SealedLog, folder: Path, *, log: MemoryLog | None = None) -> None:
        self.given = list(sealed.records)
        self.key: SealKey = sealed.key
        self.stream = log or MemoryLog(lambda: START, sealed.records)
        self.folder = folder
        self.store: ArchiveStore = FolderStore(folder / "archives", CLUSTER)

    @property
    def whole(self) -> WholeLog:
        return WholeLog(self.stream, CLUSTER, place=str(self.folder / "archives"))

    def rotator(self, *, most: int = 1_000_000, leads: Callable[[], bool] = lambda: True) -> Rotator:
        return Rotator(
            self.whole, CLUSTER, self.store, self.key,
            name="m", spool=self.folder / "spool", clock=lambda: START, leads=leads, most=most,
        )  # fmt: skip


async def records_of(log: ReadableLog, after: int = 0) -> list[Record]:
    return [record async for batch in log.read(after=after) for record in batch]
