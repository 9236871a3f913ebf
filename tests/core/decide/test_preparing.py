"""An unforced restart waits until the new containers are prepared, and costs the app only the rest."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.costs import cost_s
from dorm.core.preparing import PREPARE_S
from events import kinds as k
from events import subjects
from events.codec import encode
from events.quantities import SECOND
from tests.core.records import CLUSTER, Bench, joined


def bench_of(*, prepares: bool = True) -> Bench:
    """Nodes a and b, with an app that has all four containers."""
    bench = Bench()
    for node in "ab":
        bench.add(joined(node, 2, prepares=prepares))
    bench.running(n_max=4)
    return bench


def shrink(bench: Bench) -> k.Resize:
    bench.submit("other", n_max=1)
    said = bench.settle()
    (resized,) = [fact for fact in said if isinstance(fact, k.Resized) and fact.changes]
    (change,) = [change for change in resized.changes if change.app == bench.app().id]
    return change


def prepared(bench: Bench, node: str, who: str = "", **fields: Any) -> None:
    app = bench.app()
    event = k.ContainersPrepared(**{"app": app.id, "generation": app.generation, "node": node, "created": 2, **fields})
    bench.raw(subjects.fact(CLUSTER, "ContainersPrepared", who or node), encode(event))


def stop(bench: Bench) -> k.GenerationReleased:
    app = bench.app()
    bench.all_exited(generation=app.generation - 1, code=143, asked=True)
    (released,) = [fact for fact in bench.settle() if isinstance(fact, k.GenerationReleased) and fact.app == app.id]
    return released


def test_it_works_on_until_all_nodes_are_ready() -> None:
    bench = bench_of()
    change = shrink(bench)
    assert (change.adjustment, change.prepare_s) == ("restart", PREPARE_S)
    app = bench.app()
    nodes = sorted({placed.node for placed in change.placement})
    assert app.generations[2].preparing == nodes
    for node in nodes:
        bench.wait(2)
        prepared(bench, node)
    assert app.generations[2].preparing == []
    assert app.generations[2].prepared_at == bench.now
    bench.wait(3)
    released = stop(bench)
    assert (released.prepare_s, released.stop_s) == (2.0 * len(nodes), 3.0)
    bench.wait(1)
    bench.started()
    record = app.history[-1]
    assert record.prepared_at == record.decided_at + 2 * len(nodes) * SECOND
    assert cost_s(record) == 4.0, "from then on it stood still"


def test_a_deadline_bounds_the_wait() -> None:
    bench = bench_of()
    shrink(bench)
    bench.wait(PREPARE_S + 5)
    released = stop(bench)
    assert (released.prepare_s, released.stop_s) == (PREPARE_S, 5.0)


def test_an_app_that_ended_meanwhile_is_not_waited_for() -> None:
    bench = bench_of()
    shrink(bench)
    bench.wait(1)
    released = stop(bench)
    assert (released.prepare_s, released.stop_s) == (1.0, 0.0)


def test_agents_that_do_not_report_are_not_waited_for() -> None:
    assert shrink(bench_of(prepares=False)).prepare_s == 0


def test_containers_that_must_leave_a_node_do_not_wait() -> None:
    bench = Bench()
    for node in "abc":
        bench.add(joined(node, 2, prepares=True))
    bench.running(n_min=1, n_max=4)
    bench.add(k.NodeDrainRequested(node=bench.placed()))
    changes = [change for fact in bench.settle() if isinstance(fact, k.Resized) for change in fact.changes]
    assert [(change.adjustment, change.prepare_s) for change in changes] == [("restart", 0.0)]


@pytest.mark.parametrize("fields", [{"generation": 7}, {"identity": "another"}, {"who": "b"}, {"app": "nobody"}])
def test_invalid_reports_are_ignored(fields: dict[str, Any]) -> None:
    bench = bench_of()
    shrink(bench)
    before = list(bench.app().generations[2].preparing)
    prepared(bench, "a", **fields)
    assert bench.app().generations[2].preparing == before
