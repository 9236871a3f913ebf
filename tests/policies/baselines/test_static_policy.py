"""The baseline: fixed numbers, first come first served, never resized."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from tests.errors import raises
from tests.policies.brute_force import World
from tests.policies.problems import after, app, node, problems

STATIC = policy("static")


def solve(nodes: tuple[NodeRoom, ...], *apps: AppDemand, **params: Any) -> Allocation:
    return STATIC.allocate(Problem(nodes, apps), params)


def total(allocation: Allocation, name: str) -> int:
    return sum(allocation.counts[name].values())


TWO = (node("n0", 4, 16), node("n1", 4, 16))


def test_each_gets_its_number_within_its_bounds() -> None:
    apps = [app("a", 1, 1, (1, 9)), app("b", 1, 1, (3, 9)), app("c", 1, 1, (1, 1))]
    got = solve(TWO, *apps, count=2)
    assert [total(got, name) for name in "abc"] == [2, 3, 1]
    assert got.reasons["a"].code == "static_count"
    assert "c" not in got.reasons
    assert got.overhead_budget == got.fairness_budget == -1


def test_counts_are_set_by_id_and_by_prefix() -> None:
    names = ["train-1", "train-big-1", "train-big-2", "eval"]
    got = solve(
        TWO,
        *(app(name, 0.5, 1, (1, 9)) for name in names),
        counts={"train-*": 1, "train-big-*": 4, "train-big-2": 3},
        count=2,
    )
    assert [total(got, name) for name in names] == [1, 4, 3, 2]


def test_no_app_is_resized_when_room_is_freed_or_another_arrives() -> None:
    running = app("a", 1, 1, (1, 8), {"n0": 3})
    got = solve(TWO, running, app("b", 1, 1, (1, 8)), count=5)
    assert got.counts == {"a": {"n0": 3}, "b": {"n0": 1, "n1": 4}}
    assert got.overhead == 0


def test_first_come_first_served_without_overtaking() -> None:
    apps = [app("a", 1, 1, (6, 8)), app("b", 1, 1, (4, 8)), app("c", 1, 1, (1, 8))]
    got = solve(TWO, *apps)
    assert [total(got, name) for name in "abc"] == [6, 0, 0]
    assert got.shortage == {"b": 4, "c": 1}
    assert got.reasons["b"].code == "resources"
    assert got.reasons["b"].text.endswith("2 containers short of its fixed count 4")
    assert got.reasons["c"] == msgspec.structs.replace(
        got.reasons["c"], code="queue", text="b came first and waits for room"
    )
    assert total(solve(TWO, *apps, backfill=True), "c") == 2


def test_an_app_that_can_never_run_delays_no_other() -> None:
    got = solve(TWO, app("whale", 1, 1, (50, 60)), app("a", 1, 1, (1, 8)))
    assert got.reasons["whale"].code == "no_nodes"
    assert total(got, "a") == 2


def test_a_count_beyond_the_cluster_is_cut_to_the_cluster() -> None:
    assert total(solve(TWO, app("a", 1, 1, (1, 50)), count=20), "a") == 8


def test_after_a_lost_node_only_its_containers_are_replaced() -> None:
    apps = [app("a", 1, 1, (1, 8), {"gone": 1, "n0": 1}), app("b", 1, 1, (1, 8), {"n1": 2})]
    got = solve(TWO, *apps)
    assert got.counts["b"] == {"n1": 2}
    assert total(got, "a") == 2
    assert got.counts["a"]["n0"] >= 1
    full = solve(TWO[:1], app("a", 1, 1, (1, 8), {"gone": 3}), app("b", 1, 1, (1, 8), {"n0": 3}), count=3)
    assert full.counts == {"a": {}, "b": {"n0": 3}}


@settings(deadline=None)
@given(problems(max_apps=6, max_nodes=4, most=6), st.integers(1, 6), st.booleans())
def test_room_bounds_and_running_apps_are_respected(problem: Problem, count: int, backfill: bool) -> None:
    params = {"count": count, "backfill": backfill}
    got = STATIC.allocate(problem, params)
    world = World(problem, {})
    for each in problem.apps:
        if world.kept(each) or each.pinned:
            assert got.counts[each.id] == each.current
        assert each.pinned or total(got, each.id) == 0 or each.n_min <= total(got, each.id) <= each.n_max
        assert (each.id in got.reasons) == (total(got, each.id) < each.n_max)
    assert not any(world.overfull(name, got.counts) for name in world.room)
    again = STATIC.allocate(after(problem, got), params)
    pinned = [each.id for each in problem.apps if each.pinned]  # They may stand where they could not be put.
    for name, counts in got.counts.items():
        if counts and name not in pinned and all(place in world.room for place in counts):
            assert again.counts[name] == counts
    shuffled = Problem(problem.nodes[::-1], problem.apps)
    assert msgspec.json.encode(STATIC.allocate(shuffled, params)) == msgspec.json.encode(got)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"n": 1}, "policy.parameter.unknown"),
        ({"count": 0}, "policy.parameter.out_of_range"),
        ({"count": True}, "policy.parameter.out_of_range"),
        ({"counts": {"a": 1.5}}, "policy.parameter.out_of_range"),
        ({"counts": [1]}, "policy.parameter.wrong_type"),
        ({"counts": {1: 1}}, "policy.parameter.wrong_type"),
        ({"backfill": "yes"}, "policy.parameter.wrong_type"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], code: str) -> None:
    with raises(ValueError, code):
        STATIC.check_params(params)


def test_defaults() -> None:
    assert STATIC.check_params({}) == {"count": 2, "counts": {}, "backfill": False}
