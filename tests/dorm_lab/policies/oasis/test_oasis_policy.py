"""The policy `oasis`: plans of apps on a cluster that changes."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies import integer, scoring
from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Plan, Problem, Slot, Utility
from dorm.policies.registry import policy
from dorm_lab.policies.oasis.planning import Planner, Settings
from tests.dorm_lab.policies.baselines.test_speed_policies import STOPPED, rows_of, totals
from tests.errors import raises
from tests.policies.problems import after, app, node, problems, slow_machine
from tests.tries import tries

SLOT_S = 100.0
ONE = (node("n0", 4, 16),)
TWO = (node("n0", 4, 16), node("n1", 4, 16))


def solve(nodes: tuple[NodeRoom, ...], *apps: AppDemand, at_s: float = 0.0, **params: Any) -> Allocation:
    return policy("oasis").allocate(Problem(nodes, apps, at_s), {"slot_s": SLOT_S, "slots": 20, **params})


def working(each: AppDemand, work_s: float, **fields: Any) -> AppDemand:
    return msgspec.structs.replace(each, work_s=work_s, **fields)


def later(problem: Problem, got: Allocation, at_s: float) -> Problem:
    """The problem at `at_s`, once the allocation has come true; the apps work as planned."""
    elapsed = at_s - problem.at_s
    apps = []
    for each in after(problem, got).apps:
        plan = got.plans.get(each.id)
        left = None if each.work_s is None else max(0.0, each.work_s - elapsed * sum(each.current.values()))
        apps.append(
            msgspec.structs.replace(
                each, plan=plan if plan and plan.slots else None, age_s=each.age_s + elapsed, work_s=left
            )
        )
    return Problem(problem.nodes, tuple(apps), at_s)


@st.composite
def planned(draw: st.DrawFn) -> Problem:
    """Apps of which some have declared work and worth, and some have plans, sound ones and broken ones."""
    problem = draw(problems(max_apps=5, max_nodes=3, most=5))
    at_s = draw(st.sampled_from([0.0, 30.0, 1000.0, 12345.678]))
    apps = []
    for each in problem.apps:
        fields: dict[str, Any] = {"age_s": draw(st.sampled_from([0.0, 500.0]))}
        if draw(st.booleans()):
            fields["work_s"] = draw(st.sampled_from([0.0, 100.0, 950.0, 1e6]))
        if draw(st.booleans()):
            fields["utility"] = Utility(draw(st.sampled_from([1.0, 50.0])), draw(st.sampled_from([0.0, 0.05])), 600.0)
        fields["chunks"] = draw(st.sampled_from([0, 0, 1, 3]))
        fields["workers_per_server"] = draw(st.sampled_from([0, 0, 2]))
        if draw(st.booleans()):
            slots = [Slot(at_s - 150.0, draw(st.sampled_from([{}, each.current, {"n0": each.gang}])))]
            slots.append(Slot(at_s + 150.0, draw(st.sampled_from([{"n1": 2 * each.gang}, {"gone": 1}, each.current]))))
            fields["plan"] = Plan((*slots, Slot(at_s + draw(st.sampled_from([160.0, 900.0])), {})))
        apps.append(msgspec.structs.replace(each, **fields))
    return Problem(problem.nodes, tuple(apps), at_s)


@settings(slow_machine, max_examples=tries(8, 1000))
@given(problem=planned())
def test_invariants_of_every_answer(problem: Problem) -> None:
    params = {"slot_s": SLOT_S, "slots": 12}
    got = policy("oasis").allocate(problem, params)
    instance = integer.read(problem)
    assert set(scoring.faults(instance, rows_of(instance, got), len(problem.apps))) <= {STOPPED}
    for each in problem.apps:
        count = totals(got)[each.id]
        assert (each.id in got.reasons) == (count < each.n_max)
        assert each.pinned or (each.id in got.shortage) == (count < each.n_min)
        plan = got.plans.get(each.id)
        if plan is not None and plan.slots:
            assert [slot.at_s for slot in plan.slots] == sorted({slot.at_s for slot in plan.slots})
            assert plan.slots[-1].counts == {}
            assert plan == each.plan or any(slot.counts for slot in plan.slots)
    shuffled = Problem(problem.nodes[::-1], problem.apps, problem.at_s)
    assert msgspec.json.encode(policy("oasis").allocate(shuffled, params)) == msgspec.json.encode(got)


@settings(slow_machine, max_examples=tries(8, 500))
@given(problem=planned())
def test_no_node_is_promised_twice(problem: Problem) -> None:
    got = policy("oasis").allocate(problem, {"slot_s": SLOT_S, "slots": 12})
    rooms = {room.id: room for room in problem.nodes}
    moments = {problem.at_s, *(slot.at_s for plan in got.plans.values() for slot in plan.slots)}
    new = {each.id: each for each in problem.apps if got.plans.get(each.id) not in (None, each.plan)}
    for at_s in moments:
        if at_s <= problem.at_s:
            continue
        used: dict[tuple[str, str], int] = {}
        known: dict[tuple[str, str], int] = {}  # By plans that stand: some of those above promise more than a node has.
        for each in problem.apps:
            plan = got.plans.get(each.id)
            before = [slot for slot in plan.slots if slot.at_s <= at_s] if plan else []
            for place, count in (before[-1].counts if before else {}).items():
                for kind, need in each.demand.items():
                    used[place, kind] = used.get((place, kind), 0) + need * count
                    known[place, kind] = known.get((place, kind), 0) + need * count * (each.id not in new)
        for (place, kind), amount in used.items():
            room = rooms[place].capacity.get(kind, 0) if place in rooms else 0
            assert amount <= room or known[place, kind] > room


def test_a_plan_made_for_other_slots_is_made_again_and_its_room_is_not_promised_twice() -> None:
    odd = working(app("odd", 1, 4, (3, 3), {"n0": 3}), 450.0, plan=Plan((Slot(0.0, {"n0": 3}), Slot(150.0, {}))))
    got = solve(ONE, odd, working(app("new", 1, 4, (2, 2)), 200.0))
    assert got.plans["odd"].slots == (Slot(0.0, {"n0": 3}), Slot(200.0, {}))
    assert got.plans["new"].slots == (Slot(0.0, {}), Slot(200.0, {"n0": 2}), Slot(300.0, {}))
    pinned = msgspec.structs.replace(odd, pinned=True)
    got = solve(ONE, pinned, working(app("new", 1, 4, (2, 2)), 200.0))
    assert got.plans["odd"] == pinned.plan
    assert got.plans["new"].slots == (Slot(0.0, {}), Slot(200.0, {"n0": 2}), Slot(300.0, {}))


def test_a_pinned_apps_plan_keeps_its_room_although_one_of_its_nodes_is_gone() -> None:
    plan = Plan((Slot(0.0, {}), Slot(200.0, {"n0": 3, "gone": 1}), Slot(400.0, {})))
    pinned = working(app("pinned", 4, 4, (4, 4)), 400.0, plan=plan)
    pinned = msgspec.structs.replace(pinned, pinned=True)
    got = solve(ONE, pinned, working(app("new", 1, 4, (2, 2)), 800.0))
    counts = {
        at_s: [slot for slot in got.plans["new"].slots if slot.at_s <= at_s][-1].counts for at_s in (200.0, 300.0)
    }
    assert all(sum(each.values()) <= 1 for each in counts.values()), counts


def test_an_app_on_an_empty_cluster_is_admitted_and_its_plan_is_as_short_as_its_work() -> None:
    """8 worker-slots on 4 containers: two slots."""
    critical = Utility(worth=10.0, decay=0.05, target_s=300.0)
    got = solve(ONE, working(app("a", 1, 4, (1, 4)), 800.0, utility=critical))
    plan = got.plans["a"]
    assert plan.worth > plan.cost > 0
    assert plan.slots == (Slot(0.0, {"n0": 4}), Slot(200.0, {}))
    assert totals(got) == {"a": 4}


def test_a_patient_app_takes_the_cheap_slots() -> None:
    """Another has three of four containers until 400: the free one costs more than four at a time when they are all free."""
    busy = working(app("busy", 1, 4, (3, 3)), 1200.0, plan=Plan((Slot(0.0, {"n0": 3}), Slot(400.0, {}))))
    got = solve(ONE, busy, working(app("a", 1, 4, (1, 4)), 800.0))
    assert got.plans["a"].slots == (Slot(0.0, {}), Slot(400.0, {"n0": 4}), Slot(600.0, {}))
    assert got.reasons["a"].code == "queue"


def test_the_rest_of_the_present_slot_counts_in_proportion() -> None:
    """From 150 to 200 two workers do one worker-slot; the two others are done in the next slot."""
    critical = Utility(worth=10.0, decay=0.1, target_s=160.0)
    got = solve(ONE, working(app("a", 1, 4, (2, 2)), 300.0, utility=critical), at_s=150.0)
    assert got.plans["a"].slots == (Slot(150.0, {"n0": 2}), Slot(300.0, {}))


def test_an_app_starts_at_once_even_if_whole_slots_would_suffice() -> None:
    got = solve(ONE, working(app("a", 1, 4, (2, 2)), 200.0), at_s=150.0)
    assert got.plans["a"].slots == (Slot(150.0, {"n0": 2}), Slot(300.0, {}))


def test_an_app_that_is_worth_less_than_the_room_it_takes_is_refused_and_waits() -> None:
    """Three of four containers are used in both slots, so the fourth costs (U/L)^0.75 of the lowest price."""
    rich = working(app("rich", 1, 4, (3, 3)), 600.0, utility=Utility(1000.0, 0.0, 0.0))
    poor = working(app("poor", 1, 4, (1, 1)), 100.0, utility=Utility(2.0, 0.0, 0.0))
    got = solve(ONE, rich, poor, slots=2)
    assert totals(got) == {"poor": 0, "rich": 3}
    assert got.reasons["poor"].code == "price"
    text = got.reasons["poor"].text
    assert text.startswith("refused: its best schedule, done in 100 s, is worth 1 and costs ")
    assert re.search(r"at present prices: \w+ [\d.e+]+ \([\d.e+]+ a \w+ in a slot, 75% full\), ", text)
    assert "cpu " in text
    assert "memory " in text
    assert "poor" not in got.plans
    assert totals(solve(ONE, poor, rich, slots=2)) == {"poor": 1, "rich": 3}


def test_the_prices_of_a_refusal_add_up_to_its_cost() -> None:
    rich = working(app("rich", 1, 4, (3, 3)), 600.0, utility=Utility(1000.0, 0.0, 0.0))
    poor = working(app("poor", 1, 4, (1, 1)), 100.0, utility=Utility(2.0, 0.0, 0.0))
    (refused,) = Planner(Problem(ONE, (rich, poor)), Settings(SLOT_S, 2, 3600.0)).refused.values()
    assert sorted(price.kind for price in refused.prices) == ["cpu", "memory"]
    assert math.fsum(price.cost for price in refused.prices) == pytest.approx(refused.cost, rel=1e-6)
    assert all(price.full == 0.75 for price in refused.prices)
    each = {price.kind: price.each for price in refused.prices}
    assert each["cpu"] * 1 + each["memory"] * 4 == pytest.approx(refused.cost, rel=1e-6), "one core, 4 GiB, one slot"


def test_a_plan_is_kept_whatever_arrives_and_runs_by_the_clock() -> None:
    first = working(app("a", 1, 4, (1, 4)), 800.0, utility=Utility(10.0, 0.05, 300.0))
    start = Problem(ONE, (first,), 0.0)
    got = solve(ONE, first)
    second = working(app("b", 1, 4, (1, 4)), 400.0, utility=Utility(1000.0, 0.05, 150.0))
    between = later(start, got, 120.0)
    got = solve(ONE, *between.apps, second, at_s=120.0)
    assert got.plans["a"] == between.apps[0].plan
    assert totals(got) == {"a": 4, "b": 0}
    assert got.plans["b"].slots == (Slot(120.0, {}), Slot(200.0, {"n0": 4}), Slot(300.0, {}))
    assert got.reasons["b"].code == "queue"
    ended = later(Problem(ONE, (*between.apps, second), 120.0), got, 200.0)
    got = solve(ONE, ended.apps[1], at_s=200.0)
    assert totals(got) == {"b": 4}
    assert got.plans["b"] == ended.apps[1].plan


def test_a_late_app_gets_further_slots_even_if_it_has_no_value_left() -> None:
    useless = Utility(worth=1.0, decay=1.0, target_s=50.0)
    plan = Plan((Slot(0.0, {"n0": 2}), Slot(200.0, {})))
    late = working(app("a", 1, 4, (2, 2), {"n0": 2}), 400.0, utility=useless, plan=plan, age_s=1000.0)
    got = solve(ONE, late, at_s=150.0)
    assert totals(got) == {"a": 2}
    assert got.plans["a"].slots[-1].at_s == 400.0


def test_an_overdue_app_gets_a_further_slot() -> None:
    plan = Plan((Slot(0.0, {"n0": 2}), Slot(200.0, {})))
    late = working(app("a", 1, 4, (2, 2), {"n0": 2}), 0.0, plan=plan, age_s=200.0)
    got = solve(ONE, late, at_s=200.0)
    assert totals(got) == {"a": 2}
    assert got.plans["a"].slots == (Slot(200.0, {"n0": 2}), Slot(300.0, {}))
    during = msgspec.structs.replace(late, age_s=190.0)
    assert solve(ONE, during, at_s=190.0).plans["a"] == plan, "its plan is not over yet"


def test_a_plan_on_a_node_that_is_gone_is_made_again() -> None:
    plan = Plan((Slot(0.0, {"n9": 2}), Slot(400.0, {})))
    broken = working(app("a", 1, 4, (2, 2), {"n9": 2}), 400.0, plan=plan)
    got = solve(TWO, broken, at_s=50.0)
    assert totals(got) == {"a": 2}
    assert got.plans["a"] != plan


def test_an_app_that_waits_for_another_to_leave_keeps_its_plan() -> None:
    """The app that should have gone is pinned: it is being stopped."""
    leaving = msgspec.structs.replace(app("old", 1, 4, (1, 4), {"n0": 3}, pinned=True), work_s=100.0)
    plan = Plan((Slot(100.0, {"n0": 4}), Slot(400.0, {})))
    next_one = working(app("next", 1, 4, (4, 4)), 1200.0, plan=plan)
    leaving = msgspec.structs.replace(leaving, plan=Plan((Slot(0.0, {"n0": 3}), Slot(100.0, {}))))
    got = solve(ONE, leaving, next_one, at_s=100.0)
    assert totals(got) == {"next": 0, "old": 3}
    assert got.plans["next"] == plan


def test_parameter_servers_are_part_of_a_partition_and_do_no_work() -> None:
    """One server for two workers: 3 containers do 2 worker-slots in each slot."""
    urgent = Utility(worth=10.0, decay=0.1, target_s=150.0)
    one = working(app("a", 1, 4, (2, 3)), 400.0, utility=urgent, workers_per_server=2)
    assert solve(ONE, one).plans["a"].slots == (Slot(0.0, {"n0": 3}), Slot(200.0, {}))
    fixed = working(app("a", 1, 4, (2, 3)), 400.0, utility=urgent, servers=1)
    assert solve(ONE, fixed).plans["a"].slots == (Slot(0.0, {"n0": 3}), Slot(200.0, {}))


def test_no_more_workers_than_chunks() -> None:
    urgent = Utility(worth=10.0, decay=0.1, target_s=150.0)
    got = solve(ONE, working(app("a", 1, 4, (1, 4)), 400.0, utility=urgent, chunks=2))
    assert totals(got) == {"a": 2}


def test_work_beyond_the_horizon_is_refused_with_the_reason() -> None:
    got = solve(ONE, working(app("a", 1, 4, (1, 1)), 1e6))
    assert totals(got) == {"a": 0}
    assert got.reasons["a"].text == "refused: its work can't be done within 33 min"


def test_an_app_that_runs_when_the_policy_changes_continues() -> None:
    running = app("a", 1, 4, (1, 4), {"n0": 4})
    assert totals(solve(ONE, working(running, 1e6))) == {"a": 4}
    smaller = solve(ONE, working(app("a", 1, 4, (1, 4), {"n0": 2}), 1e6))
    assert totals(smaller) == {"a": 2}
    assert smaller.reasons["a"].text == "it goes on without a plan: its work can't be done within 33 min"
    planned = solve(ONE, working(running, 800.0, utility=Utility(1e-9, 1.0, 1.0)), app("b", 1, 4, (1, 4)))
    assert planned.plans["a"].slots


@pytest.mark.parametrize("params", [{"slot_s": 0}, {"slots": 1}, {"slots": 2.5}, {"horizon": 3}])
def test_absurd_parameters_are_refused(params: dict[str, Any]) -> None:
    code = "policy.parameter.unknown" if "horizon" in params else None
    if code:
        with raises(ValueError, code):
            policy("oasis").check_params(params)
    else:
        with pytest.raises(ValueError, match="policy oasis: "):
            policy("oasis").check_params(params)
