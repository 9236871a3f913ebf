"""`dorm-speed`: what holds of every answer, who gets what, and what nonsense does not do."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies import goals, integer, scoring
from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm.policies.speed.speed_policy import Round, SpeedPolicy
from dorm.policies.speed.worth import Worth, counts_up_to
from tests.dorm_lab.policies.baselines.test_speed_policies import rows_of, telling, told, totals
from tests.errors import raises
from tests.policies.problems import after, app, node, slow_machine
from tests.tries import tries

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Rows
    from dorm.policies.speed.locality import Locality

FEW = settings(slow_machine, max_examples=tries(4, 2_000))
TWO = (node("n0", 4, 16), node("n1", 4, 16))
LINEAR = [(n, float(n)) for n in range(1, 9)]
SATURATED = [(1, 1.0), (2, 1.6), (8, 1.7)]
ANY = {"theta1": 1.0, "theta2": 1.0, "floor": 0.0}
"""No bound but the worth."""


def solve(nodes: tuple[NodeRoom, ...], *apps: AppDemand, **params: Any) -> Allocation:
    return policy("dorm-speed").allocate(Problem(nodes, apps), params)


def disturbed(problem: Problem, got: Allocation, params: dict[str, Any]) -> float:
    """What the answer takes of θ2's budget, in full restarts, computed from the problem alone."""
    full = params.get("full_pause_s", SpeedPolicy.parameters["full_pause_s"].default)
    usual = params.get("adjust_s", SpeedPolicy.parameters["adjust_s"].default)
    instance = integer.read(problem)
    changed = integer.changed(instance, rows_of(instance, got)) & instance.kept & ~instance.absent
    pauses = [usual if each.adjust_s is None else each.adjust_s for each in instance.apps]
    return math.fsum(min(1.0, pauses[i] / full) for i in np.flatnonzero(changed).tolist())


def reserved_by(problem: Problem, params: dict[str, Any]) -> tuple[int, Flags] | None:
    """The nodes that the policy reserves for an app that has waited too long, by its own measure of that."""
    rounds: list[Round] = []

    class Seen(SpeedPolicy):
        def _round(self, instance: integer.Instance, settings: dict[str, float], locality: Locality) -> Round:
            rounds.append(super()._round(instance, settings, locality))
            return rounds[0]

    Seen().allocate(problem, params)
    return goals.reserved(rounds[0].instance, rounds[0].serving.aged)


@st.composite
def odd(draw: st.DrawFn) -> Problem:
    """Problems whose owners declare anything, and whose pauses differ by orders of magnitude."""
    problem = draw(told())
    rates = st.sampled_from([0.0, -1.0, 1e-300, 1e-6, 1.0, 1e6, 1e300, math.inf, math.nan])
    apps = []
    for each in problem.apps:
        here = msgspec.structs.replace(each, adjust_s=draw(st.sampled_from([None, 0.0, 0.01, 2.0, 30.0, 9000.0])))
        if each.current:
            here = msgspec.structs.replace(here, held_s=draw(st.sampled_from([None, 0.0, 40.0, 1e5, math.nan])))
        if draw(st.integers(0, 3)) == 0:
            points = draw(st.lists(st.tuples(st.integers(-1, 9), rates), max_size=4))
            left = draw(st.sampled_from([None, 0.0, 1e-9, 1e12, math.inf, math.nan]))
            here = msgspec.structs.replace(here, speed=tuple(points), remaining_steps=left)
        apps.append(here)
    return Problem(problem.nodes, tuple(apps))


PARAMS = st.fixed_dictionaries(
    {
        "theta1": st.sampled_from([0.0, 0.1, 1.0]),
        "theta2": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        "floor": st.sampled_from([0.0, 0.5, 1.0]),
        "power": st.sampled_from([0.3, 0.5, 1.0]),
        "max_changes": st.sampled_from([50, 1, 0]),
        "rest": st.sampled_from([0.0, 10.0]),
    }
)


