"""The reference against all answers of tiny problems, and from answers at hand."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies import integer, scoring
from dorm.policies.exact import search as exact
from dorm.policies.exact.model import most_with_others
from dorm.policies.exact.policy import Reference
from dorm.policies.registry import policy
from tests.policies.brute_force import World
from tests.policies.problems import DEFAULTS, PARAMS, crowded, problems, slow_machine
from tests.tries import tries

if TYPE_CHECKING:
    from dorm.policies.problem import Problem
    from tests.policies.brute_force import Answer

DORM = policy("dorm-exact")


@pytest.mark.slow
@settings(slow_machine, max_examples=tries(19, 150))
@given(problems(), PARAMS)
def test_no_other_answer_is_better(problem: Problem, params: dict[str, float]) -> None:
    check_against_all(problem, params)


@settings(slow_machine, max_examples=tries(5, 40))
@given(problems(max_apps=3, max_nodes=2), PARAMS)
def test_no_other_answer_is_better_on_two_nodes(problem: Problem, params: dict[str, float]) -> None:
    check_against_all(problem, params)


@pytest.mark.soak
@settings(slow_machine, max_examples=tries(15, 60))
@given(crowded(), PARAMS)
def test_no_other_answer_is_better_where_some_have_to_make_room(problem: Problem, params: dict[str, float]) -> None:
    check_against_all(problem, params)


@settings(slow_machine, max_examples=tries(4, 20))
@given(crowded(), st.integers(0, 2))
def test_no_answer_with_so_few_changes_has_more_on_a_node(problem: Problem, budget: int) -> None:
    instance = integer.read(problem)
    most = most_with_others(instance, budget)
    for answer in islice(World(problem, DEFAULTS).answers(budget), 2_000):
        for i, each in enumerate(instance.apps):
            if not instance.pinned[i]:
                assert all(
                    answer[each.id].get(name, 0) <= most[i, j] * each.gang for j, name in enumerate(instance.nodes)
                )


def check_against_all(problem: Problem, params: dict[str, float]) -> None:
    """Goal by goal, the answers that are left are those that nothing beats."""
    world = World(problem, {**DEFAULTS, **params})
    got = DORM.allocate(problem, params)
    assert got.status == "optimal"
    running = sum(bool(each.current) for each in problem.apps)
    budget = min(-(-running * round(10 * params["theta2"]) // 10), int(params["max_changes"]))
    assert got.overhead_budget == budget
    ours = {
        each.id: {name: count for name, count in got.counts[each.id].items() if name in world.room}
        for each in problem.apps
    }
    answers, entitled, target = who_runs(world, budget, params)
    assert ours in answers
    theoretical = world.theoretical(entitled)
    if target is not None:
        least = min(world.in_the_way(answer, target) for answer in answers)
        assert world.in_the_way(ours, target) == least
        answers = [answer for answer in answers if world.in_the_way(answer, target) == least]
    ranks = [world.rank(answer, theoretical) for answer in answers]
    mine = world.rank(ours, theoretical)
    least_excess = min(rank.excess for rank in ranks)
    assert mine.excess == pytest.approx(least_excess, abs=1e-8)
    ranks = [rank for rank in ranks if rank.excess <= least_excess + 1e-8]
    least_below = min(rank.below_floor for rank in ranks)
    assert mine.below_floor == least_below
    ranks = [rank for rank in ranks if rank.below_floor == least_below]
    best = max(rank.net for rank in ranks)
    assert float(best - mine.net) < 5e-6
    assert float(best) - 1e-9 <= got.bound == pytest.approx(float(best), abs=5e-6)
    ranks = [rank for rank in ranks if float(best - rank.net) < 1e-7]
    assert mine[4:] <= min(rank[4:] for rank in ranks)
    assert got.utilization - got.change_cost == pytest.approx(float(mine.net), abs=1e-9)
    assert got.excess == pytest.approx(mine.excess, abs=1e-8)


def who_runs(world: World, budget: int, params: dict[str, float]) -> tuple[list[Answer], list[str], Answer | None]:
    """The answers that are best by goal 1, the apps that are owed a share, and what is to be cleared for one of them."""
    every = list(world.answers(len(world.problem.apps)))
    allowed = [answer for answer in every if world.respects_the_reserved(answer)]
    lifted, would = best_served(world, allowed)
    answers, placed = best_served(world, [answer for answer in allowed if world.changed(answer) <= budget])
    held_back = set(would) - set(placed)
    overtakers = set(placed) - set(would)
    aged, first = {each.id for each in world.aged}, [each.id for each in world.aged][:1]
    if budget == 0 or not held_back or (overtakers and not held_back & aged):
        return answers, placed, None
    target = target_of(world, params)
    assert target in lifted
    effort = [(world.changed(answer), world.started(answer) + world.stopped(answer)) for answer in lifted]
    assert effort[lifted.index(target)] == min(effort)
    waits = {each.id for each in world.problem.apps if not each.current}
    kept_back = waits - set(would) if held_back & aged else set()
    within = [
        answer
        for answer in every
        if world.changed(answer) <= budget
        and not any(answer[name] for name in kept_back)
        and (set(first) & held_back or world.respects_the_reserved(answer))
    ]
    clearing, starting = best_served(world, within)
    untouched = {each.id: each.current if world.kept(each) else {} for each in world.problem.apps}
    if min(world.in_the_way(answer, target) for answer in clearing) >= world.in_the_way(untouched, target):
        return answers, placed, None
    return clearing, sorted({*starting, *(set(would) - set(starting))}), target


def best_served(world: World, answers: list[Answer]) -> tuple[list[Answer], list[str]]:
    """Those that goal 1 leaves, and who runs in all of them."""
    least = min(world.service(answer) for answer in answers)
    left = [answer for answer in answers if world.service(answer) == least]
    return left, world.placed(left[0])


def target_of(world: World, params: dict[str, float]) -> Answer:
    instance = integer.read(world.problem)
    reference = Reference(instance, {**DEFAULTS, **params})
    reference.run()
    assert reference.target is not None
    return {
        each.id: world.stays(each)
        if each.pinned
        else {instance.nodes[node]: count * each.gang for node, count in row.items()}
        for each, row in zip(instance.apps, reference.target, strict=True)
    }


# From an answer at hand


@settings(slow_machine, max_examples=tries(8, 60))
@given(problems(max_apps=4, max_nodes=3), PARAMS, st.data())
def test_an_answer_is_improved_under_its_own_terms(
    problem: Problem, params: dict[str, float], data: st.DataObject
) -> None:
    """With some apps pinned where the answer has them, the others find the best again, or what was better before."""
    settings = {**DEFAULTS, **params}
    instance = integer.read(problem)
    reference = Reference(instance, settings)
    start, reserved = reference.search.best, reference.reserved
    reference.run()
    terms = reference.search.terms._replace(target=None)
    got = exact.improve(instance, start, terms, budget=reference.budget, reserved=reserved)
    assert got.status == "optimal"
    rows = integer.rows_of(got.x)
    assert scoring.faults(instance, rows, reference.budget, reserved) == []
    before, now = (scoring.score(instance, each, terms) for each in (integer.rows_of(start), rows))
    assert not scoring.better(instance, before, now)
    assert now.net <= got.bound + 1e-7
    pins = np.array([data.draw(st.booleans()) for _ in instance.apps], np.bool_) | instance.pinned
    used = (got.x[pins].T @ instance.demand[pins]).reshape(instance.capacity.shape)
    part = dataclasses.replace(
        instance,
        pinned=pins,
        rows=tuple(row if pin else was for row, was, pin in zip(rows, instance.rows, pins, strict=True)),
        room=instance.capacity - used,
    )
    again = exact.improve(part, got.x, terms, budget=int((integer.changed(part, rows) & part.kept).sum()))
    assert (again.x[pins] == got.x[pins]).all()
    scores = [scoring.score(part, integer.rows_of(x), terms) for x in (got.x, again.x)]
    assert not scoring.better(part, scores[0], scores[1])
    assert scores[1].net <= again.bound + 1e-7
