"""What silence means, and how long a lease is."""

from __future__ import annotations

import msgspec
import pytest

from dorm.core.timing import LEASE_MARGIN_S, conclude
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined


def names(facts: list[k.Event]) -> list[str]:
    return [f"{type(fact).__name__}:{getattr(fact, 'node', '')}" for fact in facts]


def test_each_fact_is_published_once_in_order_of_nodes() -> None:
    bench = Bench(b=1, a=1, c=1)
    assert bench.conclude(a=15, b=15, c=15) == []
    assert names(bench.conclude(a=16, b=16, c=1)) == ["NodeLost:a", "NodeLost:b"]
    assert bench.conclude(a=100, b=100, c=1) == []
    assert bench.conclude(a=310, b=310, c=1) == []
    assert names(bench.conclude(a=311, b=2, c=1)) == ["NodeLeaseEnded:a", "NodeRecovered:b"]
    assert bench.conclude(a=10_000, b=2, c=1) == []
    assert names(bench.conclude(a=0, b=2, c=1)) == ["NodeRecovered:a"]


def test_an_unknown_node_is_left_alone() -> None:
    assert Bench(a=1).conclude() == []


def test_a_node_that_left_is_not_lost() -> None:
    bench = Bench(a=1)
    bench.add(k.NodeLeft(node="a"))
    assert bench.conclude(a=10_000) == []


def test_times_that_would_end_a_lease_before_the_grace_are_refused() -> None:
    bench = Bench()
    bench.add(k.PolicyChanged(node_lease_s=5, node_grace_s=100))
    bench.add(joined("a"))
    assert bench.conclude(a=15) == []
    assert names(bench.conclude(a=16)) == ["NodeLost:a"]


def test_silence_before_the_grace_was_lowered_counts_by_the_longer_one() -> None:
    """No node could know that it had to be heard more often."""
    bench = Bench()
    bench.add(joined("a"))
    bench.add(k.PolicyChanged(heartbeat_s=1, node_grace_s=3))
    bench.wait(1)
    assert bench.conclude(a=6) == []
    bench.wait(3)
    assert names(bench.conclude(a=10)) == ["NodeLost:a"]


@pytest.mark.parametrize(("first", "then"), [(300, 30), (30, 300)])
def test_the_longest_lease_that_the_agent_may_believe_in_counts(first: float, then: float) -> None:
    """A cut-off agent may not have heard of a shorter one; once it has joined again, it has."""
    bench = Bench()
    bench.add(k.PolicyChanged(node_lease_s=first))
    bench.add(joined("a", 1))
    bench.add(k.PolicyChanged(node_lease_s=then))
    bench.conclude(a=20)
    assert bench.conclude(a=300 + LEASE_MARGIN_S) == []
    assert names(bench.conclude(a=301 + LEASE_MARGIN_S)) == ["NodeLeaseEnded:a"]
    bench.add(joined("a", 1))
    bench.conclude(a=20)
    assert names(bench.conclude(a=then + 1 + LEASE_MARGIN_S)) == ["NodeLeaseEnded:a"]


def test_an_agent_may_report_that_running_containers_still_have_a_longer_lease() -> None:
    """Its record is from before the lease was lowered, and it may die before it has written another one."""
    bench = Bench()
    bench.add(k.PolicyChanged(node_lease_s=30))
    bench.add(msgspec.structs.replace(joined("a", 1), lease_s=200.0))
    bench.conclude(a=20)
    assert bench.conclude(a=200 + LEASE_MARGIN_S) == []
    assert names(bench.conclude(a=201 + LEASE_MARGIN_S)) == ["NodeLeaseEnded:a"]


def test_a_lease_that_ended_while_the_agent_came_back_ends_nothing() -> None:
    """Its NodeJoined was stored between the round's basis and the round: what runs there was adopted."""
    bench = Bench(a=4)
    bench.running(n_max=1)
    bench.conclude(a=20)
    basis = bench.state.seq
    bench.add(joined("a"))
    bench.say(k.NodeLeaseEnded(node="a", last_heard=0), basis=basis)
    assert bench.app().generations[1].containers[0].state == "running"


def test_a_new_master_does_not_bring_back_silent_nodes() -> None:
    bench = Bench(a=1)
    bench.conclude(a=16)
    bench.wait(60)
    began = bench.now
    assert conclude(bench.state, {"a": began}, began, ()) == []
    assert names(conclude(bench.state, {"a": began}, began, ("a",))) == ["NodeRecovered:a"]
    later = began + 311 * SECOND
    assert names(conclude(bench.state, {"a": began}, later, ())) == ["NodeLeaseEnded:a"]


def test_an_agent_of_an_earlier_release_takes_a_lease_that_is_refused_today() -> None:
    """Until its node was surely cut off for that long, what it runs may still run."""
    bench = Bench()
    bench.add(joined("old", 1))
    bench.add(msgspec.structs.replace(joined("new", 1), identity="0" * 32))
    bench.add(k.PolicyChanged(node_lease_s=3600, node_grace_s=3600))
    assert (bench.state.settings.node_lease_s, len(bench.state.refused_changes)) == (300, 1)
    bench.conclude(old=20, new=20)
    assert names(bench.conclude(old=301 + LEASE_MARGIN_S, new=301 + LEASE_MARGIN_S)) == ["NodeLeaseEnded:new"]
    assert names(bench.conclude(old=3601 + LEASE_MARGIN_S)) == ["NodeLeaseEnded:old"]
