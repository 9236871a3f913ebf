"""The two baselines from the literature that go by attained service and by speed: `tiresias` and `optimus`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies import integer, scoring
from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import assumes_pauses, names, policy
from dorm_lab.policies.baselines.optimus import remaining_s
from tests.errors import raises
from tests.policies.problems import after, app, node, problems, slow_machine
from tests.tries import tries

FEW = settings(slow_machine, max_examples=tries(4, 30))
TWO = (node("n0", 4, 16), node("n1", 4, 16))
HOUR = 3600.0
STOPPED = "an app that could go on was stopped"
"""What both may do and `dorm` may not."""


def solve(name: str, nodes: tuple[NodeRoom, ...], *apps: AppDemand, **params: Any) -> Allocation:
    return policy(name).allocate(Problem(nodes, apps), params)


def totals(allocation: Allocation) -> dict[str, int]:
    return {name: sum(row.values()) for name, row in allocation.counts.items()}


def served(each: AppDemand, hours: float) -> AppDemand:
    return msgspec.structs.replace(each, served_s=hours * HOUR)


def telling(each: AppDemand, steps: float, *speed: tuple[int, float]) -> AppDemand:
    return msgspec.structs.replace(each, remaining_steps=steps, speed=speed)


@st.composite
def told(draw: st.DrawFn) -> Problem:
    """Apps, some of which have run before, and some of which declare their remaining work and speed."""
    problem = draw(problems(max_apps=6, max_nodes=4, most=6))
    apps = []
    for each in problem.apps:
        here = served(each, draw(st.sampled_from([0.0, 1.0, 16.0, 40.0])))
        if draw(st.booleans()):
            rates = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 9.0]), min_size=1, max_size=4))
            here = telling(here, draw(st.sampled_from([0.0, 10.0, 1e6])), *enumerate(rates, start=1))
        apps.append(here)
    return Problem(problem.nodes, tuple(apps))


def rows_of(instance: integer.Instance, got: Allocation) -> list[dict[int, int]]:
    """In units of gangs, as the checks of all policies take them."""
    column = {name: j for j, name in enumerate(instance.nodes)}
    gang = instance.gang.tolist()
    return [
        {column[place]: count // gang[i] for place, count in got.counts[each.id].items() if place in column}
        for i, each in enumerate(instance.apps)
    ]


@pytest.mark.parametrize("name", ["tiresias", "optimus", "pollux", "sia"])
@FEW
@given(problem=told())
def test_invariants_of_every_answer(name: str, problem: Problem) -> None:
    got = policy(name).allocate(problem, {})
    instance = integer.read(problem)
    assert set(scoring.faults(instance, rows_of(instance, got), len(problem.apps))) <= {STOPPED}
    for each in problem.apps:
        count = totals(got)[each.id]
        assert (each.id in got.reasons) == (count < each.n_max)
        assert each.pinned or (each.id in got.shortage) == (count < each.n_min)
    shuffled = Problem(problem.nodes[::-1], problem.apps)
    assert msgspec.json.encode(policy(name).allocate(shuffled, {})) == msgspec.json.encode(got)


@pytest.mark.parametrize("name", ["tiresias", "optimus", "pollux", "sia"])
@FEW
@given(problem=told())
def test_answers_settle_once_they_are_applied(name: str, problem: Problem) -> None:
    settled = Problem(problem.nodes, tuple(msgspec.structs.replace(each, pinned=False) for each in problem.apps))
    for _ in range(20):
        following = after(settled, policy(name).allocate(settled, {}))
        if following == settled:
            return
        settled = following
    raise AssertionError("still changing after 20 rounds")


class TestTiresias:
    def test_an_app_with_much_service_is_stopped_for_one_with_little(self) -> None:
        old, new = app("old", 1, 1, (8, 8), {"n0": 4, "n1": 4}), app("new", 1, 1, (2, 2))
        assert totals(solve("tiresias", TWO, served(old, 15.9), new)) == {"old": 8, "new": 0}
        got = solve("tiresias", TWO, served(old, 16), new)
        assert totals(got) == {"old": 0, "new": 2}
        assert got.reasons["old"].code == "queue"
        assert got.reasons["old"].text == "stopped for apps that come first: it has had 16 container-hours"
        assert totals(solve("tiresias", TWO, served(old, 16), new, thresholds=[20 * HOUR])) == {"old": 8, "new": 0}

    def test_within_a_queue_the_first_goes_first_and_fitting_apps_run_next_to_it(self) -> None:
        apps = [app("a", 1, 1, (6, 6)), app("b", 1, 1, (4, 4)), app("c", 1, 1, (2, 2))]
        got = solve("tiresias", TWO, *apps)
        assert totals(got) == {"a": 6, "b": 0, "c": 2}
        assert got.reasons["b"].code == "resources"
        further = [served(each, hours) for each, hours in zip(apps, (1, 0, 2), strict=True)]
        assert totals(solve("tiresias", TWO, *further)) == totals(got), "service within a queue decides nothing"

    def test_running_apps_stay_where_they_are(self) -> None:
        here = app("here", 1, 1, (2, 2), {"n1": 2})
        got = solve("tiresias", TWO, here, app("big", 1, 1, (4, 4)))
        assert got.counts == {"here": {"n1": 2}, "big": {"n0": 4}}

    def test_if_free_pieces_are_too_small_the_last_apps_are_stopped(self) -> None:
        """Each node has one core free and one container needs two: as one machine the cluster would hold it."""
        small = [served(app(f"s{j}", 3, 1, (1, 1), {f"n{j}": 1}), 20 + j) for j in range(2)]
        got = solve("tiresias", TWO, *small, app("wide", 2, 1, (1, 1)))
        assert got.counts == {"s0": {"n0": 1}, "s1": {}, "wide": {"n1": 1}}
        assert solve("tiresias", TWO, *small, app("wide", 5, 1, (1, 1))).counts["s1"] == {"n1": 1}, "stopped in vain"

    def test_elastic_apps_get_a_fixed_count(self) -> None:
        got = solve("tiresias", TWO, app("a", 1, 1, (1, 8)), app("b-1", 1, 1, (1, 8)), count=3, counts={"b-*": 4})
        assert totals(got) == {"a": 3, "b-1": 4}
        assert got.reasons["a"].code == "static_count"


class TestOptimus:
    def test_a_container_goes_where_it_saves_most_time(self) -> None:
        """Remaining times by containers: long 100, 50, 34, 26, 21, 17, 15 s; short 40, 20, 14 s; so 5 and 3 of 8."""
        speed = [(n, float(n)) for n in range(1, 9)]
        long = telling(app("long", 1, 1, (1, 8)), 100, *speed)
        short = telling(app("short", 1, 1, (1, 8)), 40, *speed)
        got = solve("optimus", TWO, short, long)
        assert totals(got) == {"long": 5, "short": 3}
        assert got.reasons["short"].code == "gain"

    def test_gains_are_for_the_dominant_share(self) -> None:
        """The example above, where a container of `long` takes as much as 4: it gains less by each unit."""
        speed = [(n, float(n)) for n in range(1, 9)]
        long = telling(app("long", 4, 4, (1, 8)), 100, *speed)
        short = telling(app("short", 1, 1, (1, 4)), 40, *speed)
        assert totals(solve("optimus", TWO, short, long)) == {"long": 1, "short": 4}

    def test_no_app_gets_containers_that_do_not_speed_it_up(self) -> None:
        flat = telling(app("flat", 1, 1, (1, 8)), 1e6, (1, 1.0), (2, 1.5), (3, 1.4), (8, 9.0))
        got = solve("optimus", TWO, flat)
        assert totals(got) == {"flat": 2}
        assert got.reasons["flat"].text == "it would not be done earlier with more"

    def test_an_app_with_the_same_count_stays_in_place(self) -> None:
        speed = [(n, float(n)) for n in range(1, 5)]
        stays = telling(app("stays", 1, 1, (1, 3), {"n1": 3}), 1e6, *speed)
        moves = telling(app("moves", 1, 1, (1, 8), {"n0": 2}), 10, *speed)
        got = solve("optimus", TWO, stays, moves)
        assert got.counts["stays"] == {"n1": 3}
        assert totals(got)["moves"] == 4
        assert got.overhead == 1

    def test_apps_get_n_min_in_order_of_arrival(self) -> None:
        apps = [telling(app(f"a{i}", 1, 1, (3, 8)), 10.0**i, (1, 1.0), (8, 8.0)) for i in range(3)]
        got = solve("optimus", TWO, *apps)
        assert totals(got) == {"a0": 3, "a1": 5, "a2": 0}
        assert got.reasons["a2"].code == "resources"

    def test_missing_declarations_are_assumed(self) -> None:
        silent = app("silent", 1, 1, (1, 8))
        assert [remaining_s(silent, n, 60.0) for n in (1, 2, 6)] == [60, 30, 10]
        assert remaining_s(telling(silent, 30), 2, 60.0) == 30, "no speed is known"
        known = telling(silent, 30, (2, 3.0), (4, 5.0))
        assert [remaining_s(known, n, 60.0) for n in (1, 2, 3, 4, 9)] == [20, 10, 7.5, 6, 6]
        for assumed_s, counts in ((1.0, {"said": 4, "silent": 4}), (1e6, {"said": 1, "silent": 7})):
            said = msgspec.structs.replace(known, id="said")
            assert totals(solve("optimus", TWO, said, silent, assumed_s=assumed_s)) == counts


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [
        ("tiresias", {"backfill": True}, "policy.parameter.unknown"),
        ("tiresias", {"count": 0}, "policy.parameter.out_of_range"),
        ("tiresias", {"thresholds": 5}, "policy.parameter.wrong_type"),
        ("tiresias", {"thresholds": [1, "2"]}, "policy.parameter.wrong_type"),
        ("tiresias", {"thresholds": [2, 2]}, "policy.parameter.not_ascending"),
        ("optimus", {"assumed_s": -1}, "policy.parameter.out_of_range"),
        ("optimus", {"rounds": 1}, "policy.parameter.unknown"),
    ],
)
def test_parameters_are_checked(name: str, params: dict[str, Any], code: str) -> None:
    with raises(ValueError, code):
        policy(name).check_params(params)


def test_defaults_are_filled_in() -> None:
    assert policy("tiresias").check_params({}) == {"count": 2, "counts": {}, "thresholds": [57_600.0]}
    assert policy("optimus").check_params({}) == {"assumed_s": 3600.0}


def test_only_the_speed_policies_look_at_the_pauses_of_other_apps() -> None:
    assert [name for name in names() if not assumes_pauses(name)] == ["dorm-speed", "dorm-speed-exact"]
    assert assumes_pauses("a plug-in")
