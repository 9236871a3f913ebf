"""Runs of an evaluation that was interrupted, kept in its folder until the report is written, because they take hours."""

from __future__ import annotations

import shutil
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from events.sources import fingerprint
from replay.simulator.outcome import Run
from replay.whole_file import whole_file_now

if TYPE_CHECKING:
    from pathlib import Path

    from dorm_lab.bench.evaluation.parts import Part

RUN_BY = (
    "events", "dorm.core", "dorm.policies", "replay.simulator",
    "dorm_lab.bench.evaluation", "dorm_lab.compare", "dorm_lab.policies", "dorm_lab.workloads",
)  # fmt: skip
"""Packages that determine a run: runs of other sources are not reused."""


class Kept:
    """Runs by part, contender and place."""

    def __init__(self, folder: Path | None, about: str) -> None:
        """`about` is everything else that determines the runs: the options of the plan.  Without a folder nothing is kept."""
        digest = blake2b(f"{fingerprint(*RUN_BY)} {about}".encode(), digest_size=8).hexdigest()
        self._folder = None if folder is None else folder / "runs"
        self._prefix = digest

    def get(self, part: Part, place: int) -> Run | None:
        """Return a run that an interrupted evaluation left, if it can be read."""
        file = self._file(part, place)
        if file is None or not file.is_file():
            return None
        try:
            return msgspec.msgpack.decode(file.read_bytes(), type=Run)
        except msgspec.DecodeError:
            return None

    def put(self, part: Part, place: int, run: Run) -> None:
        """Raises OSError."""
        file = self._file(part, place)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file_now(file, force=True) as opened:
                opened.write(msgspec.msgpack.encode(run))

    def drop(self) -> None:
        """Remove all runs, also of other sources.  Raises OSError."""
        if self._folder is not None and self._folder.is_dir():
            shutil.rmtree(self._folder)

    def _file(self, part: Part, place: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{self._prefix}-{part.key}-{place}.msgpack"
