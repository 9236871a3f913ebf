"""Drains for maintenance, forgotten nodes, a pause of all scheduling, and retries ahead of time."""

from __future__ import annotations

import msgspec
import pytest

from dorm.core.query.views import node_rows, paused_text, sizes
from dorm.core.state import digest
from dorm.core.timing import next_deadline
from events import kinds as k
from events.kinds import GenerationFailed, GenerationReleased, Resized
from tests.core.records import Bench, joined


def shown(bench: Bench) -> dict[str, str]:
    return {row.name: row.condition for row in node_rows(bench.state)}


# --- maintenance --------------------------------------------------------------------------------------------------------


def test_a_node_in_maintenance_is_empty_and_may_be_silent() -> None:
    bench = Bench(a=2, b=2)
    bench.running("app")
    node = bench.placed()
    bench.add(k.NodeDrainRequested(node=node, maintenance=True))
    bench.settle()
    assert node not in sizes(bench.app())
    bench.conclude(**{node: 1e6})
    assert shown(bench)[node] == "maintenance"
    bench.add(joined(node), node)
    assert shown(bench)[node] == "maintenance"  # Whatever is restarted meanwhile.
    bench.add(k.NodeDrainRequested(node=node))
    assert shown(bench)[node] == "maintenance"  # It is drained already.
    bench.add(k.NodeDrainRequested(node=node, until_rejoin=True))
    assert shown(bench)[node] == "maintenance"
    bench.add(k.NodeDrainRequested(node=node, drain=False))
    assert shown(bench)[node] == "up"


def test_a_drained_node_may_go_into_maintenance() -> None:
    bench = Bench(a=2)
    bench.add(k.NodeDrainRequested(node="a"))
    assert shown(bench) == {"a": "draining"}
    bench.add(k.NodeDrainRequested(node="a", maintenance=True))
    assert shown(bench) == {"a": "maintenance"}


# --- forgotten nodes ----------------------------------------------------------------------------------------------------


def test_a_node_is_forgotten_once_nothing_of_it_can_run() -> None:
    bench = Bench(a=2, b=2)
    bench.running("app")
    node = bench.placed()
    before = bench.state.counters.ignored
    bench.add(k.NodeForgetRequested(node=node))
    bench.conclude(**{node: 20.0})
    assert shown(bench)[node] == "lost"
    bench.add(k.NodeForgetRequested(node=node))  # Its containers may still run.
    assert (bench.state.counters.ignored, node in bench.state.nodes) == (before + 2, True)
    bench.conclude(**{node: 1e6})
    bench.add(k.NodeForgetRequested(node=node))
    assert node not in bench.state.nodes
    bench.settle()
    assert node not in sizes(bench.app())
    bench.add(k.NodeForgetRequested(node=node))
    assert bench.state.counters.ignored == before + 3


def test_a_forgotten_node_joins_again_as_a_new_one() -> None:
    bench = Bench(a=2)
    bench.add(k.NodeDrainRequested(node="a"))
    bench.add(k.NodeLeft(node="a"))
    bench.add(k.NodeForgetRequested(node="a"))
    assert bench.state.nodes == {}
    bench.add(joined("a", identity="f" * 32), "a")
    assert shown(bench) == {"a": "up"}  # What it was drained for is forgotten too.
    bench.running("app")
    assert list(sizes(bench.app())) == ["a"]


def test_a_decision_that_missed_the_removal_changes_nothing() -> None:
    """The node leaves and is forgotten after the decision's basis."""
    bench = Bench(a=2, b=2)
    bench.add(k.NodeDrainRequested(node="b"))
    bench.submit("app")
    bench.decide()
    facts, basis = bench.decided(allocate=True), bench.state.seq
    bench.add(k.NodeLeft(node="a"))
    bench.add(k.NodeForgetRequested(node="a"))
    bench.say(*facts, basis=basis)
    assert sizes(bench.app()) == {}
    bench.add(k.NodeDrainRequested(node="b", drain=False))
    bench.settle()
    assert list(sizes(bench.app())) == ["b"]


# --- pause --------------------------------------------------------------------------------------------------------------


