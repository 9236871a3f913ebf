"""The policy `shockwave`: who runs now, by budgets, progress and makespan; and why the others wait."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dorm.policies import integer
from dorm.policies.baselines import fixed_counts
from dorm.policies.parameters import ParameterError
from dorm.policies.problem import Allocation, AppDemand, Measured, Problem
from dorm.policies.registry import policy
from dorm_lab.policies.shockwave.policy import plan, times
from tests.errors import raises
from tests.policies.problems import app, node

ONE = (node("n0", 4, 16),)
POLICY = policy("shockwave")
DEFAULTS = POLICY.check_params({})


def job(name: str, steps: float, count: int = 4, **fields: object) -> AppDemand:
    """It makes one step a second with all of its containers."""
    each = app(name, 1, 1, (count, count))
    return msgspec.structs.replace(each, remaining_steps=steps, speed=((count, 1.0),), **fields)


def running(each: AppDemand, for_s: float) -> AppDemand:
    return msgspec.structs.replace(
        each, current={"n0": each.n_max}, served_s=for_s * each.n_max, age_s=max(for_s, each.age_s), held_s=for_s
    )


def solve(*apps: AppDemand, **params: object) -> Allocation:
    return POLICY.allocate(Problem(ONE, apps), params)


def runs(got: Allocation) -> list[str]:
    return [name for name, row in got.counts.items() if row]


def test_one_of_two_equal_apps_runs_and_continues_at_equal_rounds() -> None:
    got = solve(job("a", 9600), job("b", 9600), regularizer=0.0)
    (first,) = runs(got)
    assert got.status == "optimal"
    assert [reason.code for reason in got.reasons.values()] == ["resources"]
    (second,) = {"a", "b"} - {first}
    assert runs(solve(running(job(first, 9600), 0.0), job(second, 9600), regularizer=0.0)) == [first]


def test_a_plan_gives_each_its_rounds() -> None:
    problem = Problem(ONE, (job("a", 2400), job("b", 2400)))
    instance = integer.read(problem)
    made = plan(instance, fixed_counts.wanted(instance, DEFAULTS), {**DEFAULTS, "regularizer": 0.0})
    assert [sum(app in one for one in made.rounds) for app in (0, 1)] == [
        8,
        12,
    ]  # Or any numbers from 8 to 12: they end in the same fifth.
    assert made.turn(0, 120.0) == "its turn comes in 1440 s: it has 8 of the next 20 rounds"


def test_apps_that_have_done_much_work_make_way_and_take_turns() -> None:
    """Without a regularizer a second of progress is worth most at the start.  What has run for longer is stopped."""
    old, new = running(job("old", 3000), 3000), job("new", 6000, age_s=60.0)
    got = solve(old, new, regularizer=0.0, power=0.0)
    assert runs(got) == ["new"]
    assert got.reasons["old"].code in ("queue", "resources")


def test_a_late_app_goes_first() -> None:
    """Both have all of their work before them; one has waited for three times as long as it takes alone."""
    early, late = job("early", 3600, age_s=60.0), job("late", 4000, age_s=10_800.0)
    assert runs(solve(early, late, regularizer=0.0)) == ["late"]
    assert runs(solve(early, late, regularizer=0.0, power=0.0)) == ["early"]


def test_weights_are_budgets() -> None:
    light, heavy = job("light", 3600), msgspec.structs.replace(job("heavy", 3600), weight=8.0)
    assert runs(solve(light, heavy, regularizer=0.0)) == ["heavy"]


def test_the_longest_goes_first_by_the_regularizer() -> None:
    short, long = job("short", 2400), job("long", 86_400)
    assert runs(solve(short, long, regularizer=1e-3)) == ["long"]
    assert runs(solve(short, long)) == ["short"]


def test_room_that_no_turn_needs_is_used() -> None:
    got = solve(job("a", 9000, 3), job("b", 100, 1), job("c", 100, 1))
    assert len(runs(got)) == 2
    assert "a" in runs(got)


def test_measurements_correct_declarations() -> None:
    """An app that turned out to be four times as slow has about four times as much time left."""
    declared = job("a", 3600)
    slow = msgspec.structs.replace(declared, measured=(Measured(4, 0.25, 3600.0),))
    found = []
    for each in (declared, slow):
        instance = integer.read(Problem(ONE, (each,)))
        wanted = fixed_counts.wanted(instance, DEFAULTS)
        _, left = times(instance, np.array([0]), wanted, 3600.0)
        found.append(float(left[0]))
    assert found[0] == pytest.approx(3600)
    assert found[1] == pytest.approx(4 * 3600, rel=0.02)


def test_an_app_without_reports_has_an_hour_left_or_as_long_as_it_has_run() -> None:
    new, old = app("new", 1, 1, (4, 4)), app("old", 1, 1, (4, 4))
    old = msgspec.structs.replace(old, served_s=4 * 5000.0)
    instance = integer.read(Problem(ONE, (new, old)))
    ran, left = times(instance, np.array([0, 1]), fixed_counts.wanted(instance, DEFAULTS), 3600.0)
    assert (ran.tolist(), left.tolist()) == ([0.0, 5000.0], [900.0, 5000.0])


def test_turns_pass_as_work_is_done() -> None:
    """Three apps that each need the whole cluster, in rounds of 120 s without a cost of stopping: none is left behind."""
    apps = [job(name, 2400) for name in "abc"]
    had = dict.fromkeys("abc", 0)
    for _ in range(30):
        got = solve(*apps, regularizer=0.0)
        (now,) = runs(got)
        had[now] += 1
        following = []
        for each in apps:
            ran = each.id == now
            following.append(
                msgspec.structs.replace(
                    each,
                    current=got.counts[each.id],
                    served_s=each.served_s + 480.0 * ran,
                    age_s=each.age_s + 120.0,
                    remaining_steps=max((each.remaining_steps or 0.0) - 120.0 * ran, 1.0),
                )
            )
        apps = following
    assert sum(had.values()) == 30
    assert min(had.values()) >= 8


def test_an_app_without_room_next_to_pinned_ones_takes_no_rounds() -> None:
    stays = app("stays", 1, 1, (1, 2), {"n0": 2}, pinned=True)
    got = solve(stays, job("a", 9000), job("b", 9000, 2))
    assert runs(got) == ["b", "stays"]
    assert got.reasons["a"].code == "resources"


def test_nonsense_parameters_are_refused_in_one_line() -> None:
    with raises(ParameterError, "policy.parameter.unknown"):
        POLICY.check_params({"window": 3})
    with raises(ParameterError, "policy.parameter.out_of_range"):
        POLICY.check_params({"rounds": 0})
    with raises(ParameterError, "policy.parameter.wrong_type"):
        POLICY.check_params({"rounds": 1.5})
