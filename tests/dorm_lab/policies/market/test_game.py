"""The market among apps: best responses against a search, the paper's bounds, and the policy's answers."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from dorm.policies.problem import Problem
from dorm.policies.registry import policy
from dorm_lab.policies.market.answers import measured
from dorm_lab.policies.market.game import best_response, equilibrium, measures
from tests.dorm_lab.policies.baselines.test_speed_policies import TWO, solve, totals
from tests.policies.problems import app, node, slow_machine
from tests.tries import tries

EXACT = 1e-9
"""Of equilibria that are compared with closed forms."""


@st.composite
def games(draw: st.DrawFn, most: int = 6) -> Any:
    """Worths of a balanced game (EC 2005, §2): equal budgets, and all machines together are worth 1 to everyone."""
    users, machines = draw(st.integers(2, most)), draw(st.integers(2, most))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    worth = chance.random((users, machines)) ** draw(st.sampled_from([0.5, 1.0, 4.0]))
    return worth / worth.sum(axis=1, keepdims=True)


class TestBestResponse:
    def test_two_machines_by_hand(self) -> None:
        """w = (4, 1), y = (1, 1), X = 1: with both, x_1 = 2/3 · 3 - 1 = 1 and x_2 = 1/3 · 3 - 1 = 0, just not worth a bid."""
        bids = best_response(np.array([4.0, 1.0]), np.array([1.0, 1.0]), 1.0)
        assert bids == pytest.approx([1.0, 0.0])
        bids = best_response(np.array([4.0, 1.0]), np.array([1.0, 1.0]), 4.0)
        assert bids == pytest.approx([3.0, 1.0]), "2/3 · 6 - 1 and 1/3 · 6 - 1"

    def test_a_machine_that_is_worth_nothing_gets_no_bid(self) -> None:
        bids = best_response(np.array([0.0, 1.0, 2.0]), np.array([1e-9, 1.0, 1.0]), 5.0)
        assert bids[0] == 0
        assert bids.sum() == pytest.approx(5.0)

    @settings(slow_machine, max_examples=tries(8, 60))
    @given(worth=games(), budget=st.sampled_from([0.01, 1.0, 30.0]), seed=st.integers(0, 99))
    def test_no_shift_between_two_machines_is_better(self, worth: Any, budget: float, seed: int) -> None:
        """The utility is concave, so if no shift of bids between two machines improves it, nothing does."""
        one, others = worth[0], np.random.default_rng(seed).random(worth.shape[1]) + 0.01
        bids = best_response(one, others, budget)
        assert bids.sum() == pytest.approx(budget)
        assert (bids >= 0).all()
        for left, right in pairwise(range(len(bids))):
            both = bids[left] + bids[right]

            def lost(x: float, left: int = left, right: int = right, both: float = both) -> float:
                parts = (x / (x + others[left]), (both - x) / (both - x + others[right]))
                return float(-one[left] * parts[0] - one[right] * parts[1])

            best = minimize_scalar(lost, bounds=(0, both), method="bounded", options={"xatol": 1e-12}).fun
            assert lost(float(bids[left])) <= best + 1e-9


class TestEquilibrium:
    def test_equal_demands_get_equal_shares(self) -> None:
        worth = np.array([[0.7, 0.3], [0.7, 0.3], [0.7, 0.3]])
        found = equilibrium(worth, np.ones(3), EXACT)
        assert found.parts == pytest.approx(np.full((3, 2), 1 / 3), abs=1e-6)
        assert measures(worth, found.parts, np.ones(3)) == pytest.approx((1.0, 1.0, 1.0), abs=1e-6)

    def test_the_symmetric_game_of_two(self) -> None:
        """Each wants one machine more, a : 1 - a.  By symmetry a user bids x on its own where the other bids 1 - x,
        and the two derivatives are equal: a (1 - x) = (1 - a) x, so x = a, and the utility is a² + (1 - a)²."""
        for a in (0.5, 0.6, 0.9):
            worth = np.array([[a, 1 - a], [1 - a, a]])
            found = equilibrium(worth, np.ones(2), EXACT)
            assert found.bids == pytest.approx(worth, abs=1e-4)
            got = measures(worth, found.parts, np.ones(2))
            assert got.efficiency == pytest.approx((a * a + (1 - a) ** 2) / a, abs=1e-4)
            assert got.uniformity == pytest.approx(1.0, abs=1e-4)
            assert got.envy_freeness == pytest.approx(1.0)

    @settings(slow_machine, max_examples=tries(8, 60))
    @given(worth=games())
    def test_no_app_gains_by_another_answer(self, worth: Any) -> None:
        found = equilibrium(worth, np.ones(len(worth)))
        assert found.converged
        for user, bids in enumerate(found.bids):
            others = found.bids.sum(axis=0) - bids + 1e-9
            better = best_response(worth[user], others, 1.0)
            now, then = (float((worth[user] * x / (x + others)).sum()) for x in (bids, better))
            assert then <= now * 1.01
            assert bids.sum() == pytest.approx(1.0)

    @settings(slow_machine, max_examples=tries(10, 80))
    @given(worth=games(8))
    def test_the_papers_bounds(self, worth: Any) -> None:
        """Of a balanced game of m users: an efficiency in the order of 1 / sqrt(m), an envy-freeness of at least
        2 sqrt(2) - 2 = 0.828, and each user has at least 1 / m of the whole, so a uniformity of that at least (Zhang, "The
        Efficiency and Fairness of a Fixed Budget Resource Allocation Game", ICALP 2005)."""
        found = equilibrium(worth, np.ones(len(worth)), 1e-5)
        got = measures(worth, found.parts, np.ones(len(worth)))
        assert got.efficiency >= 1 / (2 * sqrt(len(worth)))
        assert got.envy_freeness >= 2 * sqrt(2) - 2 - 1e-3
        assert got.uniformity >= 1 / len(worth) - 1e-3
        assert ((worth * found.parts).sum(axis=1) >= 1 / len(worth) - 1e-3).all()

    def test_two_users_reach_three_quarters(self) -> None:
        """ICALP 2005: with two users and linear utilities the efficiency is at least 3/4."""
        chance = np.random.default_rng(3)
        for _ in range(50):
            worth = chance.dirichlet(np.full(chance.integers(2, 9), 0.3), size=2)
            found = equilibrium(worth, np.ones(2), 1e-5)
            assert measures(worth, found.parts, np.ones(2)).efficiency >= 0.75 - 1e-3

    def test_it_is_fairer_than_the_most_efficient_division(self) -> None:
        """The paper's conclusion from its simulations: nearly as efficient as the social optimum, and much fairer."""
        worth = np.random.default_rng(5).random((20, 40))
        worth /= worth.sum(axis=1, keepdims=True)
        budgets = np.ones(20)
        found = equilibrium(worth, budgets)
        market = measures(worth, found.parts, budgets)
        optimum = measures(worth, (worth == worth.max(axis=0)).astype(float), budgets)
        assert found.turns <= 10
        assert optimum.efficiency == pytest.approx(1.0)
        assert market.efficiency > 0.8
        assert market.uniformity > 0.6 > 0.3 > optimum.uniformity
        assert market.envy_freeness > 0.9 > 0.5 > optimum.envy_freeness

    def test_a_machine_that_one_user_wants_goes_to_it_for_almost_nothing(self) -> None:
        worth = np.array([[0.5, 0.5], [1.0, 0.0]])
        found = equilibrium(worth, np.ones(2))
        assert found.parts[0, 1] > 0.99
        assert found.bids[0, 1] < 0.01


class TestMeasures:
    def test_by_hand(self) -> None:
        """The first has half of what it wants, the second a quarter, and would rather have the first one's part."""
        worth, parts = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.5, 0.5], [0.0, 0.5]])
        assert measures(worth, parts, np.ones(2)) == pytest.approx((0.75 / 1.5, 0.5, 0.5))

    def test_an_app_with_a_larger_budget_is_not_envied_for_it(self) -> None:
        worth, parts = np.array([[1.0], [1.0]]), np.array([[0.75], [0.25]])
        assert measures(worth, parts, np.array([3.0, 1.0])) == pytest.approx((1.0, 1.0, 1.0))

    def test_a_game_without_players_has_perfect_measures(self) -> None:
        assert measures(np.zeros((2, 1)), np.zeros((2, 1)), np.ones(2)) == (1.0, 1.0, 1.0)


