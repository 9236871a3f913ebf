"""The best schedule of one job at given prices (OASiS, §IV).

    COST_t(t, n)      the cost of n workers and their parameter servers in slot t: cheapest machines first
    DP_COST(t, m)     the least cost of m worker-slots from the arrival until the end of slot t,
                      = min_n COST_t(t, n) + DP_COST(t - 1, m - done(t, n)), where n workers do n worker-slots
    best              the end t with the largest f(t - a) - DP_COST(t, W)

Chosen here if the text is open: of equally good ends the earliest, of equally cheap numbers of workers the smallest, of
equally cheap machines those that the job has in the slot before, then the first.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from dorm.policies.integer import Floats, Ints


class Table(NamedTuple):
    """The dynamic program, filled for all slots."""

    costs: Floats
    """COST_t, by slot and number of containers."""
    done: Ints
    """Worker-slots of work of this many containers, by slot and number."""
    total: Floats
    """DP_COST at the end of slot t - 1, by slots t and worker-slots; infinite if it is impossible, or of no use."""

    @property
    def least(self) -> Floats:
        """By slot: the cost of all the work if it is done by the end of that slot; infinite if that is impossible."""
        return self.total[1:, -1]

    def counts(self, last: int) -> list[int]:
        """Return the containers by slot of the cheapest schedule that is done by the end of slot `last`."""
        left = self.total.shape[1] - 1
        workers = [0] * (last + 1)
        for slot in range(last, -1, -1):
            before = np.maximum(left - self.done[slot], 0)
            workers[slot] = int(np.argmin(self.costs[slot] + self.total[slot, before]))
            left = int(before[workers[slot]])
        return workers


def fill(costs: Floats, done: Ints, work: int) -> Table:
    """`costs[t, n]` is the cost of n containers in slot t: 0 for none, infinite if they do not fit; `done[t, n]`, which
    does not fall with n, is their work."""
    slots = costs.shape[0]
    useful = np.isfinite(costs) & (done > 0)
    most = np.minimum(np.where(useful, done, 0).max(axis=1, initial=0), work)
    later = np.append(np.cumsum(most[::-1])[::-1], 0)
    total = np.full((slots + 1, work + 1), np.inf)
    total[:, 0] = 0.0
    reached = 0
    for slot in range(slots):
        reached = min(work, reached + int(most[slot]))
        # With less work done, it can't be completed later; more can't be done by now.
        first = max(1, work - int(later[slot + 1]))
        _add_slot(total[slot], total[slot + 1], costs[slot], done[slot], first, reached)
    return Table(costs, done, total)


def _add_slot(before: Floats, now: Floats, costs: Floats, done: Ints, first: int, reached: int) -> None:
    """Fill the row of a further slot, from `first` to `reached` worker-slots of work."""
    work = len(now) - 1
    now[first : reached + 1] = before[first : reached + 1]
    room = np.empty(work + 1)
    for count in np.flatnonzero(np.isfinite(costs) & (done > 0)).tolist():
        price, step = costs[count], min(int(done[count]), work)
        if first < step:
            within = now[first : min(step, reached + 1)]
            np.minimum(within, price, out=within)
        start = max(first, step)
        if start <= reached:
            part, offered = now[start : reached + 1], room[: reached + 1 - start]
            np.add(before[start - step : reached + 1 - step], price, out=offered)
            np.minimum(part, offered, out=part)


class Best(NamedTuple):
    """The best end of a job, and the table up to there."""

    table: Table
    last: int
    worth: float

    @property
    def cost(self) -> float:
        return float(self.table.least[self.last])


NOISE = 1e-8
"""A later end has to be better by more than this part of its cost: prices are rounded to nine digits, and sums in another
order differ in their last bits."""


def best_end(
    costs: Callable[[int], Floats],
    done: Ints,
    work: int,
    worth: Callable[[int], float],
    unit: Floats,
    *,
    rises: bool = False,
) -> Best | None:
    """Return the end with the largest payoff, as `fill` of all slots finds it; None if the work can't be done.

    Slots are looked at one by one, until no later end can be better: `worth` falls with the slot, unless it `rises`, and all
    work costs at least as much as on the cheapest slots that may be used.  `costs(t)` are the costs of slot t, and
    `unit[t]` is at most the cost of a unit of work there."""
    slots, most = len(done), done[:, -1]
    if int(np.minimum(most, work).sum()) < work:
        return None
    later = np.append(np.cumsum(most[::-1])[::-1], 0)
    lowest = np.append(np.minimum.accumulate(unit[::-1])[::-1], math.inf)
    begin = np.full(work + 1, np.inf)
    begin[0] = 0.0
    rows, totals, seen, reached = [], [begin], math.inf, 0
    best, last, value, here = -math.inf, -1, 0.0, worth(0)
    for slot in range(slots):
        row = costs(slot)
        now = np.full(work + 1, np.inf)
        now[0] = 0.0
        useful = np.isfinite(row) & (done[slot] > 0)
        does = np.minimum(done[slot], work)
        reached = min(work, reached + int(does[useful].max(initial=0)))
        _add_slot(totals[-1], now, row, done[slot], max(1, work - int(later[slot + 1])), reached)
        seen = min(seen, float((row[useful] / does[useful]).min(initial=math.inf)))
        rows.append(row)
        totals.append(now)
        cost = float(now[-1])
        if cost < math.inf and (last < 0 or here - cost > best + NOISE * cost):
            best, last, value = here - cost, slot, here
        if slot + 1 < slots:
            here = worth(slot + 1)
            least = min(seen, float(lowest[slot + 1])) * work
            if here - least <= best and not rises:
                break
    if last < 0:
        return None
    return Best(Table(np.stack(rows), done[: len(rows)], np.stack(totals)), last, value)


class Offer(NamedTuple):
    """Machines of one group in all slots, from the point of view of one job: arrays of slots by machines."""

    price: Floats
    """Price of one worker, or one parameter server, of this job."""
    room: Ints
    """Number of them for which the machine has room."""


def unit_costs(offer: Offer, most: int) -> Floats:
    """Return the cost of 0, 1 … `most` units in each slot, on the cheapest machines with room."""
    slots = len(offer.price)
    costs = np.full((slots, most + 1), np.inf)
    costs[:, 0] = 0.0
    order = np.argsort(offer.price, axis=1, kind="stable")
    for slot in range(slots):
        cheapest = order[slot]
        each = np.repeat(offer.price[slot, cheapest], np.minimum(offer.room[slot, cheapest], most))[:most]
        costs[slot, 1 : len(each) + 1] = np.cumsum(each)
    return costs


def cheapest(price: Floats, room: Ints, order: Ints, most: int) -> Floats:
    """Return the same for one slot; `order` has the machines by price."""
    each = np.minimum(room[order], most)
    enough = int(np.searchsorted(np.cumsum(each), most)) + 1
    costs = np.full(most + 1, np.inf)
    costs[0] = 0.0
    units = np.repeat(price[order[:enough]], each[:enough])[:most]
    costs[1 : len(units) + 1] = np.cumsum(units)
    return costs


def with_servers(costs: Floats, servers: Offer, servers_for: Callable[[int], int]) -> Floats:
    """Return COST_t for workers with their parameter servers, from the costs of workers alone."""
    counts = np.arange(costs.shape[1])
    needed = np.array([servers_for(count) for count in counts.tolist()], np.int64)
    # No more parameter servers than workers: §III.
    allowed = np.where(needed <= counts, 0.0, np.inf)
    return np.asarray(costs + allowed + unit_costs(servers, int(needed.max(initial=0)))[:, needed])


def place(price: Floats, room: Ints, count: int, had: Collection[int]) -> dict[int, int]:
    """Place units on the cheapest machines; `had` are those of the slot before."""
    elsewhere = np.ones(len(price), np.bool_)
    elsewhere[list(had)] = False
    return _filled(room, count, np.lexsort((elsewhere, price, room <= 0)).tolist())


def place_near(price: Floats, room: Ints, order: Ints, count: int, had: Collection[int]) -> dict[int, int]:
    """Place units on the machines of the slot before, and only then on others by price, so that nothing is moved for a lower
    price; `order` has all machines by price."""
    stays = sorted(had, key=lambda machine: (float(price[machine]), machine))
    others = (machine for machine in map(int, order) if machine not in had)
    return _filled(room, count, (machine for machine in chain(stays, others) if room[machine] > 0))


def _filled(room: Ints, count: int, machines: Iterable[int]) -> dict[int, int]:
    """Fill machines in their order."""
    placed: dict[int, int] = {}
    for machine in machines:
        here = min(count, int(room[machine]))
        if here <= 0:
            break
        placed[machine] = here
        count -= here
    return dict(sorted(placed.items()))
