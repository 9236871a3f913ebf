"""`dorm bench oasis`: the workload, the schedulers besides OASiS, and the form of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm_lab.bench.oasis import rivals, workload
from dorm_lab.bench.oasis.oasis import SCHEDULERS, Wanted, bench_oasis
from dorm_lab.bench.oasis.running import Overfull, Share, check, run
from dorm_lab.bench.oasis.workload import Sizes
from tests.dorm_lab.policies.oasis.instances import cluster, job

if TYPE_CHECKING:
    from dorm_lab.bench.oasis.running import Scheduler
    from dorm_lab.policies.oasis.model import Cluster, Job

TINY = Sizes(jobs=10, machines=4, slots=30)
PAIR = (1, 1)


def schedulers(one: Cluster, jobs: list[Job]) -> dict[str, Scheduler]:
    numbers = rivals.fixed_numbers(jobs, 7)
    return {
        "fifo": rivals.Fifo(one, numbers),
        "drf": rivals.Drf(one),
        "rrh": rivals.Rrh(one, numbers),
        "dorm": rivals.DormItself(one),
    }


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["fifo", "drf", "rrh", "dorm"])
def test_every_scheduler_keeps_the_rules_of_jobs_and_machines(name: str, seed: int) -> None:
    """`run` checks each slot."""
    one, jobs = workload.cluster(TINY), workload.jobs(TINY, seed)
    done = run(schedulers(one, jobs)[name], one, jobs)
    assert 0 <= done.jobs <= len(jobs)
    assert done.utility <= sum(each.utility.worth for each in jobs)


def test_a_scheduler_that_gives_too_much_is_caught() -> None:
    one, each = cluster([2.0], [2.0], 3), job("j", 3, 3, bandwidths=PAIR)
    with pytest.raises(Overfull):
        check(one, {"j": each}, {"j": Share({0: 3}, {0: 3})})
    with pytest.raises(Overfull):
        check(one, {"j": each}, {"j": Share({0: 2}, {0: 1})})
    check(one, {"j": each}, {"j": Share({0: 2}, {0: 2})})


def test_fifo_waits_for_the_first_job_that_does_not_fit() -> None:
    one = cluster([4.0], [4.0], 6)
    jobs = [job(name, 4, chunks, bandwidths=PAIR) for name, chunks in (("a", 3), ("b", 2), ("c", 1))]
    fifo = rivals.Fifo(one, {"a": 3, "b": 2, "c": 1})
    left = {each.id: each.work(1.0) for each in jobs}
    assert sorted(fifo.decide(0, jobs, left)) == ["a"]
    assert sorted(fifo.decide(1, jobs[1:], left)) == ["b", "c"]


def test_drf_gives_equal_dominant_shares() -> None:
    """The job with workers of twice the size gets half as many of them: 2 · 4 + 4 · 2 = 16."""
    one = cluster([8.0, 8.0], [16.0], 3)
    large, small = job("large", 9, 9, worker=(2.0,)), job("small", 9, 9, worker=(1.0,))
    shares = rivals.Drf(one).decide(0, [large, small], {})
    assert {name: sum(share.workers.values()) for name, share in shares.items()} == {"large": 4, "small": 8}


def test_rrh_refuses_jobs_that_cost_others_more_than_their_value() -> None:
    """A second job, worth little, would delay the urgent one: its risk is larger than its reward."""
    one = cluster([1.0], [1.0], 8)
    urgent = job("urgent", 4, 1, worth=100.0, decay=1.0, target=4.0, bandwidths=PAIR)
    poor = job("poor", 4, 1, worth=0.1, bandwidths=PAIR)
    rrh = rivals.Rrh(one, {"urgent": 1, "poor": 1})
    left = {"urgent": 4, "poor": 4}
    assert sorted(rrh.decide(0, [urgent, poor], left)) == ["urgent"]
    assert rrh.decide(5, [poor], left) == {}, "it was refused for good"


def test_jobs_can_be_done_by_their_target_with_the_most_workers_of_fixed_numbers() -> None:
    for each in workload.jobs(Sizes(40, 10, 50), 3):
        assert each.work(workload.SLOT_S) <= 15 * min(each.chunks, 30)
        assert 50 <= each.epochs <= 200
        assert 0.001 <= each.mini_batch_s / workload.SLOT_S <= 0.1
        assert each.server_bandwidth >= each.worker_bandwidth


def test_the_report_has_every_scheduler_and_the_ratio() -> None:
    measured = bench_oasis(Wanted(TINY, seeds=1, small=4, scales=(Sizes(5, 2, 10),)), progress=lambda text: None)
    figures = measured.report.figures
    for name in SCHEDULERS:
        assert {f"{name}_utility", f"{name}_completion_slots", f"{name}_decision_mean_s"} <= figures.keys()
    assert "oasis_5_jobs_2_machines_10_slots_decision_mean_s" in figures
    assert 1.0 - 1e-9 <= figures["ratio_mean"].value <= figures["ratio_max"].value <= figures["ratio_bound_least"].value
    assert figures["ratio_below_bound_share"].reached
    assert not measured.interrupted


def test_an_interrupted_bench_reports_its_results_so_far() -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if text.startswith("optimum"):
            raise KeyboardInterrupt

    measured = bench_oasis(Wanted(Sizes(3, 2, 20), seeds=1, small=2, scales=()), progress=tell)
    assert measured.interrupted
    assert "oasis_utility" in measured.report.figures
    assert "ratio_mean" not in measured.report.figures
