"""The bound on finish-time fairness."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dorm.policies import integer
from dorm.policies.problem import AppDemand, Problem
from dorm.policies.registry import policy
from dorm.policies.speed import lateness
from dorm.policies.speed.worth import Worth
from tests.dorm_lab.policies.baselines.test_speed_policies import telling, totals
from tests.policies.problems import app, node

LINEAR = [(n, float(n)) for n in range(1, 9)]
NODES = (node("n0", 4, 16), node("n1", 4, 16))


def here(name: str, steps: float, *, age: float, served: float, on: str) -> AppDemand:
    """One container has run since some time; its fair share is four."""
    one = telling(app(name, 1, 1, (1, 8), {on: 1}), steps, *LINEAR)
    return msgspec.structs.replace(one, age_s=age, served_s=served, adjust_s=0.01)


@pytest.mark.parametrize(
    ("age", "served", "bound", "floor"),
    [
        # 1,000 s of one container's work are left.  With four: 250 s, after 100/4 s for what it has had; 1.5 times that is
        # 412.5 s, of which 100 s are over, so 3.2 containers are needed.
        (100.0, 100.0, 1.5, 4),
        (100.0, 100.0, 3.0, 2),
        (100.0, 100.0, 40.0, 1),
        # It is too late: twice its share, at most.
        (5_000.0, 5_000.0, 1.2, 8),
        # Its age is not known.
        (0.0, 100.0, 1.5, 0),
    ],
)
def test_how_many_containers_keep_an_app_in_time(age: float, served: float, bound: float, floor: int) -> None:
    late = here("late", 1_000, age=age, served=served, on="n0")
    instance = integer.read(Problem(NODES, (late, here("other", 1_000, age=1.0, served=1.0, on="n1"))))
    worth = Worth(instance, policy("dorm-speed").check_params({}), np.zeros(2, np.bool_))
    shares, entitled = np.array([0.5, 0.5]), np.ones(2, np.bool_)
    assert lateness.floors(instance, worth, shares, bound, entitled)[0] == floor
    assert lateness.floors(instance, worth, shares, bound, ~entitled)[0] == 0


def test_a_late_long_app_gets_the_share_of_a_short_one() -> None:
    long = here("long", 100_000, age=40_000.0, served=40_000.0, on="n0")
    short = here("short", 1_000, age=10.0, served=10.0, on="n1")
    problem, free = Problem(NODES, (long, short)), {"theta1": 1.0, "theta2": 1.0, "floor": 0.0}
    before = totals(policy("dorm-speed").allocate(problem, free))
    bound = totals(policy("dorm-speed").allocate(problem, {**free, "rho": 1.2}))
    assert before["short"] > before["long"]
    assert bound["long"] > before["long"]
