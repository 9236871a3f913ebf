"""Numbers at their limits, for every policy: a correct allocation or a clear reason, never an exception."""

from __future__ import annotations

import math

import msgspec
import pytest

from dorm.policies.problem import Allocation, AppDemand, NodeRoom, Problem
from dorm.policies.registry import names, policy
from tests.policies.brute_force import World
from tests.policies.problems import app, node

THREE = tuple(node(f"n{j}", 4, 16) for j in range(3))

OFTEN = (
    "dorm",
    "dorm-exact",
    "dorm-speed",
    "static",
    "task-level",
    "gavel",
    "themis",
    "shockwave",
    "market",
    "sia",
    "oasis",
)
"""One of each family; the others are run less often."""
pytestmark = pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.soak) for name in names()]
)
FIXED = ("static", "tiresias", "fifo", "srtf", "gavel", "shockwave")
"""Policies that give each app a fixed number."""
PARAMS: dict[str, dict[str, object]] = {
    **{name: {"count": 2} for name in FIXED},
    "themis": {"fairness_knob": 0.0},  # All apps bid; otherwise few may get everything.
}


def most_of(name: str, others: int) -> int:
    """How many containers one app gets where there is room for `others`: `oasis` gives it what it needs to be done in one
    slot."""
    return 2 if name in FIXED else min(6, others) if name == "oasis" else others


GOODPUT = ("pollux", "sia")
"""Policies that weigh goodput, and promise no fairness."""


def solve(name: str, nodes: tuple[NodeRoom, ...], *apps: AppDemand) -> Allocation:
    """Solves, and checks what holds of every answer."""
    problem = Problem(nodes, apps)
    got = policy(name).allocate(problem, PARAMS.get(name, {}))
    world = World(problem, {})
    here = {
        each: {place: n for place, n in counts.items() if place in world.room} for each, counts in got.counts.items()
    }
    assert not any(world.overfull(place, here) for place in world.room)
    for each in apps:
        count = sum(got.counts[each.id].values())
        assert count == 0 or each.pinned or each.n_min <= count <= each.n_max
        if count < each.n_max:
            assert got.reasons[each.id].text
    figures = (got.utilization, got.fairness_loss, got.excess, got.bound, got.change_cost)
    assert all(math.isfinite(figure) for figure in figures)
    assert got.utilization - got.change_cost <= got.bound + 1e-6
    assert msgspec.json.decode(msgspec.json.encode(got), type=Allocation) == got
    return got


def total(got: Allocation, name: str) -> int:
    return sum(got.counts[name].values())


def demanding(each: AppDemand, **demand: int) -> AppDemand:
    return msgspec.structs.replace(each, demand=demand)


@pytest.mark.parametrize("weight", [1e-9, 1.0, 1e9])
def test_only_the_ratio_of_weights_matters(name: str, weight: float) -> None:
    apps = (app("heavy", 1, 1, (1, 12), weight=3 * weight), app("light", 1, 1, (1, 12), weight=weight))
    got = solve(name, THREE, *apps)
    usual = solve(name, THREE, *(msgspec.structs.replace(each, weight=each.weight / weight) for each in apps))
    assert got.counts == usual.counts
    assert got.fairness_loss == pytest.approx(usual.fairness_loss)


def test_the_lightest_and_the_heaviest_app_run_together(name: str) -> None:
    got = solve(name, THREE, app("light", 1, 1, (1, 12), weight=1e-9), app("heavy", 1, 1, (1, 12), weight=1e9))
    if name == "oasis":
        assert got.reasons["light"].text.startswith("refused"), "without a utility an app is worth its weight"
        assert total(got, "heavy") >= 1
        return
    assert total(got, "light") >= (0 if name == "sia" else 1), "sia leaves out who adds too little"
    assert total(got, "heavy") >= total(got, "light")
    assert got.shortage == {} or name == "sia"


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_an_invalid_weight_does_no_harm(name: str, weight: float) -> None:
    got = solve(name, THREE, app("odd", 1, 1, (1, 4), weight=weight), app("a", 1, 1, (2, 4)))
    assert total(got, "a") >= 2


