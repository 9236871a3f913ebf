"""Sentences about what binds, in units that people use."""

from __future__ import annotations

import pytest

from dorm.policies import reasons
from dorm.policies.problem import Problem, Reason
from dorm.policies.registry import policy
from tests.policies.problems import GIB, app, node

DORM = policy("dorm")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("cpu", 2000, "2 cores"),
        ("cpu", 1000, "1 core"),
        ("cpu", 1500, "1.5 cores"),
        ("cpu", 1999, "1.999 cores"),
        ("cpu", 0, "0 cores"),
        ("memory", 16 * GIB, "16 GiB"),
        ("memory", 16 * GIB - 1, "15.999 GiB"),
        ("memory", 512 * 2**20, "512 MiB"),
        ("memory", 3 * 2**10, "3 KiB"),
        ("memory", 7, "7 B"),
        ("gpu", 1, "1 GPU"),
        ("gpu", 4, "4 GPUs"),
        ("fpga", 3, "3 fpga"),
    ],
)
def test_amounts(kind: str, value: int, text: str) -> None:
    assert reasons.amount(kind, value) == text


def reason(problem: Problem, name: str, **params: float) -> Reason:
    return DORM.allocate(problem, params).reasons[name]


def test_the_closest_node_and_the_shortage_are_named() -> None:
    nodes = (node("n1", 4, 16), node("n2", 3.5, 16), node("n3", 2, 16))
    held = app("held", 1, 1, (2, 2), {"n1": 2}, pinned=True)
    got = reason(Problem(nodes, (held, app("a", 2, 1, (4, 4)))), "a")
    assert got.code == "resources"
    assert (
        got.text
        == "beside 3 of its containers, no node has 2 cores free (closest: n2 with 1.5 cores); 1 container short of n_min 4"
    )


def test_several_resources_short_on_different_nodes() -> None:
    nodes = (node("n1", 1, 16), node("n2", 8, 1), node("n3", 8, 16))
    held = app("held", 8, 16, (1, 1), {"n3": 1}, pinned=True)
    got = reason(Problem(nodes, (held, app("a", 2, 4, (1, 1)))), "a")
    assert got.text.startswith(
        "no node has 2 cores and 4 GiB free at once (2 of 3 nodes lack cores, 2 of 3 nodes lack memory)"
    )


def test_resources_that_no_single_node_has_together_are_named() -> None:
    got = reason(Problem((node("n1", 1, 16), node("n2", 8, 1)), (app("a", 2, 4, (1, 1)),)), "a")
    assert got.code == "no_nodes"
    assert got.text == "no node has 2 cores and 4 GiB together (1 of 2 nodes lack cores, 1 of 2 nodes lack memory)"


def test_fairness_binds() -> None:
    """Both are owed half; `b` is held at a quarter by its adjustment, and θ1 = 0 lets `a` have at most its half."""
    apps = (app("a", 1, 0, (1, 12)), app("b", 1, 0, (1, 12), {"n1": 3}, pinned=True))
    answer = DORM.allocate(Problem((node("n1", 12, 1),), apps), {"theta1": 0.0})
    assert answer.counts == {"a": {"n1": 6}, "b": {"n1": 3}}
    assert answer.reasons["b"].code == "adjusting"
    assert answer.reasons["a"].code == "fairness"
    assert "θ1 allows 0" in answer.reasons["a"].text
    assert "its dominant share is 0.5 of a fair 0.5" in answer.reasons["a"].text


def test_the_budget_of_changes_binds() -> None:
    apps = (app("a", 1, 1, (1, 4), {"n1": 2}), app("b", 1, 1, (1, 4), {"n1": 2}))
    answer = DORM.allocate(Problem((node("n1", 8, 8),), apps), {})
    assert [each.code for each in answer.reasons.values()] == ["overhead"]
    assert "θ2 lets 1 of 2 running apps change in this round" in next(iter(answer.reasons.values())).text
