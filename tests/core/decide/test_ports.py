"""Ports count as room: they limit an app's containers, and its shortage affects no other app."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dorm.core.asking import problem_of
from dorm.core.invariants import violations
from dorm.core.placement import _Ports, with_ports
from dorm.policies.problem import AppDemand, NodeRoom, PortRoom, Problem
from dorm.policies.registry import policy
from events import kinds as k
from tests.core.records import Bench, joined

POLICIES = (
    "dorm", "dorm-exact", "dorm-speed", "static", "app-level", "task-level", "tiresias", "optimus",
    "fifo", "srtf", "drf", "gavel", "themis", "shockwave", "market",
)  # fmt: skip
WHOLE = ("static", "tiresias", "fifo", "srtf", "gavel", "shockwave")
"""Policies that give an app a fixed count or nothing."""
TINY = {"cpu": 0.01}


def bench_with(policy_name: str, *nodes: k.NodeJoined) -> Bench:
    bench = Bench()
    bench.add(k.PolicyChanged(policy=policy_name))
    for node in nodes:
        bench.add(node)
    return bench


def play(bench: Bench, rounds: int = 6) -> None:
    """Decide, let what has to stop end and what is released start, until nothing changes."""
    for _ in range(rounds):
        said = bench.settle()
        for app in list(bench.state.live_apps()):
            for number, generation in list(app.generations.items()):
                if number < app.generation and generation.released and not generation.ended:
                    bench.all_exited(app.name, 143, generation=number, asked=True)
        bench.settle()
        for app in list(bench.state.live_apps()):
            if app.current is not None and app.current.released and not app.current.started_at:
                bench.started(app.name)
        if not said:
            return


def containers(bench: Bench, name: str) -> int:
    current = bench.app(name).current
    return len(current.containers) if current else 0


def test_an_app_that_is_held_makes_way_for_others_with_its_ports_too() -> None:
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20005)))
    first = bench.running("first", n_min=2, n_max=2)
    bench.add(k.AppHoldRequested(app=first.id), "ann")
    for name in ("second", "third"):
        bench.submit(name, n_min=1, n_max=1)
    decision = next(fact for fact in bench.settle() if isinstance(fact, k.Resized))
    stopped, *started = decision.changes
    assert (stopped.app, stopped.adjustment) == (first.id, "stop")
    assert [change.app for change in started] == [bench.app("second").id, bench.app("third").id]


@pytest.mark.parametrize("name", POLICIES)
def test_an_app_of_many_containers_takes_no_ports_that_others_need(name: str) -> None:
    """The one that was here first has all the ports it can use; those that come later run nevertheless."""
    bench = bench_with(name, joined("a", 4, ports=(20000, 20050)), joined("b", 4, ports=(20000, 20050)))
    bench.submit("many", demand=TINY, n_max=150)
    play(bench)
    # These two give an app a fixed count.
    least = 2 if name in ("static", "tiresias") else 90
    assert containers(bench, "many") >= least, bench.app("many").waiting
    if name == "dorm-exact":
        waiting = bench.app("many").waiting
        assert waiting is not None
        assert waiting.code == "ports"
        assert "20000-20050" in waiting.text
    for number in range(3):
        bench.submit(f"small{number}", demand=TINY, n_max=1)
    play(bench)
    small = [containers(bench, f"small{number}") for number in range(3)]
    if name in ("dorm", "dorm-exact", "task-level", "optimus"):
        assert small == [1, 1, 1], [bench.app(f"small{number}").waiting for number in range(3)]
    if name not in ("gavel", "shockwave"):  # There it has had its time, and waits for its next turn.
        assert containers(bench, "many") >= min(least, 80)


def test_containers_are_limited_by_ports() -> None:
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20050)))
    bench.submit("many", demand=TINY, n_max=50)
    play(bench)
    assert containers(bench, "many") == 50


def test_a_newcomer_gets_ports_of_an_app_with_more_than_it_needs() -> None:
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20050)))
    bench.submit("many", demand=TINY, n_max=50)
    play(bench)
    bench.submit("new", demand=TINY, n_max=1)
    play(bench)
    assert (containers(bench, "many"), containers(bench, "new")) == (48, 1), "each has a rendezvous, too"
    play(bench)
    assert bench.app("many").generation == 2, "and that is that"


def test_an_app_at_n_min_keeps_its_containers_and_costs_others_nothing() -> None:
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20005)), joined("b", 1, ports=(20000, 20009)))
    bench.submit("whole", n_min=5, n_max=5, demand=TINY, require="")
    play(bench)
    first = bench.app("whole").current
    assert first is not None
    for number in range(4):
        bench.submit(f"new{number}", n_max=1, demand={"cpu": 0.1})
    play(bench)
    assert containers(bench, "whole") == 5
    assert bench.app("whole").generation == 1
    assert [containers(bench, f"new{number}") for number in range(4)] == [1, 1, 1, 1]


def test_unplaceable_apps_hold_no_ports() -> None:
    """Its shortage is its own: who comes after it is placed in the same decision."""
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20004)))
    bench.submit("large", n_min=5, n_max=5, demand=TINY)
    bench.submit("small", n_max=1, demand=TINY)
    play(bench)
    assert containers(bench, "small") == 1
    waiting = bench.app("large").waiting
    assert waiting is not None
    assert waiting.code == "ports"
    assert "a: 20000-20004" in waiting.text


def test_a_placement_that_fails_takes_nothing() -> None:
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20004)))
    bench.submit("one")
    bench.decide()
    ports = _Ports(bench.state, {}, lend=True)
    assert ports.place(bench.app("one"), [(slot, "a") for slot in range(6)], {}) == {"a": 2}
    placed = ports.place(bench.app("one"), [(0, "a")], {})
    assert isinstance(placed, tuple)
    assert (placed[0][0].port, placed[1]) == (20000, 20001)


def test_a_resize_needs_no_second_set_of_ports() -> None:
    """The next generation may have ports of the one that makes way for it, and is released once they are free."""
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20004)))
    bench.running("one", n_max=4)
    bench.submit("two", n_max=1)
    bench.settle()
    one, two = bench.app("one"), bench.app("two")
    assert (one.generation, len(one.generations[2].containers)) == (2, 2)
    old = {container.port for container in one.generations[1].containers.values()}
    new = {c.port for c in (*one.generations[2].containers.values(), *two.generations[1].containers.values())}
    assert old & new, "there are five ports, and five are in use"
    assert not two.generations[1].released
    bench.all_exited("one", 143, generation=1, asked=True)
    bench.settle()
    assert one.generations[2].released
    assert two.generations[1].released


def test_a_generation_waits_for_ports_that_may_still_be_in_use() -> None:
    bench = bench_with("dorm", joined("a", 9, ports=(20000, 20003)))
    bench.running("one", n_max=3)
    bench.add(k.AppCancelRequested(app="one"))
    bench.submit("two", n_min=2, n_max=2)
    bench.settle()
    (generation,) = bench.app("two").generations.values()
    assert not generation.released
    bench.all_exited("one", 143, generation=1, asked=True)
    bench.settle()
    assert generation.released


def test_fresh_ports_are_used_first() -> None:
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20099)))
    bench.running("one", n_max=4)
    bench.submit("two", n_max=1)
    bench.settle()
    one = bench.app("one")
    old = {container.port for container in one.generations[1].containers.values()}
    assert not old & {container.port for container in one.generations[2].containers.values()}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.soak
def test_an_app_that_fits_next_to_the_others_runs(name: str, seed: int) -> None:
    """Random small ranges, shared addresses among them: the log stays sound, everybody comes to rest, no one who waits for
    ports does so beside a node that has some and room for it."""
    chance = random.Random(f"ports.{seed}")
    nodes = []
    for number in range(chance.randint(1, 3)):
        low = 20000 + (0 if chance.random() < 0.5 else 100 * number)
        address = chance.choice(["here", f"addr-{number}"])
        ports = (low, low + chance.choice([0, 1, 2, 5, 9, 30]))
        nodes.append(joined(f"n{number}", chance.choice([1, 4]), ports=ports, address=address))
    bench = bench_with(name, *nodes)
    for number in range(chance.randint(2, 7)):
        n_min = chance.choice([1, 1, 2, 4])
        fields: dict[str, Any] = {"gang": 2} if n_min % 2 == 0 and chance.random() < 0.5 else {}
        most = chance.choice([0, 2, 20])
        bench.submit(
            f"app{number}", n_min=n_min, n_max=n_min + most, demand={"cpu": chance.choice([0.001, 0.1, 1])}, **fields
        )
        play(bench)
    play(bench)
    assert not violations(bench.state)
    assert bench.settle() == []
    if name in WHOLE or len({node.address for node in bench.state.nodes.values()}) < len(nodes):
        return  # These give fixed counts; and ranges that overlap are divided.
    live = list(bench.state.live_apps())
    for app in live:
        if app.current is None and app.waiting is not None and app.waiting.code == "ports":
            for node in bench.state.nodes.values():
                here = {other.id: other.current.by_node().get(node.id, 0) for other in live if other.current}
                used = sum(bench.state.apps[other].demand["cpu"] * count for other, count in here.items())
                size = node.ports[1] - node.ports[0] + 1
                least = max(size - len(live), size // 2)
                fits = node.capacity["cpu"] - used >= app.demand["cpu"] * app.n_min
                assert not fits or sum(here.values()) + app.n_min > least, (app.id, app.waiting, node.id, here)


def test_ports_count_neither_in_shares_nor_in_utilization() -> None:
    ports = PortRoom(20000, 20003, 3)
    apps = tuple(AppDemand(id=name, demand={"cpu": 100}, weight=1, n_min=1, n_max=9) for name in ("a", "b"))
    bound = Problem((NodeRoom("n", {"cpu": 1000}, ports=ports),), apps)
    for name in POLICIES:
        got = policy(name).allocate(bound, {})
        assert sum(sum(nodes.values()) for nodes in got.counts.values()) <= 3, name
        assert got.utilization <= 0.3 + 1e-9, name
    got = policy("dorm").allocate(bound, {})
    assert got.utilization == pytest.approx(0.3)
    assert got.counts["a"]
    assert got.counts["b"]
    assert {reason.code for reason in got.reasons.values()} <= {"ports", "fairness"}


def test_ports_that_limit_nothing_change_nothing() -> None:
    apps = tuple(AppDemand(id=name, demand={"cpu": 500}, weight=1, n_min=1, n_max=9) for name in ("a", "b", "c"))
    nodes = tuple(NodeRoom(f"n{j}", {"cpu": 4000}) for j in range(3))
    wide = tuple(msgspec.structs.replace(node, ports=PortRoom(20000, 20999, 998)) for node in nodes)
    for name in POLICIES:
        assert policy(name).allocate(Problem(nodes, apps), {}) == policy(name).allocate(Problem(wide, apps), {})


def test_an_arrival_takes_no_ports_from_running_apps() -> None:
    bench = bench_with("dorm", joined("a", 4, ports=(20000, 20005)))
    bench.running("one", n_min=5, n_max=5, demand=TINY)
    bench.submit("two", n_max=1)
    bench.decide()
    (node,) = with_ports(bench.state, problem_of(bench.state, bench.now)).nodes
    assert node.ports == PortRoom(20000, 20005, 5)
