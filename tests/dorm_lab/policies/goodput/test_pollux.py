"""`pollux` by the equations of its paper (OSDI 2021, §4.2), and its search against all allocations."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from dorm.policies import integer
from dorm.policies.problem import Allocation, AppDemand, Batch, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm_lab.policies.goodput import pollux
from dorm_lab.policies.goodput.bounds import restart_factor
from tests.errors import raises

FAST = {"population": 40, "generations": 40}


def nodes(count: int, gpus: int = 4) -> tuple[NodeRoom, ...]:
    return tuple(NodeRoom(f"n{index}", {"gpu": gpus}) for index in range(count))


def app(name: str, power: float, **fields: Any) -> AppDemand:
    """n containers are n^power times as fast as one."""
    curve = tuple((n, float(n**power)) for n in range(1, 17))
    return msgspec.structs.replace(AppDemand(name, {"gpu": 1}, 1.0, 1, 16, speed=curve), **fields)


def solve(cluster: tuple[NodeRoom, ...], *apps: AppDemand, **params: Any) -> Allocation:
    return policy("pollux").allocate(Problem(cluster, apps), {**FAST, **params})


def counts(found: Allocation) -> dict[str, int]:
    return {name: sum(row.values()) for name, row in found.counts.items()}


@pytest.mark.parametrize(
    ("age", "restarts", "factor"),
    [(0.0, 0, 0.0), (30.0, 0, 0.5), (300.0, 1, 270 / 330), (300.0, 4, 180 / 330), (60.0, 3, 0.0)],
)
def test_young_and_often_restarted_apps_gain_less_from_a_restart(age: float, restarts: int, factor: float) -> None:
    assert restart_factor(app("a", 1.0, age_s=age, adjustments=restarts), 30.0) == pytest.approx(factor)


def test_a_measured_cost_counts_instead_of_the_usual_one() -> None:
    assert restart_factor(app("a", 1.0, age_s=90.0, adjust_s=10.0), 30.0) == pytest.approx(0.9)


def test_the_fitness_is_the_weighted_harmonic_mean_of_speed_ups_over_a_fair_part() -> None:
    """Two apps on four GPUs: a fair part is two."""
    instance = integer.read(Problem(nodes(1), (app("a", 1.0, weight=3.0), app("b", 0.5))))
    asked = pollux._Round(instance, pollux._tables(instance), policy("pollux").check_params({}))
    fitness = pollux._Fitness(asked, np.array([0, 1]), np.zeros((2, 1), np.int64))
    states = np.array([[[2], [2]], [[3], [1]]])
    one = 1.0 + pollux.LEAST
    first, second = 1.5 + pollux.LEAST, (1 / 2) ** 0.5 + pollux.LEAST
    assert fitness(states) == pytest.approx([one, 1 / (0.75 / first + 0.25 / second)], rel=1e-6)


def test_the_search_finds_the_best_of_all_allocations() -> None:
    """Three apps that scale differently on two nodes: small enough to try every allocation without interference."""
    cluster = nodes(2, 3)
    problem = Problem(cluster, (app("a", 0.9), app("b", 0.5), app("c", 0.2)))
    instance = integer.read(problem)
    asked = pollux._Round(instance, pollux._tables(instance), policy("pollux").check_params({}))
    fitness = pollux._Fitness(asked, np.array([0, 1, 2]), np.zeros((3, 2), np.int64))
    states = np.array([np.reshape(one, (3, 2)) for one in product(range(4), repeat=6)])
    states = states[(states.sum(axis=1) <= 3).all(axis=1)]
    distributed = (states > 0).sum(axis=2) > 1
    states = states[(((states > 0) & distributed[:, :, None]).sum(axis=1) <= 1).all(axis=1)]
    found = solve(cluster, *problem.apps, population=100, generations=100)
    rows = np.array([[found.counts[name].get(f"n{node}", 0) for node in range(2)] for name in "abc"])
    assert fitness(rows[None])[0] == pytest.approx(float(fitness(states).max()))


def test_apps_that_lie_on_several_nodes_do_not_share_one() -> None:
    apps = [app(f"a{i}", 0.95) for i in range(3)]
    found = solve(nodes(4, 3), *apps)
    spread = [row for row in found.counts.values() if len(row) > 1]
    shared = [node for row in spread for node in row]
    assert spread
    assert len(shared) == len(set(shared))


def test_an_app_shares_no_node_with_a_pinned_app_on_several_nodes() -> None:
    pinned = app("p", 1.0, current={"n0": 1, "n1": 1}, pinned=True)
    found = solve(nodes(2), pinned, app("a", 1.0))
    assert len(found.counts["a"]) == 1
    assert counts(found)["a"] == 3


def test_a_young_app_is_left_alone_and_an_old_one_is_not() -> None:
    young = app("a", 1.0, current={"n0": 1}, age_s=10.0)
    assert counts(solve(nodes(1), young)) == {"a": 1}
    assert counts(solve(nodes(1), msgspec.structs.replace(young, age_s=10_000.0))) == {"a": 4}
    often = msgspec.structs.replace(young, age_s=10_000.0, adjustments=330)
    assert counts(solve(nodes(1), often)) == {"a": 1}


def test_an_app_is_bounded_by_the_sizes_it_has_tried() -> None:
    assert counts(solve(nodes(4), app("a", 1.0, tried=2), app("b", 0.1, tried=1))) == {"a": 4, "b": 2}


def test_batch_sizes_follow_the_model() -> None:
    batch = Batch(64, 64, 4096, 256, 100_000.0)
    found = solve(nodes(2), app("a", 0.6, batch=batch), app("b", 1.0))
    assert found.batches.keys() == {"a"}
    assert 64 < found.batches["a"] <= 4096


def test_another_order_of_nodes_gives_the_same_answer_and_another_problem_another_search() -> None:
    apps = tuple(app(f"a{i}", 0.3 + i / 10) for i in range(6))
    found = solve(nodes(4), *apps)
    again = policy("pollux").allocate(Problem(nodes(4)[::-1], apps), FAST)
    assert msgspec.json.encode(found) == msgspec.json.encode(again)


def test_a_search_is_bounded_by_the_size_of_the_problem() -> None:
    instance = integer.read(Problem(nodes(1), (app("a", 1.0),)))
    asked = pollux._Round(instance, [], policy("pollux").check_params({}))
    assert asked._effort(100) == (100, 100)
    size, generations = asked._effort(500_000)
    assert size * generations * 500_000 <= pollux.EFFORT * 1.5
    assert size >= 3


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"p": 2}, "policy.parameter.out_of_range"),
        ({"population": 10.5}, "policy.parameter.wrong_type"),
        ({"theta1": 0.1}, "policy.parameter.unknown"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], code: str) -> None:
    with raises(ValueError, code):
        policy("pollux").check_params(params)