@FEW
@given(problem=odd(), params=PARAMS)
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
@given(problem=odd())
def test_declarations_do_not_change_who_starts_after_a_long_wait(problem: Problem) -> None:
    """Where nothing runs yet and all have waited long, n_min is served in the same way whatever is declared."""
    fresh = [
        msgspec.structs.replace(each, current={}, pinned=False, absent=False, waited_s=1e30) for each in problem.apps
    ]
    silent = [msgspec.structs.replace(each, speed=(), remaining_steps=None) for each in fresh]
    started, expected = (solve(problem.nodes, *apps).shortage for apps in (fresh, silent))
    assert started == expected


@FEW
@given(problem=told())
def test_answers_settle_once_they_are_applied(problem: Problem) -> None:
    settled = Problem(problem.nodes, tuple(msgspec.structs.replace(each, pinned=False) for each in problem.apps))
    for _ in range(30):
        following = after(settled, policy("dorm-speed").allocate(settled, {}))
        if following == settled:
            return
        settled = following
    raise AssertionError("still changing after 30 rounds")


class TestWorth:
    def test_containers_go_where_they_finish_more_work(self) -> None:
        scales = telling(app("scales", 1, 1, (1, 8)), 1e4, *LINEAR)
        flat = telling(app("flat", 1, 1, (1, 8)), 1e4, *SATURATED)
        got = solve(TWO, scales, flat, **ANY)
        assert totals(got) == {"scales": 6, "flat": 2}

    def test_short_apps_get_more_than_long_ones(self) -> None:
        long = telling(app("long", 1, 1, (1, 8)), 1e5, *LINEAR)
        short = telling(app("short", 1, 1, (1, 8)), 1e3, *LINEAR)
        got = totals(solve(TWO, long, short, **ANY))
        assert got["short"] > got["long"] >= 1

    def test_fairness_and_floors_bound_it(self) -> None:
        long = telling(app("long", 1, 1, (1, 8)), 1e5, *LINEAR)
        short = telling(app("short", 1, 1, (1, 8)), 1e3, *LINEAR)
        assert totals(solve(TWO, long, short, theta1=0.0)) == {"long": 4, "short": 4}
        assert totals(solve(TWO, long, short, theta1=1.0, floor=0.75)) == {"long": 3, "short": 5}

    def test_no_container_is_added_without_a_speed_up(self) -> None:
        flat = telling(app("flat", 1, 1, (1, 8)), 1e6, (1, 1.0), (2, 1.5), (3, 1.4), (8, 1.2))
        got = solve(TWO, flat)
        assert totals(got) == {"flat": 2}
        assert (got.reasons["flat"].code, got.reasons["flat"].text) == (
            "gain",
            "it would not be done earlier with more",
        )

    def test_without_speeds_shares_are_equal(self) -> None:
        assert totals(solve(TWO, app("a", 1, 1, (1, 8)), app("b", 1, 1, (1, 8)))) == {"a": 4, "b": 4}

    @pytest.mark.parametrize(("steps", "grows"), [(40, False), (1000, True)])
    def test_a_change_has_to_pay_within_the_apps_own_remaining_time(self, steps: float, grows: bool) -> None:
        """From 4 to 8 containers halves the time that is left; a restart costs 30 s."""
        here = telling(app("here", 1, 1, (1, 8), {"n0": 4}), steps * 4, *LINEAR)
        got = solve(TWO, here)
        assert totals(got) == {"here": 8 if grows else 4}
        if not grows:
            assert got.reasons["here"].code == "price"
            live = msgspec.structs.replace(here, adjust_s=0.01)
            assert totals(solve(TWO, live)) == {"here": 8}

    def test_a_change_has_to_save_twice_its_pause(self) -> None:
        """From 4 to 8 containers saves 40 of 80 s; a restart costs 30 s."""
        here = telling(app("here", 1, 1, (1, 8), {"n0": 4}), 80 * 4, *LINEAR)
        got = solve(TWO, here)
        assert totals(got) == {"here": 4}
        assert got.reasons["here"].text == "more would save less time than 2 times its pause of 30 s"
        assert totals(solve(TWO, here, caution=1.0)) == {"here": 8}

    @pytest.mark.parametrize(("usual", "grows"), [(0.5, True), (None, False), (math.nan, False), (-1.0, False)])
    def test_without_a_measured_pause_that_of_other_apps_counts(self, usual: float | None, grows: bool) -> None:
        here = msgspec.structs.replace(
            telling(app("here", 1, 1, (1, 8), {"n0": 4}), 50 * 4, *LINEAR), usual_adjust_s=usual
        )
        assert totals(solve(TWO, here)) == {"here": 8 if grows else 4}
        slow = msgspec.structs.replace(here, adjust_s=600.0)
        assert totals(solve(TWO, slow)) == {"here": 4}


