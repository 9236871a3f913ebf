"""The checker accepts the answers of all our policies, and refuses those that the brute force refuses."""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.policies import checking
from dorm.policies.problem import Allocation, AppDemand, Batch, Plan, Problem, Reason, Slot
from dorm.policies.registry import names, policy
from events.spec.requirements import requirement
from tests.policies.brute_force import World
from tests.policies.problems import DEFAULTS, app, node, problems, slow_machine

ANSWER = Allocation(
    counts={},
    reasons={},
    utilization=0.0,
    fairness_loss=0.0,
    fairness_budget=-1.0,
    excess=0.0,
    overhead=0,
    overhead_budget=-1,
    shortage={},
    status="optimal",
    bound=0.0,
)


@slow_machine
@given(problem=problems(max_apps=4), name=st.sampled_from([name for name in names() if name != "dorm-exact"]))
def test_every_policy_of_ours_passes(problem: Problem, name: str) -> None:
    assert checking.faults(problem, policy(name).allocate(problem, {})) == []


def feasible(problem: Problem, counts: dict[str, dict[str, int]]) -> bool:
    """The rules by maps alone, node by node: a second implementation, in the manner of `brute_force`."""
    nodes = {each.id: each for each in problem.nodes}
    for each in problem.apps:
        given, total = counts[each.id], sum(counts[each.id].values())
        if each.pinned:
            if given != each.current:
                return False
            continue
        for name, count in given.items():
            if name not in nodes or nodes[name].drained or count % each.gang:
                return False
            if not requirement(each.require).matches(nodes[name].labels):
                return False
        if total and (total < each.n_min or total > each.n_max):
            return False
    for name, here in nodes.items():
        for kind in {kind for each in problem.apps for kind in each.demand}:
            held = {each.id: counts[each.id].get(name, 0) * each.demand.get(kind, 0) for each in problem.apps}
            moves = any(held[each.id] for each in problem.apps if not each.pinned)
            if moves and sum(held.values()) > here.capacity.get(kind, 0):
                return False
    return True


@slow_machine
@given(problem=problems(max_apps=3), data=st.data())
def test_it_refuses_exactly_the_answers_that_break_a_rule(problem: Problem, data: st.DataObject) -> None:
    there = [*(each.id for each in problem.nodes), "gone"]
    counts = {
        each.id: each.current
        if each.pinned and data.draw(st.booleans())
        else data.draw(st.dictionaries(st.sampled_from(there), st.integers(1, 3), max_size=2))
        for each in problem.apps
    }
    answer = msgspec.structs.replace(ANSWER, counts=counts)
    assert (checking.faults(problem, answer) == []) == feasible(problem, counts)


@slow_machine
@given(problem=problems(max_apps=3, max_nodes=2), data=st.data())
def test_it_accepts_exactly_the_answers_of_brute_force(problem: Problem, data: st.DataObject) -> None:
    """The brute force lists all answers to a tiny problem; it leaves out answers that stop an app that may continue,
    which some policies do."""
    world = World(problem, DEFAULTS)
    given = list(islice(world.answers(99), 300))
    for answer in given:
        counts = answer | {each.id: each.current for each in problem.apps if each.pinned}
        assert checking.faults(problem, msgspec.structs.replace(ANSWER, counts=counts)) == []
    there = sorted(world.room)
    counts = {
        each.id: each.current
        if each.pinned
        else data.draw(st.dictionaries(st.sampled_from(there), st.integers(1, 3), max_size=2) if there else st.just({}))
        for each in problem.apps
    }
    accepted = checking.faults(problem, msgspec.structs.replace(ANSWER, counts=counts)) == []
    stops = any(world.kept(each) and not counts[each.id] for each in problem.apps)
    overfull = any(
        world.overfull(name, {each.id: each.current if each.pinned else {} for each in problem.apps}) for name in there
    )
    if accepted and not stops and not overfull and len(given) < 300:
        seen = {each.id: world.stays(each) if each.pinned else counts[each.id] for each in problem.apps}
        assert seen in given


PROBLEM = Problem((node("n1", 4, 4),), (app("a", 1, 1, (1, 4)),))


def answered(**changes: Any) -> Allocation:
    return msgspec.structs.replace(ANSWER, **{"counts": {"a": {"n1": 2}}, **changes})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"counts": {}},
        answered(counts=None),
        answered(counts={}),
        answered(counts={"a": {"n1": 2}, "b": {}}),
        answered(counts={"a": ["n1"]}),
        answered(counts={"a": {"n1": 2.0}}),
        answered(counts={"a": {"n1": True}}),
        answered(counts={"a": {"n1": -1}}),
        answered(counts={"a": {"n1": 0}}),
        answered(counts={"a": {1: 1}}),
        answered(counts={"a": {"n1": 2**80}}),
        answered(counts={1: {}}),
        answered(reasons={"a": "because"}),
        answered(reasons={"a": Reason("", "why")}),
        answered(reasons={"a": Reason("queue", "x" * 1001)}),
        answered(reasons={"b": Reason("queue", "x")}),
        answered(reasons={"a": Reason(7, "x")}),  # type: ignore[arg-type]
        answered(utilization=float("nan")),
        answered(utilization=float("inf")),
        answered(fairness_loss="low"),
        answered(bound=float("nan")),
        answered(overhead=1.5),
        answered(overhead=2**60),
        answered(overhead_budget=-2),
        answered(status=""),
        answered(status=None),
        answered(shortage={"a": -1}),
        answered(shortage={"z": 1}),
        answered(batches={"a": 10}),
        answered(plans={"a": Plan(cast("Any", [Slot(0.0, {})]))}),
        answered(plans={"a": Plan((Slot(2.0, {}), Slot(1.0, {})))}),
        answered(plans={"a": Plan((Slot(float("nan"), {}),))}),
        answered(plans={"a": Plan((Slot(1.0, {"n1": 0}),))}),
        answered(plans={"a": (Slot(1.0, {}),)}),
        answered(plans={"a": Plan((), worth=float("nan"))}),
    ],
)
def test_nonsense_is_named_in_short_lines(answer: Any) -> None:
    found = checking.faults(PROBLEM, answer)
    assert found
    assert len(checking.in_words(found)) <= 500
    assert "\n" not in checking.in_words(found)


def test_batches_and_plans_that_make_sense_pass() -> None:
    batch = Batch(initial=8, least=4, most=64, per_container=16, noise=10.0)
    problem = msgspec.structs.replace(PROBLEM, apps=(msgspec.structs.replace(PROBLEM.apps[0], batch=batch),))
    good = answered(batches={"a": 32}, plans={"a": Plan((Slot(0.0, {"n1": 1}), Slot(5.0, {})))})
    assert checking.faults(problem, good) == []
    assert checking.faults(problem, answered(batches={"a": 65})) != []


def test_a_node_overfilled_by_pinned_apps_is_not_a_fault_of_the_answer() -> None:
    pinned = AppDemand("p", {"cpu": 3000}, 1.0, 1, 2, current={"n1": 2}, pinned=True)
    other = AppDemand("q", {"gpu": 1}, 1.0, 1, 2)
    problem = Problem((node("n1", 4, 4, gpu=1),), (pinned, other))
    assert checking.faults(problem, answered(counts={"p": {"n1": 2}, "q": {"n1": 1}})) == []
    assert checking.faults(problem, answered(counts={"p": {"n1": 2}, "q": {"n1": 2}})) != []


def test_each_policy_accepts_its_own_defaults() -> None:
    """The fold relies on it: it loads no policy to check that nothing was set."""
    for name in names():
        policy(name).check_params({})
