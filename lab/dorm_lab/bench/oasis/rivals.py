"""The schedulers that OASiS is compared with (§V), on the same jobs.

    FIFO   jobs by arrival, with a fixed number of workers; the first that does not fit holds up the others (Hadoop, Spark)
    DRF    the numbers of workers are recomputed at each arrival and end, by dominant resource fairness (NSDI 2011)
    RRH    fixed numbers; a job is admitted by its risk and reward, and those with the largest reward run first
    Dorm   this project's optimizer, in each slot; parameter servers follow the workers

Containers are placed in turns over the machines, those of Dorm by its optimizer.  Chosen here: fixed numbers are drawn from 1
to 30, at most D.  RRH is the FirstReward heuristic of Irwin, Grit and Chase (HPDC 2004): a job whose fixed number of workers
takes R slots has the reward (α·f - (1 - α)·R·Σ_j d_j) / R, with α = 0.5, f its worth if it starts now, and d_j what each
other job in the system loses by a further slot.  A job is admitted if that is positive when it arrives.  It runs until it is
done.  Adjustments are free for all, as in the paper's simulation.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from dorm.policies.problem import AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm_lab.bench.oasis.running import Rooms, Share
from dorm_lab.bench.oasis.workload import MOST_FIXED
from dorm_lab.policies.oasis.model import worth_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm_lab.policies.oasis.model import Cluster, Job

ALPHA = 0.5


def fixed_numbers(jobs: Sequence[Job], seed: int) -> dict[str, int]:
    """Return a number of workers for each job."""
    chance = random.Random(seed)
    return {job.id: min(chance.randint(1, MOST_FIXED), job.chunks) for job in jobs}


class Fifo:
    def __init__(self, cluster: Cluster, numbers: dict[str, int]) -> None:
        self._cluster, self._numbers = cluster, numbers

    def decide(self, slot: int, alive: Sequence[Job], left: dict[str, int]) -> dict[str, Share]:
        rooms, shares = Rooms(self._cluster), dict[str, Share]()
        for job in alive:
            share = rooms.place(job, self._numbers[job.id])
            if share is None:
                break
            shares[job.id] = share
        return shares


class Drf:
    """Keeps what was decided until a job arrives or ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._totals = [
            [sum(machine[kind] for machine in machines) for kind in range(len(machines[0]))]
            for machines in (cluster.workers, cluster.servers)
        ]
        self._seen: list[str] = []
        self._shares: dict[str, Share] = {}

    def decide(self, slot: int, alive: Sequence[Job], left: dict[str, int]) -> dict[str, Share]:
        if [job.id for job in alive] != self._seen:
            self._seen = [job.id for job in alive]
            self._shares = self._fill(alive)
        return self._shares

    def _fill(self, alive: Sequence[Job]) -> dict[str, Share]:
        """Progressive filling: one worker after the other for the job with the smallest dominant share."""
        counts: dict[str, int] = {job.id: 0 for job in alive}
        shares: dict[str, Share] = {}
        rooms = Rooms(self._cluster)
        open_jobs = list(alive)
        while open_jobs:
            job = min(
                open_jobs,
                key=lambda open_job: (self._dominant(open_job, counts[open_job.id]), open_job.arrival, open_job.id),
            )
            more = self._one_more(rooms, job, counts[job.id])
            if more is None:
                open_jobs.remove(job)
                continue
            counts[job.id] += 1
            had = shares.get(job.id, Share({}, {}))
            shares[job.id] = Share(_added(had.workers, more.workers), _added(had.servers, more.servers))
        return shares

    def _one_more(self, rooms: Rooms, job: Job, count: int) -> Share | None:
        if count == job.chunks or job.servers_for(count + 1) > count + 1:
            return None
        return rooms.place_more(job, 1, job.servers_for(count + 1) - job.servers_for(count))

    def _dominant(self, job: Job, count: int) -> float:
        parts = [0.0]
        for totals, demand, number in zip(
            self._totals, (job.worker, job.server), (count, job.servers_for(count)), strict=True
        ):
            parts += [number * need / total for need, total in zip(demand, totals, strict=True) if total > 0]
        return max(parts)