def test_demands_of_zero(name: str) -> None:
    none = demanding(app("none", 1, 1, (2, 3)))
    zero = demanding(app("zero", 1, 1, (1, 2)), cpu=0, memory=0, gpu=0)
    got = solve(name, THREE, none, zero, app("a", 1, 1, (1, 12)))
    assert got.shortage == {}
    assert total(got, "none") >= 2
    assert total(got, "zero") >= 1
    alone = solve(name, THREE, none, zero)
    assert alone.shortage == {}
    assert alone.utilization == 0


@pytest.mark.parametrize("current", [{}, {"gone": 2}, {"n0": 1, "gone": 1}])
def test_no_nodes(name: str, current: dict[str, int]) -> None:
    got = solve(name, (), app("a", 1, 1, (2, 4), current))
    assert got.counts == {"a": {}}
    assert got.shortage == {"a": 2}
    assert got.reasons["a"].text == "there are no nodes"


def test_only_drained_nodes(name: str) -> None:
    off = tuple(msgspec.structs.replace(each, drained=True) for each in THREE)
    got = solve(name, off, app("a", 1, 1, (2, 4), {"n0": 2}))
    assert got.counts == {"a": {}}
    assert got.reasons["a"].code == "drained"


def test_no_apps(name: str) -> None:
    assert solve(name, THREE).counts == solve(name, ()).counts == {}


def test_nodes_that_have_nothing(name: str) -> None:
    empty = (NodeRoom("n0", {}), NodeRoom("n1", {"cpu": 0, "memory": 0}))
    got = solve(name, empty, app("a", 1, 1, (1, 4)), demanding(app("zero", 1, 1, (1, 2))))
    assert got.counts["a"] == {}
    assert got.reasons["a"].code == "no_nodes"
    assert total(got, "zero") >= 1


def test_one_node_with_everything(name: str) -> None:
    got = solve(name, (node("n0", 512, 4096, gpu=16),), *(app(f"a{i}", 4, 32, (1, 8), gpu=1) for i in range(8)))
    if name == "oasis":
        assert {got.reasons[each].code for each in got.shortage} == {"queue"}, "their plans start when room is cheaper"
    else:
        assert got.shortage == {}
    assert got.utilization > 1


def test_one_node_that_dwarfs_the_others(name: str) -> None:
    nodes = (node("big", 10_000, 100_000), *THREE)
    apps = tuple(app(f"a{i}", 2, 8, (1, 40)) for i in range(5))
    got = solve(name, nodes, *apps)
    assert got.shortage == {}


@pytest.mark.parametrize("n_min", [13, 10**6, 2**62, 10**30])
def test_n_min_beyond_the_cluster(name: str, n_min: int) -> None:
    got = solve(name, THREE, app("whale", 1, 1, (n_min, n_min)), app("a", 1, 1, (1, 12)))
    assert got.counts["whale"] == {}
    assert got.reasons["whale"].code == "no_nodes"
    assert got.shortage == {"whale": n_min}
    assert total(got, "a") == most_of(name, 12)


@pytest.mark.parametrize("most", [10**6, 2**62, 10**30])
def test_n_max_beyond_the_cluster(name: str, most: int) -> None:
    got = solve(name, THREE, app("a", 1, 1, (1, most)), app("b", 1, 1, (1, most)))
    assert got.shortage == {}
    if name in GOODPUT:
        assert total(got, "a") + total(got, "b") >= 8, "they keep large apps apart, and take whole nodes"
    else:
        assert total(got, "a") == total(got, "b") == most_of(name, 6)