class TestPolicy:
    def test_budgets_are_weights(self) -> None:
        got = solve("market", TWO, app("a", 1, 1, (1, 8), weight=3.0), app("b", 1, 1, (1, 8)))
        assert totals(got) == {"a": 6, "b": 2}
        assert got.reasons["b"].code == "budget"
        assert got.reasons["b"].text == "its budget buys 2 containers at the prices that all bids make"

    def test_unused_shares_go_to_the_others(self) -> None:
        got = solve("market", TWO, app("a", 1, 1, (1, 1)), app("b", 1, 1, (1, 8)), app("c", 1, 1, (1, 8)))
        assert totals(got) == {"a": 1, "b": 4, "c": 3}

    def test_an_app_buys_where_it_is_fastest(self) -> None:
        nodes = tuple(msgspec.structs.replace(node(name, 4, 16), labels={"type": name}) for name in ("f", "s"))
        gains = msgspec.structs.replace(app("gains", 1, 1, (1, 4)), speed_on={"f": ((1, 9.0),), "s": ((1, 1.0),)})
        loses = msgspec.structs.replace(app("loses", 1, 1, (1, 4)), speed_on={"f": ((1, 1.0),), "s": ((1, 9.0),)})
        got = solve("market", nodes, loses, gains)
        assert got.counts == {"gains": {"f": 4}, "loses": {"s": 4}}
        assert measured(Problem(nodes, (loses, gains)), got.counts) == pytest.approx((1.0, 1.0, 1.0, 1.0))

    def test_its_own_answer_is_fair_by_its_own_measure(self) -> None:
        apps = tuple(app(f"a{i}", 1 + i % 2, 2, (1, 99)) for i in range(6))
        nodes = tuple(node(f"n{j}", 36, 72) for j in range(4))
        by_market, by_fifo = (policy(name).allocate(Problem(nodes, apps), {}).counts for name in ("market", "fifo"))
        market, fifo = (measured(Problem(nodes, apps), counts) for counts in (by_market, by_fifo))
        assert min(market.uniformity, market.envy_freeness) > 0.8
        assert market.content == 1
        assert fifo.uniformity == fifo.envy_freeness == 0
        assert market.efficiency == pytest.approx(1.0)


