"""Jobs, machines and slots, as in OASiS §III.

A job trains D chunks of data in E epochs by asynchronous workers and parameter servers.  A chunk has M mini-batches; each
takes a worker τ to compute, and 2e/b to send gradients of size e and receive parameters over its bandwidth b.  So it needs

    E·D·M·(τ + 2e/b)                       of one worker's time, spread in any way over the slots from its arrival on
    Σ_h y_h(t) ≤ D                         workers at once: a chunk is processed by one worker at a time
    b Σ_h y_h(t) ≤ B Σ_k z_k(t)            bandwidth of parameter servers for all workers
    Σ_k z_k(t) ≤ Σ_h y_h(t)                no more parameter servers than workers

Workers and parameter servers are on separate machines (h, k).  The job is done in its last slot with workers, and that is
worth f(slots since its arrival) = θ1 / (1 + exp(θ2 (t - θ3))) (§V).

The text counts the work of a slot in chunks; here it is counted in worker-slots, in which the constraint above is stated.  A
chunk need not be a whole number of worker-slots, so this never needs more workers.  The work is rounded up to whole
worker-slots: y is integral, so this changes no feasible schedule.
"""

from __future__ import annotations

import math

import msgspec

from dorm.policies.problem import Utility

ROUNDING = 1e-9
"""Work within this part of a whole number of worker-slots is that number."""
_LARGEST_EXPONENT = 700.0


class Job(msgspec.Struct, frozen=True):
    """Quantities are in the same kinds and units as the machines', in whole numbers, so that sums are exact; sizes in bytes,
    bandwidths in bytes per second."""

    id: str
    arrival: int
    """The first slot in which it may run (a_i)."""
    epochs: int
    chunks: int
    mini_batches: int
    """Mini-batches of one chunk (M_i)."""
    mini_batch_s: float
    """Seconds that one worker computes for a mini-batch (τ_i)."""
    gradient: float
    """Size of the gradients, and of the parameters (e_i)."""
    worker_bandwidth: int
    server_bandwidth: int
    worker: tuple[float, ...]
    """Demand of a worker by kind of resource (w_i)."""
    server: tuple[float, ...]
    """Demand of a parameter server (s_i)."""
    utility: Utility

    @property
    def work_s(self) -> float:
        """Seconds of one worker's time for the whole job."""
        exchange_s = 2 * self.gradient / self.worker_bandwidth
        return self.epochs * self.chunks * self.mini_batches * (self.mini_batch_s + exchange_s)

    def work(self, slot_s: float) -> int:
        """Return the worker-slots that the job needs."""
        slots = self.work_s / slot_s
        return max(1, math.ceil(slots - ROUNDING * max(slots, 1.0)))

    def servers_for(self, workers: int) -> int:
        """Return how many parameter servers this many workers need."""
        return -(-workers * self.worker_bandwidth // self.server_bandwidth)

    def fewest_slots(self, slot_s: float) -> int:
        """Return how many slots it takes with D workers in each."""
        return -(-self.work(slot_s) // self.chunks)


class Cluster(msgspec.Struct, frozen=True):
    """Machines and the horizon.  All machines have the same kinds of resources."""

    workers: tuple[tuple[float, ...], ...]
    """Capacity of each machine for workers, by kind (c_h)."""
    servers: tuple[tuple[float, ...], ...]
    """Capacity of each machine for parameter servers (c_k)."""
    slots: int
    """T."""
    slot_s: float = 3600.0


class SlotUse(msgspec.Struct, frozen=True):
    """A job's containers in one slot, by machine number: only positive counts, ascending."""

    slot: int
    workers: dict[int, int]
    servers: dict[int, int]


class Schedule(msgspec.Struct, frozen=True):
    """A job's slots, ascending, and their worth."""

    uses: tuple[SlotUse, ...]
    worth: float
    cost: float = 0.0
    """Cost at the prices by which it was chosen."""

    @property
    def payoff(self) -> float:
        """μ of the text."""
        return self.worth - self.cost

    @property
    def last(self) -> int:
        return self.uses[-1].slot


def worth(utility: Utility, after_s: float) -> float:
    """Return the worth of a completion `after_s` seconds after the arrival."""
    exponent = min(utility.decay * (after_s - utility.target_s), _LARGEST_EXPONENT)
    return utility.worth / (1.0 + math.exp(exponent))


def worth_in(job: Job, slot: int, slot_s: float) -> float:
    """Return the worth of completing the job in this slot: f_i(t - a_i)."""
    return worth(job.utility, (slot - job.arrival) * slot_s)