def test_resources_that_only_some_nodes_have(name: str) -> None:
    nodes = (node("cpu", 8, 32), node("gpus", 8, 32, gpu=2), NodeRoom("odd", {"fpga": 1}))
    got = solve(
        name,
        nodes,
        app("g", 1, 1, (1, 2), gpu=1),
        app("a", 1, 1, (2, 12)),
        demanding(app("f", 1, 1, (1, 3)), fpga=1),
        app("both", 1, 1, (1, 1), gpu=1, fpga=1),
    )
    assert got.shortage == {"both": 1}
    assert got.reasons["both"].code == "no_nodes"
    assert got.counts["g"] == {"gpus": 2}
    assert got.counts["f"] == {"odd": 1}


@pytest.mark.parametrize("scale", [1, 10**6, 10**9])
def test_the_unit_of_a_resource_decides_nothing(name: str, scale: int) -> None:
    """Bytes or GiB: the counts are the same."""
    nodes = tuple(NodeRoom(f"n{j}", {"cpu": 4, "memory": 16 * scale}) for j in range(3))
    apps = tuple(demanding(app(f"a{i}", 1, 1, (1, 6)), cpu=1, memory=(i + 1) * scale) for i in range(3))
    plain = tuple(NodeRoom(f"n{j}", {"cpu": 4, "memory": 16}) for j in range(3))
    small = tuple(demanding(each, cpu=1, memory=i + 1) for i, each in enumerate(apps))
    assert solve(name, nodes, *apps).counts == solve(name, plain, *small).counts


@pytest.mark.parametrize("huge", [2**50, 2**63, 10**40])
def test_huge_quantities(name: str, huge: int) -> None:
    """What no machine has: a node of that size holds what it can of ordinary apps, and a demand of that size fits nowhere."""
    nodes = (*THREE, NodeRoom("huge", {"cpu": huge, "memory": huge}))
    wants = demanding(app("wants", 1, 1, (1, 2)), cpu=huge, memory=1)
    got = solve(name, THREE, wants, app("a", 1, 1, (1, 12)))
    assert got.reasons["wants"].code == "no_nodes"
    assert total(got, "a") == most_of(name, 12)
    got = solve(name, nodes, app("a", 1, 1, (1, 12)))
    assert total(got, "a") == most_of(name, 12)


def test_pinned_apps_that_hold_more_than_there_is(name: str) -> None:
    """A node has shrunk below what an app in the middle of its adjustment holds: no other app gets anything there."""
    problem = Problem(THREE, (app("held", 2, 8, (1, 9), {"n0": 9}, pinned=True), app("a", 1, 1, (1, 8))))
    got = policy(name).allocate(problem, PARAMS.get(name, {}))
    assert got.counts["held"] == {"n0": 9}
    assert "n0" not in got.counts["a"]
    assert total(got, "a") >= 1


def test_contradictory_or_empty_bounds_do_no_harm(name: str) -> None:
    """n_min above n_max, bounds of nothing, gangs that do not divide: whatever comes of it, the others run."""
    odd = (
        app("crossed", 1, 1, (4, 2)),
        app("nothing", 1, 1, (0, 0)),
        msgspec.structs.replace(app("gangs", 1, 1, (3, 5)), gang=2),
        msgspec.structs.replace(app("wide", 1, 1, (8, 8)), gang=8),
    )
    problem = Problem(THREE, (*odd, app("a", 1, 1, (1, 4))))
    got = policy(name).allocate(problem, PARAMS.get(name, {}))
    assert total(got, "a") >= 1
    assert total(got, "crossed") == total(got, "nothing") == total(got, "wide") == 0
    assert total(got, "gangs") in (0, 4)


@pytest.mark.parametrize("waited_s", [0.0, 1e300, math.inf])
@pytest.mark.parametrize("adjust_s", [None, 0.0, 1e300, math.inf])
def test_infinite_times_do_no_harm(name: str, waited_s: float, adjust_s: float | None) -> None:
    slow = msgspec.structs.replace(app("slow", 1, 1, (1, 12), {"n0": 2}), adjust_s=adjust_s)
    late = msgspec.structs.replace(app("late", 1, 1, (2, 4)), waited_s=waited_s)
    got = solve(name, THREE, slow, late)
    assert total(got, "late") >= 2