class TestRest:
    """From 4 to 8 containers saves thousands of seconds; after a restart of 30 s, an app rests for 300 s with `rest=10`."""

    @staticmethod
    def held(seconds: float | None, pause: float | None = 30.0) -> AppDemand:
        here = telling(app("here", 1, 1, (1, 8), {"n0": 4}), 4e4, *LINEAR)
        return msgspec.structs.replace(here, adjust_s=pause, held_s=seconds)

    @pytest.mark.parametrize(("seconds", "grows"), [(0.0, False), (299.0, False), (300.0, True), (None, True)])
    def test_an_app_keeps_what_it_has_for_ten_pauses(self, seconds: float | None, grows: bool) -> None:
        got = solve(TWO, self.held(seconds), rest=10.0)
        assert totals(got) == {"here": 8 if grows else 4}
        if not grows:
            assert got.reasons["here"].code == "price"
            assert got.reasons["here"].text == (
                "it keeps what it has for 300 s after a change, because each one stops it for 30 s"
            )
            assert totals(solve(TWO, self.held(seconds))) == {"here": 8}

    @pytest.mark.parametrize("pause", [0.01, 4.9, None])
    def test_an_app_with_a_short_or_unmeasured_pause_does_not_rest(self, pause: float | None) -> None:
        assert totals(solve(TWO, self.held(1.0, pause), rest=10.0)) == {"here": 8}

    def test_after_its_rest_a_recent_change_makes_the_next_one_more_expensive(self) -> None:
        """From 4 to 8 containers saves 250 s: more than 6 pauses of 30 s, and less than 6 (1 + 300 / 300) of them."""
        here = msgspec.structs.replace(self.held(300.0), remaining_steps=2000.0)
        assert totals(solve(TWO, here, rest=10.0)) == {"here": 4}
        assert totals(solve(TWO, msgspec.structs.replace(here, held_s=1e5), rest=10.0)) == {"here": 8}

    def test_a_resting_app_gives_room_to_one_that_waits(self) -> None:
        here = msgspec.structs.replace(self.held(0.0), current={"n0": 4, "n1": 4})
        late = telling(app("late", 1, 1, (1, 4)), 1e4, *LINEAR)
        got = totals(solve(TWO, here, late, rest=10.0))
        assert got["late"] >= 1
        assert got["here"] >= 1

    def test_a_resting_app_gives_no_room_to_a_running_one(self) -> None:
        """Both would be served by 4 each; the one that rests keeps 7 of 8."""
        here = msgspec.structs.replace(self.held(10.0), current={"n0": 4, "n1": 3})
        beside = telling(app("beside", 1, 1, (1, 8), {"n1": 1}), 1e4, *LINEAR)
        beside = msgspec.structs.replace(beside, adjust_s=30.0, held_s=1e5)
        assert totals(solve(TWO, here, beside, rest=10.0)) == {"here": 7, "beside": 1}
        free = totals(solve(TWO, msgspec.structs.replace(here, held_s=1e5), beside, theta2=1.0, rest=10.0))
        assert free["beside"] > 1


