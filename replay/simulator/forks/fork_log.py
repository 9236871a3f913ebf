"""The log of a fork as an archive that starts with the state at the fork, like any part of a log."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, BinaryIO

from dorm.core.snapshot import dump
from events.archive.blocks import Header
from events.archive.segments import SegmentWriter
from replay.frames import build

if TYPE_CHECKING:
    from types import TracebackType

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.records import Record
    from replay.simulator.forks.fork import Fork

_AT_ONCE = 200
"""Records that are written together."""


class ForkLog:
    """Observes a run of a fork and writes its records; the archive is complete if the body ends without an exception."""

    def __init__(self, file: BinaryIO, fork: Fork) -> None:
        start = fork.state.seq
        header = Header(cluster=fork.scenario.cluster, made_by=f"dorm {version('dorm')}", start=start)
        self._writer = SegmentWriter(file, header)
        self._waiting: list[Record] = []
        if start:
            self._writer.snapshot(*dump(fork.state, build=build()))

    def see(self, state: State, record: Record, folded: Folded) -> None:
        self._waiting.append(record)
        if len(self._waiting) == _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._writer.add(self._waiting)
        self._waiting = []

    def __enter__(self) -> ForkLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            self._writer.finish()
