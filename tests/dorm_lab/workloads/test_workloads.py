"""Workloads that are made, and clusters for them."""

from __future__ import annotations

import contextlib
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.policies.registry import policy
from dorm_lab.workloads import by_name as workloads
from dorm_lab.workloads import nodes, paper
from dorm_lab.workloads.draws import Draws, distribution
from events.quantities import capacity
from events.spec import check_spec
from replay.simulator import SimulationError
from replay.simulator.contenders import STATIC_COUNTS
from replay.simulator.speed import Amdahl, Linear
from tests.errors import raises

GIB = 2**30


def refused(text: str) -> str:
    """Return the code of the error."""
    with pytest.raises(SimulationError) as caught:
        workloads.load(text)
    assert "\n" not in str(caught.value)
    return caught.value.code


class TestPaper:
    def test_the_workload_is_the_one_fixed_before_any_run(self) -> None:
        """A change here changes every figure of the evaluation, so it has to be meant."""
        workload = paper.workload(0)
        begin = [(app.spec.name, round(app.at_s), round(app.work)) for app in workload.apps[:4]]
        assert begin == [
            ("lr-01", 2208, 66341),
            ("alexnet-01", 3337, 18108),
            ("mf-01", 4950, 116176),
            ("lr-02", 5471, 84772),
        ]
        assert round(workload.apps[-1].at_s) == 73158
        assert round(sum(app.work for app in workload.apps) / 3600) == 1032

    def test_the_cluster_is_that_of_the_paper(self) -> None:
        total: Counter[str] = Counter()
        for node in paper.nodes():
            total.update(node.capacity)
        assert len(paper.nodes()) == 20
        assert total == {"cpu": 240_000, "gpu": 5, "memory": 2560 * GIB}

    def test_it_has_50_apps_of_seven_types_in_an_order_of_the_seed(self) -> None:
        first, again, other = paper.workload(1), paper.workload(1), paper.workload(2)
        assert first == again != other
        for workload in (first, other):
            kinds = Counter(app.spec.labels["type"] for app in workload.apps)
            assert kinds == {kind.name: kind.apps for kind in paper.APP_TYPES}
            assert len({app.spec.name for app in workload.apps}) == 50
            assert [app.at_s for app in workload.apps] == sorted(app.at_s for app in workload.apps)

    def test_arrivals_and_durations_have_the_means_that_it_states(self) -> None:
        many = [paper.workload(seed) for seed in range(60)]
        assert sum(w.apps[-1].at_s for w in many) / 60 / 50 == pytest.approx(1200, rel=0.05)
        hours = [app.work / app.spec.n_max * 4 / 3600 for w in many for app in w.apps if app.spec.n_max == 32]
        assert sum(hours) / len(hours) == pytest.approx(3.0, rel=0.05)

    def test_with_its_static_count_an_app_takes_its_duration_at_any_speed(self) -> None:
        linear, amdahl = paper.workload(3), paper.workload(3, speed=Amdahl(parallel=0.95))
        static = {kind.name: kind.static for kind in paper.APP_TYPES}
        for one, other in zip(linear.apps, amdahl.apps, strict=True):
            n = static[one.spec.labels["type"]]
            assert one.work / one.speed.rate((n,)) == pytest.approx(other.work / other.speed.rate((n,)))

    def test_the_static_policy_accepts_the_workloads_counts(self) -> None:
        assert {f"{kind.name}-*": kind.static for kind in paper.APP_TYPES} == STATIC_COUNTS
        assert policy("static").check_params({"counts": STATIC_COUNTS})["counts"]["lr-*"] == 8

    def test_every_app_fits(self) -> None:
        workload = paper.workload(0)
        assert nodes.fitting(workload, workload.nodes) is workload

    def test_options(self) -> None:
        short = workloads.load("paper,hours=1.5,arrival=10m,speed=amdahl:0.98", seed=4)
        long = paper.workload(4)
        assert short.apps[7].at_s == pytest.approx(long.apps[7].at_s / 2, abs=0.01)
        assert short.apps[7].speed == Amdahl(parallel=0.98)


