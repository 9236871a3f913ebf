"""Exchanges: devices that no app could use before are used, no goal gets worse, and many rounds leave no pieces
behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.policies import goals, integer, scoring
from dorm.policies.dorm.exchanging import Exchange
from dorm.policies.dorm.placing import Draft
from dorm.policies.problem import Problem
from dorm.policies.registry import policy
from dorm_lab.bench.optimizer.workload import World
from tests.policies.problems import DEFAULTS, PARAMS, app, node, problems, slow_machine

OPEN = {"theta1": 1.0, "theta2": 1.0, "adjust_s": 0.0, "floor": 0.0}


def exchanged(problem: Problem, params: dict[str, float], loss_price: float = 0.0) -> tuple[integer.Instance, Draft]:
    """The placement that a problem has, after exchanges on all nodes alone."""
    instance = integer.read(problem)
    settings = {**DEFAULTS, **params}
    draft = Draft(instance, [dict(row) for row in instance.rows])
    running = goals.placed(instance, draft.n)
    budget = goals.change_budget(instance, settings)
    terms = goals.terms(instance, settings, budget, running)
    may_move = running & instance.free_to_move
    Exchange(draft, terms, may_move, budget).run(np.ones(draft.free.shape), loss_price)
    return instance, draft


def test_a_device_without_cores_is_used() -> None:
    """`web` has the last cores next to two GPUs; it moves to a node with cores only, and `train` takes its place."""
    problem = Problem(
        (node("gpus", 8, 64, gpu=8), node("plain", 4, 64)),
        (
            app("train", 1, 1, (1, 8), {"gpus": 6}, gpu=1),
            app("web", 2, 1, (1, 1), {"gpus": 1}),
        ),
    )
    instance, draft = exchanged(problem, OPEN)
    counts = [{instance.nodes[j]: n for j, n in row.items()} for row in draft.rows]
    assert counts == [{"gpus": 8}, {"plain": 1}]


def test_containers_without_room_elsewhere_move_as_far_as_possible() -> None:
    problem = Problem(
        (node("gpus", 8, 64, gpu=8),),
        (app("train", 1, 1, (1, 8), {"gpus": 4}, gpu=1), app("web", 1, 1, (2, 4), {"gpus": 4})),
    )
    _, draft = exchanged(problem, OPEN)
    assert draft.n.tolist() == [6, 2]
    _, draft = exchanged(problem, {**OPEN, "theta2": 0.0})
    assert draft.n.tolist() == [4, 4]


def test_a_change_that_costs_more_than_its_gain_is_not_made() -> None:
    rooms = (node("gpus", 8, 64, gpu=8), node("plain", 4, 64))
    apps = (app("train", 1, 1, (1, 8), {"gpus": 6}, gpu=1), app("web", 2, 1, (1, 1), {"gpus": 1}))
    _, draft = exchanged(Problem(rooms, apps), {**OPEN, "adjust_s": 1500.0})
    assert draft.n.tolist() == [6, 1]


@slow_machine
@given(problems(max_apps=6, max_nodes=4, most=6), PARAMS, st.sampled_from([0.0, 1.0, 10.0]))
def test_no_goal_gets_worse(problem: Problem, params: dict[str, float], loss_price: float) -> None:
    instance = integer.read(problem)
    settings = {**DEFAULTS, **params}
    if not instance.nodes or not instance.kinds or instance.forced.any():
        return
    before = goals.placed(instance, instance.count)
    budget = goals.change_budget(instance, settings)
    terms = goals.terms(instance, settings, budget, before)
    _, draft = exchanged(problem, params, loss_price)
    assert not scoring.faults(instance, draft.rows, budget)
    was, now = (scoring.score(instance, rows, terms) for rows in (instance.rows, draft.rows))
    assert not scoring.better(instance, was, now), (was, now)
    assert (draft.free == integer.free_room(instance, draft.rows)).all()
    assert (draft.n == integer.counts_of(draft.rows)).all()


@pytest.mark.soak
@pytest.mark.slow
def test_rounds_leave_no_pieces_behind() -> None:
    """On a large cluster, over a few dozen events: without exchanges the gap to the bound is more than twice this."""
    world = World(apps=260, nodes=800, shapes=3, seed=0)
    gaps = []
    for _ in range(30):
        answer = policy("dorm").allocate(world.next_problem(), {})
        world.apply(answer)
        gaps.append((answer.bound - answer.utilization + answer.change_cost) / answer.bound)
    assert float(np.median(gaps)) < 0.006
