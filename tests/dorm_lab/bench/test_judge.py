"""Judgments of handmade answers: each rule that one can break, and which of two serves n_min better."""

from __future__ import annotations

import pytest

from dorm.policies.problem import AppDemand, NodeRoom, Problem
from dorm_lab.bench.optimizer import judge

NODES = (
    NodeRoom("a", {"cpu": 4000}, {"zone": "x"}),
    NodeRoom("b", {"cpu": 4000, "gpu": 1}, {"zone": "y"}),
    NodeRoom("c", {"cpu": 9000}, drained=True),
)
RUNS = AppDemand("runs", {"cpu": 1000}, 1.0, 1, 4, current={"a": 2})
PINNED = AppDemand("pinned", {"cpu": 500}, 1.0, 1, 4, current={"b": 1, "gone": 1}, pinned=True)
WAITS = AppDemand("waits", {"cpu": 1000}, 1.0, 2, 4, require='zone == "y"', gang=2, waited_s=700.0)
NEEDS_GPU = AppDemand("needs-gpu", {"cpu": 100, "gpu": 1}, 1.0, 1, 1, waited_s=60.0)
PROBLEM = Problem(NODES, (RUNS, PINNED, WAITS, NEEDS_GPU))
GOOD = {"runs": {"a": 2}, "pinned": {"b": 1, "gone": 1}, "waits": {"b": 2}, "needs-gpu": {"b": 1}}


def test_a_good_answer_has_no_faults() -> None:
    assert judge.faults(PROBLEM, GOOD) == []
    assert judge.faults(PROBLEM, {**GOOD, "waits": {}, "runs": {}}) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"runs": {"a": 5}}, "app runs gets 5 containers, outside 1..4"),
        ({"waits": {"b": 1}}, "app waits gets 1 containers, outside 2..4"),
        ({"waits": {"a": 2}}, "app waits is placed on node a, whose labels do not suit it"),
        ({"waits": {"b": 3}}, "app waits gets 3 containers on node b, which are no whole gangs of 2"),
        ({"runs": {"c": 2}}, "app runs is placed on node c, which takes nothing"),
        ({"runs": {"nosuch": 2}}, "app runs is placed on node nosuch, which takes nothing"),
        ({"runs": {"a": 2, "b": 0}}, "app runs gets 0 containers on node b"),
        ({"runs": {"b": 2}}, "node b is given 600 more cpu than it has"),
        ({"needs-gpu": {"a": 1}}, "node a is given 1 more gpu than it has"),
        ({"pinned": {"b": 1}}, "app pinned is in the middle of an adjustment and was changed"),
        ({"stranger": {"a": 1}}, "its apps are not those of the problem"),
    ],
)
def test_every_rule_that_is_broken_is_named(change: dict[str, dict[str, int]], fault: str) -> None:
    assert any(found.startswith(fault) for found in judge.faults(PROBLEM, {**GOOD, **change}))


def test_an_app_that_is_left_out_is_a_fault() -> None:
    assert judge.faults(PROBLEM, {"runs": {"a": 2}}) == ["its apps are not those of the problem"]


def test_n_min_is_served_in_the_order_of_the_goals() -> None:
    """From best to worst: running apps continue, then come apps that have waited too long, then as many containers as
    possible."""
    young, old = AppDemand("young", {}, 1.0, 2, 4), AppDemand("old", {}, 1.0, 3, 4, waited_s=601.0)
    small, late = AppDemand("small", {}, 1.0, 1, 4), AppDemand("late", {}, 1.0, 2, 4)
    problem = Problem((), (young, old, small, late, RUNS))
    worse_and_worse = [set(), {"small"}, {"late"}, {"young"}, {"young", "small"}, {"old"}, {"old", "small"}, {"runs"}]
    served = [judge.served(problem, short, 600.0) for short in worse_and_worse]
    assert served == sorted(served)
    assert len(set(served)) == len(served)
    patient = [judge.served(problem, short, 602.0) for short in ({"young", "small"}, {"old"})]
    assert patient[0].waiting == patient[1].waiting == 3
    assert patient[1] < patient[0]


def test_changes_and_moves_count_running_apps_only() -> None:
    assert (judge.changed(PROBLEM, GOOD), judge.moved(PROBLEM, GOOD)) == (0, 0)
    moves = {**GOOD, "runs": {"a": 1, "b": 2}}
    assert (judge.changed(PROBLEM, moves), judge.moved(PROBLEM, moves)) == (1, 2)
    stops = {**GOOD, "runs": {}}
    assert (judge.changed(PROBLEM, stops), judge.moved(PROBLEM, stops)) == (1, 0)