class TestParametric:
    def test_the_seed_determines_the_workload(self) -> None:
        text = "parametric,apps=20,n_max=2:4:8,n_min=uniform:1:3,weight=1:2"
        assert workloads.load(text, seed=1) == workloads.load(text, seed=1) != workloads.load(text, seed=2)
        for app in workloads.load(text).apps:
            assert 1 <= app.spec.n_min <= app.spec.n_max <= 8

    def test_other_amounts_of_work_do_not_change_arrivals(self) -> None:
        one, other = (workloads.load(f"parametric,apps=9,work={work}") for work in ("1h", "exponential:3h"))
        assert [app.at_s for app in one.apps] == [app.at_s for app in other.apps]
        assert {app.work for app in one.apps} == {3600.0}

    def test_demand_and_speed(self) -> None:
        (app,) = workloads.load("parametric,apps=1,cpu=4,memory=1GiB,gpu=2,speed=table:1:1:4:3.5").apps
        assert app.spec.resources() == {"cpu": 4000, "memory": GIB, "gpu": 2}
        assert app.speed.rate((2, 2)) == 3.5

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("", "workload.unknown"),
            ("papr", "workload.unknown"),
            ("paper:file", "workload.file.not_taken"),
            ("philly", "workload.file.missing"),
            ("philly:", "workload.file.missing"),
            ("paper,hour=3", "workload.option.unknown"),
            ("paper,hours=0", "workload.option.out_of_range"),
            ("paper,hours=nan", "workload.option.malformed"),
            ("paper,hours=3,hours=4", "workload.option.given_twice"),
            ("paper,arrival=0", "workload.option.out_of_range"),
            ("paper,speed=amdahl:1.5", "workload.option.malformed"),
            ("parametric,speed=table:4:1:1:1", "workload.option.malformed"),
            ("parametric,apps=0", "workload.option.out_of_range"),
            ("parametric,apps=", "workload.option.malformed"),
            ("parametric,work=lognormal:3h", "workload.option.malformed"),
            ("parametric,work=uniform:5:1", "workload.option.out_of_range"),
            ("parametric,work=-1", "workload.option.malformed"),
            ("parametric,cpu=many", "spec.demand.malformed"),
            ("parametric,apps=150,arrival=366d", "workload.too_long"),
            ("parametric,speed=table:1:1e-9", "workload.too_long"),
            ("parametric,n_max=1000000", "spec.n_max.out_of_range"),
        ],
    )
    def test_impossible_requests_are_reported_in_a_line(self, text: str, code: str) -> None:
        assert refused(text) == code

    @given(
        text=st.text(max_size=30), kind=st.sampled_from(["", "paper,", "parametric,work=", "parametric,speed=", "swf:"])
    )
    def test_every_text_is_valid_or_a_simulation_error(self, text: str, kind: str) -> None:
        with contextlib.suppress(SimulationError):
            workloads.load(kind + text)


class TestDraws:
    def test_the_sequence_of_a_seed_never_changes(self) -> None:
        draws = Draws(7, "arrivals")
        assert [round(draws.exponential(1.0), 6) for _ in range(3)] == [4.075715, 1.240907, 0.076746]

    @given(seed=st.integers(0, 2**32), items=st.lists(st.integers()))
    def test_shuffled_keeps_everything(self, seed: int, items: list[int]) -> None:
        assert sorted(Draws(seed, "x").shuffled(items)) == sorted(items)

    @given(
        text=st.sampled_from(["3", "1:2:4", "uniform:1:5", "exponential:2", "lognormal:3:0.5"]),
        seed=st.integers(0, 1000),
    )
    def test_no_draw_is_negative(self, text: str, seed: int) -> None:
        assert distribution(text).draw(Draws(seed, "x")) >= 0


