"""Prices of resources, and the competitive ratio that they give (OASiS §IV).

    p(t) = L (U/L)^(used/capacity)                      for each kind of resource, machine and slot
    U1^r = max_i f_i(fastest) / w_i^r                   for workers' machines; U2^r with s_i^r for those of parameter servers
    L1   = min_i f_i(T - a_i) / (4 η1 W_i Σ_r w_i^r)    W_i worker-slots;  L2 with η2 and s_i
    1/η1 = min_i W_i Σ_r w_i^r / (T Σ_h Σ_r c_h^r)      the smallest η1 that the analysis admits;  η2 alike

At use 0 the price is so low that any job may be admitted; if a resource is used up the price is U, which no job can pay.
OASiS is 2α-competitive with α = max_r (1, ln U1^r/L1, ln U2^r/L2).  That holds in the limit of jobs that are small compared
with a machine: the analysis replaces the growth of a price by its derivative, and takes a machine to be full if its price is
U.  A job as large as a machine can keep out another that is worth any number of times more.

The form of U, L and η is from memory of the paper; a test checks that the prices before the first job sum to at most half of
the optimum, which its analysis needs.  Chosen here if the text is open:
* f_i(fastest) is the worth of the job on an empty cluster: D workers in each slot.
* The bounds U and L need all jobs in advance, as in the text; the policy estimates them from those that it sees (`planning`).
* f_i(T - a_i) of a time-critical job is zero for any practical purpose, and with L = 0 all prices are zero.  So it counts as
  at least `LEAST_PART` of the largest f_i(fastest).  The analysis needs Σ L·c ≤ OPT/2 before the first job, which holds: OPT
  is at least the worth of the best job alone.
* Σ_r adds amounts of different kinds.  The prices of the text depend on the units; callers choose them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm_lab.policies.oasis.model import worth_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Floats
    from dorm_lab.policies.oasis.model import Cluster, Job

LEAST_PART = 1e-3
"""The smallest worth that L counts, as a part of the largest worth of any job."""


class Bounds(NamedTuple):
    """The bounds of the prices of one group of machines."""

    most: Floats
    """U, by kind; L for a kind that no job needs."""
    least: float
    """L."""

    def prices(self, used: Floats, capacity: Floats) -> Floats:
        """Return prices in the shape of `used`, whose last axis is the kinds."""
        part = np.divide(
            used, capacity, out=np.zeros(np.broadcast_shapes(used.shape, capacity.shape)), where=capacity > 0
        )
        return rounded(self.least * np.power(self.most / self.least, part))

    @property
    def alpha(self) -> float:
        return max(1.0, float(np.log(self.most / self.least).max(initial=1.0)))


def rounded(values: Floats) -> Floats:
    """Round to 30 binary digits, which are nine decimal ones.  Powers and products of matrices differ in their last bits from
    one processor to another; decisions that are based on them, and recorded, must not."""
    digits, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(digits * 2.0**30) / 2.0**30, exponent))


class Both(NamedTuple):
    """The bounds of both groups of machines."""

    workers: Bounds
    servers: Bounds

    @property
    def ratio(self) -> float:
        """2α: the optimum is at most this many times the utility that OASiS reaches, for small jobs."""
        return 2.0 * max(self.workers.alpha, self.servers.alpha)


class Demand(NamedTuple):
    """The data about one job and one group of machines that the bounds need."""

    best: float
    """The worth of the job on an empty cluster."""
    end: float
    """Worth of the job at the end of the horizon."""
    work: int
    """Worker-slots."""
    each: Sequence[float]
    """Demand of one worker, or of one parameter server, by kind."""


def bounds_of(demands: Sequence[Demand], total: float, slots: int, kinds: int) -> Bounds:
    """Return U and L for one group of machines that have `total` of all kinds together.  Without any demand, prices are 1."""
    used = [demand for demand in demands if demand.best > 0 and sum(demand.each) > 0]
    if not used or total <= 0:
        return Bounds(np.ones(kinds), 1.0)
    eta = slots * total / min(job.work * sum(job.each) for job in used)
    floor = LEAST_PART * max(job.best for job in used)
    least = min(max(job.end, floor) / (4 * eta * job.work * sum(job.each)) for job in used)
    most = [
        max((job.best / job.each[kind] for job in used if job.each[kind] > 0), default=least) for kind in range(kinds)
    ]
    return Bounds(np.array(most), least)


def bounds(cluster: Cluster, jobs: Sequence[Job]) -> Both:
    """Return the bounds for an instance whose jobs are all known; those that cannot end within the horizon do not count."""
    slot_s, slots = cluster.slot_s, cluster.slots
    able = [job for job in jobs if job.arrival + job.fewest_slots(slot_s) <= slots]
    bounds_ = []
    for machines, each in (
        (cluster.workers, [job.worker for job in able]),
        (cluster.servers, [job.server for job in able]),
    ):
        demands = [
            Demand(
                worth_in(job, job.arrival + job.fewest_slots(slot_s) - 1, slot_s),
                worth_in(job, slots, slot_s),
                job.work(slot_s),
                needs,
            )
            for job, needs in zip(able, each, strict=True)
        ]
        kinds = len(machines[0]) if machines else 0
        bounds_.append(bounds_of(demands, math.fsum(map(math.fsum, machines)), slots, kinds))
    return Both(*bounds_)
