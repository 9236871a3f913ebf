"""Policies in a simulator that is not Dorm's, with tuned batch sizes and a charge for each restart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.policies import foreign
from tests.simulator.workloads import profile_tables

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["dorm", "dorm-speed", "sia", "pollux", "srtf"])
def test_all_jobs_end_and_restarts_are_charged(name: str, tmp_path: Path) -> None:
    profile_tables.write(tmp_path / "profiles" / "net")
    lines = [f"net-{index},{20 * index},net,{1 + index % 4},64" for index in range(8)]
    file = tmp_path / "workload.csv"
    file.write_text("\n".join(["name,time,application,num_replicas,batch_size", *lines]))
    jobs = foreign.jobs_of(file, tmp_path / "profiles", 20.0)
    foreign.simulate(jobs, name, {})
    for job in jobs:
        assert job.at_s < job.ended_s < math.inf
        assert job.done == pytest.approx(job.work)
        assert job.served_s > job.restart_s
        assert (job.lost_s > 0) == (job.restarts > 0)
    assert all(ratio > 0 for ratio in foreign.finish_ratios(jobs))
