"""The last step on clusters where it is small: an exact program over a few apps, with all others pinned where they are.

Greedy placement loses a few per cent on a small cluster, where one container is a good part of a node.  The few that make
up for it are those that change anyway, those that start, and those that the count program would have changed next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dorm.core.policies import exact, integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.policies.integer import Flags, Instance, Rows, Terms


def polish(
    instance: Instance,
    rows: Rows,
    terms: Terms,
    chosen: Sequence[int],
    *,
    reserved: tuple[int, Flags] | None,
    node_limit: int,
    gain: float,
) -> tuple[Rows, str]:
    """A better answer than `rows`, or the same, in which only `chosen` apps differ; and how the search ended.

    What others have changed already counts against θ2."""
    touched = integer.changed(instance, rows) & instance.kept
    free = np.zeros(len(rows), np.bool_)
    free[list(chosen)] = True
    free &= instance.free_to_move
    around = [was if free[i] else rows[i] for i, was in enumerate(instance.rows)]
    staying = [{} if free[i] else row for i, row in enumerate(rows)]
    part = replace(
        instance,
        rows=tuple(around),
        pinned=~free,
        room=np.maximum(integer.free_room(instance, staying), 0),
    )
    found = exact.improve(
        part,
        integer.dense(instance, rows),
        terms,
        budget=terms.change_budget - int((touched & ~free).sum()),
        reserved=reserved if reserved is not None and free[reserved[0]] else None,
        node_limit=node_limit,
        gain=gain,
    )
    better = integer.rows_of(found.x)
    return [better[i] if free[i] else row for i, row in enumerate(rows)], found.status
