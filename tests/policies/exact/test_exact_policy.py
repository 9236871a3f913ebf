"""The optimizer against all answers of tiny problems, its promises on random ones, and the known pitfalls one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies import integer, scoring
from dorm.policies.exact import exact_policy as exact
from dorm.policies.exact import model
from dorm.policies.problem import Allocation, Problem
from dorm.policies.registry import UnknownPolicy, names, policy
from tests.errors import raises
from tests.policies.brute_force import World
from tests.policies.problems import DEFAULTS, GIB, PARAMS, after, app, node, problems, settle, slow_machine
from tests.tries import tries

DORM = policy("dorm-exact")


def solve(problem: Problem, **params: float) -> Allocation:
    return DORM.allocate(problem, params)


def total(allocation: Allocation, name: str) -> int:
    return sum(allocation.counts[name].values())


def three(cpu: float = 4, memory: float = 16) -> tuple[Any, ...]:
    return tuple(node(f"n{j}", cpu, memory) for j in range(3))


# Promises


def check_promises(problem: Problem, got: Allocation) -> None:
    assert list(got.counts) == sorted(each.id for each in problem.apps)
    for each in problem.apps:
        counts = got.counts[each.id]
        assert list(counts) == sorted(counts)
        assert all(count > 0 for count in counts.values())
        if each.pinned:
            assert counts == each.current
        else:
            assert sum(counts.values()) == 0 or each.n_min <= sum(counts.values()) <= each.n_max
            assert got.shortage.get(each.id, 0) == max(0, each.n_min - sum(counts.values()))
        assert (each.id in got.reasons) == (sum(counts.values()) < each.n_max)
    for room in problem.nodes:
        for kind, have in room.capacity.items():
            used = sum(got.counts[each.id].get(room.id, 0) * each.demand.get(kind, 0) for each in problem.apps)
            pinned = sum(
                each.current.get(room.id, 0) * each.demand.get(kind, 0) for each in problem.apps if each.pinned
            )
            assert used <= max(have, pinned)
    world = World(problem, DEFAULTS)
    changed = [each for each in problem.apps if world.kept(each) and got.counts[each.id] != each.current]
    assert len(changed) == got.overhead <= got.overhead_budget
    assert 0 <= got.utilization <= len(world.kinds) + 1e-9
    assert got.utilization - got.change_cost <= got.bound + 1e-6


@settings(slow_machine, max_examples=tries(8, 60))
@given(problems(max_apps=6, max_nodes=4, most=6), PARAMS)
def test_promises_hold(problem: Problem, params: dict[str, float]) -> None:
    check_promises(problem, DORM.allocate(problem, params))


@settings(slow_machine, max_examples=tries(5, 40))
@given(problems(max_apps=6, max_nodes=4, most=6), PARAMS, st.randoms(use_true_random=False))
def test_the_order_of_nodes_decides_nothing(problem: Problem, params: dict[str, float], random: Random) -> None:
    nodes = list(problem.nodes)
    random.shuffle(nodes)
    encode = msgspec.json.encode
    assert encode(DORM.allocate(problem, params)) == encode(DORM.allocate(Problem(tuple(nodes), problem.apps), params))


@settings(slow_machine, max_examples=tries(4, 30))
@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 3), st.data())
def test_the_first_of_identical_apps_runs(apps: int, n_min: int, nodes: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(apps)))
    problem = Problem(
        tuple(node(f"n{j}", 3, 8) for j in range(nodes)),
        tuple(app(f"a{i}", 1, 1, (n_min, n_min)) for i in order),
    )
    got = solve(problem)
    served = [total(got, each.id) > 0 for each in problem.apps]
    assert served == sorted(served, reverse=True)
    assert sum(served) == min(apps, 3 * nodes // n_min)


@settings(slow_machine, max_examples=tries(4, 25))
@given(problems(max_apps=4, max_nodes=3, most=5))
def test_idle_rounds_settle(problem: Problem) -> None:
    settle(problem, {})


def sample(seed: int) -> Problem:
    random = Random(seed)
    nodes = tuple(node(f"n{j}", random.choice([4, 8]), random.choice([16, 32])) for j in range(4))
    apps = tuple(app(f"a{i}", random.randint(1, 2), random.randint(1, 8), (1, random.randint(2, 8))) for i in range(6))
    problem = Problem(nodes, apps)
    return Problem(nodes, (*after(problem, solve(problem)).apps[1:], app("late", 2, 4, (2, 6))))


@pytest.mark.soak
@pytest.mark.slow
def test_the_hash_seed_decides_nothing() -> None:
    program = (
        "import sys, msgspec; from tests.policies.exact.test_exact_policy import sample, solve\n"
        "sys.stdout.buffer.write(msgspec.json.encode([solve(sample(seed)) for seed in range(3)]))"
    )
    here = msgspec.json.encode([solve(sample(seed)) for seed in range(3)])
    for seed in ("0", "31337"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        )
        assert run.stdout == here


# Pitfalls


def test_if_integrality_forbids_theta1_the_nearest_answer_is_chosen_and_the_excess_reported() -> None:
    problem = Problem((node("n0", 10, 40),), (app("big", 1, 1, (8, 9)), app("small", 1, 1, (1, 9))))
    got = solve(problem, theta1=0.0)
    assert (total(got, "big"), total(got, "small")) == (8, 2)
    assert got.excess == pytest.approx(0.6)
    assert got.fairness_loss == pytest.approx(0.6)
    assert got.shortage == {}


def test_a_floor_keeps_each_app_near_its_share_if_theta1_is_loose() -> None:
    """`lean` is worth less to U, so without a floor it is left at n_min."""
    problem = Problem((node("n0", 12, 48),), (app("fat", 1, 4, (1, 12)), app("lean", 1, 1, (1, 12))))
    assert total(solve(problem, theta1=1.0, floor=0.0), "lean") == 1
    assert total(solve(problem, theta1=1.0), "lean") == 3


def test_after_a_departure_idle_rounds_recover_one_app_at_a_time() -> None:
    third = {f"n{j}": 4 for j in range(3)}
    left = tuple(app(name, 1, 1, (1, 6), {place: 4}) for name, place in (("a", "n0"), ("b", "n1")))
    assert sum(third.values()) == 12
    answers = settle(Problem(three(), left), {})
    assert [answer.overhead for answer in answers] == [1, 1, 0]
    assert (total(answers[-1], "a"), total(answers[-1], "b")) == (6, 6)
    waiting = {name: reason for answer in answers[:1] for name, reason in answer.reasons.items()}
    assert [reason.code for reason in waiting.values()] == ["overhead"]


def test_no_app_moves_without_a_gain() -> None:
    apps = (app("a", 1, 1, (1, 4), {"n0": 2, "n2": 2}), app("b", 1, 1, (1, 8), {"n1": 4, "n0": 2, "n2": 2}))
    got = solve(Problem(three(), apps), theta2=1.0)
    assert got.counts == {each.id: dict(sorted(each.current.items())) for each in apps}
    assert got.overhead == 0


def test_a_growing_app_keeps_its_containers_in_place() -> None:
    problem = Problem(three(), (app("a", 1, 1, (1, 6), {"n1": 3, "n2": 1}),))
    got = solve(problem)
    assert total(got, "a") == 6
    assert all(got.counts["a"].get(place, 0) >= count for place, count in problem.apps[0].current.items())


def test_a_change_that_gains_less_than_it_costs_is_not_made() -> None:
    problem = Problem((node("n0", 11, 44),), (app("a", 1, 1, (1, 11), {"n0": 10}),))
    assert total(solve(problem, adjust_s=0.05), "a") == 11
    got = solve(problem, adjust_s=300)
    assert total(got, "a") == 10
    assert got.reasons["a"].code == "price"


def test_fragmented_room_starts_no_app() -> None:
    got = solve(Problem((node("n0", 3, 8), node("n1", 3, 8)), (app("a", 2, 1, (1, 3)),)))
    assert got.counts == {"a": {"n0": 1, "n1": 1}}
    assert got.reasons["a"].text == "no node has 2 cores free (closest: n0 with 1 core)"


def test_within_the_budget_an_incumbent_shrinks_for_an_arrival() -> None:
    old = app("old", 1, 1, (1, 12), {"n0": 4, "n1": 4, "n2": 4})
    got = solve(Problem(three(), (old, app("new", 1, 1, (2, 12)))))
    assert got.shortage == {}
    assert total(got, "new") >= 3
    assert got.overhead == 1


def test_an_arrival_that_needs_two_to_shrink_starts_after_two_rounds_of_one() -> None:
    """Of 12 cores two apps hold 4 each; the third needs 8, and θ2 = 0.1 lets one app change in a round."""
    apps = (
        app("a", 1, 1, (2, 4), {"n0": 4}),
        app("b", 1, 1, (2, 4), {"n1": 4}),
        app("c", 1, 1, (8, 8)),
    )
    answers = settle(Problem(three(), apps), {})
    assert [total(answer, "c") for answer in answers] == [0, 8, 8]
    assert answers[0].overhead == answers[1].overhead == 1
    assert answers[0].reasons["c"].code == "overhead"
    assert answers[0].shortage == {"c": 8}
    assert total(answers[-1], "a") == total(answers[-1], "b") == 2


def test_room_that_is_being_cleared_goes_to_no_other_app() -> None:
    """`d` could take what the first round clears for `c`; it may not."""
    apps = (
        app("a", 1, 1, (1, 4), {"n0": 4}),
        app("b", 1, 1, (1, 4), {"n1": 4}),
        app("d", 1, 1, (2, 12), {"n2": 4}),
        app("c", 1, 1, (8, 8)),
    )
    answers = settle(Problem(three(), apps), {"theta2": 0.3})
    assert total(answers[-1], "c") == 8
    assert len(answers) <= 5


def test_an_app_that_can_never_run_takes_nothing_from_the_others() -> None:
    apps = [
        app("whale", 1, 1, (99, 99)),
        app("wide", 9, 1, (1, 1)),
        app("gpus", 1, 1, (1, 1), gpu=1),
        app("a", 1, 1, (1, 12)),
    ]
    got = solve(Problem(three(), tuple(apps)))
    assert total(got, "a") == 12
    assert got.excess == 0
    assert got.fairness_loss == 0
    assert {got.reasons[name].code for name in ("whale", "wide", "gpus")} == {"no_nodes"}
    assert "12 of its containers, 87 short of n_min 99" in got.reasons["whale"].text
    assert got.reasons["wide"].text == "no node has 9 cores (the largest: n0 with 4 cores)"
    assert got.reasons["gpus"].text == "no node has any GPUs"


def test_an_app_that_waits_for_room_does_not_shrink_others_needlessly() -> None:
    """`big` cannot run next to n_min of `a`, whatever shrinks; so `a` may use everything."""
    apps = (app("a", 1, 1, (6, 12), {"n0": 4, "n1": 2}), app("big", 1, 1, (8, 8)))
    answers = settle(Problem(three(), apps), {})
    assert total(answers[-1], "a") == 12
    assert answers[-1].shortage == {"big": 8}
    assert answers[-1].excess == 0
    reason = answers[0].reasons["big"]
    assert reason.code == "resources"
    assert reason.text.endswith("8 containers short of n_min 8")


def test_apps_on_a_lost_node_change_without_counting() -> None:
    apps = (
        app("hit", 1, 1, (2, 4), {"gone": 2, "n0": 1}),
        app("also", 1, 1, (1, 4), {"gone": 1}),
        app("calm", 1, 1, (2, 4), {"n1": 4}),
    )
    got = solve(Problem(three(), apps), theta2=0.0)
    assert got.overhead_budget == got.overhead == 0
    assert got.counts["calm"] == {"n1": 4}
    assert total(got, "hit") == 4
    assert got.counts["hit"].get("n0", 0) >= 1
    assert total(got, "also") == 4


def test_a_hit_app_precedes_a_waiting_one_even_if_it_is_younger() -> None:
    apps = (app("waits", 1, 1, (4, 4)), app("hit", 1, 1, (3, 3), {"gone": 3}))
    got = solve(Problem((node("n0", 4, 8),), apps))
    assert (total(got, "waits"), total(got, "hit")) == (0, 3)


def test_lowered_capacity_forces_changes_on_the_node() -> None:
    apps = (app("a", 1, 1, (1, 4), {"n0": 4}), app("b", 1, 1, (1, 4), {"n0": 4}))
    got = solve(Problem((node("n0", 5, 16),), apps), theta2=0.0)
    assert total(got, "a") + total(got, "b") == 5
    assert got.overhead == 0
    assert got.shortage == {}


def test_new_bounds_of_a_user_force_the_change() -> None:
    got = solve(Problem(three(), (app("a", 1, 1, (1, 2), {"n0": 4}),)), theta2=0.0)
    assert total(got, "a") == 2


def test_weights_divide_in_proportion() -> None:
    apps = (app("heavy", 1, 1, (1, 12), weight=3.0), app("light", 1, 1, (1, 12)))
    got = solve(Problem(three(), apps), theta1=0.0)
    assert (total(got, "heavy"), total(got, "light")) == (9, 3)


def test_bytes_and_cores_weigh_the_same_and_rounding_makes_nothing_fit() -> None:
    """16 GiB less one byte holds 15 containers of about 1 GiB, however small one byte is to the solver."""
    room = node("n0", 64, 16)
    room = msgspec.structs.replace(room, capacity={**room.capacity, "memory": 16 * GIB - 1})
    apps = [app("a", 1, 1, (1, 16)), app("b", 1, 1, (1, 16))]
    apps[1] = msgspec.structs.replace(apps[1], demand={"cpu": 1000, "memory": GIB - 3})
    got = solve(Problem((room,), tuple(apps)))
    check_promises(Problem((room,), tuple(apps)), got)
    assert got.status == "optimal"
    used = total(got, "a") * GIB + total(got, "b") * (GIB - 3)
    assert 15 * (GIB - 3) <= used <= 16 * GIB - 1


def test_a_pinned_app_stays_and_occupies_its_room() -> None:
    apps = (app("a", 1, 1, (1, 12), {"n0": 4, "gone": 1}, pinned=True), app("b", 1, 1, (1, 12)))
    got = solve(Problem(three(), apps))
    assert got.counts["a"] == {"gone": 1, "n0": 4}
    assert total(got, "b") == 8
    assert got.reasons["a"].code == "adjusting"


# Waiting


@pytest.mark.soak
@pytest.mark.slow
@settings(slow_machine, max_examples=tries(6, 200))
@given(st.integers(1, 2), st.lists(st.integers(1, 3), min_size=2, max_size=4), st.integers(0, 2), st.booleans())
def test_an_app_beyond_its_patience_is_not_overtaken_while_others_shrink_for_it(
    budget: int, held: list[int], spare: int, several: bool
) -> None:
    """Each round two young apps come that would fit into what was just cleared, and none of them ever ends."""
    cores = 4
    nodes = tuple(node(f"n{j}", cores, 64) for j in range(len(held)))
    apps = [app(f"a{i}", 1, 1, (1, cores), {f"n{i}": cores}) for i in range(len(held))]
    need = cores * len(held) - len(held) - spare
    apps.append(msgspec.structs.replace(app("old", 1, 1, (need, need)), waited_s=700.0))
    if several:
        apps.append(msgspec.structs.replace(app("next", 1, 1, (1, 1)), waited_s=650.0))
    problem = Problem(nodes, tuple(apps))
    for number in range(len(held) + 1):
        young = tuple(app(f"young-{number}-{k}", 1, 1, (1, 1)) for k in range(2))
        problem = Problem(nodes, (*problem.apps, *young))
        got = solve(problem, max_changes=budget, theta2=1.0)
        check_promises(problem, got)
        if total(got, "old"):
            return
        assert got.overhead > 0
        assert got.reasons["old"].code == "overhead"
        assert sum(total(got, each.id) for each in problem.apps if each.id.startswith("young")) <= spare
        problem = after(problem, got)
    raise AssertionError("it still waits")


def test_if_nothing_may_change_young_apps_run_next_to_reserved_room() -> None:
    """θ2 = 0: no app can ever make room for `old`, so only the nodes that are reserved for it are closed."""
    old = msgspec.structs.replace(app("old", 1, 1, (4, 4)), waited_s=700.0, require='zone == "a"')
    apps = (app("a", 1, 1, (2, 4), {"n0": 4}), app("b", 1, 1, (1, 2), {"n1": 2}), old, app("young", 1, 1, (3, 3)))
    nodes = tuple(
        msgspec.structs.replace(each, labels={"zone": zone})
        for each, zone in ((node("n0", 4, 16), "a"), (node("n1", 5, 16), "a"), (node("n2", 3, 16), "b"))
    )
    got = solve(Problem(nodes[:2], apps), theta2=0.0)
    assert got.shortage == {"old": 4, "young": 3}
    assert got.reasons["young"].code == "reserved"
    assert got.reasons["old"].code == "overhead"
    got = solve(Problem(nodes, apps), theta2=0.0)
    assert got.shortage == {"old": 4}
    assert got.counts["young"] == {"n2": 3}


def test_wishes_decide_among_placements_that_are_otherwise_equal() -> None:
    nodes = tuple(node(f"n{j}", 4, 16) for j in range(4))
    for wish, nodes_used in (("pack", 1), ("spread", 4)):
        one = msgspec.structs.replace(app("a", 1, 1, (4, 4)), placement=wish)
        assert len(solve(Problem(nodes, (one,))).counts["a"]) == nodes_used
        still = msgspec.structs.replace(one, current={"n0": 3, "n1": 1})
        assert solve(Problem(nodes, (still,)), theta2=1.0).counts["a"] == still.current


# When the solver has no answer


@pytest.fixture(params=["nothing", "nonsense", "at the limit", "nan", "none at all", "an exception"])
def broken_solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The solver gives no answer, or one that breaks every bound, or is out of order."""

    def milp(cost: Any, **_: Any) -> Any:
        if request.param == "an exception":
            raise RuntimeError("no licence for today")
        if request.param == "none at all":
            return None
        limit = "(HiGHS Status 16: Solution limit reached)"
        bound = {"nothing": None, "at the limit": None, "nonsense": 1e300, "nan": float("nan")}[request.param]
        x = {"nothing": None, "at the limit": None, "nonsense": np.full(len(cost), 1e300)}.get(
            request.param, np.full(len(cost), np.nan)
        )
        status, message = (4, limit) if request.param == "at the limit" else (0, "")
        return SimpleNamespace(x=x, status=status, message=message, mip_dual_bound=bound)

    monkeypatch.setattr(model, "milp", milp)
    return "node_limit" if request.param == "at the limit" else "fallback"


