"""The offline optimum, and the competitive ratio against its bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm_lab.policies.oasis.model import Cluster
from dorm_lab.policies.oasis.offline import optimum
from dorm_lab.policies.oasis.online import run
from tests.dorm_lab.policies.oasis.instances import cluster, instances, job
from tests.policies.problems import slow_machine
from tests.tries import tries

if TYPE_CHECKING:
    from dorm_lab.policies.oasis.model import Job


def test_the_optimum_keeps_room_for_later_jobs() -> None:
    """One machine, one slot for each job's whole work: the optimum refuses the first job for the better second one."""
    one = cluster([1.0], [1.0], slots=1)
    small, large = job("small", 1, 1, worth=2.0, bandwidths=(1, 1)), job("large", 1, 1, worth=10.0, bandwidths=(1, 1))
    best = optimum(one, [small, large])
    assert best.proven
    assert best.utility == pytest.approx(5.0)
    assert run(one, [small, large]).utility == pytest.approx(1.0)


def test_the_optimum_starts_a_critical_job_before_one_that_can_wait() -> None:
    one = cluster([1.0], [1.0], slots=2)
    patient = job("patient", 1, 1, worth=10.0, bandwidths=(1, 1))
    critical = job("critical", 1, 1, worth=10.0, decay=50.0, target=0.5, bandwidths=(1, 1))
    assert optimum(one, [patient, critical]).utility == pytest.approx(5.0 + 10.0)


def test_without_jobs_that_can_end_there_is_nothing_to_gain() -> None:
    assert optimum(cluster([1.0], [1.0], slots=1), [job("long", 3, 1)]).utility == 0.0


def test_columns_removed_by_presolve_are_found() -> None:
    """Two workers in both slots are four worker-slots of work; HiGHS's presolve leaves no schedule at all."""
    only = job("only", 4, 2, worth=1.0, worker=(1.0, 1.0), server=(1.0, 1.0), bandwidths=(1, 2))
    one = Cluster(workers=((2.0, 2.0),), servers=((2.0, 2.0), (2.0, 2.0)), slots=2, slot_s=1.0)
    assert optimum(one, [only]).utility == pytest.approx(0.5)


@settings(slow_machine, max_examples=tries(5, 500))
@given(instances())
def test_online_is_at_most_the_optimum(instance: tuple[Cluster, list[Job]]) -> None:
    one, jobs = instance
    best = optimum(one, jobs)
    assert best.proven
    assert run(one, jobs).utility <= best.utility + 1e-6


@settings(slow_machine, max_examples=tries(4, 500))
@given(st.data())
def test_the_measured_ratio_is_below_that_of_the_text(data: st.DataObject) -> None:
    """Jobs that are small beside their machines, many of them, with worths from 1 to 100."""
    one = cluster([6.0, 6.0], [8.0], slots=4)
    jobs = [
        job(
            f"job-{number}",
            data.draw(st.integers(1, 4)),
            2,
            arrival=data.draw(st.integers(0, 2)),
            worth=data.draw(st.sampled_from([1.0, 10.0, 100.0])),
            decay=data.draw(st.sampled_from([0.0, 0.5, 4.0])),
            target=2.0,
            bandwidths=(1, 2),
        )
        for number in range(12)
    ]
    best, outcome = optimum(one, jobs), run(one, jobs)
    assert best.utility <= outcome.limits.ratio * outcome.utility


def test_the_ratio_does_not_hold_for_jobs_as_large_as_a_machine() -> None:
    one = cluster([1.0], [1.0], slots=1)
    jobs = [job("first", 1, 1, worth=1.0, bandwidths=(1, 1)), job("second", 1, 1, worth=200.0, bandwidths=(1, 1))]
    outcome = run(one, jobs)
    assert optimum(one, jobs).utility > outcome.limits.ratio * outcome.utility
