"""A simulator that shares nothing with Dorm's but the profiles of jobs: rounds, tuned batches, a restart charged by model.

    python -m tests.dorm_lab.policies.foreign dorm-speed,caution=6 --traces DIR --workloads 6,2,8 --work 1.7
    python -m tests.dorm_lab.policies.foreign sia --traces DIR --work 2.5 --types t4:6,rtx:6,a100:4

It calls a policy as docs/policies.md says, and charges each change as Sia's public simulator does (SOSP 2023,
`siasosp23/artifacts`, `sia-simulator`), including moves between equal nodes.  `--work` makes all jobs longer by a factor, so
that the cluster is as full as in Sia's workloads.  With `--types`, GPUs differ: models gain differently from faster ones
(`FASTER`), and a partition works at the pace of its slowest node.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dorm.policies import AppDemand, Batch, NodeRoom, Problem, policy
from dorm_lab.workloads import by_name
from dorm_lab.workloads.pollux import packed
from dorm_lab.workloads.traces.pollux import bounded
from dorm_lab.workloads.tuned import Tuned
from replay.simulator.measures import contention, fair_containers, fair_rate
from replay.simulator.speed import after, seconds_until

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUND_S = 60.0
RESTARTS_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
"""What a start or a restart takes, by model, as in Sia's simulator."""
USUAL_S = 30.0
GPUS_OF_NODE = 4
FASTER = {
    "rtx": {"cifar10": 1.5, "deepspeech2": 1.3, "bert": 1.9, "yolov3": 1.6, "imagenet": 1.7, "ncf": 1.2},
    "a100": {"cifar10": 2.0, "deepspeech2": 1.7, "bert": 4.0, "yolov3": 2.6, "imagenet": 3.0, "ncf": 1.4},
}
"""How many times as fast as on a T4, on which the jobs were profiled.  The figures are assumed, and about as far apart as in
Sia's paper."""


def nodes_of(types: str) -> tuple[NodeRoom, ...]:
    """Return nodes of four GPUs each: 16 of one type, or as many of each type as `t4:6,rtx:6,a100:4` says."""
    given = [one.split(":") for one in types.split(",")] if types else [["", "16"]]
    return tuple(
        NodeRoom(f"node-{name}{i:02}", {"gpu": GPUS_OF_NODE}, {"type": name} if name else {})
        for name, n in given
        for i in range(int(n))
    )