class TestAnswers:
    """Two nodes of 4 cores; a unit of utility is all 8."""

    A, B = app("a", 1, 1, (1, 8)), app("b", 1, 1, (1, 8))

    def division(self, a: int, b: int, *, bound: tuple[int, int] = (1, 8), weight: float = 1.0) -> tuple[float, ...]:
        second = msgspec.structs.replace(self.B, n_min=bound[0], n_max=bound[1], weight=weight)
        counts = {"a": {"n0": min(a, 4), "n1": max(a - 4, 0)}, "b": {"n1": b} if b else {}}
        return measured(Problem(TWO, (self.A, second)), counts)

    def test_by_hand(self) -> None:
        assert self.division(4, 4) == pytest.approx((1, 1, 1, 1))
        assert self.division(3, 2) == pytest.approx((5 / 8, 2 / 3, 2 / 3, 1 / 2))
        assert self.division(6, 0) == pytest.approx((6 / 8, 0, 0, 1 / 2))

    def test_an_app_at_its_maximum_envies_no_other(self) -> None:
        assert self.division(6, 2, bound=(1, 2)) == pytest.approx((1, 1, 1, 1))

    def test_an_app_does_not_envy_nodes_on_which_it_could_not_run(self) -> None:
        assert self.division(4, 0, bound=(8, 8))[2:] == pytest.approx((1, 1))

    def test_an_app_with_a_larger_budget_is_not_envied_for_it(self) -> None:
        assert self.division(6, 2, weight=1 / 3)[1:] == pytest.approx((1, 1, 1))

    def test_resources_that_one_does_not_need_are_worth_nothing_to_it(self) -> None:
        """With what `b` has, `a` would have 3/4 of a container: none; and `b` one instead of its three with what `a` has."""
        nodes = (node("n", 4, 8),)
        apps = (app("a", 1, 4, (1, 9)), app("b", 1, 1, (1, 9)))
        found = measured(Problem(nodes, apps), {"a": {"n": 1}, "b": {"n": 3}})
        assert found.envy_freeness == pytest.approx(1.0)
        assert found.content == 1
