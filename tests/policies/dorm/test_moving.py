"""Room in pieces: a waiting app starts although no app can shrink for it, because others move, over several rounds
within θ2."""

from __future__ import annotations

import pytest

from dorm.policies.problem import AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from tests.policies.problems import after


@pytest.mark.parametrize(
    ("name", "nodes", "wanted"),
    [("dorm", 6, 1), ("dorm", 12, 3), ("dorm", 20, 5), ("dorm", 150, 3), ("dorm-exact", 6, 1), ("dorm-exact", 12, 3)],
)
def test_others_move_for_a_waiting_app(name: str, nodes: int, wanted: int) -> None:
    rooms = tuple(NodeRoom(f"n{j:03}", {"cpu": 4000}) for j in range(nodes))
    small = [AppDemand(f"s{j:03}", {"cpu": 1000}, 1.0, 1, 1, {f"n{j:03}": 1}) for j in range(nodes)]
    problem = Problem(rooms, (*small, AppDemand("wide", {"cpu": 4000}, 1.0, wanted, wanted, waited_s=5000.0)))
    rounds = 0
    while not problem.apps[-1].current:
        rounds += 1
        assert rounds <= nodes, problem.apps[-1]
        got = policy(name).allocate(problem, {})
        assert got.overhead <= got.overhead_budget
        problem = after(problem, got)
    assert sum(problem.apps[-1].current.values()) == wanted
