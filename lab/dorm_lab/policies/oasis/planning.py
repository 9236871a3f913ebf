"""Plans of apps on a changing cluster: which are kept, which are made again, and which apps are admitted.

The paper's jobs run exactly as planned on machines that stay.  Here, an app may be late, a node may disappear, and arrivals
are unknown.  So each decision examines all plans, in this order:

    pinned    apps in the middle of an adjustment hold their present containers, and later those of their plans
    kept      a plan stays as it is while its nodes are there and have room; if only the present slot lacks room, since
              another app has not left yet, the plan stays and the app waits for it
    again     an app that runs without a plan, or whose plan has failed, has ended too early or was made for other slots, gets
              the best schedule for its remaining work at any cost: it was admitted before
    new       apps that wait are admitted or refused by the prices that all of these leave (`online`)

A refused app waits, and is asked again in each later decision: prices fall when slots pass or apps end early.

An app without a declared utility counts as mildly sensitive to time: it is worth its weight if it is done
as fast as an empty cluster could do it, and half as much about an hour later.  That counts from the present moment, so an app
does not become worthless by waiting.

Slots lie at multiples of `slot_s`.  Only the rest of the present slot counts, in work and in cost.  An app whose best schedule
begins with the next slot begins at once if it can pay for the rest of this one: whole slots alone would never sell that.
Containers stay on their nodes from slot to slot rather than move for a lower price, since a move costs a restart here.

An app is a job whose containers are its workers, and, by the options of its engine, its parameter servers: these are as
large as workers and on the same nodes, since a spec has one demand (docs/policies.md says why).  n workers are n times as fast
as one.  Amounts are counted as parts of the cluster's total, so that Σ_r over kinds of resources means something; ports limit
placements and have no price.  U and L are computed over the apps of the problem, because others are unknown.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import integer
from dorm.policies.problem import Plan, Slot, Utility
from dorm_lab.policies.baselines.optimus import remaining_s
from dorm_lab.policies.oasis.model import ROUNDING, worth
from dorm_lab.policies.oasis.online import Machines
from dorm_lab.policies.oasis.prices import Demand, bounds_of
from dorm_lab.policies.oasis.schedule import best_end, cheapest, place_near
from events.quantities import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Flags, Floats, Ints
    from dorm.policies.problem import Problem

MOST_WORK = 4000
"""Units in which the dynamic program counts work; larger work is counted in larger units, rounded up."""
MOST_COUNTS = 64
"""Numbers of containers that it considers, evenly from n_min to n_max if there are more."""


DEFAULT_DECAY = 1 / 3600.0
"""Decay per second of the worth of an app without a declared utility."""
MOST_WORTH = 1e12
MOST_WORK_S = 1e15
SAME_S = 0.001
"""Moments closer than this are one: plans are kept in whole nanoseconds, and decisions ask in floats."""


_UNITS = {CPU: 1000, MEMORY: 2**30}
"""Base units in a unit for users: a core, a GiB."""


class Settings(NamedTuple):
    slot_s: float
    slots: int
    """The horizon."""
    assumed_s: float
    """Worker-seconds of work that are assumed for an app that declares none."""


class Price(NamedTuple):
    """The payment of a schedule for one kind of resource."""

    kind: str
    cost: float
    """The kind's part of the cost of the schedule."""
    each: float
    """Mean price of one unit (a core, a GiB, a device) for a slot, where and when the schedule uses it."""
    full: float
    """Mean fraction of it that is reserved there and then, before the app is admitted."""


class Refusal(NamedTuple):
    """The best schedule of an app that is not worth its price."""

    done_s: float
    """Seconds until it would be done."""
    worth: float
    cost: float
    prices: tuple[Price, ...]
    """Prices by kind, the most expensive first."""


Row = dict[int, int]
"""Gangs by node."""


