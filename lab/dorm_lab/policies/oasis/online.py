"""Jobs one after the other, as they arrive (OASiS, §IV: the paper's online algorithm).

Each job gets the schedule with the largest payoff at the prices of that moment.  If the payoff is positive, the job is
admitted, its resources in each slot are reserved, and prices rise; otherwise, it is refused permanently.  Admitted jobs never
change later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm_lab.policies.oasis.model import Schedule, SlotUse, worth_in
from dorm_lab.policies.oasis.prices import bounds, rounded
from dorm_lab.policies.oasis.schedule import Offer, fill, place, unit_costs, with_servers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.policies.integer import Floats, Ints
    from dorm_lab.policies.oasis.model import Cluster, Job
    from dorm_lab.policies.oasis.prices import Both, Bounds

LARGEST_COUNT = 2**31
"""The limit for containers on one machine that need no resources."""


class Machines:
    """One group of machines over all slots: the used resources, and their prices."""

    def __init__(self, capacity: Floats, slots: int, limits: Bounds, units: Floats | None = None) -> None:
        """`capacity` by machine and kind.  Prices are for amounts divided by `units`; 1 if none are given."""
        self.capacity = capacity
        self.limits = limits
        self.units = np.ones(capacity.shape[1]) if units is None else units
        self.used = np.zeros((slots, *capacity.shape))
        self._prices: Floats | None = None
        """Prices of the amounts in `used`, once they were asked for."""
        self._cheapest: Floats | None = None
        """Lowest price of a machine that has a kind, by slot and kind, once it was asked for."""

    def offer(self, first: int, demand: Sequence[float]) -> Offer:
        """Return price and room of one container with this demand, in the slots from `first` on."""
        each, used = np.asarray(demand, np.float64), self.used[first:]
        needed = each > 0
        price = rounded(self._priced()[first:] @ (each / self.units))
        if not needed.any():
            return Offer(price, np.full(price.shape, LARGEST_COUNT, np.int64))
        # Of whole numbers this is exact.
        free = np.floor_divide(self.capacity[:, needed] - used[:, :, needed], each[needed])
        return Offer(price, np.clip(free.min(axis=2), 0, LARGEST_COUNT).astype(np.int64))

    def in_slot(self, slot: int, demand: Floats) -> tuple[Floats, Ints]:
        """Return price and room of one container with this demand in one slot, as `offer` does."""
        prices, needed = self._priced(), demand > 0
        price = rounded(prices[slot] @ (demand / self.units))
        if not needed.any():
            return price, np.full(price.shape, LARGEST_COUNT, np.int64)
        free = np.floor_divide(self.capacity[:, needed] - self.used[slot][:, needed], demand[needed])
        return price, np.clip(free.min(axis=1), 0, LARGEST_COUNT).astype(np.int64)

    def least(self, demand: Floats) -> Floats:
        """Return the least cost of one container with this demand, by slot: each kind at its cheapest machine."""
        if self._cheapest is None:
            self._cheapest = self._least_in(slice(None))
        return np.asarray(self._cheapest @ (demand / self.units))

    def _least_in(self, slots: slice) -> Floats:
        least = np.where(self.capacity > 0, self._priced()[slots], np.inf).min(axis=1, initial=np.inf)
        return np.where(np.isfinite(least), least, 0.0)

    def _priced(self) -> Floats:
        if self._prices is None:
            self._prices = self.limits.prices(self.used, self.capacity)
        return self._prices

    def take(self, slots: slice, counts: dict[int, int], demand: Sequence[float]) -> None:
        for machine, count in counts.items():
            self.used[slots, machine] += np.asarray(demand) * count
            if self._prices is not None:
                self._prices[slots, machine] = self.limits.prices(self.used[slots, machine], self.capacity[machine])
        if self._cheapest is not None and counts:
            self._cheapest[slots] = self._least_in(slots)

    def fits(self, slots: slice, counts: dict[int, int], demand: Sequence[float]) -> bool:
        """Return whether the machines have room for that in each of these slots."""
        return all(
            bool((self.used[slots, machine] + np.asarray(demand) * count <= self.capacity[machine]).all())
            for machine, count in counts.items()
        )


class Market:
    """Both groups of machines, and jobs admitted to them."""

    def __init__(self, cluster: Cluster, limits: Both) -> None:
        self.cluster = cluster
        kinds = max((len(machine) for machine in (*cluster.workers, *cluster.servers)), default=0)
        self.workers = Machines(_matrix(cluster.workers, kinds), cluster.slots, limits.workers)
        self.servers = Machines(_matrix(cluster.servers, kinds), cluster.slots, limits.servers)

    def best(self, job: Job) -> Schedule | None:
        """Return the schedule with the largest payoff, which may be negative; None if the job cannot end within the
        horizon."""
        slot_s, slots = self.cluster.slot_s, self.cluster.slots
        work = job.work(slot_s)
        if job.arrival + job.fewest_slots(slot_s) > slots:
            return None
        workers = self.workers.offer(job.arrival, job.worker)
        servers = self.servers.offer(job.arrival, job.server)
        most = min(job.chunks, work)
        costs = with_servers(unit_costs(workers, most), servers, job.servers_for)
        table = fill(costs, np.broadcast_to(np.arange(most + 1), costs.shape), work)
        worths = np.array([worth_in(job, slot, slot_s) for slot in range(job.arrival, slots)])
        last = int(np.argmax(worths - table.least))
        if not np.isfinite(table.least[last]):
            return None
        uses = _uses(job, table.counts(last), workers, servers)
        return Schedule(uses, float(worths[last]), float(table.least[last]))

    def admit(self, job: Job) -> Schedule | None:
        """Admit the job with its best schedule if the payoff is positive; None if it is refused."""
        schedule = self.best(job)
        if schedule is None or not schedule.payoff > 0:
            return None
        self.take(job, schedule)
        return schedule

    def take(self, job: Job, schedule: Schedule) -> None:
        for use in schedule.uses:
            slot = slice(use.slot, use.slot + 1)
            self.workers.take(slot, use.workers, job.worker)
            self.servers.take(slot, use.servers, job.server)


class Outcome(NamedTuple):
    admitted: dict[str, Schedule]
    refused: tuple[str, ...]
    limits: Both

    @property
    def utility(self) -> float:
        return sum(schedule.worth for schedule in self.admitted.values())


def run(cluster: Cluster, jobs: Iterable[Job], limits: Both | None = None) -> Outcome:
    """Admit or refuse all jobs, by arrival; jobs of one slot in their order.  `limits` are those of the jobs themselves if
    none are given."""
    in_order = sorted(jobs, key=lambda job: job.arrival)
    limits = limits or bounds(cluster, in_order)
    market = Market(cluster, limits)
    admitted: dict[str, Schedule] = {}
    refused = []
    for job in in_order:
        schedule = market.admit(job)
        if schedule is None:
            refused.append(job.id)
        else:
            admitted[job.id] = schedule
    return Outcome(admitted, tuple(refused), limits)


def _uses(job: Job, workers: list[int], machines: Offer, servers: Offer) -> tuple[SlotUse, ...]:
    """Place the workers of each slot, and their parameter servers; the first slot is the slot of the arrival."""
    uses = []
    here: dict[int, int] = {}
    there: dict[int, int] = {}
    for offset, count in enumerate(workers):
        if count:
            here = place(machines.price[offset], machines.room[offset], count, here)
            needed = job.servers_for(count)
            there = place(servers.price[offset], servers.room[offset], needed, there)
            uses.append(SlotUse(job.arrival + offset, here, there))
    return tuple(uses)


def _matrix(machines: Sequence[Sequence[float]], kinds: int) -> Floats:
    return np.array(machines, np.float64).reshape(len(machines), kinds)
