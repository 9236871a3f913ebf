"""A scheduler that decides slot by slot: what jobs have in each slot, and when they are done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from dorm_lab.policies.oasis.model import worth_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Floats
    from dorm_lab.policies.oasis.model import Cluster, Job


class Done(NamedTuple):
    utility: float
    jobs: int
    """Number of jobs that were done within the horizon."""
    mean_slots: float
    """Slots of those from arrival to end."""
    decision_s: float
    """The mean time of one decision."""
    longest_s: float


class Share(NamedTuple):
    """What one job has in a slot, by number of machine."""

    workers: dict[int, int]
    servers: dict[int, int]


class Scheduler(Protocol):
    def decide(self, slot: int, alive: Sequence[Job], left: dict[str, int]) -> dict[str, Share]:
        """Return what each job has in this slot.  `alive` are the jobs that have arrived and are not done, by arrival, and
        `left` their worker-slots."""
        ...


class Overfull(Exception):
    """A bug: a scheduler gave more than a machine has, or more parameter servers or workers than a job may have."""


def run(scheduler: Scheduler, cluster: Cluster, jobs: Sequence[Job]) -> Done:
    left = {job.id: job.work(cluster.slot_s) for job in jobs}
    done, times, waits, worth = 0, [], [], 0.0
    for slot in range(cluster.slots):
        alive = [job for job in jobs if job.arrival <= slot and left[job.id] > 0]
        if not alive:
            continue
        began = time.perf_counter()
        shares = scheduler.decide(slot, alive, left)
        times.append(time.perf_counter() - began)
        check(cluster, {job.id: job for job in alive}, shares)
        for job in alive:
            if job.id in shares:
                left[job.id] = max(0, left[job.id] - sum(shares[job.id].workers.values()))
                if not left[job.id]:
                    done += 1
                    waits.append(slot - job.arrival + 1)
                    worth += worth_in(job, slot, cluster.slot_s)
    return Done(worth, done, float(np.mean(waits)) if waits else 0.0, *_times(times))


def _times(times: Sequence[float]) -> tuple[float, float]:
    return (float(np.mean(times)), max(times)) if times else (0.0, 0.0)


def check(cluster: Cluster, jobs: dict[str, Job], shares: dict[str, Share]) -> None:
    """Raises `Overfull`."""
    rooms = Rooms(cluster)
    for name, share in shares.items():
        job, workers, servers = jobs[name], sum(share.workers.values()), sum(share.servers.values())
        if workers and (workers > job.chunks or servers < job.servers_for(workers) or servers > workers):
            raise Overfull(f"{name} has {workers} workers and {servers} parameter servers")
        rooms.take(job, share)
    if (rooms.workers < 0).any() or (rooms.servers < 0).any():
        raise Overfull("a machine holds more than it has")


class Rooms:
    """Free room of all machines in one slot; containers go to one machine after the other, in turns."""

    def __init__(self, cluster: Cluster) -> None:
        self.workers = np.array(cluster.workers, np.float64)
        self.servers = np.array(cluster.servers, np.float64)
        self._turn = [0, 0]

    def take(self, job: Job, share: Share) -> None:
        for room, counts, demand in (
            (self.workers, share.workers, job.worker),
            (self.servers, share.servers, job.server),
        ):
            for machine, count in counts.items():
                room[machine] -= np.array(demand) * count

    def place(self, job: Job, workers: int) -> Share | None:
        """Place this many workers with their parameter servers in turns; if they do not fit, change nothing and return
        None."""
        return self.place_more(job, workers, job.servers_for(workers)) if job.servers_for(workers) <= workers else None

    def place_more(self, job: Job, workers: int, servers: int) -> Share | None:
        """Place workers and parameter servers in turns; if they do not fit, change nothing and return None."""
        here = self._in_turns(0, self.workers, job.worker, workers)
        there = None if here is None else self._in_turns(1, self.servers, job.server, servers)
        if here is None or there is None:
            return None
        share = Share(here, there)
        self.take(job, share)
        return share

    def servers_near(self, job: Job, workers: int) -> dict[int, int] | None:
        """Return a place for the parameter servers of workers that are placed, not taken yet; None if there is none."""
        servers = job.servers_for(workers)
        return None if servers > workers else self._in_turns(1, self.servers, job.server, servers)

    def _in_turns(self, group: int, room: Floats, demand: Sequence[float], count: int) -> dict[int, int] | None:
        each = np.array(demand, np.float64)
        needed = each > 0
        fits = np.floor_divide(room[:, needed], each[needed]).min(axis=1).astype(np.int64)
        if int(fits.sum()) < count:
            return None
        counts: dict[int, int] = {}
        machine = self._turn[group]
        while count:
            if fits[machine] > 0:
                counts[machine] = counts.get(machine, 0) + 1
                fits[machine] -= 1
                count -= 1
            machine = (machine + 1) % len(room)
        self._turn[group] = machine
        return counts
