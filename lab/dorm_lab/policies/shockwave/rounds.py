"""Chooses the rounds of the window for each app, given their number.

Round after round, apps that need every round that is left go first; then apps with the largest part of the rounds that
they can use; among equals, running apps, then the largest budgets.  So a short app that gets all its rounds does not
wait for long apps that get a part.  The remaining room goes to the apps that need longest, as in the published code
(`construct_schedules`), but first to those that run, since stopping them costs a restart here.

The published code (`rank_in_schedule_jobs`) puts the rounds of late apps first by a second program, and follows that plan
until a job comes or ends.  Here each decision plans again, so an app whose rounds lie at the end of the window could be put
off again each time.  Lateness counts in the number of rounds, and so here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dorm_lab.policies.shockwave.program import by_round, close

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Flags, Ints
    from dorm_lab.policies.shockwave.market import Market
    from dorm_lab.policies.shockwave.program import Solution

_ROOM = 1e-9


def planned(market: Market, solution: Solution, running: Flags, place: Sequence[int]) -> list[list[int]]:
    """Return the apps of each round, in their order.  If whole partitions do not fill the rounds as the program assumes, a
    small window is solved again round by round.  `place` decides ties."""
    made = schedule(market, solution.counts, running, place)
    value = market.value(counts_in(market, made))
    if close(value, solution.bound):
        return made
    exact = by_round(market)
    if exact is None or market.value(exact.sum(axis=1)) <= value:
        return made
    # Any order of these rounds has the same value: those with the latest apps come first, then those that continue the present
    # allocation.
    budgets = np.array([float(f"{each:.1g}") for each in (market.budget @ exact).tolist()])
    goes_on = np.round((running * market.use.max(axis=1)) @ exact, 9)
    order = np.lexsort((np.arange(market.rounds), -goes_on, -budgets))
    filling = _filling(market, running, place)
    return [_filled(market, np.flatnonzero(exact[:, now]).tolist(), filling) for now in order.tolist()]


def counts_in(market: Market, made: Sequence[Sequence[int]]) -> Ints:
    """Return how many of these rounds each app has."""
    return np.bincount(np.array([app for round_ in made for app in round_], np.int64), minlength=len(market.left_s))


def _filling(market: Market, running: Flags, place: Sequence[int]) -> list[int]:
    """Return the order in which apps get the room that is left of a round."""
    return sorted(range(len(running)), key=lambda app: (not running[app], -market.left_s[app], place[app]))


def _filled(market: Market, first: Sequence[int], filling: Sequence[int]) -> list[int]:
    """Return the apps of one round: those of `first`, then of the others, that fit."""
    free, here = np.ones(market.use.shape[1]), dict[int, None]()
    for app in (*first, *filling):
        if app not in here and (market.use[app] <= free + _ROOM).all():
            free -= market.use[app]
            here[app] = None
    return list(here)


def schedule(market: Market, counts: Ints, running: Flags, place: Sequence[int]) -> list[list[int]]:
    """Return the apps of each round, in their order: those with planned rounds, then those that fill it.

    `place` decides ties."""
    budget = [float(f"{each:.9g}") for each in market.budget.tolist()]
    part = (counts / market.useful).tolist()
    order = sorted(range(len(counts)), key=lambda app: (-part[app], not running[app], -budget[app], place[app]))
    filling = _filling(market, running, place)
    due = counts.tolist()
    made: list[list[int]] = []
    for now in range(market.rounds):
        last = market.rounds - now
        asking = sorted((app for app in order if due[app] > 0), key=lambda app: due[app] < last)
        made.append(_filled(market, asking, filling))
        for app in made[-1]:
            due[app] -= 1
    return made
