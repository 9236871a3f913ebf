"""Policies in a simulator that is not Dorm's, with tuned batch sizes and a charge for each restart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.dorm_lab.policies import foreign
from tests.dorm_lab.workloads import profile_tables

if TYPE_CHECKING:
    from pathlib import Path


def jobs_of(folder: Path) -> list[foreign.Job]:
    profile_tables.write(folder / "profiles" / "net")
    lines = [f"net-{index},{20 * index},net,{1 + index % 4},64" for index in range(8)]
    file = folder / "workload.csv"
    file.write_text("\n".join(["name,time,application,num_replicas,batch_size", *lines]))
    return foreign.jobs_of(file, folder / "profiles", 20.0)


@pytest.mark.parametrize("types", [pytest.param("", marks=pytest.mark.soak), "t4:2,a100:1"])
@pytest.mark.parametrize("name", ["dorm", "dorm-speed", "sia", "pollux", "srtf"])
def test_all_jobs_end_and_restarts_are_charged(
    name: str, types: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(foreign.FASTER["a100"], "net", 3.0)
    jobs = jobs_of(tmp_path)
    foreign.simulate(jobs, name, {}, foreign.nodes_of(types))
    for job in jobs:
        assert job.at_s < job.ended_s < math.inf
        assert job.done == pytest.approx(job.work)
        assert job.served_s > job.restart_s
        assert (job.lost_s > 0) == (job.restarts > 0)
    assert all(ratio > 0 for ratio in foreign.finish_ratios(jobs))


def test_a_partition_works_at_the_pace_of_its_slowest_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(foreign.FASTER["a100"], "net", 3.0)
    took, folder = {}, tmp_path
    for where in (("node-t400", "node-t401"), ("node-t400", "node-a10000"), ("node-a10000", "node-a10001")):
        folder = folder / "next"
        job = jobs_of(folder)[0]
        job.types = {node.id: node.type for node in foreign.nodes_of("t4:2,a100:2")}
        job.faster = {"t4": 1.0, "a100": 3.0}
        job.change(dict.fromkeys(where, 2), 0.0)
        job.run(0.0, 1e9)
        took[where] = job.ended_s - job.restart_s
    both_slow, mixed, both_fast = took.values()
    assert mixed == pytest.approx(both_slow)
    assert both_slow == pytest.approx(3 * both_fast)