def _added(left: dict[int, int], right: dict[int, int]) -> dict[int, int]:
    return {machine: left.get(machine, 0) + right.get(machine, 0) for machine in sorted({*left, *right})}


class Rrh:
    def __init__(self, cluster: Cluster, numbers: dict[str, int]) -> None:
        self._cluster, self._numbers = cluster, numbers
        self._decided: dict[str, bool] = {}
        """Whether a job was admitted."""
        self._running: dict[str, Share] = {}

    def decide(self, slot: int, alive: Sequence[Job], left: dict[str, int]) -> dict[str, Share]:
        here = {job.id: job for job in alive}
        self._running = {name: share for name, share in self._running.items() if name in here}
        for job in alive:
            if job.id not in self._decided:
                self._decided[job.id] = self._reward(job, slot, alive, left) > 0
        rooms = Rooms(self._cluster)
        for name, share in self._running.items():
            rooms.take(here[name], share)
        waiting = [job for job in alive if self._decided[job.id] and job.id not in self._running]
        for job in sorted(waiting, key=lambda job: (-self._reward(job, slot, alive, left), job.arrival, job.id)):
            placed = rooms.place(job, self._numbers[job.id])
            if placed is not None:
                self._running[job.id] = placed
        return self._running

    def _reward(self, job: Job, slot: int, alive: Sequence[Job], left: dict[str, int]) -> float:
        lasts = -(-left[job.id] // self._numbers[job.id])
        loses = sum(
            self._decay(other, slot, left) for other in alive if other.id != job.id and self._decided.get(other.id)
        )
        worth = worth_in(job, slot + lasts - 1, self._cluster.slot_s)
        return (ALPHA * worth - (1 - ALPHA) * lasts * loses) / lasts

    def _decay(self, job: Job, slot: int, left: dict[str, int]) -> float:
        """The job's loss if it ends a slot later."""
        end = slot + -(-left[job.id] // self._numbers[job.id]) - 1
        return worth_in(job, end, self._cluster.slot_s) - worth_in(job, end + 1, self._cluster.slot_s)


class DormItself:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = tuple(
            NodeRoom(f"m{number:05}", {f"kind-{kind}": int(amount) for kind, amount in enumerate(machine) if amount})
            for number, machine in enumerate(cluster.workers)
        )
        self._placed: dict[str, dict[str, int]] = {}

    def decide(self, slot: int, alive: Sequence[Job], left: dict[str, int]) -> dict[str, Share]:
        apps = tuple(
            AppDemand(
                id=job.id,
                demand={f"kind-{kind}": int(need) for kind, need in enumerate(job.worker) if need},
                weight=1.0,
                n_min=1,
                n_max=job.chunks,
                current=self._placed.get(job.id, {}),
                waited_s=0.0 if job.id in self._placed else (slot - job.arrival) * self._cluster.slot_s,
            )
            for job in alive
            if job.servers_for(1) <= 1
        )
        counts = policy("dorm").allocate(Problem(self._nodes, apps), {}).counts
        rooms, shares = Rooms(self._cluster), dict[str, Share]()
        for job in alive:
            workers = {int(node[1:]): count for node, count in counts.get(job.id, {}).items()}
            while workers and (servers := rooms.servers_near(job, sum(workers.values()))) is None:
                last = max(workers)
                workers = {**workers, last: workers[last] - 1} if workers[last] > 1 else _without(workers, last)
            if workers:
                assert servers is not None
                shares[job.id] = Share(workers, servers)
                rooms.take(job, shares[job.id])
        self._placed = {
            name: {f"m{machine:05}": count for machine, count in share.workers.items()}
            for name, share in shares.items()
        }
        return shares


def _without(workers: dict[int, int], machine: int) -> dict[int, int]:
    return {other: count for other, count in workers.items() if other != machine}
