"""The part of the state that is sent to a newcomer at the switch: only the arrays that differ from its first state.

The leader keeps the first state that it has sent until the newcomers have joined, and offers the same one to newcomers that
come later.  Each newcomer reports which one it holds (`Warm.holds`).  At the switch, it receives the arrays that have changed
since, and the positions of the others: frozen layers, tables and constants, and before the first step everything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dorm.elastic.errors import PeerError

if TYPE_CHECKING:
    import numpy.typing as npt

    from dorm.elastic.protocol import messages as m
    from dorm.elastic.protocol import views as v

    Arrays = list[npt.NDArray[np.generic]]

__all__ = ["Handover", "unchanged"]

_FIRST_LOOK = 4096
"""Bytes that are compared first: most arrays that change at all differ there."""
_BLOCK = 2**22
"""Bytes that are compared at a time."""


class Handover:
    """First states, as the leader has sent them and as a newcomer holds them."""

    def __init__(self) -> None:
        self.offered: m.State | None = None
        """Leader: the first state that newcomers are sent."""
        self._held: dict[int, int] = {}
        """Leader: the newcomers that hold a first state of this member, and the step before which it was taken."""
        self._firsts: dict[int, m.State] = {}
        """Newcomer: the first states that it has, by sender."""

    # The leader.

    def holds(self, slot: int, step: int) -> None:
        """A newcomer is warm, by the first state before `step` of this member."""
        self._held[slot] = step

    def forget(self, slot: int) -> None:
        """The connection with a newcomer is lost; what it holds is unknown until it reports again."""
        self._held.pop(slot, None)

    def drop(self) -> None:
        """No newcomer is left that needs a first state."""
        self.offered, self._held = None, {}

    def reduced(self, final: m.State, same: frozenset[int], slot: int) -> m.State:
        """Return the arrays for this newcomer at the switch; `same` are the positions of arrays as in the first state."""
        if self.offered is None or self._held.get(slot) != self.offered.step or not same:
            return final
        changed = [array for at, array in enumerate(final.payload) if at not in same]
        return replace(final, payload=changed, kept=sorted(same))

    # A newcomer.

    def keep(self, sender: int, state: m.State, gone: set[int]) -> None:
        self._firsts = {slot: first for slot, first in self._firsts.items() if slot not in gone}
        self._firsts[sender] = state

    def step_held(self, sender: int) -> int:
        """Return the step of the first state that this newcomer has from the sender, -1 if it has none."""
        first = self._firsts.get(sender)
        return first.step if first is not None else -1

    def whole(self, sender: int, final: m.State) -> v.Packed:
        """Return the state with the arrays that were left out.  Raises PeerError if this newcomer does not have them."""
        kept, rest = set(final.kept), iter(final.payload)
        first = self._firsts[sender].payload if sender in self._firsts else []
        total = len(kept) + len(final.payload)
        if kept and not 0 <= min(kept) <= max(kept) < min(total, len(first)):
            text = f"slot {sender} left out {len(kept)} arrays of the state that this member does not have"
            raise PeerError(text, code="elastic.peer.field")
        return final.structure, [first[at] if at in kept else next(rest) for at in range(total)]

    def joined(self) -> None:
        """This newcomer is a member and needs its first states no more."""
        self._firsts = {}


def unchanged(before: Arrays, after: Arrays) -> frozenset[int]:
    """Return the positions of arrays that are the same in both, bit for bit."""
    return frozenset(at for at, (array, later) in enumerate(zip(before, after)) if _same(array, later))


def _same(left: npt.NDArray[np.generic], right: npt.NDArray[np.generic]) -> bool:
    if left is right:
        return True
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    a, b = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (left, right))
    start, size = 0, _FIRST_LOOK
    while start < a.size:
        if not np.array_equal(a[start : start + size], b[start : start + size]):
            return False
        start, size = start + size, _BLOCK
    return True