class TestDisturbance:
    @staticmethod
    def growing(pause: float | None) -> tuple[AppDemand, ...]:
        apps = [telling(app(f"a{i}", 1, 1, (1, 4), {f"n{i}": 1}), 1e6, *LINEAR) for i in range(6)]
        return tuple(msgspec.structs.replace(each, adjust_s=pause) for each in apps)

    @pytest.mark.parametrize(("pause", "changes"), [(None, 2), (60.0, 2), (15.0, 4), (0.05, 6)])
    def test_theta2_counts_full_restarts(self, pause: float | None, changes: int) -> None:
        """A third of six apps: two restarts, or four pauses of half a restart, or all of them live."""
        nodes = tuple(node(f"n{i}", 4, 16) for i in range(6))
        got = solve(nodes, *self.growing(pause), theta2=1 / 3)
        assert got.overhead == changes
        assert got.overhead <= got.overhead_budget
        held = [reason.code for reason in got.reasons.values()]
        assert held == ["overhead"] * (6 - changes)

    def test_a_live_app_stays_where_it_is_and_another_moves_to_fewer_nodes(self) -> None:
        nodes = (node("n0", 4, 16), node("n1", 4, 16), node("n2", 8, 32))
        here = telling(app("here", 1, 1, (1, 5), {"n0": 2, "n1": 2}), 1e6, *LINEAR)
        assert solve(nodes, here).counts["here"] == {"n2": 5}
        live = msgspec.structs.replace(here, adjust_s=0.01)
        got = solve(nodes, live).counts["here"]
        assert sum(got.values()) == 5
        assert got["n0"] >= 2
        assert got["n1"] >= 2


class Watched(Round):
    """A round that looks for apps which could still grow."""

    def _resized(self, served: Rows, terms: scoring.Terms, worth: Worth) -> Rows:
        rows = super()._resized(served, terms, worth)
        left = self._resizing(rows, terms, worth, self.closed(served))
        for i in np.flatnonzero(self.instance.free_to_move & (left.parts.n > 0)).tolist():
            assert left.growth(i) == (0.0, int(left.parts.n[i])), self.instance.apps[i].id
        return rows


class WatchedPolicy(SpeedPolicy):
    def _round(self, instance: integer.Instance, settings: dict[str, float], locality: Locality) -> Round:
        return Watched(instance, settings, locality)


@FEW
@given(problem=odd(), params=PARAMS)
def test_no_usable_room_is_left_free(problem: Problem, params: dict[str, Any]) -> None:
    """Apps that are resized live take any room: no node has a place that θ1, θ2 and the worth would let one of them have."""
    live = tuple(msgspec.structs.replace(each, adjust_s=0.01) for each in problem.apps)
    WatchedPolicy().allocate(Problem(problem.nodes, live), params)


def test_a_plan_that_cannot_be_placed_does_not_keep_all_apps_from_growing() -> None:
    """Of the program's plan a part may be worse than nothing; once, a cluster then stayed half empty for hours."""
    refused = []

    class Refusing(Round):
        def improved(self, served: Rows, terms: scoring.Terms, worth: Worth, closed: integer.Flags | None) -> Rows:
            refused.append(True)
            return [{0: 3, 1: 4}, {0: 1}]  # Less fair than what is.

    class RefusingPolicy(SpeedPolicy):
        def _round(self, instance: integer.Instance, settings: dict[str, float], locality: Locality) -> Round:
            return Refusing(instance, settings, locality)

    apps = [telling(app(f"a{i}", 1, 1, (1, 8), {"n0": 2}), 1e6, *LINEAR) for i in range(2)]
    got = RefusingPolicy().allocate(Problem(TWO, tuple(apps)), {"theta1": 0.05, "theta2": 1.0})
    assert refused
    assert totals(got) == {"a0": 4, "a1": 4}


