"""The policy `dorm` where things go wrong: another order or hash seed, a solver that fails, input without sense.

Most is asked of both ways through the policy: tiny problems solved at once, and counts, places and polish.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies.dorm import counts, optimizer
from dorm.policies.exact import model
from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm_lab.bench.optimizer import judge
from dorm_lab.bench.optimizer.workload import World
from tests.policies.exact.test_exact_policy import check_promises
from tests.policies.problems import GIB, PARAMS, app, node, problems, slow_machine
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Callable

DORM = policy("dorm")
encode = msgspec.json.encode


@pytest.fixture(params=["as it is", "nothing is tiny"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "nothing is tiny":
        monkeypatch.setattr(optimizer, "TINY", 0)


# Same problem, same answer


def played(apps: int, nodes: int, shapes: int, events: int, order: Random | None = None) -> list[Allocation]:
    """Answers to a sequence, with the nodes of each problem in another order where one is given."""
    world = World(apps=apps, nodes=nodes, shapes=shapes, seed=11, labels=True)
    answers = []
    for _ in range(events):
        problem = world.next_problem()
        if order is not None:
            rooms = list(problem.nodes)
            order.shuffle(rooms)
            problem = Problem(tuple(rooms), problem.apps)
        answers.append(DORM.allocate(problem, {}))
        world.apply(answers[-1])
    return answers


@functools.cache
def in_order(apps: int, nodes: int, shapes: int, events: int) -> list[Allocation]:
    """As `played`, once for all tests of this process."""
    return played(apps, nodes, shapes, events)


SIZES = [(6, 5, 3, 6), (30, 20, 3, 3), (200, 300, 12, 2)]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_the_order_of_nodes_decides_nothing(size: tuple[int, int, int, int]) -> None:
    first, again = in_order(*size), played(*size, order=Random(1))
    assert sum(sum(each.values()) for each in first[-1].counts.values()) > 6
    assert encode(first) == encode(again)


@settings(slow_machine, max_examples=tries(4, 200))
@given(problems(max_apps=6, max_nodes=4, most=6), PARAMS, st.randoms(use_true_random=False))
def test_the_order_of_nodes_decides_nothing_on_tiny_clusters(
    problem: Problem, params: dict[str, float], random: Random
) -> None:
    nodes = list(problem.nodes)
    random.shuffle(nodes)
    other = Problem(tuple(nodes), problem.apps)
    assert encode(DORM.allocate(problem, params)) == encode(DORM.allocate(other, params))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "TINY", 0)
        assert encode(DORM.allocate(problem, params)) == encode(DORM.allocate(other, params))


@pytest.mark.usefixtures("each_way")
def test_the_order_within_maps_decides_nothing() -> None:
    """Capacities, demands, labels and current containers named in another order."""
    world = World(apps=8, nodes=6, shapes=3, seed=4, labels=True)
    world.apply(DORM.allocate(world.next_problem(), {}))
    problem = world.next_problem()
    nodes = tuple(
        msgspec.structs.replace(each, capacity=turned(each.capacity), labels=turned(each.labels))
        for each in problem.nodes
    )
    apps = tuple(
        msgspec.structs.replace(each, demand=turned(each.demand), current=turned(each.current)) for each in problem.apps
    )
    assert encode(DORM.allocate(problem, {})) == encode(DORM.allocate(Problem(nodes, apps), {}))


def turned(mapping: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(mapping.items()))


@pytest.mark.soak
@pytest.mark.slow
def test_the_hash_seed_decides_nothing() -> None:
    program = (
        "import sys; from tests.policies.dorm.test_optimizer_edges import *\n"
        "sys.stdout.buffer.write(encode([played(*size) for size in SIZES]))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "31337" if os.environ.get("PYTHONHASHSEED") != "31337" else "0"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
    ).stdout
    assert len(there) > 10_000
    assert there == encode([in_order(*size) for size in SIZES])


# When the solver fails


def raises(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the solver has crashed")


def gives_none(*_: Any, **__: Any) -> Any:
    return None


def result(x: Any, status: int = 0, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        x=x, status=status, success=status == 0, message="(HiGHS Status 0)", mip_dual_bound=-np.inf, **more
    )


def line(value: float, length: int | None = None) -> Callable[..., Any]:
    """A linear program with the same nonsense in every column and every dual."""

    def linprog(cost: Any, *_: Any, **named: Any) -> Any:
        rows = named["A_ub"].shape[0] if length is None else length
        x = np.full(len(cost) if length is None else length, value)
        return result(x, fun=value, ineqlin=SimpleNamespace(marginals=np.full(rows, value)))

    return linprog


def whole(value: float, length: int | None = None) -> Callable[..., Any]:
    def milp(cost: Any, **_: Any) -> Any:
        return result(np.full(len(cost) if length is None else length, value), fun=value)

    return milp


def no_x(*_: Any, **__: Any) -> Any:
    return result(None, 4, fun=None, ineqlin=None)


LINE = {
    "raises": raises,
    "gives none": gives_none,
    "has no x": no_x,
    "too much": line(1e7),
    "less than nothing": line(-7.0),
    "not a number": line(np.nan),
    "infinite": line(np.inf),
    "too short": line(0.0, 1),
}
WHOLE = {
    "raises": raises,
    "gives none": gives_none,
    "has no x": no_x,
    "too much": whole(1e9),
    "three of all": whole(3.0),
    "less than nothing": whole(-7.0),
    "not a number": whole(np.nan),
    "too short": whole(1.0, 1),
}
LOUD = ("raises", "gives none", "has no x", "not a number", "infinite", "too short")
"""Parts of an answer that no caller can accept; the rest may look like one."""


def answers_that_stand() -> list[Allocation]:
    """Some events on a small and on a larger cluster, each answer valid."""
    answers = []
    for apps, nodes, seed in ((6, 5, 1), (6, 5, 2), (12, 10, 3)):
        world = World(apps=apps, nodes=nodes, shapes=3, seed=seed, labels=True)
        for _ in range(tries(2, 5)):
            problem = world.next_problem()
            got = DORM.allocate(problem, {})
            assert judge.faults(problem, got.counts) == []
            check_promises(problem, got)
            assert got.utilization > 0.3
            answers.append(got)
            world.apply(got)
    return answers


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("how", LINE)
def test_when_the_linear_program_fails_the_greedy_answer_remains(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "TINY", 0)
    monkeypatch.setattr(counts, "linprog", LINE[how])
    statuses = {got.status for got in answers_that_stand()}
    assert statuses == {"fallback"} if how in LOUD else statuses <= {"near", "fallback"}


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("how", WHOLE)
def test_when_the_integer_program_fails_the_previous_answer_remains(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "milp", WHOLE[how])
    statuses = {got.status for got in answers_that_stand()}
    assert "fallback" in statuses
    assert "optimal" not in statuses or how not in LOUD


@pytest.mark.usefixtures("each_way")
def test_without_a_solver_there_is_an_answer_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "linprog", raises)
    monkeypatch.setattr(model, "milp", raises)
    assert {got.status for got in answers_that_stand()} == {"fallback"}
    answers = played(200, 300, 12, 2)
    assert [got.status for got in answers] == ["fallback", "fallback"]
    assert answers[0].utilization > 1.0
    assert len(answers[0].shortage) <= 2


# Bad input

TWO = (node("n0", 4, 8), node("n1", 4, 8))
FINE = app("fine", 1, 1, (1, 9))


def bad(**changes: Any) -> AppDemand:
    return msgspec.structs.replace(app("bad", 1, 1, (1, 3)), **changes)


STRANGE: dict[str, tuple[tuple[NodeRoom, ...], AppDemand]] = {
    "no demand": (TWO, bad(demand={})),
    "demands of zero": (TWO, bad(demand={"cpu": 0, "memory": 0})),
    "demands of zero, running": (TWO, bad(demand={"cpu": 0}, current={"n0": 1})),
    "what no node has": (TWO, bad(demand={"cpu": 1000, "tpu": 1})),
    "what no node has, running": (TWO, bad(demand={"cpu": 1000, "tpu": 1}, current={"n1": 1})),
    "what one node has": ((*TWO, node("n2", 4, 8, gpu=1)), bad(demand={"cpu": 1000, "gpu": 1})),
    "n_min beyond the cluster": (TWO, bad(n_min=50, n_max=60)),
    "a light weight": (TWO, bad(weight=1e-9)),
    "a heavy weight": (TWO, bad(weight=1e9)),
    "no weight": (TWO, bad(weight=0.0)),
    "huge demand": (TWO, bad(demand={"cpu": 2**62})),
    "huge n_max": (TWO, bad(n_max=2**62)),
    "huge all": (
        (*TWO, NodeRoom("n2", {"cpu": 2**62, "memory": 2**62})),
        bad(demand={"cpu": 1, "memory": 1}, n_max=4_000),
    ),
    "huge containers": ((*TWO, NodeRoom("n2", {"cpu": 2**62, "memory": 2**62})), bad(demand={"cpu": 2**45})),
    "huge gang": (TWO, bad(gang=2**40, n_min=2**40, n_max=2**41)),
    "no labels": (TWO, bad(require='zone == "a"')),
    "unreadable": (TWO, bad(require="this is ((( not")),
    "unreadable, running": (TWO, bad(require="= =", current={"n0": 1})),
    "unreadable, pinned": (TWO, bad(require="= =", current={"n0": 1}, pinned=True)),
    "a node with nothing": ((NodeRoom("n2", {}), *TWO), bad()),
    "a node with less than nothing": ((NodeRoom("n2", {"cpu": -1000, "memory": 8 * GIB}), *TWO), bad()),
    "waits for ever": (TWO, bad(waited_s=1e300)),
    "costs everything": (TWO, bad(adjust_s=1e300, current={"n0": 1})),
    "odd gang": (TWO, bad(gang=2)),
    "everywhere": ((node("n0", 4000, 8000), *TWO[1:]), bad(n_max=3000)),
}
NEVER_RUN = (
    "what no node has", "what no node has, running", "n_min beyond the cluster", "huge demand", "huge gang",
    "no labels", "unreadable", "unreadable, running",
)  # fmt: skip


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("params", [{}, {"theta1": 0.0, "theta2": 1.0, "floor": 1.0, "patience_s": 0.0}])
@pytest.mark.parametrize("case", STRANGE)
def test_strange_input_is_placed_or_refused_with_a_reason_without_harm(case: str, params: dict[str, float]) -> None:
    nodes, strange = STRANGE[case]
    problem = Problem(nodes, (strange, FINE))
    got = DORM.allocate(problem, params)
    readable = strange if "unreadable" not in case else bad(current=strange.current, pinned=strange.pinned)
    assert judge.faults(Problem(tuple(each for each in nodes if min(each.capacity.values(), default=0) >= 0),
                                (readable, FINE)), got.counts) == []  # fmt: skip
    number = sum(got.counts["bad"].values())
    assert ("bad" in got.reasons) == (number < strange.n_max)
    if case in NEVER_RUN:
        assert number == 0
        assert got.shortage["bad"] == strange.n_min
        assert got.reasons["bad"].code in ("no_nodes", "constraint")
        assert sum(got.counts["fine"].values()) >= 8
    else:
        assert number >= strange.n_min
        assert sum(got.counts["fine"].values()) >= 1
    assert 0.0 <= got.utilization <= 3.0
    assert np.isfinite([got.fairness_loss, got.excess, got.change_cost, got.bound]).all()


@pytest.mark.usefixtures("each_way")
def test_all_strange_inputs_together_do_no_harm() -> None:
    strange = [
        msgspec.structs.replace(each, id=f"{name}") for name, (rooms, each) in STRANGE.items() if not each.current
    ]
    rooms = {
        room.id: room for nodes, _ in STRANGE.values() for room in nodes if min(room.capacity.values(), default=0) >= 0
    }
    problem = Problem(tuple(rooms.values()), (*strange, FINE))
    got = DORM.allocate(problem, {})
    for name in NEVER_RUN:
        if name == "n_min beyond the cluster" or "running" in name:
            continue
        assert got.counts[name] == {}, name
        assert got.reasons[name].text
    assert got.counts["fine"]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("nodes", [(), (NodeRoom("n0", {"cpu": 4000, "memory": 8 * GIB}, drained=True),)])
def test_no_nodes_at_all(nodes: tuple[NodeRoom, ...]) -> None:
    held = app("held", 1, 1, (1, 2), {"n0": 1}, pinned=True)
    problem = Problem(nodes, (app("waits", 1, 1, (1, 2)), app("ran", 1, 1, (1, 2), {"n0": 2}), held))
    got = DORM.allocate(problem, {})
    assert got.counts == {"held": {"n0": 1}, "ran": {}, "waits": {}}
    assert got.shortage == {"ran": 1, "waits": 1}
    assert {got.reasons[name].code for name in ("ran", "waits")} == {"drained" if nodes else "no_nodes"}
    assert DORM.allocate(Problem(nodes, ()), {}).counts == {}
