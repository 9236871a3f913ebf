"""The policy `dorm` against the reference on small problems, and what it promises on problems of every size.

What fits into a tiny program is solved exactly, so most tests here are run twice: as it is, and with that way closed, where
counts, places and polish have to answer for small problems as they do for large ones.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from dorm.policies.dorm import optimizer
from dorm.policies.exact.exact_policy import ExactPolicy
from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm_lab.bench.optimizer import judge
from dorm_lab.bench.optimizer.workload import World
from tests.policies.exact.test_exact_policy import check_promises
from tests.policies.problems import PARAMS, app, crowded, node, problems, slow_machine
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Iterator

DORM, EXACT = policy("dorm"), policy("dorm-exact")
DEFAULTS = {name: parameter.default for name, parameter in ExactPolicy.parameters.items()}


@pytest.fixture(params=["as it is", "nothing is tiny"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "nothing is tiny":
        monkeypatch.setattr(optimizer, "TINY", 0)


def net(allocation: Allocation) -> float:
    return allocation.utilization - allocation.change_cost


def small_worlds(sequences: int, events: int, apps: tuple[int, int], nodes: tuple[int, int]) -> Iterator[Problem]:
    """Problems of short sequences, every other one with labels, wishes and gangs; each continues from the answer of `dorm`."""
    for seed in range(sequences):
        chance = Random(seed)
        world = World(
            apps=chance.randint(*apps),
            nodes=chance.randint(*nodes),
            shapes=chance.randint(1, 3),
            seed=seed,
            labels=bool(seed % 2),
        )
        for _ in range(events):
            problem = world.next_problem()
            yield problem
            world.apply(DORM.allocate(problem, {}))


def check(problem: Problem, allocation: Allocation) -> None:
    """Everything that holds of any answer, by two judges that share nothing with the policy."""
    assert judge.faults(problem, allocation.counts) == []
    check_promises(problem, allocation)
    for reason in allocation.reasons.values():
        assert reason.code
        assert reason.text
    assert allocation.status in ("optimal", "near")


# Against the reference


class Compared:
    """Answers to the same problems by both policies."""

    def __init__(self) -> None:
        self.number = 0
        self.missed = 0
        """Where an earlier goal than the fairness loss is met worse."""
        self.unfair = 0
        """Where the excess ξ is higher."""
        self.gaps: list[float] = []
        """To the proven bound, where the goals before utilization are met alike."""

    def add(self, problem: Problem, params: dict[str, float]) -> None:
        ours, exact = DORM.allocate(problem, params), EXACT.allocate(problem, params)
        check(problem, ours)
        self.number += 1
        patience_s = params.get("patience_s", DEFAULTS["patience_s"])
        served = [judge.served(problem, each.shortage, patience_s) for each in (ours, exact)]
        if served[0] > served[1]:
            self.missed += 1
        elif served[0] == served[1]:
            self.unfair += ours.excess > exact.excess + 1e-8
            if abs(ours.excess - exact.excess) <= 1e-8:
                self.gaps.append(max(0.0, exact.bound - net(ours)) / max(exact.bound, 1e-9))


@pytest.mark.soak
@pytest.mark.slow
def test_small_clusters_are_within_a_thousandth_of_the_bound_and_miss_no_n_min() -> None:
    compared = Compared()
    for problem in small_worlds(tries(8, 60), 5, apps=(2, 6), nodes=(1, 5)):
        compared.add(problem, {})
    assert compared.number >= 40
    assert (compared.missed, compared.unfair) == (0, 0)
    assert len(compared.gaps) >= 0.96 * compared.number
    assert sum(compared.gaps) / len(compared.gaps) < 1e-4


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(600)  # It computes for half a minute, and longer next to others.
def test_unsolved_problems_are_near_the_bound_on_average() -> None:
    """Measured: 0.13 % on average; 2 of 80 miss an n_min, both on a cold start whose n_min hardly fit, and 4 the best ξ."""
    compared = Compared()
    beyond = 0
    for problem in small_worlds(tries(3, 16), 5, apps=(9, tries(10, 12)), nodes=(8, tries(9, 10))):
        beyond += len(problem.apps) * len(problem.nodes) > optimizer.TINY
        compared.add(problem, {})
    assert compared.number >= 15
    assert beyond > 0.75 * compared.number
    assert compared.missed <= 0.05 * compared.number
    assert compared.unfair <= 0.1 * compared.number
    assert len(compared.gaps) >= 0.8 * compared.number
    assert sum(compared.gaps) / len(compared.gaps) < 0.003


@pytest.mark.soak
@pytest.mark.slow
def test_tiny_clusters_stay_near_the_bound_without_the_exact_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny clusters by counts, places and polish, where one container is a good part of a node.  Measured: 0.13 % on average;
    8 of 150 miss an n_min, nearly all on cold starts.  It never comes to this: such clusters are solved exactly."""
    monkeypatch.setattr(optimizer, "TINY", 0)
    compared = Compared()
    for problem in small_worlds(tries(4, 30), 5, apps=(2, 8), nodes=(1, 7)):
        compared.add(problem, {})
    assert compared.number >= 20
    assert compared.missed <= 0.1 * compared.number
    assert compared.unfair <= 0.06 * compared.number
    assert len(compared.gaps) >= 0.8 * compared.number
    assert sum(compared.gaps) / len(compared.gaps) < 0.004


