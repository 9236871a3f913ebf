"""Which rounds of the window each app gets, once it is known how many.

Round after round, apps that need every round that is left go first; then those that get the largest part of the rounds that
they can use, of equals the ones that run, then the largest budgets.  So a short app that gets all that it needs does not wait
for long ones that get a part.  Room that is left goes to the apps that need longest, as in the published code
(`construct_schedules`), but first to those that run, since stopping them costs a restart here.

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
    part = (counts / market.useful).tolist()
    order = sorted(range(len(counts)), key=lambda app: (-part[app], not running[app], -budget[app], place[app]))
    filling = sorted(range(len(counts)), key=lambda app: (not running[app], -market.left_s[app], place[app]))
    due = counts.tolist()
    made: list[list[int]] = []
    for now in range(market.rounds):
        last = market.rounds - now
        free = np.ones(market.use.shape[1])
        here: dict[int, None] = {}
        asking = sorted((app for app in order if due[app] > 0), key=lambda app: due[app] < last)
        for app in (*asking, *filling):
            if app not in here and (market.use[app] <= free + _ROOM).all():
                free -= market.use[app]
                here[app] = None
                due[app] -= 1
        made.append(list(here))
    return made