@dataclass
class Job:
    name: str
    at_s: float
    speed: Tuned
    declared: tuple[tuple[int, float], ...]
    accepts: Batch
    steps: float
    most: int
    longer: float
    """Each epoch takes this many times its work."""
    faster: dict[str, float] = field(default_factory=dict)
    """By type of node, if types differ."""
    types: dict[str, str] = field(default_factory=dict)
    """The type of each node."""
    done: float = 0.0
    where: dict[str, int] = field(default_factory=dict)
    batch: int = 0
    pause_s: float = 0.0
    restarts: int = 0
    served_s: float = 0.0
    lost_s: float = 0.0
    ended_s: float = math.inf
    since_s: float = 0.0
    """Since when it has what it has, or waits."""

    @property
    def work(self) -> float:
        return self.speed.work * self.longer

    @property
    def model(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def restart_s(self) -> float:
        return RESTARTS_S.get(self.model, USUAL_S)

    def demand(self, now_s: float) -> AppDemand:
        noise = self.speed.noise(min(self.done / self.longer, self.speed.work * 0.999999), self.batch)
        batch = Batch(
            self.accepts.initial, self.accepts.least, self.accepts.most, self.accepts.per_container, noise=noise
        )
        return AppDemand(
            self.name, {"gpu": 1}, 1.0, 1, self.most, dict(self.where),
            waited_s=0.0 if self.where else now_s - self.since_s, held_s=now_s - self.since_s if self.where else None,
            adjust_s=self.restart_s, adjustments=self.restarts, age_s=now_s - self.at_s, served_s=self.served_s,
            remaining_steps=self.steps * (1 - self.done / self.work), speed=self.declared, batch=batch,
            speed_on={name: tuple((n, rate * by) for n, rate in self.declared) for name, by in self.faster.items()},
        )  # fmt: skip

    def change(self, where: dict[str, int], now_s: float) -> None:
        if where == self.where:
            return
        self.since_s = now_s
        if self.where:
            self.restarts += 1
            self.lost_s += sum(where.values()) * self.restart_s
        self.where, self.pause_s = dict(where), self.restart_s if where else 0.0

    def run(self, from_s: float, seconds: float) -> None:
        if not self.where:
            return
        waits = min(self.pause_s, seconds)
        self.pause_s -= waits
        course = self.speed.course(tuple(self.where[node] for node in sorted(self.where)), self.batch)
        longer = self.longer / min((self.faster.get(self.types[node], 1.0) for node in self.where), default=1.0)
        needs_s = seconds_until(course, self.done / self.longer, self.speed.work) * longer
        works_s = min(needs_s, seconds - waits)
        self.served_s += sum(self.where.values()) * (waits + works_s)
        if needs_s <= seconds - waits:
            self.ended_s, self.done = from_s + waits + needs_s, self.work
        else:
            self.done = after(course, self.done / self.longer, works_s / longer) * self.longer


def jobs_of(file: Path, profiles: Path, longer: float = 1.0) -> list[Job]:
    """Return the jobs of one of Pollux's workloads, which accept any batch size that was measured."""
    found = []
    for app in by_name.load(f"pollux:{file},profiles={profiles},batches=tuned").apps:
        spec = bounded(app, "wide").spec
        assert isinstance(app.speed, Tuned)
        assert spec.batch is not None
        assert spec.steps is not None
        accepts = Batch(spec.batch.initial, spec.batch.least, spec.batch.most, spec.batch.per_container, noise=0.0)
        found.append(
            Job(
                spec.name, app.at_s, app.speed, tuple((n, rate) for n, rate in spec.speed or ()), accepts,
                spec.steps * longer, spec.n_max, longer, batch=accepts.initial, since_s=app.at_s,
            )
        )  # fmt: skip
    return sorted(found, key=lambda job: job.at_s)


def simulate(
    jobs: Sequence[Job], name: str, params: dict[str, Any], nodes: tuple[NodeRoom, ...] = nodes_of("")
) -> None:
    types = {node.id: node.type for node in nodes}
    differ = sorted(set(types.values())) if len(set(types.values())) > 1 else []
    for job in jobs:
        job.types = types
        job.faster = {name: FASTER.get(name, {}).get(job.model, 1.0) for name in differ}
    decides, now_s = policy(name), 0.0
    waiting = list(jobs)
    here: list[Job] = []
    while waiting or here:
        while waiting and waiting[0].at_s <= now_s:
            here.append(waiting.pop(0))
        answer = decides.allocate(Problem(nodes, tuple(job.demand(now_s) for job in here), at_s=now_s), params)
        for job in here:
            job.batch = answer.batches.get(job.name, job.batch)
            job.change(answer.counts[job.name], now_s)
            job.run(now_s, ROUND_S)
        now_s += ROUND_S
        here = [job for job in here if job.ended_s == math.inf]


def finish_ratios(jobs: Sequence[Job]) -> list[float]:
    """Return ρ of each job: against a fair part of the cluster with its first batch size, at the mean pace of all nodes."""
    times = [(round(job.at_s * 1e9), round(job.ended_s * 1e9)) for job in jobs]
    found = []
    for job, others in zip(jobs, contention(*zip(*times, strict=True)), strict=True):
        paces = [job.faster.get(name, 1.0) for name in job.types.values()]
        containers = fair_containers(1 / (GPUS_OF_NODE * len(paces)), job.most, float(others))
        rate = fair_rate(lambda n, speed=job.speed: speed.rate(packed(n)), containers)  # type: ignore[misc]
        found.append((job.ended_s - job.at_s) / (job.work / (rate * sum(paces) / len(paces))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("policy")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--workloads", default="6")
    parser.add_argument("--work", type=float, default=1.0)
    parser.add_argument("--types", default="")
    given = parser.parse_args()
    name, *pairs = given.policy.split(",")
    params = {key: float(value) for key, value in (pair.split("=") for pair in pairs)}
    for which in given.workloads.split(","):
        file = given.traces / "pollux_workloads" / "workloads" / f"workload-{which}.csv"
        jobs = jobs_of(file, given.traces / "pollux_profiles", given.work)
        simulate(jobs, name, params, nodes_of(given.types))
        hours = sum(job.ended_s - job.at_s for job in jobs) / len(jobs) / 3600
        restarts = sum(job.restarts for job in jobs) / len(jobs)
        lost = sum(job.lost_s for job in jobs) / sum(job.served_s for job in jobs)
        print(
            f"{given.policy}, workload {which}: mean completion {hours:.3f} h, {restarts:.2f} restarts, "
            f"{lost:.1%} lost to them, worst ρ {max(finish_ratios(jobs)):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
