"""Bounds of a timeline's size: beyond them, changes within one grain of time are merged, and grains double until it fits.

Steps, decisions, marks and partitions each have their own bound and grain, so a flood of one does not thin the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.timeline.model import AppLane, Decision, Mark, Timeline

POINTS = 150_000
"""Most changes that a picture keeps, in all lanes together: the room of a page of some megabytes."""
DECISIONS = 4000
MARKS = 4000
PARTITIONS = 20_000
"""Most of each; a decision takes as much room as thirty changes."""
_FINEST = 16_384
"""The first grain is this fraction of the picture's time."""


class Bounds:
    """Keeps one picture within the bounds."""

    def __init__(self, picture: Timeline) -> None:
        self._picture = picture
        self._grains = {"points": 0, "decisions": 0, "marks": 0, "partitions": 0}

    @property
    def grain(self) -> int:
        """The coarsest grain in use (ns), 0 if everything was kept."""
        return max(self._grains.values())

    def keep(self, now: int) -> None:
        """Thin what exceeds its bound.  `now`: log time so far."""
        picture, length = self._picture, max(now - self._picture.start, 1)
        while sum(map(len, picture.all_steps())) > POINTS and (grain := self._coarser("points", length)):
            for steps in picture.all_steps():
                steps.thin(grain)
        while len(picture.decisions) > DECISIONS and (grain := self._coarser("decisions", length)):
            picture.decisions = _thin_decisions(picture.decisions, grain)
        while len(picture.marks) > MARKS and (grain := self._coarser("marks", length)):
            picture.marks = _thin_marks(picture.marks, grain)
        while self._partitions() > PARTITIONS and (grain := self._coarser("partitions", length)):
            for lane in picture.apps.values():
                _thin_partitions(lane, grain)

    def _partitions(self) -> int:
        return sum(len(lane.partitions) for lane in self._picture.apps.values())

    def _coarser(self, what: str, length: int) -> int:
        """Double the grain; return 0 once it covers all of the time, since then the lanes alone exceed the bound."""
        before = self._grains[what]
        if before > length:
            return 0
        self._grains[what] = max(2 * before, length // _FINEST, 1)
        return self._grains[what]


def _thin_decisions(decisions: Iterable[Decision], grain: int) -> list[Decision]:
    kept: list[Decision] = []
    for decision in decisions:
        if not kept or kept[-1].time // grain != decision.time // grain:
            kept.append(decision)
            continue
        count = kept[-1].stands_for + decision.stands_for
        if decision.all_changes > kept[-1].all_changes:
            kept[-1] = decision
        kept[-1].stands_for = count
    return kept


def _thin_marks(marks: Iterable[Mark], grain: int) -> list[Mark]:
    """Keep one mark for each grain and kind."""
    kept: dict[tuple[int, str], Mark] = {}
    for one in marks:
        key = (one.time // grain, one.kind)
        before = kept.get(key)
        count = one.stands_for + (before.stands_for if before else 0)
        if before is None or one.weight > before.weight:
            kept[key] = one
        kept[key].stands_for = count
    return sorted(kept.values(), key=lambda one: one.time)


def _thin_partitions(lane: AppLane, grain: int) -> None:
    """Keep the last partition decided in each grain of time."""
    kept = {partition.decided_at // grain: partition for partition in lane.partitions.values()}
    lane.partitions = {one.number: one for one in kept.values()}