class _Seen:
    """The machines from the point of view of one app, slot by slot."""

    def __init__(self, machines: Machines, demand: Floats, eligible: Flags) -> None:
        self._machines, self._demand, self._eligible = machines, demand, eligible
        self._slots: dict[int, tuple[Floats, Ints, Ints]] = {}

    def slot(self, slot: int) -> tuple[Floats, Ints, Ints]:
        """Return the price of a container on each machine, for how many there is room, and the machines by price."""
        if slot not in self._slots:
            price, room = self._machines.in_slot(slot, self._demand)
            order = np.argsort(price, kind="stable")
            self._slots[slot] = price, np.where(self._eligible, room, 0), order
        return self._slots[slot]

    def costs(self, slot: int, most: int) -> Floats:
        """Return the cost of 0, 1 … `most` containers."""
        return cheapest(*self.slot(slot), most)


class Planner:
    """All plans at one moment.  The constructor computes everything."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.instance = instance = integer.read(problem)
        self.settings = settings
        self.now_s = problem.at_s
        self.first = math.floor(problem.at_s / settings.slot_s)
        """The number of the present slot."""
        self.part = min(1.0, max(0.0, self.first + 1 - problem.at_s / settings.slot_s))
        """Part of the present slot that is left."""
        self.demand = instance.demand.astype(np.float64)
        self._column = {node: place for place, node in enumerate(instance.nodes)}
        self._machines = self._market()
        self.rows: list[Row] = [{} for _ in instance.apps]
        """The present containers of each app."""
        self.plans: dict[int, Plan] = {}
        """Plans by app; a plan without slots is withdrawn."""
        self.refused: dict[int, Refusal] = {}
        self.endless: list[int] = []
        """Apps whose work is not done within the horizon, whatever they are given."""
        self._plan()

    # --- the market -----------------------------------------------------------------------------------------------------

    def _market(self) -> Machines:
        instance, settings = self.instance, self.settings
        kinds = instance.measured
        units = instance.totals.astype(np.float64)
        units[kinds:] = math.inf
        demands = [
            Demand(
                best=self.worth(app, self._fastest_s(app)),
                end=self.worth(app, settings.slots * settings.slot_s),
                work=math.ceil(self.work(app)),
                each=(self.demand[app] / units).tolist(),
            )
            for app in np.flatnonzero(instance.possible).tolist()
        ]
        limits = bounds_of(demands, float(kinds), settings.slots, len(instance.kinds))
        return Machines(instance.capacity.astype(np.float64), settings.slots, limits, units)

    def worth(self, app: int, in_s: float) -> float:
        """Return the worth of completing the app in this many seconds."""
        demand = self.instance.apps[app]
        if demand.utility is not None:
            return _figure(worth(demand.utility, demand.age_s + in_s))
        return _figure(worth(Utility(2 * _finite(demand.weight), DEFAULT_DECAY, self._fastest_s(app)), in_s))

    def _fastest_s(self, app: int) -> float:
        """Return the seconds until the app would be done on an empty cluster, in whole slots."""
        most = max(self.workers(app, int(self.instance.fits_empty[app])), 1)
        return math.ceil(self.work(app) / most) * self.settings.slot_s

    def work(self, app: int) -> float:
        """Return the worker-slots to plan for: the rest, at least one for an app that should be done and is not."""
        return max(self._left(app), 1.0)

    def _left(self, app: int) -> float:
        demand, settings = self.instance.apps[app], self.settings
        left_s = remaining_s(demand, 1, settings.assumed_s) if demand.work_s is None else demand.work_s
        return min(left_s if left_s == left_s else settings.assumed_s, MOST_WORK_S) / settings.slot_s

    def workers(self, app: int, gangs: int) -> int:
        """Return how many of this many gangs' containers are workers."""
        demand, containers = self.instance.apps[app], gangs * int(self.instance.gang[app])
        if demand.workers_per_server:
            return containers - -(-containers // (demand.workers_per_server + 1))
        return max(0, containers - demand.servers)

    # --- plans ----------------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        instance = self.instance
        again: list[int] = []
        new: list[int] = []
        movable = instance.free_to_move
        for app in np.flatnonzero(instance.pinned).tolist():
            self._hold_pinned(app)
        for app in instance.arrival:
            if instance.pinned[app]:
                continue
            if not movable[app]:
                self._withdraw(app)
            elif not self._keep(app):
                (again if instance.running[app] or instance.apps[app].plan else new).append(app)
        for app in again:
            if not self._admit(app, at_any_price=True):
                self._withdraw(app)
                self._leave(app)
        for app in new:
            self._admit(app, at_any_price=False)

    def _withdraw(self, app: int) -> None:
        if self.instance.apps[app].plan is not None:
            self.plans[app] = Plan(())

    def _leave(self, app: int) -> None:
        """An app that runs and can't be planned continues unchanged, as long as there is room."""
        held = dict(self.instance.rows[app]) if self.instance.kept[app] else {}
        if self._fits(app, slice(1), held):
            self.rows[app] = held
            self._take(app, slice(1), held)

    def _hold_pinned(self, app: int) -> None:
        """Nothing is decided about it; others plan around it."""
        demand, row = self.instance.apps[app], self.instance.rows[app]
        self._take(app, slice(1), row)
        if demand.plan is not None:
            self.plans[app] = demand.plan
            for slot, most in enumerate(self._most(app)):
                if slot > 0:
                    self._take(app, slice(slot, slot + 1), most)
        else:
            lasts = math.ceil(self.work(app) / max(1, self.workers(app, sum(row.values()))))
            self._take(app, slice(1, lasts), row)

    def _keep(self, app: int) -> bool:
        """Keep the app's plan if it still holds; return whether it does."""
        plan, planned = self.instance.apps[app].plan, self._planned(app)
        if plan is None or not self._by_slots(plan) or not any(row for _, row in planned):
            return False
        if not all(row is not None and self._within(app, row) for _, row in planned):
            return False
        rows = [(slots, row or {}) for slots, row in planned]
        now = rows[0][1]
        if rows[-1][0].stop == 1 and self.workers(app, sum(now.values())) * self.part + ROUNDING < self._left(app):
            return False  # Its plan ends with this slot, and it is late.
        later = [(slice(max(slots.start, 1), slots.stop), row) for slots, row in rows if slots.stop > 1]
        if not all(self._fits(app, slots, row) for slots, row in later):
            return False
        if not self._fits(app, slice(1), now):
            held = self.instance.rows[app] if self.instance.kept[app] else {}
            now = held if self._fits(app, slice(1), held) else {}
        self.rows[app] = dict(now)
        self._take(app, slice(1), now)
        for slots, row in later:
            self._take(app, slots, row)
        self.plans[app] = plan
        return True

    def _planned(self, app: int) -> list[tuple[slice, Row | None]]:
        """Return the containers of its plan from the present slot on, as runs of equal slots; None if a node is gone or
        a gang not whole."""
        plan = self.instance.apps[app].plan
        runs_: list[tuple[slice, Row | None]] = []
        for here, after in pairwise(plan.slots) if plan is not None else ():
            runs = slice(max(0, self._slot_of(here.at_s)), min(self._slot_of(after.at_s), self.settings.slots))
            if runs.start < runs.stop:
                begin = runs_[-1][0].stop if runs_ else 0
                if begin < runs.start:
                    runs_.append((slice(begin, runs.start), {}))
                runs_.append((runs, self._row(app, here.counts)))
        return runs_

    def _by_slots(self, plan: Plan) -> bool:
        """Return whether all remaining changes of the plan lie between slots.  A plan made with another `slot_s` need not."""
        return all(
            self.now_s + SAME_S >= slot.at_s
            or abs(slot.at_s / self.settings.slot_s - round(slot.at_s / self.settings.slot_s)) * self.settings.slot_s
            <= SAME_S
            for slot in plan.slots
        )

    def _most(self, app: int) -> list[Row]:
        """Return the most that its plan gives it on each node at any moment of each slot, from the present one on.  A plan
        that also names a node that is gone, or a part of a gang, still promises the rest."""
        plan, gang = self.instance.apps[app].plan, int(self.instance.gang[app])
        most: list[Row] = [{} for _ in range(self.settings.slots)]
        for here, after in pairwise(plan.slots) if plan is not None else ():
            row = {self._column[node]: -(-count // gang) for node, count in here.counts.items() if node in self._column}
            start = math.floor((here.at_s + SAME_S) / self.settings.slot_s) - self.first
            for each in most[max(0, start) : max(0, self._slot_of(after.at_s))]:
                each |= {node: max(count, each.get(node, 0)) for node, count in row.items()}
        return most

    def _slot_of(self, at_s: float) -> int:
        """Return the first slot that begins at this moment or later; the present one began when this was asked."""
        if at_s <= self.now_s + SAME_S:
            return 0
        return max(1, math.ceil((at_s - SAME_S) / self.settings.slot_s) - self.first)

    def _row(self, app: int, counts: Mapping[str, int]) -> Row | None:
        gang = int(self.instance.gang[app])
        if not all(node in self._column and count % gang == 0 for node, count in counts.items()):
            return None
        return {self._column[node]: count // gang for node, count in sorted(counts.items())}

    def _within(self, app: int, row: Row) -> bool:
        """Return whether the app may have that, by its bounds and its requirement."""
        instance, count = self.instance, sum(row.values())
        eligible = instance.eligible[instance.requirement[app]]
        return not count or (
            bool(instance.n_min[app] <= count <= instance.n_max[app]) and all(bool(eligible[node]) for node in row)
        )

    def _fits(self, app: int, slots: slice, row: Row) -> bool:
        return self._machines.fits(slots, row, self.demand[app].tolist())

    def _take(self, app: int, slots: slice, row: Row) -> None:
        self._machines.take(slots, row, self.demand[app].tolist())

    # --- one app --------------------------------------------------------------------------------------------------------

    def _admit(self, app: int, *, at_any_price: bool) -> bool:
        """Give the app its best schedule if that is worth more than it costs; return whether it has one."""
        instance, demand = self.instance, self.instance.apps[app]
        counts = self._counts(app)
        workers = np.array([self.workers(app, count) for count in counts.tolist()], np.float64)
        useless = workers <= 0
        if demand.chunks:
            useless |= workers > demand.chunks
        useless[0] = False
        done, work = self._done(app, workers)
        seen = _Seen(self._machines, self.demand[app], instance.eligible[instance.requirement[app]])

        def costs(slot: int) -> Floats:
            row = seen.costs(slot, int(counts[-1]))[counts]
            return np.where(useless, math.inf, row * self.part if slot == 0 else row)

        least = self._machines.least(self.demand[app])
        least[0] *= self.part
        # No number of workers does more work per container than this.
        most = np.max(np.minimum(done[:2, 1:], work) / counts[1:], axis=1, initial=0.0)
        unit = least / np.maximum(np.append(most[:1], np.full(len(least) - 1, most[-1])), 1e-300)
        rises = demand.utility is not None and not demand.utility.decay >= 0
        end = best_end(costs, done, work, lambda slot: self._worth_by(app, slot), unit, rises=rises)
        if end is None:
            self.endless.append(app)
            return False
        end_s = (self.first + end.last + 1) * self.settings.slot_s
        if not at_any_price and not end.worth > end.cost:
            rows = self._place(app, [int(counts[index]) for index in end.table.counts(end.last)], seen)
            self.refused[app] = Refusal(end_s - self.now_s, end.worth, end.cost, self._prices(app, rows))
            return False
        rows = self._place(app, [int(counts[index]) for index in end.table.counts(end.last)], seen)
        most_cost = math.inf if at_any_price else end.worth - end.cost
        cost = end.cost + self._at_once(rows, seen, most_cost)
        self.rows[app] = rows[0]
        for slot, row in enumerate(rows):
            self._take(app, slice(slot, slot + 1), row)
        self.plans[app] = Plan(self._slots(app, rows, end_s), end.worth, cost)
        return True

    def _prices(self, app: int, rows: list[Row]) -> tuple[Price, ...]:
        """Return the payment of a schedule for each kind of resource."""
        machines, paid = self._machines, []
        uses = [(slot, node, count) for slot, row in enumerate(rows) for node, count in row.items()]
        slots, nodes, counts = np.array(uses, np.int64).reshape(-1, 3).T
        lasts = np.where(slots == 0, self.part, 1.0)
        prices = machines.limits.prices(machines.used[slots, nodes], machines.capacity[nodes])
        for k in np.flatnonzero(self.demand[app][: self.instance.measured] > 0).tolist():
            amount = counts * self.demand[app][k] * lasts
            kind, total = self.instance.kinds[k], max(float(amount.sum()), 1e-300)
            per_unit = prices[:, k] / machines.units[k] * _UNITS.get(kind, 1)
            full = machines.used[slots, nodes, k] / np.maximum(machines.capacity[nodes, k], 1)
            cost = math.fsum((amount * prices[:, k] / machines.units[k]).tolist())
            weighed = [math.fsum((amount * values).tolist()) / total for values in (per_unit, full)]
            paid.append(Price(kind, _figure(cost), _figure(weighed[0]), weighed[1]))
        return tuple(sorted(paid, key=lambda price: (-price.cost, price.kind)))

    def _worth_by(self, app: int, slot: int) -> float:
        """Return the worth of completing the app by the end of this slot."""
        return self.worth(app, (self.first + slot + 1) * self.settings.slot_s - self.now_s)

    def _at_once(self, rows: list[Row], seen: _Seen, most: float) -> float:
        """Let an app that would begin with the next slot begin now, with the rest of this one, if that costs less than `most`;
        return its cost."""
        if len(rows) < 2 or rows[0] or not rows[1]:
            return 0.0
        price, room, _ = seen.slot(0)
        cost = math.fsum(float(price[node]) * count for node, count in rows[1].items()) * self.part
        if cost >= most or any(count > room[node] for node, count in rows[1].items()):
            return 0.0
        rows[0] = rows[1]
        return cost

    def _counts(self, app: int) -> Ints:
        """Return the numbers of gangs to consider, 0 first."""
        least, most = int(self.instance.n_min[app]), int(self.instance.fits_empty[app])
        number = min(most - least + 1, MOST_COUNTS)
        return np.unique(np.concatenate([[0], np.linspace(least, most, number).round()])).astype(np.int64)

    def _done(self, app: int, workers: Floats) -> tuple[Ints, int]:
        """Return the work of each number of workers in each slot, and the total work, both in units."""
        left = self.work(app)
        unit = max(1.0, left / MOST_WORK)
        work = max(1, math.ceil(left / unit - ROUNDING))
        done = np.tile(np.floor(workers / unit + ROUNDING).astype(np.int64), (self.settings.slots, 1))
        done[0] = np.clip(work - np.ceil((left - workers * self.part) / unit - ROUNDING), 0, work)
        return done, work

    def _place(self, app: int, counts: list[int], seen: _Seen) -> list[Row]:
        rows: list[Row] = []
        had = self.instance.rows[app]
        for slot, count in enumerate(counts):
            price, fits, order = seen.slot(slot)
            if slot == 0 and sum(had.values()) == count and all(held <= fits[node] for node, held in had.items()):
                rows.append(dict(had))
            else:
                rows.append(place_near(price, fits, order, count, had))
            had = rows[-1] or had
        return rows

    def _slots(self, app: int, rows: list[Row], end_s: float) -> tuple[Slot, ...]:
        """Return a slot for each change, and one for the end."""
        gang, nodes = int(self.instance.gang[app]), self.instance.nodes
        slots: list[Slot] = []
        for number, row in enumerate(rows):
            counts = {nodes[node]: count * gang for node, count in sorted(row.items())}
            if not slots or counts != slots[-1].counts:
                at_s = (self.first + number) * self.settings.slot_s if number else self.now_s
                slots.append(Slot(at_s, counts))
        return (*slots, Slot(end_s, {}))


def _figure(amount: float) -> float:
    """Round to nine digits, as prices are (`prices.rounded`)."""
    return float(f"{_finite(amount):.9g}")


def _finite(amount: float) -> float:
    return min(max(amount, 0.0), MOST_WORTH) if math.isfinite(amount) else 0.0
