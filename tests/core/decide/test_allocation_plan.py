"""From a policy's answer to slots and ports."""

from __future__ import annotations

from dorm.core.asking import problem_of
from events import kinds as k
from tests.core.records import Bench, joined


def test_slots_stay_with_their_nodes_and_new_ones_are_the_lowest_free() -> None:
    bench = Bench(a=2, b=2)
    bench.running(n_min=4, n_max=4)
    before = {slot: c.node for slot, c in bench.app().generations[1].containers.items()}
    bench.add(joined("c", 2))
    bench.add(k.NodeDrainRequested(node="a"))
    bench.settle()
    after = {slot: c.node for slot, c in bench.app().generations[2].containers.items()}
    assert sorted(after) == [0, 1, 2, 3]
    assert {slot: node for slot, node in after.items() if node == "b"} == {
        slot: node for slot, node in before.items() if node == "b"
    }
    assert sorted(set(after.values())) == ["b", "c"]


def test_ports_are_fresh_for_each_generation_and_are_reused_last() -> None:
    bench = Bench()
    bench.add(joined("a", 4, ports=(20000, 20004)))
    bench.submit(n_max=1, retries={"limit": 9, "backoff": "0s"})
    seen = []
    for _ in range(4):
        bench.settle()
        app = bench.app()
        generation = app.generations[app.generation]
        seen.append((generation.containers[0].port, generation.master_port))
        bench.exited(code=1)
        bench.settle()
        bench.wait(10)
    assert seen == [(20000, 20001), (20002, 20003), (20004, 20000), (20001, 20002)]


def test_ports_in_use_are_skipped_also_on_a_shared_address() -> None:
    bench = Bench()
    for node in ("a", "b"):
        bench.add(joined(node, 1, address="here", ports=(20000, 20003)))
    bench.running("one", n_max=1)
    bench.running("two", n_max=1)
    ports = [
        port
        for app in bench.state.live_apps()
        for port in (app.generations[1].containers[0].port, app.generations[1].master_port)
    ]
    assert sorted(ports) == [20000, 20001, 20002, 20003]


def test_without_a_free_port_an_app_waits_with_that_reason() -> None:
    bench = Bench()
    bench.add(joined("a", 4, ports=(20000, 20002)))
    bench.running("one", n_max=1)
    bench.submit("two", n_max=1)
    bench.settle()
    waiting = bench.app("two").waiting
    assert waiting is not None
    assert waiting.code == "ports"
    bench.all_exited("one")
    bench.settle()
    assert bench.app("two").generations[1].released, "ports of an ended app are free again, though it is still shown"


def test_the_apps_of_the_problem() -> None:
    bench = Bench(a=4, b=4, c=4)
    bench.running("still", n_max=1)
    bench.submit("starting", n_max=1)
    bench.settle()
    bench.running("crashed", n_max=1, retries={"backoff": "60s"})
    bench.exited("crashed", code=1)
    bench.settle()
    bench.submit("cancelled", n_max=1)
    bench.settle()
    bench.add(k.AppCancelRequested(app="cancelled"))
    bench.add(k.NodeDrainRequested(node="c"))
    problem = problem_of(bench.state, bench.now)
    assert {bench.app(app.id).name: app.pinned for app in problem.apps} == {"still": False, "starting": True}
    assert [(node.id, node.drained) for node in problem.nodes] == [("a", False), ("b", False), ("c", True)]


def test_the_policys_input_about_nodes_and_apps() -> None:
    bench = Bench(a=4)
    bench.add(joined("gpu", 8, labels={"zone": "east"}))
    bench.conclude(a=20)
    bench.submit("one", cpu=64)
    bench.submit("two", n_min=2, n_max=4, gang=2, placement="pack", require='zone == "east"')
    bench.decide()
    bench.wait(61.5)
    (two,) = problem_of(bench.state, bench.now).apps
    assert (two.require, two.placement, two.gang) == ('zone == "east"', "pack", 2)
    assert (two.waited_s, two.adjust_s) == (61.0, None)
    (node,) = problem_of(bench.state, bench.now).nodes
    assert (node.id, node.labels, node.drained) == ("gpu", {"zone": "east"}, False)


def test_an_app_on_a_lost_node_is_not_touched() -> None:
    bench = Bench(a=2, b=2)
    bench.running(n_min=4, n_max=4)
    bench.conclude(a=20)
    (app,) = problem_of(bench.state, bench.now).apps
    assert app.pinned
    assert app.current == {"a": 2, "b": 2}
