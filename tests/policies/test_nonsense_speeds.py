"""Declarations and reports may be nonsense: every policy still answers by the rules, and those with floors starve no app."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.policies import AppDemand, Batch, Measured, NodeRoom, Problem, names, policy
from dorm.policies.checking import faults
from tests.policies.problems import slow_machine

NUMBERS = (0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1.7e308, 1e300, 1e-300, 5e-324, 1.0, 3.0, 1e6, 1e-6)
COUNTS = (1, 2, 3, 4, 8, 16, 0, -3, 10**9, 2**60)
NODES, GPUS = 4, 4
FLOORS = ("dorm", "dorm-speed", "dorm-speed-exact")
"""Policies that give n_min to every app for which there is room."""
EXACT = ("dorm-exact", "dorm-speed-exact")


def strange(seed: int) -> Problem:
    """Return mostly nonsensical apps that still all fit at once with their n_min."""
    chance = random.Random(seed)
    types = chance.choice([("",), ("new", "old")])

    def points() -> tuple[tuple[int, float], ...]:
        return tuple((chance.choice(COUNTS), chance.choice(NUMBERS)) for _ in range(chance.choice([0, 1, 1, 2, 5])))

    def measured() -> tuple[Measured, ...]:
        return tuple(
            Measured(
                chance.choice(COUNTS), chance.choice(NUMBERS), chance.choice(NUMBERS), chance.choice([1, 0, -1]),
                chance.choice(types),
            )
            for _ in range(chance.choice([0, 1, 3]))
        )  # fmt: skip

    def app(place: int) -> AppDemand:
        n_min = chance.choice([1, 1, 2])
        runs, batch = chance.random() < 0.5, None
        if chance.random() < 0.4:
            batch = Batch(32, 1, chance.choice([64, 10**9]), chance.choice([1, 64, 10**9]), chance.choice(NUMBERS))
        return AppDemand(
            f"app-{place}", {"gpu": 1}, 1.0, n_min, chance.choice([n_min, 4, 16]),
            current={f"node-{place % NODES}": n_min} if runs else {},
            adjust_s=chance.choice([None, *NUMBERS]), adjustments=chance.choice([0, 5, 10**9]),
            served_s=chance.choice(NUMBERS), remaining_steps=chance.choice([None, *NUMBERS]),
            speed=points(), speed_on={each: points() for each in types if chance.random() < 0.4},
            measured=measured(), alike=measured(), alike_by_type=measured(), tried=chance.choice([0, 1, 10**9]),
            age_s=chance.choice(NUMBERS), held_s=chance.choice([None, *NUMBERS]) if runs else None, batch=batch,
            work_s=chance.choice([None, *NUMBERS]), waited_s=0.0 if runs else chance.choice([0.0, 1e9]),
        )  # fmt: skip

    nodes = (NodeRoom(f"node-{i}", {"gpu": GPUS}, {"type": chance.choice(types)}) for i in range(NODES))
    return Problem(tuple(nodes), tuple(map(app, range(chance.randint(2, 6)))))


def check(problem: Problem, name: str) -> None:
    answer = policy(name).allocate(problem, {})
    assert faults(problem, answer) == []
    if name in FLOORS:
        assert all(answer.counts.values())


@slow_machine
@given(seed=st.integers(0, 2**32), name=st.sampled_from([name for name in names() if name not in EXACT]))
def test_every_policy_answers_by_the_rules(seed: int, name: str) -> None:
    check(strange(seed), name)


@pytest.mark.soak
@pytest.mark.parametrize("name", names())
def test_many_strange_problems(name: str) -> None:
    for seed in range(30 if name in EXACT else 300):
        check(strange(seed), name)


@pytest.mark.parametrize("name", ["pollux", "sia"])
def test_an_app_of_unknown_speed_keeps_its_batch_size(name: str) -> None:
    app = AppDemand("app", {"gpu": 1}, 1.0, 1, 4, batch=Batch(32, least=1, most=64, per_container=32, noise=100.0))
    problem = Problem((NodeRoom("node", {"gpu": 4}),), (app,))
    answer = policy(name).allocate(problem, {})
    assert faults(problem, answer) == []
    assert answer.counts["app"]
    assert not answer.batches
