"""Live apps that move into each other's room: no decision makes them wait for each other without end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.policies import registry as policies
from dorm.policies.problem import Allocation, Problem
from events import kinds as k
from tests.core.decide.test_live import bench_of, current, kinds, only, start, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.core.records import Bench


class Told:
    """Gives each app the containers that the test names, by its first letter."""

    name = "told"
    version = 1
    counts: dict[str, dict[str, int]]

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return params

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        counts = {
            app.id: dict(app.current) if app.pinned else dict(self.counts.get(app.id[0], app.current))
            for app in problem.apps
        }
        return Allocation(
            counts=counts, reasons={}, utilization=0.0, fairness_loss=0.0, fairness_budget=-1.0, excess=0.0,
            overhead=sum(bool(app.current) and counts[app.id] != app.current for app in problem.apps),
            overhead_budget=-1, shortage={}, status="optimal", bound=0.0,
        )  # fmt: skip


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Told]]:
    monkeypatch.setitem(policies._REGISTRY, "told", (__name__, "Told"))
    policies._own.cache_clear()
    yield Told
    policies._own.cache_clear()


def cluster(told: type[Told], counts: dict[str, dict[str, int]], cores: int = 3) -> Bench:
    """Three nodes, and live apps that train with these containers."""
    bench = bench_of(cores, cores, cores)
    bench.add(k.PolicyChanged(policy="told"))
    told.counts = counts
    for name in counts:
        bench.submit(name, n_max=4, elastic="live")
    bench.settle()
    for name in counts:
        bench.started(name)
    bench.settle()
    return bench


def decided(bench: Bench, told: type[Told], counts: dict[str, dict[str, int]]) -> tuple[list[Any], dict[str, str]]:
    told.counts = counts
    bench.add(k.PolicyChanged(policy="told", idle_s=11))
    said = bench.settle()
    return said, {change.app[0]: change.adjustment for change in only(said, k.Resized).changes}


def test_one_of_two_apps_that_swap_rooms_is_restarted(told: type[Told]) -> None:
    bench = cluster(told, {"x": {"a": 2, "b": 1}, "y": {"a": 1, "b": 2}})
    _, adjustments = decided(bench, told, {"x": {"a": 3}, "y": {"b": 3}})
    assert adjustments == {"x": "restart", "y": "live"}
    bench.all_exited("x", 143, generation=1, asked=True)
    released = only(bench.settle(), k.MembersReleased)
    assert released.app == bench.app("y").id
    (leaver,) = released.leavers
    start(bench, *released.newcomers, name="y")
    train(bench, "y", change="move")
    bench.settle()
    node = current(bench, "y").leaving[leaver].node
    bench.add(k.ContainerExited(app=bench.app("y").id, generation=1, slot=leaver, node=node, exit_code=0))
    assert "GenerationReleased" in kinds(bench.settle())
    bench.started("x")
    bench.settle()
    assert {name: current(bench, name).by_node() for name in "xy"} == {"x": {"a": 3}, "y": {"b": 3}}
    assert {bench.app(name).phase for name in "xy"} == {"running"}


def test_one_of_three_apps_that_move_in_a_ring_is_restarted(told: type[Told]) -> None:
    rows = {"x": {"a": 2, "b": 1}, "y": {"b": 2, "c": 1}, "z": {"c": 2, "a": 1}}
    bench = cluster(told, rows)
    _, adjustments = decided(bench, told, {"x": {"a": 3}, "y": {"b": 3}, "z": {"c": 3}})
    assert adjustments == {"x": "restart", "y": "live", "z": "live"}


def test_apps_that_move_one_after_the_other_stay_live(told: type[Told]) -> None:
    """y moves to a free node, and x to where y was."""
    bench = cluster(told, {"x": {"a": 2, "b": 1}, "y": {"a": 1, "b": 2}})
    said, adjustments = decided(bench, told, {"x": {"a": 3}, "y": {"b": 2, "c": 1}})
    assert adjustments == {"x": "live", "y": "live"}
    assert [fact.app[0] for fact in said if isinstance(fact, k.MembersReleased)] == ["y"]


def test_an_app_that_shrinks_for_another_waits_for_nothing(told: type[Told]) -> None:
    bench = cluster(told, {"x": {"a": 2, "b": 1}, "y": {"a": 1, "b": 2}})
    _, adjustments = decided(bench, told, {"x": {"a": 3}, "y": {"b": 2}})
    assert adjustments == {"x": "live", "y": "live"}
