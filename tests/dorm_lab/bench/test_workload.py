"""Sequences of problems are as described, equal for equal seeds, and follow the answers."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import pytest

from dorm.bench import BenchError
from dorm.policies.problem import AppDemand, Problem
from dorm.policies.registry import policy
from dorm_lab.bench.optimizer.samples import Run, goals
from dorm_lab.bench.optimizer.typed import LATEST_S, MOST_FASTER, NOISE, Types
from dorm_lab.bench.optimizer.workload import EVENT_S, Event, World
from events.spec.requirements import requirement
from tests.errors import raises

SIZES = [(1, 1, 1), (5, 4, 3), (10, 20, 3), (30, 20, 2), (100, 100, 12)]


def played(world: World, events: int, count: int = 2) -> list[tuple[Event, Problem]]:
    """The given number of events, answered by the static policy with this many containers each."""
    found = []
    for _ in range(events):
        problem = world.next_problem()
        found.append((world.event, problem))
        world.apply(policy("static").allocate(problem, {"count": count, "backfill": True}))
    return found


def total(problem: Problem, kind: str) -> int:
    return sum(node.capacity.get(kind, 0) for node in problem.nodes)


@pytest.mark.parametrize("labels", [False, True])
def test_a_seed_gives_the_same_sequence_and_another_seed_another(labels: bool) -> None:
    first, second, other = (
        played(World(apps=10, nodes=8, shapes=4, seed=seed, labels=labels), 40) for seed in (3, 3, 4)
    )
    assert first == second
    assert [problem for _, problem in first] != [problem for _, problem in other]


def test_arrivals_and_lost_nodes_do_not_depend_on_the_answers() -> None:
    few, many = (played(World(apps=12, nodes=30, shapes=3, seed=5), 150, count) for count in (1, 6))
    assert [event.kind for event, _ in few] == [event.kind for event, _ in many]
    for (left, _), (right, _) in zip(few, many, strict=True):
        if left.kind != "completion":
            assert left == right
    assert few[-1][1].apps != many[-1][1].apps


@pytest.mark.parametrize(("apps", "nodes", "shapes"), SIZES)
@pytest.mark.parametrize("labels", [False, True])
def test_the_cold_start_has_everything_at_once_and_contention(apps: int, nodes: int, shapes: int, labels: bool) -> None:
    world = World(apps=apps, nodes=nodes, shapes=shapes, seed=apps, labels=labels)
    problem = world.next_problem()
    assert (world.event, world.number, world.now) == (Event("cold start", ""), 1, 0.0)
    assert (len(problem.apps), len(problem.nodes)) == (apps, nodes)
    assert len({tuple(sorted(node.capacity.items())) for node in problem.nodes}) == min(shapes, nodes)
    for app in problem.apps:
        check(app, problem)
        assert (app.current, app.waited_s, app.pinned) == ({}, 0.0, False)
    assert len({app.id for app in problem.apps}) == apps
    assert len({node.id for node in problem.nodes}) == nodes
    if apps >= 10:
        for kind in ("cpu", "gpu"):
            wanted = sum(app.n_max * app.demand.get(kind, 0) for app in problem.apps)
            assert 1.4 <= wanted / max(1, total(problem, kind)) <= 2.6 or wanted == 0
            assert sum(app.n_min * app.demand.get(kind, 0) for app in problem.apps) <= total(problem, kind)


def check(app: AppDemand, problem: Problem) -> None:
    assert 1 <= app.n_min <= app.n_max
    assert app.n_min % app.gang == app.n_max % app.gang == 0
    assert 1000 <= app.demand["cpu"] <= 8000
    assert 1 <= app.demand.get("gpu", 1) <= 4
    assert app.adjust_s is None or 2 <= app.adjust_s <= 120
    if app.require:
        assert requirement(app.require).matches({"zone": "a", "gpu_type": app.require.split('"')[1]})
    if "gpu" in app.demand:
        assert total(problem, "gpu") > 0


def test_without_gpus_there_are_none_and_without_labels_nothing_asks_for_them() -> None:
    for _, problem in played(World(apps=20, nodes=10, shapes=6, seed=1, gpus=False), 30):
        assert all("gpu" not in room.capacity and not room.labels for room in problem.nodes)
        assert all("gpu" not in app.demand for app in problem.apps)
        assert all((app.require, app.placement, app.gang) == ("", "", 1) for app in problem.apps)
    labelled = [p for _, p in played(World(apps=40, nodes=20, shapes=3, seed=1, labels=True), 30)]
    apps = [app for problem in labelled for app in problem.apps]
    assert {app.placement for app in apps} == {"", "spread", "pack"}
    assert {app.gang for app in apps} == {1, 2}
    assert len({app.require for app in apps}) >= 2


def test_the_population_hovers_and_nodes_leave_and_return() -> None:
    events = played(World(apps=12, nodes=30, shapes=3, seed=7), 600)
    kinds = Counter(event.kind for event, _ in events)
    assert kinds.keys() == {"cold start", "arrival", "completion", "node lost", "node back"}
    assert kinds["cold start"] == 1
    assert kinds["arrival"] + kinds["completion"] > 500
    assert 1 <= kinds["node lost"] <= 40
    assert all(6 <= len(problem.apps) <= 18 for _, problem in events)
    assert all(27 <= len(problem.nodes) <= 30 for _, problem in events)
    assert {event.kind for event, problem in events if len(problem.nodes) < 30} >= {"arrival", "completion"}


def test_each_event_makes_one_change() -> None:
    events = played(World(apps=8, nodes=12, shapes=3, seed=11), 300)
    for (_, before), (event, after) in itertools.pairwise(events):
        apps = {app.id for app in before.apps} ^ {app.id for app in after.apps}
        nodes = {node.id for node in before.nodes} ^ {node.id for node in after.nodes}
        assert apps | nodes == {event.subject}
        if event.kind == "completion":
            assert event.subject in {app.id for app in before.apps}
        if event.kind == "arrival":
            assert after.apps[-1].id == event.subject


def test_apps_stay_where_the_last_answer_placed_them_even_on_lost_nodes() -> None:
    world = World(apps=12, nodes=10, shapes=3, seed=2)
    counts: dict[str, dict[str, int]] = {}
    on_lost_nodes = 0
    for _ in range(300):
        problem = world.next_problem()
        for app in problem.apps:
            assert app.current == counts.get(app.id, {})
            on_lost_nodes += world.event.kind == "node lost" and world.event.subject in app.current
        allocation = policy("static").allocate(problem, {})
        counts = allocation.counts
        world.apply(allocation)
    assert on_lost_nodes > 0


def test_waiting_is_measured_from_arrival_and_from_being_stopped() -> None:
    world = World(apps=3, nodes=4, shapes=1, seed=0)
    first = world.next_problem().apps[0].id
    names = [app.id for app in world.problem().apps]
    world.place({name: {"n00001": 1} if name == first else {} for name in names})
    waits = {app.id: app.waited_s for app in world.problem().apps}
    assert waits == dict.fromkeys(names, 0.0)
    world.number += 2
    assert {app.id: app.waited_s for app in world.problem().apps} == {
        name: 0.0 if name == first else 2 * EVENT_S for name in names
    }
    world.place({name: {"n00002": 1} if name == names[1] else {} for name in names})
    world.number += 1
    assert [app.waited_s for app in world.problem().apps] == [EVENT_S, 0.0, 3 * EVENT_S]


def test_an_answer_has_to_name_every_app() -> None:
    world = World(apps=2, nodes=1, shapes=1, seed=0)
    world.next_problem()
    with pytest.raises(KeyError):
        world.place({})


@pytest.mark.parametrize(("apps", "nodes", "shapes"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_cluster_of_nothing_is_refused(apps: int, nodes: int, shapes: int) -> None:
    with raises(BenchError, "bench.too_small"):
        World(apps=apps, nodes=nodes, shapes=shapes, seed=0)


@pytest.mark.parametrize("gpus", [False, True])
def test_all_shapes_differ(gpus: bool) -> None:
    nodes = World(apps=1, nodes=1000, shapes=1000, seed=0, gpus=gpus).next_problem().nodes
    assert len({tuple(node.capacity.items()) for node in nodes}) == 1000
    with raises(BenchError, "bench.too_many_shapes", "1000"):
        World(apps=1, nodes=1, shapes=1001, seed=0)


def test_problems_can_be_written_down() -> None:
    problem = World(apps=5, nodes=4, shapes=3, seed=0, labels=True).next_problem()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(problem), type=Problem) == problem


def typed(seed: int) -> list[Problem]:
    world, types, found = World(apps=20, nodes=12, shapes=3, seed=seed), Types(3, seed), []
    for _ in range(80):
        problem = types.problem(world.next_problem())
        found.append(problem)
        world.apply(policy("static").allocate(problem, {"count": 3, "backfill": True}))
    return found


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return typed(4)


def test_a_seed_gives_the_same_problems(problems: list[Problem]) -> None:
    assert typed(4) == problems
    assert typed(5) != problems


def test_nodes_have_types_and_keep_them(problems: list[Problem]) -> None:
    of = {node.id: node.type for problem in problems for node in problem.nodes}
    assert set(of.values()) == {"type-0", "type-1", "type-2"}
    assert all(node.type == of[node.id] for problem in problems for node in problem.nodes)


def test_some_apps_declare_their_speed_and_all_that_run_are_measured(problems: list[Problem]) -> None:
    apps = {app.id: app for problem in problems for app in problem.apps}.values()
    assert any(app.speed_on for app in apps)
    assert any(app.speed for app in apps)
    assert any(not app.speed and not app.speed_on for app in apps)
    for app in apps:
        assert app.remaining_steps is not None
        assert app.remaining_steps >= 1
        assert bool(app.measured) == (app.served_s > 0)


def test_a_minute_adds_to_the_point_of_the_present_partition(problems: list[Problem]) -> None:
    """What was measured of an app that declares its speed is off by the noise alone."""
    seen = longest = 0.0
    for before, after in itertools.pairwise(problems):
        earlier = {app.id: app for app in before.apps}
        for app in after.apps:
            if app.id in earlier and app.current and sum(app.current.values()) == 3:
                was = earlier[app.id]
                assert app.served_s == was.served_s + 3 * EVENT_S
                assert app.age_s == was.age_s + EVENT_S
            for point in app.measured:
                longest = max(longest, point.seconds)
                if app.speed_on and point.type and dict(app.speed_on[point.type]).get(point.containers):
                    seen += 1
                    true = dict(app.speed_on[point.type])[point.containers]
                    assert point.steps_per_s == pytest.approx(true, rel=1.01 * NOISE)
    assert seen
    assert LATEST_S / 2 < longest <= LATEST_S


def test_types_matter_to_about_half_of_the_apps(problems: list[Problem]) -> None:
    declared = {app.id: app for problem in problems for app in problem.apps if app.speed or app.speed_on}.values()
    for app in declared:
        if app.speed_on:
            first = [dict(points)[1] for points in app.speed_on.values()]
            assert 1 < max(first) / min(first) < MOST_FASTER
    assert 0.2 < sum(bool(app.speed_on) for app in declared) / len(declared) < 0.8


def test_the_size_that_has_a_goal() -> None:
    assert goals(Run(apps=2_000, nodes=10_000, shapes=3, events=1, types=3, policy="dorm-speed")).p50_s == "<= 0.5"