def test_nothing_new_is_decided_while_scheduling_is_paused() -> None:
    bench = Bench(a=4)
    bench.running("old", n_max=4)
    bench.submit("decided", demand={"cpu": 1}, n_max=1)
    bench.decide()
    asked = bench.decide(allocate=True)  # The older app has to shrink: what was decided is carried out.
    assert any(isinstance(fact, Resized) for fact in asked)
    bench.add(k.SchedulingPaused(by="someone", reason="a new switch"))
    assert paused_text(bench.state) == "scheduling is paused by someone: a new switch"
    bench.submit("late", demand={"cpu": 1}, n_max=1)
    facts = bench.settle()
    assert [type(fact).__name__ for fact in facts] == ["AppAccepted"]
    bench.all_exited("old", asked=True, generation=1)
    released = bench.settle()
    assert {type(fact) for fact in released} == {GenerationReleased}
    bench.started("old")
    bench.started("decided")
    bench.wait(1e6)
    assert bench.settle() == []  # No idle tick, no patience, no retry.
    assert next_deadline(bench.state, 0) is None
    assert sizes(bench.app("late")) == {}
    bench.add(k.SchedulingResumed())
    assert paused_text(bench.state) == ""
    assert any(isinstance(fact, Resized) for fact in bench.settle())


def test_an_ended_app_releases_its_room_and_a_failed_one_waits() -> None:
    bench = Bench(a=2)
    bench.running("one", n_max=1)
    bench.running("two", n_max=1)
    bench.add(k.SchedulingPaused())
    bench.exited("one")
    bench.exited("two", code=1)
    assert {type(fact).__name__ for fact in bench.settle()} == {"AppCompleted", "GenerationFailed"}
    bench.wait(3600.0)
    assert bench.settle() == []
    bench.add(k.SchedulingResumed())
    bench.settle()
    assert sizes(bench.app("two")) == {"a": 1}


def test_a_pause_counts_once_and_leaves_no_trace() -> None:
    bench = Bench(a=2)
    plain = msgspec.to_builtins(bench.state)
    bench.add(k.SchedulingResumed())
    bench.add(k.SchedulingPaused(by="ann"), "ann")
    assert bench.state.paused is not None
    assert bench.state.paused.by == "ann"
    before = digest(bench.state)
    bench.add(k.SchedulingPaused(), "bob")
    assert bench.state.paused.by == "ann"
    assert digest(bench.state) != before  # It was read, and counted as a record without effect.
    bench.add(k.SchedulingResumed())
    assert bench.state.counters.ignored == 2
    assert set(msgspec.to_builtins(bench.state)) == set(plain)


# --- retries ------------------------------------------------------------------------------------------------------------


def failing(bench: Bench, backoff: str = "1h") -> None:
    bench.running("app", n_max=1, retries={"limit": 9, "backoff": backoff, "longest": "2h"})
    bench.exited("app", code=1)
    (failed,) = (fact for fact in bench.settle() if isinstance(fact, GenerationFailed))
    assert failed.retry_at > bench.now


def test_a_pausing_app_is_retried_now_and_its_failures_count() -> None:
    bench = Bench(a=2)
    failing(bench)
    app = bench.app()
    assert (bench.settle(), app.phase) == ([], "retrying")
    bench.add(k.AppRetryRequested(app="app"))
    bench.settle()
    assert sizes(bench.app()) == {"a": 1}
    bench.started()
    bench.settle()
    bench.exited(code=1)
    (again,) = (fact for fact in bench.settle() if isinstance(fact, GenerationFailed))
    assert again.retry_at - bench.now == 2 * 3600 * 10**9
    assert (bench.app().failures, again.retries) == (2, 2)


@pytest.mark.parametrize("name", ["app", "nobody"])
def test_an_app_that_does_not_pause_is_left_alone(name: str) -> None:
    bench = Bench(a=2)
    bench.running("app")
    before = msgspec.to_builtins(bench.app())
    bench.add(k.AppRetryRequested(app=name))
    assert msgspec.to_builtins(bench.app()) == before
    assert bench.state.counters.ignored == 1