@settings(slow_machine, max_examples=tries(4, 400))
@given(problems(max_apps=5, max_nodes=4, most=5), PARAMS)
def test_no_n_min_is_missed_if_the_reference_meets_it(problem: Problem, params: dict[str, float]) -> None:
    compared = Compared()
    compared.add(problem, params)
    assert (compared.missed, compared.unfair) == (0, 0)


@settings(slow_machine, max_examples=tries(4, 400))
@given(crowded(), PARAMS)
def test_no_n_min_is_missed_on_full_nodes(problem: Problem, params: dict[str, float]) -> None:
    compared = Compared()
    compared.add(problem, params)
    assert (compared.missed, compared.unfair) == (0, 0)


# Promises


@settings(slow_machine, max_examples=tries(4, 600))
@given(problems(max_apps=6, max_nodes=5, most=6), PARAMS)
def test_promises_hold(problem: Problem, params: dict[str, float]) -> None:
    check(problem, DORM.allocate(problem, params))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "TINY", 0)
        check(problem, DORM.allocate(problem, params))


@settings(slow_machine, max_examples=tries(4, 400))
@given(crowded(), PARAMS)
def test_promises_hold_on_full_nodes(problem: Problem, params: dict[str, float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "TINY", 0)
        check(problem, DORM.allocate(problem, params))


def play(apps: int, nodes: int, shapes: int, seed: int, events: int, params: dict[str, float]) -> list[Allocation]:
    """Some events of one cluster with labels, wishes and gangs; every answer is checked."""
    world = World(apps=apps, nodes=nodes, shapes=shapes, seed=seed, labels=True)
    answers = []
    for _ in range(events):
        problem = world.next_problem()
        answers.append(DORM.allocate(problem, params))
        check_at_size(problem, answers[-1])
        world.apply(answers[-1])
    return answers


def check_at_size(problem: Problem, allocation: Allocation) -> None:
    """As `check`, in time that grows with what is placed."""
    assert judge.faults(problem, allocation.counts) == []
    rooms = {room.id for room in problem.nodes}
    could_stay = [each for each in problem.apps if each.current and each.current.keys() <= rooms]
    assert allocation.overhead == sum(allocation.counts[each.id] != each.current for each in could_stay)
    assert all(allocation.counts[each.id] for each in could_stay)
    assert allocation.overhead <= allocation.overhead_budget
    for each in problem.apps:
        n = sum(allocation.counts[each.id].values())
        assert (each.id in allocation.reasons) == (n < each.n_max)
        assert allocation.shortage.get(each.id, 0) == max(0, each.n_min - n)
    assert net(allocation) <= allocation.bound + 1e-6
    assert allocation.status in ("optimal", "near")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    "params", [{}, {"theta2": 0.0}, {"theta1": 0.0, "max_changes": 1}, {"theta1": 1.0, "floor": 1.0}]
)
def test_promises_hold_on_a_hundred_nodes(params: dict[str, float]) -> None:
    answers = play(100, 100, 3, seed=1, events=tries(3, 20), params=params)
    assert answers[0].utilization > 1.5
    assert not answers[0].shortage


@pytest.mark.soak
@pytest.mark.slow
def test_promises_hold_on_a_thousand_nodes_of_twelve_shapes() -> None:
    answers = play(500, 1000, 12, seed=2, events=2, params={})
    assert len(answers[0].counts) == 500
    assert answers[0].utilization > 1.5


@pytest.mark.soak
@pytest.mark.slow
def test_promises_hold_on_five_thousand_nodes() -> None:
    answers = play(tries(600, 2000), 5000, 3, seed=3, events=2, params={})
    assert answers[0].utilization > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("cap", [0, 1, 3])
def test_the_absolute_cap_holds_at_any_size(cap: int) -> None:
    world = World(apps=60, nodes=40, shapes=3, seed=5)
    world.apply(DORM.allocate(world.next_problem(), {}))
    for _ in range(4):
        problem = world.next_problem()
        got = DORM.allocate(problem, {"theta2": 1.0, "max_changes": cap})
        assert got.overhead <= got.overhead_budget == cap
        world.apply(got)


# Goals in their order


def total(allocation: Allocation, name: str) -> int:
    return sum(allocation.counts[name].values())