class TestNodes:
    def test_groups_with_labels(self) -> None:
        found = nodes.parse("9x gpu=4,cpu=32,memory=128GiB; 2 x cpu=64 zone=a gpu_type=t4;cpu=1")
        assert [node.name for node in found] == [f"node-{i:02}" for i in range(1, 13)]
        assert found[0].capacity == {"gpu": 4, "cpu": 32_000, "memory": 128 * GIB}
        assert found[10].capacity == {"cpu": 64_000}
        assert found[10].labels == {"zone": "a", "gpu_type": "t4"}
        assert found[11].capacity == {"cpu": 1000}

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("", "nodes.malformed"),
            ("cpu=1;", "nodes.malformed"),
            ("4x", "nodes.malformed"),
            ("0x cpu=1", "nodes.out_of_range"),
            ("999999999x cpu=1", "nodes.out_of_range"),
            ("cpu=0", "nodes.all_zero"),
            ("cpu=lots", "nodes.malformed"),
            ("cpu=1 zone", "nodes.label.malformed"),
        ],
    )
    def test_invalid_clusters(self, text: str, code: str) -> None:
        with raises(SimulationError, code):
            nodes.parse(text)

    @given(text=st.text(st.sampled_from("14x cpugm=,; .0zGiB\u0663\x00"), max_size=20))
    def test_every_text_is_valid_or_a_simulation_error(self, text: str) -> None:
        with contextlib.suppress(SimulationError):
            assert nodes.parse(text)

    def test_a_cluster_of_a_size_that_suits_the_workload(self) -> None:
        """Twelve apps of one core for an hour, one every ten minutes: 12 core-hours over 110 minutes are 6.5 cores."""
        workload = workloads.load("parametric,apps=12,arrival=10m,work=1h,cpu=1,memory=1GiB")
        assert len(nodes.sized(workload, capacity("cpu=1,memory=64GiB"), load=1.0)) == 7
        assert len(nodes.sized(workload, capacity("cpu=1,memory=64GiB"), load=0.5)) == 14
        assert len(nodes.sized(workload, capacity("cpu=64,memory=1GiB"), load=1.0)) == 7
        with raises(SimulationError, "nodes.resource.missing"):
            nodes.sized(workload, capacity("cpu=4"))

    def test_a_cluster_in_the_proportions_of_another(self) -> None:
        workload = workloads.load("parametric,apps=12,arrival=10m,work=1h,cpu=1,memory=1GiB")
        shape = nodes.parse("30x cpu=1,memory=8GiB; 10x cpu=2,memory=8GiB zone=b; 1x cpu=1,memory=1GiB")
        found = nodes.matched(workload, shape, load=1.0)
        assert Counter((n.capacity["cpu"], n.capacity["memory"] // GIB) for n in found) == {
            (1000, 8): 4,
            (2000, 8): 2,
            (1000, 1): 1,
        }

    def test_jobs_that_fit_nowhere_are_skipped_or_refused(self) -> None:
        workload = workloads.load("parametric,apps=3,cpu=3,n_min=1:5,n_max=5", seed=2)
        small = nodes.parse("2x cpu=7,memory=64GiB")  # Two containers on each.
        fits = [app for app in workload.apps if app.spec.n_min == 1]
        assert 0 < len(fits) < 3
        found = nodes.fitting(workload, small)
        assert list(found.apps) == fits
        assert len(found.skipped) == 3 - len(fits)
        assert found.skipped[0].code == "spec.n_min.no_room"
        assert "5 containers of 3 cores, 4 GiB" in found.skipped[0].reason
        with raises(SimulationError, "spec.n_min.no_room"):
            nodes.fitting(workload, small, strict=True)


class TestTelling:
    def test_owners_declare_the_truth(self) -> None:
        (app,) = workloads.load("parametric,apps=1,work=3h,n_max=40,speed=amdahl:0.9,told=yes").apps
        assert app.spec.steps == 3 * 3600
        assert [n for n, _ in app.spec.speed] == [*range(1, 17), 32, 40]
        assert all(rate == app.speed.rate((n,)) for n, rate in app.spec.speed)
        assert check_spec(msgspec.to_builtins(app.spec)) == app.spec

    def test_by_default_owners_declare_nothing(self) -> None:
        app = workloads.load("paper").apps[0]
        assert (app.spec.steps, app.spec.speed) == (0, [])


def test_the_default_speed_is_linear() -> None:
    assert workloads.load("parametric,apps=1").apps[0].speed == Linear()
