"""The market of `shockwave`, its program against all plans of small windows, and which rounds follow."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm_lab.policies.shockwave.market import ORIGIN, Market
from dorm_lab.policies.shockwave.program import GAP, solve
from dorm_lab.policies.shockwave.rounds import counts_in, planned, schedule
from tests.policies.problems import slow_machine
from tests.tries import tries


def market(*apps: tuple[float, float, float, float], rounds: int = 4, regularizer: float = 0.0) -> Market:
    """Apps as (seconds that it has run, seconds left, budget, part of the cluster); rounds of 100 s."""
    ran, left, budget, use = (np.array(column, np.float64) for column in zip(*apps, strict=True))
    return Market(ran, left, budget, use[:, None], rounds, 100.0, regularizer)


@st.composite
def markets(draw: st.DrawFn) -> Market:
    one = st.tuples(
        st.sampled_from([0.0, 50.0, 300.0, 5000.0]),
        st.sampled_from([30.0, 100.0, 250.0, 400.0, 9000.0]),
        st.sampled_from([0.1, 1.0, 3.0, 1000.0]),
        st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    )
    apps = draw(st.lists(one, min_size=1, max_size=3))
    return market(*apps, rounds=draw(st.integers(1, 3)), regularizer=draw(st.sampled_from([0.0, 1e-6, 1e-3, 10.0])))


def schedules(of: Market) -> list[np.ndarray]:
    """Return the counts of every schedule of the window: each round holds any apps that fit together."""
    apps = range(len(of.left_s))
    rounds = [
        chosen
        for size in range(len(of.left_s) + 1)
        for chosen in itertools.combinations(apps, size)
        if (of.use[list(chosen)].sum(axis=0) <= 1 + 1e-9).all()
    ]
    return [
        np.bincount([app for one in made for app in one], minlength=len(of.left_s))
        for made in itertools.combinations_with_replacement(rounds, of.rounds)
    ]


class TestMarket:
    def test_the_utility_is_the_completed_part_with_a_piecewise_logarithm(self) -> None:
        """Half of the work is between 0.4 and 0.6, a tenth between nothing and 0.2."""
        half, tenth = market((0, 800, 1, 1), (0, 1000, 1, 1)).log_utility(np.array([4, 1]))
        assert half == pytest.approx((math.log(0.4) + math.log(0.6)) / 2)
        assert tenth == pytest.approx((math.log(ORIGIN) + math.log(0.2)) / 2)

    def test_earlier_work_counts_and_no_app_exceeds_its_work(self) -> None:
        assert market((300, 100, 1, 1)).log_utility(np.array([4])) == pytest.approx([0.0])
        assert market((300, 200, 1, 1)).log_utility(np.array([1])) == pytest.approx([math.log(0.8)])

    def test_the_makespan_is_the_remaining_time_of_the_longest_app(self) -> None:
        one = market((100, 100, 1, 1), (500, 500, 1, 1), regularizer=1e-3)
        none, some = one.value(np.array([0, 0])), one.value(np.array([0, 2]))
        progress = (math.log(0.6) + math.log(0.8)) / 2 - (math.log(0.4) + math.log(0.6)) / 2
        assert some - none == pytest.approx(progress + 1e-3 * 2 * 4 * 200)


class TestProgram:
    def test_equal_apps_share_the_window(self) -> None:
        found = solve(market((0, 1000, 1, 1), (0, 1000, 1, 1)))
        assert found is not None
        assert (found.counts.tolist(), found.status) == ([2, 2], "optimal")

    def test_budgets_buy_rounds_at_decreasing_utility(self) -> None:
        """Of 1,000 s, the second fifth is worth log 2, the third log 1.5: a budget of 3 buys the third fifth before a budget
        of 1 buys the second (3 log 1.5 > log 2)."""
        found = solve(market((200, 800, 3, 1), (200, 800, 1, 1)))
        assert found is not None
        assert found.counts.tolist() == [4, 0]
        even = solve(market((200, 800, 1.5, 1), (200, 800, 1, 1)))
        assert even is not None
        assert even.counts.tolist() == [2, 2]

    def test_the_regularizer_serves_the_longest_first(self) -> None:
        apps = ((200, 800, 1, 1), (2000, 8000, 1, 1))
        found, regular = solve(market(*apps)), solve(market(*apps, regularizer=1e-3))
        assert found is not None
        assert regular is not None
        assert found.counts.tolist() == [4, 0]
        assert regular.counts.tolist() == [0, 4]

    def test_an_app_gets_no_more_rounds_than_it_needs(self) -> None:
        found = solve(market((0, 150, 1, 1), (0, 90, 1, 1), rounds=8))
        assert found is not None
        assert found.counts.tolist() == [2, 1]

    @settings(slow_machine, max_examples=tries(4, 2_000))
    @given(of=markets())
    def test_no_schedule_beats_the_bound_and_the_counts_approach_it(self, of: Market) -> None:
        found = solve(of)
        assert found is not None
        possible = schedules(of)
        best = max(of.value(counts) for counts in possible)
        assert best <= found.bound + 1e-6 * max(1.0, abs(found.bound))
        assert (found.counts @ of.use <= of.rounds + 1e-6).all()
        # Counts for which no schedule exists may be better than any schedule, never worse.
        assert of.value(found.counts) >= best - GAP * max(1.0, abs(found.bound))


class TestRounds:
    @settings(slow_machine, max_examples=tries(4, 2_000))
    @given(of=markets())
    def test_a_small_window_gets_the_best_schedule_that_there_is(self, of: Market) -> None:
        """Also where whole partitions do not fill the rounds, as the program of counts assumes."""
        found = solve(of)
        assert found is not None
        made = planned(of, found, np.zeros(len(of.left_s), np.bool_), list(range(len(of.left_s))))
        assert len(made) == of.rounds
        assert all((of.use[one].sum(axis=0) <= 1 + 1e-6).all() and len(one) == len(set(one)) for one in made)
        best = max(of.value(counts) for counts in schedules(of))
        assert of.value(counts_in(of, made)) >= best - 2 * GAP * max(1.0, abs(found.bound))

    def test_rounds_that_whole_partitions_do_not_fill_are_planned_one_by_one(self) -> None:
        """By counts alone the first one would have all four rounds, and leave a quarter of each unused."""
        of = market((0, 9000, 1.6, 0.75), (0, 9000, 1, 0.5), (0, 9000, 1, 0.5), rounds=4)
        found = solve(of)
        assert found is not None
        assert found.counts.tolist()[0] == 4
        made = planned(of, found, np.zeros(3, np.bool_), [0, 1, 2])
        assert [sorted(one) for one in made] == [[1, 2]] * 4

    def test_apps_with_the_largest_usable_part_go_first_and_then_late_apps(self) -> None:
        """The first one needs two rounds and gets both; the others could use all six."""
        of = market((0, 150, 1, 1), (0, 900, 2, 1), (0, 900, 9, 1), rounds=6)
        made = schedule(of, np.array([2, 2, 2]), np.array([False] * 3), [0, 1, 2])
        assert [each[0] for each in made] == [0, 0, 2, 2, 1, 1]

    def test_an_app_that_needs_every_round_has_every_round(self) -> None:
        of = market((0, 900, 1, 0.5), (0, 900, 9, 0.5), (0, 900, 9, 0.5), rounds=2)
        made = schedule(of, np.array([2, 1, 1]), np.array([False] * 3), [0, 1, 2])
        assert [sorted(one) for one in made] == [[0, 1], [0, 2]]

    def test_among_equals_running_apps_precede_and_then_older_ones(self) -> None:
        of = market((0, 900, 1, 1), (0, 900, 1, 1), (0, 900, 0.5, 1), rounds=3)
        made = schedule(of, np.array([1, 1, 1]), np.array([False, False, True]), [1, 0, 2])
        assert made == [[2], [1], [0]]

    def test_remaining_room_goes_to_the_apps_that_need_longest(self) -> None:
        of = market((0, 500, 1, 0.5), (0, 700, 1, 0.5), (0, 900, 1, 0.75), rounds=1)
        assert schedule(of, np.array([1, 0, 0]), np.array([False] * 3), [0, 1, 2]) == [[0, 1]]

    @settings(slow_machine, max_examples=tries(4, 1_000))
    @given(of=markets())
    def test_rounds_respect_room_and_apps_of_one_size_get_their_counts(self, of: Market) -> None:
        found = solve(of)
        assert found is not None
        apps = len(of.left_s)
        made = schedule(of, found.counts, np.zeros(apps, np.bool_), list(range(apps)))
        for one in made:
            assert len(one) == len(set(one))
            assert (of.use[one].sum(axis=0) <= 1 + 1e-6).all()
        if len(set(of.use[:, 0].tolist())) == 1 and 1 / of.use[0, 0] % 1 == 0:
            got = np.bincount([app for one in made for app in one], minlength=apps)
            assert (got >= found.counts).all()