def test_nonsense_declarations_do_no_harm() -> None:
    silly = app("silly", 1, 1, (1, 8))
    for speed in (
        [(1, 0.0)],
        [(1, -1.0)],
        [(0, 1.0)],
        [(1, math.nan), (2, math.inf)],
        [(1, 1.0), (2, 1e6)],
        [(4, 1.0)],
    ):
        for left in (None, 0.0, 1e300, math.nan):
            declared = msgspec.structs.replace(silly, speed=tuple(speed), remaining_steps=left)
            got = totals(solve(TWO, declared, app("other", 1, 1, (1, 8))))
            assert got["silly"] >= 2, (speed, left)
            assert got["other"] >= 2, (speed, left)


def test_counts_between_bounds() -> None:
    assert counts_up_to(3, 3) == [3]
    assert counts_up_to(1, 12, 10) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12][: len(counts_up_to(1, 12, 10))]
    far = counts_up_to(1, 10**9, 777)
    assert {1, 9, 777, 10**9} <= set(far)
    assert len(far) < 150


def test_the_worth_of_a_problem_by_hand() -> None:
    """100 steps at n steps per second; a change costs 20 s and has to save eight times that: (160 + 100/4)^-½ with four, 100/2
    with two as it is.  An assumed pause of 20 s counts twice."""
    here = telling(app("here", 1, 1, (1, 4), {"n0": 2}), 100, *LINEAR)
    instance = integer.read(Problem(TWO, (msgspec.structs.replace(here, adjust_s=20.0),)))
    worth = Worth(instance, policy("dorm-speed").check_params({}), np.zeros(1, np.bool_))
    assert worth.one(0, 4) == pytest.approx(185**-0.5)
    assert worth.one(0, 2) == pytest.approx(50**-0.5)
    assert worth.one(0, 0) == 0.0
    assumed = Worth(
        integer.read(Problem(TWO, (here,))),
        policy("dorm-speed").check_params({"adjust_s": 20.0}),
        np.zeros(1, np.bool_),
    )
    assert assumed.one(0, 4) == pytest.approx(65**-0.5)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"horizon_s": 1.0}, "policy.parameter.unknown"),
        ({"theta1": 2.0}, "policy.parameter.out_of_range"),
        ({"full_pause_s": 0.0}, "policy.parameter.out_of_range"),
        ({"power": "much"}, "policy.parameter.wrong_type"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], code: str) -> None:
    with raises(ValueError, code):
        policy("dorm-speed").check_params(params)


def test_a_restart_that_theta1_allows_is_complete_even_if_a_part_would_suffice() -> None:
    """Three apps leave one of 64 containers to a newcomer, and θ2 allows one restart.  The relaxed program spends it on parts
    of two restarts, of which rounding leaves nothing: the newcomer stayed at one container, far below its share."""

    def curve(most: int) -> tuple[tuple[int, float], ...]:
        return tuple((n, n / (1 + 0.05 * (n - 1))) for n in (1, 2, 4, 8, 16, 32, 64) if n <= most)

    def running(name: str, first: int, count: int, pause_s: float, most: int) -> AppDemand:
        places = Counter(f"n{unit // 4:02}" for unit in range(first, first + count))
        return AppDemand(
            name, {"gpu": 1}, 1.0, 1, 64, dict(places), adjust_s=pause_s, remaining_steps=5000.0, speed=curve(most)
        )

    apps = (
        running("large", 0, 47, 120.0, 64),
        running("middle", 47, 10, 25.0, 64),
        running("small", 57, 6, 50.0, 16),
        AppDemand("new", {"gpu": 1}, 1.0, 1, 64, remaining_steps=60.0, speed=curve(16)),
    )
    got = policy("dorm-speed").allocate(Problem(tuple(NodeRoom(f"n{i:02}", {"gpu": 4}) for i in range(16)), apps), {})
    assert totals(got)["new"] == 16
    assert got.excess == 0
    assert got.overhead == 1