@pytest.mark.usefixtures("each_way")
def test_apps_hit_by_a_lost_node_restart_even_if_nothing_may_change() -> None:
    """Forced changes do not count against θ2; whom nothing forces stays where it is, whatever there would be to gain."""
    nodes = tuple(node(f"n{j}", 4, 16) for j in range(3))
    hit = app("hit", 1, 1, (2, 4), {"n0": 1, "lost": 1})
    stays = app("stays", 1, 1, (1, 9), {"n1": 2})
    got = DORM.allocate(Problem(nodes, (hit, stays)), {"theta2": 0.0})
    assert total(got, "hit") == 4
    assert got.counts["stays"] == {"n1": 2}
    assert (got.overhead, got.overhead_budget) == (0, 0)
    assert got.reasons["stays"].code == "overhead"


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("why", ["drained", "labels", "capacity", "bounds"])
def test_changes_that_something_forces_are_made_at_theta2_0(why: str) -> None:
    first = NodeRoom("n0", {"cpu": 2000 if why == "capacity" else 4000}, {"zone": "b"}, drained=why == "drained")
    nodes = (first, NodeRoom("n1", {"cpu": 4000}, {"zone": "a"}))
    require = 'zone == "a"' if why == "labels" else ""
    n_max = 2 if why == "bounds" else 3
    hit = AppDemand("hit", {"cpu": 1000}, 1.0, 1, n_max, {"n0": 3}, require=require)
    stays = AppDemand("stays", {"cpu": 1000}, 1.0, 1, 2, {"n1": 1})
    got = DORM.allocate(Problem(nodes, (hit, stays)), {"theta1": 1.0, "theta2": 0.0})
    assert got.counts["stays"] == {"n1": 1}
    assert total(got, "hit") == n_max
    assert got.counts["hit"].get("n0", 0) <= {"drained": 0, "labels": 0, "capacity": 2, "bounds": 2}[why]
    assert got.overhead == 0


@pytest.mark.usefixtures("each_way")
def test_a_hit_app_starts_before_one_that_has_waited_long() -> None:
    old = AppDemand("old", {"cpu": 1000}, 1.0, 3, 3, waited_s=5000.0)
    hit = AppDemand("hit", {"cpu": 1000}, 1.0, 3, 3, {"lost": 3})
    got = DORM.allocate(Problem((NodeRoom("n0", {"cpu": 4000}),), (old, hit)), {})
    assert (total(got, "hit"), total(got, "old")) == (3, 0)


@pytest.mark.usefixtures("each_way")
def test_an_app_that_has_waited_too_long_starts_before_smaller_and_younger_ones() -> None:
    small = [AppDemand(f"s{i}", {"cpu": 1000}, 1.0, 1, 1, waited_s=100.0) for i in range(4)]
    for waited_s, expected in ((599.0, 0), (601.0, 3)):
        big = AppDemand("big", {"cpu": 1000}, 1.0, 3, 3, waited_s=waited_s)
        got = DORM.allocate(Problem((NodeRoom("n0", {"cpu": 3000}),), (*small, big)), {})
        assert total(got, "big") == expected
        assert total(got, "big") or sum(total(got, each.id) for each in small) == 3


@pytest.mark.usefixtures("each_way")
def test_reserved_room_goes_to_no_other_app() -> None:
    runs = AppDemand("runs", {"cpu": 1000}, 1.0, 2, 4, {"n0": 2})
    old = AppDemand("old", {"cpu": 4000}, 1.0, 1, 1, waited_s=700.0)
    young = AppDemand("young", {"cpu": 1000}, 1.0, 1, 2)
    got = DORM.allocate(Problem((NodeRoom("n0", {"cpu": 4000}),), (runs, old, young)), {})
    assert got.counts == {"old": {}, "runs": {"n0": 2}, "young": {}}
    assert got.reasons["young"].code == got.reasons["runs"].code == "reserved"


@pytest.mark.usefixtures("each_way")
def test_an_arrival_for_which_three_have_to_shrink_starts_after_rounds_of_one() -> None:
    """Nothing ends here: where θ2 lets one app change in a round, each round clears something, and it starts soon."""
    nodes = tuple(NodeRoom(f"n{j}", {"cpu": 4000}) for j in range(4))
    apps = [AppDemand(f"a{i}", {"cpu": 1000}, 1.0, 1, 4, {f"n{i}": 4}) for i in range(4)]
    late = AppDemand("late", {"cpu": 2000}, 1.0, 3, 3)
    rounds = 0
    for _ in range(6):
        got = DORM.allocate(Problem(nodes, (*apps, late)), {"theta2": 0.1})
        if got.counts["late"]:
            break
        assert got.overhead == 1
        rounds += 1
        assert got.reasons["late"].code == "overhead"
        apps = [AppDemand(each.id, each.demand, 1.0, 1, 4, got.counts[each.id]) for each in apps]
    assert 1 <= rounds <= 2
