"""The records of an app's training processes (`compose.apps.worker.presence`): when each ran, and how far it had come.

Everything runs on one machine, so all marks and the log's times are from one clock.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import msgspec

from compose.apps.worker.presence import FOLDER, Mark, marks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class Stay(msgspec.Struct, frozen=True):
    """One process's own record."""

    generation: int
    slot: int
    marks: list[Mark]

    @property
    def begin(self) -> int:
        return self.marks[0].at

    @property
    def end(self) -> int:
        """The time of its last mark; the process ended before the next one was due."""
        return self.marks[-1].at


class Stall(msgspec.Struct, frozen=True):
    """An interval without a training step."""

    begin: int
    end: int


def stays(folder: Path) -> list[Stay]:
    """Return the records of all processes of an app, from its checkpoint folder, by start time."""
    found = []
    for path in sorted((folder / FOLDER).glob("*")) if (folder / FOLDER).is_dir() else []:
        generation, slot, _, _ = path.name.split(".")
        record = marks(path)
        if record:
            found.append(Stay(int(generation), int(slot), record))
    return sorted(found, key=lambda stay: (stay.begin, stay.generation, stay.slot))


def doubled(by_begin: Sequence[Stay]) -> list[str]:
    """Return a sentence for each pair of processes of two generations, or of one place, that ran at once, and for each
    generation that began after a later one."""
    found = []
    for one, other in combinations(by_begin, 2):
        pair = f"generation {one.generation} slot {one.slot} and generation {other.generation} slot {other.slot}"
        if one.generation == other.generation and one.slot != other.slot:
            continue
        if other.begin <= one.end:
            found.append(f"{pair} ran at once for {(min(one.end, other.end) - other.begin) / 1e9:.2f} s")
        elif other.generation < one.generation:
            found.append(f"{pair} ran in the wrong order")
    return found


def steps(of_app: Iterable[Stay]) -> list[int]:
    """Return the times of progress: marks at which a process had come further, in order."""
    return sorted(later.at for stay in of_app for earlier, later in pairwise(stay.marks) if later.step > earlier.step)


def stalls(moments: Sequence[int], longer_than: int) -> list[Stall]:
    """Return the gaps between steps that are longer than this many nanoseconds."""
    return [Stall(begin, end) for begin, end in pairwise(moments) if end - begin > longer_than]
