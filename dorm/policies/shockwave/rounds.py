"""Which rounds of the window each app gets, once it is known how many.

Round after round, the apps with most rounds before them go first: of those with equally many, the ones that run, then the
largest budgets.  Room that is left goes to the apps that need longest, as in the published code (`construct_schedules`).

The published code (`rank_in_schedule_jobs`) puts the rounds of late apps first by a second program, and follows that plan
until a job comes or ends.  Here each decision plans again, so an app whose rounds lie at the end of the window could be put
off again each time.  Lateness counts in the number of rounds, and so here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Flags, Ints
    from dorm.policies.shockwave.market import Market

_ROOM = 1e-9


def schedule(market: Market, counts: Ints, running: Flags, place: Sequence[int]) -> list[list[int]]:
    """Return the apps of each round, in their order: those with planned rounds, then those that fill it.

    `place` decides ties."""
    budget = [float(f"{each:.9g}") for each in market.budget.tolist()]
    order = sorted(range(len(counts)), key=lambda app: (not running[app], -budget[app], place[app]))
    filling = sorted(range(len(counts)), key=lambda app: (-market.left_s[app], not running[app], place[app]))
    due = counts.tolist()
    made: list[list[int]] = []
    for _ in range(market.rounds):
        free = np.ones(market.use.shape[1])
        here: dict[int, None] = {}
        asking = sorted((app for app in order if due[app] > 0), key=lambda app: -due[app])
        for app in (*asking, *filling):
            if app not in here and (market.use[app] <= free + _ROOM).all():
                free -= market.use[app]
                here[app] = None
                due[app] -= 1
        made.append(list(here))
    return made
