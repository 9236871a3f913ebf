"""The two baselines that share by offers and by tasks: `app-level` and `task-level`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from dorm.policies import integer, scoring
from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from tests.errors import raises
from tests.policies.brute_force import World
from tests.policies.problems import after, app, node, problems, slow_machine
from tests.tries import tries

FEW = settings(slow_machine, max_examples=tries(4, 30))
TWO = (node("n0", 4, 16), node("n1", 4, 16))
PARAMS: dict[str, tuple[dict[str, Any], ...]] = {"app-level": ({}, {"grow": True}), "task-level": ({}, {"probes": 1})}
EACH = pytest.mark.parametrize(
    ("name", "params"), [(name, params) for name, several in PARAMS.items() for params in several]
)


def solve(name: str, nodes: tuple[NodeRoom, ...], *apps: AppDemand, **params: Any) -> Allocation:
    return policy(name).allocate(Problem(nodes, apps), params)


def total(allocation: Allocation, name: str) -> int:
    return sum(allocation.counts[name].values())


def rows_of(instance: integer.Instance, got: Allocation) -> list[dict[int, int]]:
    """In units of gangs, as the checks of all policies take them."""
    column = {name: j for j, name in enumerate(instance.nodes)}
    gang = instance.gang.tolist()
    return [
        {column[place]: count // gang[i] for place, count in got.counts[each.id].items() if place in column}
        for i, each in enumerate(instance.apps)
    ]


@EACH
@FEW
@given(problem=problems(max_apps=6, max_nodes=4, most=6))
def test_invariants_of_every_answer(name: str, params: dict[str, Any], problem: Problem) -> None:
    got = policy(name).allocate(problem, params)
    instance = integer.read(problem)
    assert scoring.faults(instance, rows_of(instance, got), len(problem.apps)) == []
    assert list(got.counts) == sorted(each.id for each in problem.apps)
    for each in problem.apps:
        count = total(got, each.id)
        assert (each.id in got.reasons) == (count < each.n_max)
        assert each.pinned or (each.id in got.shortage) == (count < each.n_min)
    shuffled = Problem(problem.nodes[::-1], problem.apps)
    assert msgspec.json.encode(policy(name).allocate(shuffled, params)) == msgspec.json.encode(got)


@EACH
@FEW
@given(problem=problems(max_apps=5, max_nodes=3, most=5))
def test_answers_settle_once_they_are_applied(name: str, params: dict[str, Any], problem: Problem) -> None:
    settled = Problem(problem.nodes, tuple(msgspec.structs.replace(each, pinned=False) for each in problem.apps))
    for _ in range(20):
        following = after(settled, policy(name).allocate(settled, params))
        if following == settled:
            return
        settled = following
    raise AssertionError("still changing after 20 rounds")


@FEW
@given(problem=problems(max_apps=6, max_nodes=4, most=6))
def test_offers_never_touch_running_containers(problem: Problem) -> None:
    got = policy("app-level").allocate(problem, {})
    world = World(problem, {})
    assert all(got.counts[each.id] == each.current for each in problem.apps if world.kept(each) or each.pinned)
    assert got.overhead == 0


@pytest.mark.parametrize("name", PARAMS)
@FEW
@given(problem=problems(max_apps=6, max_nodes=4, most=6, plain=True))
def test_no_room_is_left_that_an_app_would_take(name: str, problem: Problem) -> None:
    got = policy(name).allocate(problem, {"grow": True} if name == "app-level" else {})
    world = World(problem, {})
    for each in problem.apps:
        count = total(got, each.id)
        if each.pinned or not world.possible(each) or count == 0 or count >= each.n_max:
            continue
        assert not any(world.fits(each, place, world.left(place, got.counts)) for place in world.room)


def test_launching_apps_take_all_and_later_ones_wait() -> None:
    first = solve("app-level", TWO, app("a", 1, 1, (1, 8)))
    assert total(first, "a") == 8
    holder = app("a", 1, 1, (1, 8), first.counts["a"])
    later = solve("app-level", TWO, holder, app("b", 1, 1, (2, 8)))
    assert later.counts == {"a": first.counts["a"], "b": {}}
    assert later.reasons["b"].code == "resources"
    assert later.reasons["b"].text.endswith("2 containers short of n_min 2")


def test_offers_go_to_the_launching_app_with_the_lowest_weighted_dominant_share() -> None:
    nodes = (node("n0", 9, 18),)
    # The example of the DRF paper, §4.1: tasks of <1 CPU, 4 GB> and <3 CPU, 1 GB> on 9 CPUs and 18 GB.
    got = solve("app-level", nodes, app("a", 1, 4, (1, 9)), app("b", 3, 1, (1, 9)))
    assert (total(got, "a"), total(got, "b")) == (3, 2)
    weighted = solve("app-level", (node("n0", 9, 18),), app("a", 1, 1, (1, 9), weight=2), app("b", 1, 1, (1, 9)))
    assert (total(weighted, "a"), total(weighted, "b")) == (6, 3)


def test_an_app_that_runs_takes_further_offers_only_where_it_may_grow() -> None:
    running = app("a", 1, 1, (1, 8), {"n0": 3})
    held = solve("app-level", TWO, running)
    assert held.counts == {"a": {"n0": 3}}
    assert held.reasons["a"].code == "not_resized"
    assert total(solve("app-level", TWO, running, grow=True), "a") == 8


def test_less_than_n_min_is_not_taken_and_left_to_others() -> None:
    got = solve("app-level", TWO, app("big", 1, 1, (8, 8)), app("small", 1, 1, (1, 3)))
    assert (total(got, "big"), total(got, "small")) == (8, 0)
    beside = solve(
        "app-level", TWO, app("r", 1, 1, (1, 1), {"n0": 1}), app("big", 1, 1, (8, 8)), app("small", 1, 1, (1, 3))
    )
    assert (total(beside, "big"), total(beside, "small")) == (0, 3)


def test_slots_are_redistributed_regardless_of_their_holders() -> None:
    hog = app("hog", 1, 1, (1, 8), {"n0": 4, "n1": 4})
    got = solve("task-level", TWO, hog, app("b", 1, 1, (1, 8)))
    assert (total(got, "hog"), total(got, "b")) == (4, 4)
    assert got.overhead == 1
    weighted = solve("task-level", TWO, hog, app("b", 1, 1, (1, 8), weight=3))
    assert (total(weighted, "hog"), total(weighted, "b")) == (2, 6)


def test_a_running_app_keeps_n_min_slots() -> None:
    hogs = [app(f"hog-{j}", 1, 1, (3, 4), {f"n{j}": 4}) for j in range(2)]
    got = solve("task-level", TWO, *hogs, app("b", 1, 1, (3, 8)))
    assert [total(got, f"hog-{j}") for j in range(2)] == [4, 4]
    assert got.shortage == {"b": 3}
    assert total(solve("task-level", TWO, *hogs, app("b", 1, 1, (2, 8))), "b") == 2


def test_tasks_stay_where_they_were_and_new_ones_are_spread_by_probing() -> None:
    nodes = tuple(node(f"n{j}", 4, 16) for j in range(10))
    settled = app("a", 1, 1, (1, 4), {"n3": 2, "n7": 2})
    assert solve("task-level", nodes, settled).counts["a"] == settled.current
    apps = [app(f"app-{i}", 1, 1, (4, 4)) for i in range(5)]
    places = [tuple(solve("task-level", nodes, one).counts[one.id]) for one in apps]
    assert all(len(place) > 1 for place in places)
    assert len(set(places)) > 1, "each probes nodes of its own"


def test_the_hash_seed_decides_nothing() -> None:
    """Sets of strings and hashes of text differ from process to process."""
    code = (
        "import msgspec\n"
        "from dorm.policies.registry import policy\n"
        "from dorm.policies.problem import AppDemand, NodeRoom, Problem\n"
        "nodes = tuple(NodeRoom(f'n{j}', {'cpu': 4000, 'memory': 9}) for j in range(7))\n"
        "apps = tuple(AppDemand(f'a{i}', {'cpu': 1000 + 500 * (i % 3)}, 1.0 + i % 2, 1, 9) for i in range(9))\n"
        "for name in ('app-level', 'task-level'):\n"
        "    print(msgspec.json.encode(policy(name).allocate(Problem(nodes, apps), {})))\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert said[0].count(b"counts") == 2


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [
        ("app-level", {"theta1": 0.1}, "policy.parameter.unknown"),
        ("app-level", {"grow": 1}, "policy.parameter.wrong_type"),
        ("task-level", {"probes": 0}, "policy.parameter.out_of_range"),
        ("task-level", {"probes": 1.5}, "policy.parameter.wrong_type"),
        ("task-level", {"d": 2}, "policy.parameter.unknown"),
    ],
)
def test_parameters_are_checked(name: str, params: dict[str, Any], code: str) -> None:
    with raises(ValueError, code):
        policy(name).check_params(params)


def test_defaults_are_filled_in() -> None:
    assert policy("app-level").check_params({}) == {"grow": False}
    assert policy("task-level").check_params({}) == {"probes": 2}
