"""Which apps get their n_min, and where: the first step of the optimizers.

Apps whose partition was hit and apps that wait are served in place, next to the others, or by shrinking a few of them
within θ2 (goals 1 and 2 of `dorm.policies.goals`).  Nothing else changes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm.policies import goals, integer, scoring
from dorm.policies.dorm.making_room import make_room as clear_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.policies.dorm.placing import Draft
    from dorm.policies.integer import Flags, Instance, Rows

MOST_TRIES = 16
"""Waiting apps for which running ones may make room in one round; a quarter of that on large clusters."""

LARGE = 200_000
"""Apps times nodes beyond which fewer ways are tried: their gain is a smaller part of a large cluster."""


class Serving:
    """Serves the apps of one problem.  All methods change the draft that they are given."""

    def __init__(self, instance: Instance, settings: Mapping[str, float]) -> None:
        self.instance = instance
        self.kept = instance.kept
        self.budget = goals.change_budget(instance, settings)
        self.aged = integer.aged(instance, settings["patience_s"])
        self.reserved = goals.reserved(instance, self.aged)
        self.large = len(instance.apps) * len(instance.nodes) > LARGE
        self.held_back: Flags = np.zeros(len(instance.apps), np.bool_)
        """Apps that wait only because θ2 lets too few others shrink in this round."""

    def staying(self) -> Rows:
        """Return the rows of apps that stay where they are; the others have none."""
        instance = self.instance
        return [
            row if kept or pinned else {}
            for row, kept, pinned in zip(instance.rows, self.kept, instance.pinned, strict=True)
        ]

    def serve(self, draft: Draft) -> list[int]:
        """Give n_min to apps that were hit and apps that wait, in place or next to the others; return the unserved apps."""
        instance = self.instance
        unserved = []
        for app in sorted(integer.queue(instance), key=lambda i: (not instance.running[i], not self.aged[i])):
            draft.keep_in_place(app)
            lacking = int(instance.n_min[app] - draft.n[app])
            if lacking > 0 and draft.put(app, lacking) < lacking:
                draft.clear(app)
                unserved.append(app)
                if self.reserved and app == self.reserved[0]:
                    draft.close(self.reserved[1])
        return unserved

    def make_room(self, draft: Draft, unserved: Sequence[int], budget: int) -> list[int]:
        """Shrink running apps for waiting ones, within `budget`; return the apps that still wait."""
        instance = self.instance
        unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        left = list(unserved)
        for app in unserved[: MOST_TRIES // 4 if self.large else MOST_TRIES]:
            changed = integer.changed(instance, draft.rows) & self.kept
            may = budget - int(changed.sum())
            if may <= 0 and not changed.any():
                break
            entitled = goals.placed(instance, draft.n)
            entitled[app] = True
            over = draft.n * unit - integer.theoretical_shares(instance, entitled)
            first = self.reserved is not None and app == self.reserved[0]
            if first:
                draft.close(np.zeros(len(instance.nodes), np.bool_))
            if clear_for(draft, app, self.kept, changed, may, over) is not None:
                left.remove(app)
                continue
            if self.reserved is not None and first:
                draft.close(self.reserved[1])
            if (
                self.aged[app]
                and clear_for(draft.copy(), app, self.kept, changed, len(instance.apps), over) is not None
            ):
                break  # θ2 alone holds it back, so no later app may take the room that others free for it.
        return left

    def target(self, served: Draft, draft: Draft, unserved: Sequence[int]) -> Rows | None:
        """Return the placement that would result if θ2 did not hold back some waiting apps; None if it holds none back.

        The draft moves there as far as θ2 allows in one round: the apps that stand most in the way shrink in it.  If
        nothing can be cleared in this round, nothing is held up for it.
        """
        instance = self.instance
        if self.budget >= int(self.kept.sum()):
            return None
        wide = served.copy()
        self.make_room(wide, unserved, len(instance.apps))
        gets, has = goals.placed(instance, wide.n), goals.placed(instance, draft.n)
        if not (gets & ~has).any() or (has & ~gets).any():
            return None
        self.held_back = gets & ~has
        spent = int((integer.changed(instance, draft.rows) & self.kept).sum())
        in_the_way = {i: scoring.beyond(draft.rows[i], wide.rows[i]) for i in np.flatnonzero(self.kept).tolist()}
        left = self.budget - spent
        for app in sorted(in_the_way, key=lambda i: (-in_the_way[i], i)):
            if left <= 0 or not in_the_way[app]:
                break
            was = dict(draft.rows[app])
            draft.restore(app, dict(wide.rows[app]))
            if (
                draft.free[list(draft.rows[app])] < 0
            ).any():  # Its future place is occupied by an app that has to leave first.
                draft.restore(app, was)
                continue
            left -= 1
        return wide.rows if left < self.budget - spent else None
