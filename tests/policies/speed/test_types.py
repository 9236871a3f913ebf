"""`dorm-speed` on clusters with several types of nodes."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies import integer, scoring
from dorm.policies.problem import Allocation, AppDemand, Measured, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm.policies.speed import curves
from dorm.policies.speed.by_type import ALIKE, MOST_RATIO, ByType, by_type, typed_of
from dorm.policies.speed.learning import known_of, learned
from dorm.policies.speed.types import types_of
from dorm.policies.speed.worth import Worth
from tests.dorm_lab.policies.baselines.test_speed_policies import rows_of, telling, totals
from tests.policies.problems import after, app, node, slow_machine
from tests.policies.speed.test_speed_policy import ANY, LINEAR, PARAMS, disturbed, odd, reserved_by
from tests.tries import tries

FEW = settings(slow_machine, max_examples=tries(4, 2_000))
TYPES = ("fast", "slow")


def typed(name: str, cpu: float, kind: str) -> NodeRoom:
    return msgspec.structs.replace(node(name, cpu, 4 * cpu), labels={"type": kind})


PAIR = (typed("f0", 4, "fast"), typed("s0", 4, "slow"))


def keen(each: AppDemand, times: float, rates: list[tuple[int, float]] = LINEAR, steps: float = 1e5) -> AppDemand:
    """An app that is this many times as fast on fast nodes, as its owner declares."""
    told = telling(each, steps, *rates)
    return msgspec.structs.replace(told, speed_on={"fast": tuple((n, times * rate) for n, rate in rates)})


def worked(*points: Measured, **more: Any) -> AppDemand:
    return msgspec.structs.replace(app("a", 1, 1, (1, 16)), measured=points, **more)


def known(each: AppDemand, types: tuple[str, ...] = TYPES) -> ByType:
    found = typed_of(each, types)
    assert found is not None
    curves_on = by_type(found)
    assert curves_on is not None
    return curves_on


def solve(
    nodes: tuple[NodeRoom, ...], *apps: AppDemand, params: dict[str, Any] = ANY, by: str = "dorm-speed"
) -> Allocation:
    return policy(by).allocate(Problem(nodes, apps), params)


class TestLearning:
    def test_declarations_for_a_type_come_first(self) -> None:
        found = known(keen(app("a", 1, 1, (1, 8)), 3.0))
        assert found.curves["fast"].rate(4) == pytest.approx(12.0)
        assert found.curves["slow"].rate(4) == pytest.approx(4.0)
        assert found.ratios["fast"] / found.ratios["slow"] == pytest.approx(3.0)

    def test_each_type_is_measured_on_its_own(self) -> None:
        found = known(worked(Measured(4, 8.0, 3600.0, 1, "fast"), Measured(4, 2.0, 3600.0, 1, "slow")))
        assert found.curves["fast"].rate(4) == pytest.approx(8.0, rel=0.03)
        assert found.curves["slow"].rate(4) == pytest.approx(2.0, rel=0.03)

    def test_measurements_on_other_types_count_times_the_ratio(self) -> None:
        """Two containers were tried on both types, eight only on the slow one."""
        points = [Measured(2, 6.0, 3600.0, 1, "fast"), Measured(2, 2.0, 3600.0, 1, "slow")]
        found = known(worked(*points, Measured(8, 5.0, 3600.0, 1, "slow")))
        assert found.curves["fast"].rate(8) == pytest.approx(15.0, rel=0.05)

    def test_the_ratio_may_come_from_a_similar_app(self) -> None:
        like = (Measured(1, 10.0, 3600.0, 1, "fast"), Measured(1, 2.5, 3600.0, 1, "slow"))
        found = known(worked(Measured(4, 8.0, 600.0, 1, "slow"), alike_by_type=like))
        assert found.curves["slow"].rate(4) == pytest.approx(8.0, rel=0.03)
        assert found.curves["fast"].rate(4) == pytest.approx(32.0, rel=0.05)

    def test_an_unknown_type_has_the_curve_without_types(self) -> None:
        each = worked(Measured(4, 8.0, 3600.0, 1, "fast"), Measured(4, 2.0, 3600.0, 1, "slow"))
        found = known(each, ("fast", "new", "slow"))
        assert found.curves["new"].rate(4) == learned(known_of(each)).rate(4)

    def test_a_mixture_was_measured_at_the_pace_of_the_slowest(self) -> None:
        points = [Measured(2, 6.0, 3600.0, 1, "fast"), Measured(2, 2.0, 3600.0, 1, "slow"), Measured(8, 6.0, 3600.0)]
        found = known(worked(*points))
        assert found.curves["slow"].rate(8) == pytest.approx(6.0, rel=0.05)
        assert found.curves["fast"].rate(8) == pytest.approx(18.0, rel=0.05)

    def test_noise_is_not_a_difference_and_short_stretches_weigh_less(self) -> None:
        close = worked(Measured(4, 2.0, 600.0, 1, "fast"), Measured(4, 2.0 * (1 + ALIKE / 2), 600.0, 1, "slow"))
        assert curves.paces(close, TYPES, TYPES) is None
        short = known(worked(Measured(4, 8.0, 5.0, 1, "fast"), Measured(4, 2.0, 600.0, 1, "slow")))
        assert 1.1 < short.ratios["fast"] < 2.5

    @pytest.mark.parametrize(
        "points",
        [
            (Measured(4, 2.0, 60.0, 1, "slow"),),
            (Measured(4, 2.0, 60.0, 1, "slow"), Measured(8, 3.0, 60.0, 1, "slow")),
        ],
    )
    def test_one_type_alone_shows_nothing_about_others(self, points: tuple[Measured, ...]) -> None:
        assert curves.paces(worked(*points), TYPES, TYPES) is None


class TestPlacing:
    @pytest.mark.parametrize("name", ["dorm-speed", "dorm-speed-exact"])
    def test_an_app_that_depends_on_types_swaps_with_one_that_does_not(self, name: str) -> None:
        """The cluster is full, so the fast nodes become free only if the other app leaves them."""
        fast = keen(app("keen", 1, 1, (4, 4), {"s0": 4}), 3.0)
        flat = telling(app("flat", 1, 1, (4, 4), {"f0": 4}), 1e5, *LINEAR)
        got = solve(PAIR, fast, flat, by=name)
        assert got.counts == {"keen": {"f0": 4}, "flat": {"s0": 4}}

    def test_apps_do_not_swap_if_it_does_not_pay_or_is_not_allowed(self) -> None:
        flat = telling(app("flat", 1, 1, (4, 4), {"f0": 4}), 1e5, *LINEAR)
        for steps, params in ((40.0, ANY), (1e5, {**ANY, "theta2": 0.5})):  # A minute is left, or one restart allowed.
            fast = keen(app("keen", 1, 1, (4, 4), {"s0": 4}), 3.0, steps=steps)
            assert solve(PAIR, fast, flat, params=params).counts == {"keen": {"s0": 4}, "flat": {"f0": 4}}

    def test_the_app_that_gains_more_gets_the_fast_nodes(self) -> None:
        apps = [keen(app(f"a{i}", 1, 1, (4, 4)), times) for i, times in enumerate((1.2, 4.0))]
        assert solve(PAIR, *apps).counts == {"a0": {"s0": 4}, "a1": {"f0": 4}}

    def test_a_mixture_works_at_the_pace_of_the_slowest(self) -> None:
        """Four fast containers do as much as 12 slow ones, so eight of both are worth less; with a factor of 1.5 more."""
        assert solve(PAIR, keen(app("a", 1, 1, (1, 8)), 3.0)).counts["a"] == {"f0": 4}
        assert solve(PAIR, keen(app("a", 1, 1, (1, 8)), 1.5)).counts["a"] == {"f0": 4, "s0": 4}

    def test_unlike_types_are_mixed_only_for_much_more_speed(self) -> None:
        """A fast node beside a slow one counts as a slow one."""
        nodes = (typed("f0", 4, "fast"), typed("s0", 4, "slow"), typed("s1", 4, "slow"))
        flat = [(1, 1.0), (2, 1.9), (4, 3.6), (8, 6.4), (12, 7.0)]
        got = solve(nodes, keen(app("a", 1, 1, (1, 12)), 1.5, flat))
        assert got.counts["a"] == {"s0": 4, "s1": 4}
        got = solve(nodes, keen(app("a", 1, 1, (1, 12)), 1.5, [(n, float(n)) for n in range(1, 13)]))
        assert totals(got) == {"a": 12}

    def test_types_are_mixed_if_none_of_them_is_large_enough(self) -> None:
        got = solve(PAIR, keen(app("a", 1, 1, (6, 8)), 3.0, [(1, 1.0), (6, 2.0), (8, 2.01)]))
        assert totals(got)["a"] >= 6

    def test_types_are_mixed_if_fairness_asks_for_it(self) -> None:
        """θ1 comes before all speed: two apps share three nodes of two types evenly."""
        nodes = (typed("f0", 4, "fast"), typed("s0", 4, "slow"), typed("s1", 4, "slow"))
        flat = [(1, 1.0), (4, 3.0), (5, 3.1), (6, 3.2), (8, 3.3)]
        apps = [keen(app(name, 1, 1, (1, 8)), 1.5, flat) for name in ("a", "b")]
        got = solve(nodes, *apps, params={**ANY, "theta1": 0.0})
        assert sorted(totals(got).values()) == [6, 6]

    def test_about_equal_types_are_mixed_freely(self) -> None:
        got = solve(PAIR, keen(app("a", 1, 1, (1, 8)), 1.08, [(1, 1.0), (4, 3.0), (8, 3.3)]))
        assert totals(got) == {"a": 8}

    def test_measurements_move_an_app_too(self) -> None:
        points = (Measured(4, 9.0, 600.0, 1, "fast"), Measured(4, 3.0, 600.0, 1, "slow"))
        here = msgspec.structs.replace(
            app("a", 1, 1, (4, 4), {"s0": 4}), measured=points, remaining_steps=1e6, adjust_s=30.0
        )
        assert solve(PAIR, here).counts["a"] == {"f0": 4}

    def test_on_a_cluster_of_one_type_its_speed_counts(self) -> None:
        flat = tuple((n, 1.0) for n in range(1, 9))
        each = msgspec.structs.replace(telling(app("a", 1, 1, (1, 8)), 1e5, *LINEAR), speed_on={"fast": flat})
        assert totals(solve((typed("f0", 8, "fast"),), each)) == {"a": 1}


RATES = (0.0, -1.0, 1e-300, 1e-6, 0.5, 1.0, 1.0, 3.0, 9.0, 1e6, 1e300, math.inf, math.nan)


def mixed_by(chance: random.Random, problem: Problem) -> Problem:
    """The problem on nodes of up to three types, with speeds by type that may be nonsense."""
    kinds = ("", "fast", "slow")
    nodes = tuple(
        msgspec.structs.replace(each, labels={**each.labels, "type": chance.choice(kinds)}) for each in problem.nodes
    )

    def points() -> tuple[Measured, ...]:
        return tuple(
            Measured(
                chance.randint(-1, 9),
                chance.choice(RATES),
                chance.choice([0.0, 5.0, 600.0, math.nan]),
                1,
                chance.choice(kinds),
            )
            for _ in range(chance.randint(0, 4))
        )

    def declared() -> tuple[tuple[int, float], ...]:
        return tuple((chance.randint(-1, 9), chance.choice(RATES)) for _ in range(chance.randint(0, 3)))

    apps = []
    for each in problem.apps:
        here = each
        if chance.random() < 0.6:
            on = {kind: declared() for kind in kinds if chance.random() < 0.5}
            here = msgspec.structs.replace(each, speed_on=on, measured=points(), alike=points(), alike_by_type=points())
        apps.append(here)
    return Problem(nodes, tuple(apps))


def mixed() -> st.SearchStrategy[Problem]:
    """Drawn from a seed, since so much that is drawn one by one takes longer than the test."""
    return st.builds(lambda problem, seed: mixed_by(random.Random(seed), problem), odd(), st.integers(0, 2**32))


@FEW
@given(problem=mixed(), params=PARAMS)
def test_invariants_of_every_answer(problem: Problem, params: dict[str, Any]) -> None:
    got = policy("dorm-speed").allocate(problem, params)
    instance, reserved = integer.read(problem), reserved_by(problem, params)
    assert scoring.faults(instance, rows_of(instance, got), got.overhead_budget, reserved) == []
    budget = min(math.ceil(params["theta2"] * instance.in_budget - 1e-9), params["max_changes"])
    assert disturbed(problem, got, params) <= budget + 1e-6
    for each in problem.apps:
        count = totals(got)[each.id]
        assert (each.id in got.reasons) == (count < each.n_max)
        assert each.pinned or (each.id in got.shortage) == (count < each.n_min)
    shuffled = Problem(problem.nodes[::-1], problem.apps)
    assert msgspec.json.encode(policy("dorm-speed").allocate(shuffled, params)) == msgspec.json.encode(got)


@FEW
@given(problem=mixed())
def test_speeds_by_type_do_not_change_who_starts_after_a_long_wait(problem: Problem) -> None:
    fresh = [
        msgspec.structs.replace(each, current={}, pinned=False, absent=False, waited_s=1e30) for each in problem.apps
    ]
    silent = [
        msgspec.structs.replace(
            each, speed=(), speed_on={}, measured=(), alike=(), alike_by_type=(), remaining_steps=None
        )
        for each in fresh
    ]
    started, expected = (solve(problem.nodes, *apps, params={}).shortage for apps in (fresh, silent))
    assert started == expected


@FEW
@given(problem=mixed())
def test_answers_settle_once_they_are_applied(problem: Problem) -> None:
    settled = Problem(problem.nodes, tuple(msgspec.structs.replace(each, pinned=False) for each in problem.apps))
    for _ in range(30):
        following = after(settled, policy("dorm-speed").allocate(settled, {}))
        if following == settled:
            return
        settled = following
    raise AssertionError("still changing after 30 rounds")


@pytest.mark.parametrize("times", [1e6, 1e-6])
def test_nonsense_by_type_starves_no_app(times: float) -> None:
    odd_one = keen(app("odd", 1, 1, (1, 8)), times)
    fair = keen(app("fair", 1, 1, (1, 8)), 1.5)
    got = totals(solve(PAIR, odd_one, fair, params={}))
    assert min(got.values()) >= 2
    paces = curves.paces(odd_one, TYPES, TYPES)
    assert paces is not None
    assert max(each.one(1) for each in paces.curves.values()) <= MOST_RATIO + 1e-9


def problem(seed: int) -> Problem:
    """Six apps on four nodes of two types; some of them run, and for half of them types matter."""
    chance = random.Random(seed)
    nodes = tuple(typed(f"n{i}", chance.choice([4, 8]), TYPES[i % 2]) for i in range(4))
    free = {each.id: each.capacity["cpu"] // 1000 for each in nodes}
    apps: list[AppDemand] = []
    for i in range(6):
        cores = chance.choice([1, 1, 2])
        current: dict[str, int] = {}
        for _ in range(chance.choice([0, 1, 2, 3])):
            if fitting := [name for name in free if free[name] >= cores]:
                name = chance.choice(fitting)
                free[name] -= cores
                current[name] = current.get(name, 0) + 1
        sync = chance.choice([0.0, 0.01, 0.05, 0.2])
        rates = [(n, 1 / (1 / n + sync * (n > 1))) for n in range(1, 9)]
        steps = 10 ** chance.uniform(2, 5)
        times = chance.choice([1.3, 2.0, 4.0])
        each = app(f"a{i}", cores, 2, (1, 8), current)
        each = keen(each, times, rates, steps) if chance.random() < 0.5 else telling(each, steps, *rates)
        apps.append(msgspec.structs.replace(each, adjust_s=chance.choice([0.02, 5.0, 30.0])))
    return Problem(nodes, tuple(apps))


def worth_of(asked: Problem, got: Allocation) -> float:
    """The sum that both policies maximize, computed from the answer alone."""
    instance = integer.read(asked)
    worth = Worth(
        instance, policy("dorm-speed").check_params({}), np.zeros(len(instance.apps), np.bool_), types_of(instance)
    )
    return sum(worth.placed(i, row) for i, row in enumerate(rows_of(instance, got)))


def test_it_is_near_the_optimum() -> None:
    gaps = []
    for seed in range(tries(8, 1_000)):
        asked = problem(seed)
        near, exact = (policy(name).allocate(asked, ANY) for name in ("dorm-speed", "dorm-speed-exact"))
        assert exact.status == "optimal"
        gaps.append(1 - worth_of(asked, near) / worth_of(asked, exact))
        assert gaps[-1] >= -1e-6, seed
    assert np.mean(gaps) <= 0.008
    assert max(gaps) <= 0.15


def test_types_that_matter_to_no_app_change_no_answer() -> None:
    for seed in range(tries(3, 300)):
        asked = problem(seed)
        blind = tuple(msgspec.structs.replace(each, speed_on={}) for each in asked.apps)
        plain = tuple(msgspec.structs.replace(each, labels={}) for each in asked.nodes)
        ours = policy("dorm-speed").allocate(Problem(asked.nodes, blind), {})
        assert msgspec.json.encode(ours) == msgspec.json.encode(
            policy("dorm-speed").allocate(Problem(plain, blind), {})
        )