def test_the_greedy_answer_remains_when_the_solver_has_none(broken_solver: str) -> None:
    for seed in range(4):
        problem = sample(seed)
        got = solve(problem)
        check_promises(problem, got)
        assert got.status == broken_solver
        assert got.utilization > 0


def test_beyond_its_size_the_greedy_answer_is_given_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "milp", None)
    random = Random(5)
    nodes = tuple(node(f"n{j:03}", random.choice([8, 16]), 64) for j in range(100))
    apps = tuple(app(f"a{i:03}", random.randint(1, 4), 4, (1, 20)) for i in range(40))
    problem = Problem(nodes, apps)
    got = solve(problem)
    assert got.status == "fallback"
    check_promises(problem, got)
    assert got.shortage == {}
    following = Problem(nodes[1:], after(problem, got).apps[1:])
    check_promises(following, solve(following))


@settings(slow_machine, max_examples=tries(8, 60))
@given(problems(max_apps=6, max_nodes=4, most=6), PARAMS)
def test_the_greedy_answer_keeps_the_promises(problem: Problem, params: dict[str, float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "LARGEST_PROGRAM", 0)
        check_promises(problem, DORM.allocate(problem, params))


def test_an_answer_with_faults_is_named() -> None:
    problem = Problem((node("n0", 2, 8),), (app("a", 1, 1, (1, 2), {"n0": 1}), app("b", 1, 1, (2, 2))))
    instance = integer.read(problem)
    assert scoring.faults(instance, integer.rows_of(np.array([[1], [0]])), 0) == []
    assert scoring.faults(instance, integer.rows_of(np.array([[2], [0]])), 0) == ["more apps changed than θ2 allows"]
    assert scoring.faults(instance, integer.rows_of(np.array([[1], [2]])), 0) == ["a node is given more than it has"]
    assert "an app that could go on was stopped" in scoring.faults(instance, integer.rows_of(np.array([[0], [2]])), 1)
    assert "a count outside n_min..n_max" in scoring.faults(instance, integer.rows_of(np.array([[1], [1]])), 1)


# Edges


def test_nothing_to_decide() -> None:
    assert solve(Problem((), ())).counts == {}
    assert solve(Problem(three(), ())).utilization == 0
    got = solve(Problem((), (app("a", 1, 1, (2, 4)),)))
    assert got.counts == {"a": {}}
    assert got.shortage == {"a": 2}
    assert got.reasons["a"].text == "there are no nodes"
    gone = solve(Problem((), (app("a", 1, 1, (2, 4), {"n0": 2}),)))
    assert gone.counts == {"a": {}}


def test_absurd_numbers_kill_nothing() -> None:
    huge = app("huge", 1, 1, (1, 10**30))
    huge = msgspec.structs.replace(huge, demand={"cpu": 10**40, "memory": -5})
    small = app("small", 1, 1, (1, 10**12))
    got = solve(Problem((node("n0", 4, 8), node("n1", 10**20, 8)), (huge, small)))
    assert total(got, "huge") == 0
    assert total(got, "small") == 12


def test_two_nodes_with_the_same_id_are_refused() -> None:
    with pytest.raises(ValueError, match="same id"):
        solve(Problem((node("n0", 1, 1), node("n0", 1, 1)), ()))


@pytest.mark.parametrize(
    ("params", "code"),
    [
        (
            {"theta": 1},
            "policy.parameter.unknown",
        ),
        ({"theta1": "0.1"}, "policy.parameter.wrong_type"),
        ({"theta2": True}, "policy.parameter.wrong_type"),
        ({"theta2": 1.5}, "policy.parameter.out_of_range"),
        ({"theta1": float("nan")}, "policy.parameter.out_of_range"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], code: str) -> None:
    with raises(ValueError, code):
        DORM.check_params(params)


def test_defaults_and_registry() -> None:
    assert DORM.check_params({}) == DEFAULTS
    assert DORM.check_params({"theta1": 1}) == {**DEFAULTS, "theta1": 1.0}
    assert names() == sorted(names())
    assert {"app-level", "dorm", "dorm-exact", "static", "task-level"} <= set(names())
    with raises(UnknownPolicy, "policy.unknown", "drom"):
        policy("drom")
