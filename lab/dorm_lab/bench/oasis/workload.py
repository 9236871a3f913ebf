"""The workload of OASiS's evaluation (Bao et al., INFOCOM 2018, §V): jobs with random sizes, demands and utilities.

    E 50-200   D 5-100   M 10-100   τ 0.001-0.1 slots   e 30-575 MB   b 0.1-5 Gbit/s   B 5-20 Gbit/s
    a worker:            0-4 GPUs, 1-10 cores, 2-32 GB of memory, 5-10 GB of storage
    a parameter server:  1-10 cores, 2-32 GB of memory, 5-10 GB of storage
    utility:             θ1 1-100, θ3 1-15 slots; θ2 is 0 for 10 % of the jobs, 0.01-1 for 55 %, and 4-6 for 35 %

All are drawn evenly.  The ranges are from memory of the paper.  Chosen here:
* A slot is an hour.
* Jobs arrive in slots drawn evenly over the horizon; the paper takes the rate of arrivals from a trace of Google's clusters.
* Most jobs of these ranges take hundreds of slots even with D workers.  A job that can't be done in 15 slots, the latest
  target, by 30 workers, the most that schedulers with fixed numbers give, is drawn again.
* Machines for workers have 8 GPUs, 32 cores and 488 GB (EC2's p2.8xlarge), those for parameter servers 36 cores and 60 GB
  (c4.8xlarge), all of them 1,000 GB of storage.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from dorm.policies.problem import Utility
from dorm_lab.policies.oasis.model import Cluster, Job

KINDS = ("gpu", "cpu", "memory_gb", "storage_gb")
SLOT_S = 3600.0
LATEST_TARGET = 15
MOST_FIXED = 30
"""Workers that schedulers with fixed numbers give a job."""
MB, GBIT = 10**6, 10**9 // 8
WORKERS, SERVERS = (8, 32, 488, 1000), (0, 36, 60, 1000)


class Sizes(NamedTuple):
    jobs: int = 100
    machines: int = 50
    """Number of machines of each group."""
    slots: int = 100


def cluster(sizes: Sizes) -> Cluster:
    return Cluster((WORKERS,) * sizes.machines, (SERVERS,) * sizes.machines, sizes.slots, SLOT_S)


def jobs(sizes: Sizes, seed: int) -> list[Job]:
    """Return the jobs, by arrival."""
    chance = random.Random(seed)
    arrivals = sorted(chance.randrange(sizes.slots) for _ in range(sizes.jobs))
    return [_job(chance, f"job-{number}", arrival) for number, arrival in enumerate(arrivals)]


def _job(chance: random.Random, name: str, arrival: int) -> Job:
    while True:
        job = Job(
            id=name,
            arrival=arrival,
            epochs=chance.randint(50, 200),
            chunks=chance.randint(5, 100),
            mini_batches=chance.randint(10, 100),
            mini_batch_s=chance.uniform(0.001, 0.1) * SLOT_S,
            gradient=chance.uniform(30, 575) * MB,
            worker_bandwidth=int(chance.uniform(0.1, 5) * GBIT),
            server_bandwidth=int(chance.uniform(5, 20) * GBIT),
            worker=(chance.randint(0, 4), chance.randint(1, 10), chance.randint(2, 32), chance.randint(5, 10)),
            server=(0, chance.randint(1, 10), chance.randint(2, 32), chance.randint(5, 10)),
            utility=_utility(chance),
        )
        if job.work(SLOT_S) <= LATEST_TARGET * min(job.chunks, MOST_FIXED):
            return job


def _utility(chance: random.Random) -> Utility:
    kind = chance.random()
    decay = 0.0 if kind < 0.1 else chance.uniform(0.01, 1) if kind < 0.65 else chance.uniform(4, 6)
    return Utility(chance.uniform(1, 100), decay / SLOT_S, chance.uniform(1, LATEST_TARGET) * SLOT_S)


def small(seed: int) -> tuple[Cluster, list[Job]]:
    """Return an instance whose optimum can be computed: 10 jobs of up to 6 worker-slots, 3 and 2 machines, 5 slots."""
    chance = random.Random(seed)
    drawn = []
    for number in range(10):
        chunks = chance.randint(1, 3)
        drawn.append(
            Job(
                id=f"job-{number}",
                arrival=chance.randrange(4),
                epochs=1,
                chunks=chunks,
                mini_batches=1,
                mini_batch_s=chance.randint(1, 2) * SLOT_S,
                gradient=0.0,
                worker_bandwidth=1,
                server_bandwidth=chance.randint(1, 4),
                worker=(chance.randint(1, 2), chance.randint(1, 3)),
                server=(0, chance.randint(1, 2)),
                utility=Utility(
                    chance.uniform(1, 100),
                    chance.choice([0.0, 0.5, 5.0]) / SLOT_S,
                    chance.uniform(1, 4) * SLOT_S,
                ),
            )
        )
    return Cluster(((4, 8),) * 3, ((0, 6),) * 2, 5, SLOT_S), sorted(drawn, key=lambda job: job.arrival)
