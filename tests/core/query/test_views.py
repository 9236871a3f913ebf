"""What the commands show of a state."""

from __future__ import annotations

from dorm.core.query.views import describe, leaving
from events import kinds as k
from tests.core.records import Bench, joined


def left(bench: Bench, node: str = "a") -> list[tuple[str, int, str]]:
    return [(one.name, one.containers, one.next) for one in leaving(bench.state, node)]


def test_the_contents_of_a_drained_node_and_their_future() -> None:
    bench = Bench(a=4, b=4)
    bench.running("moves", n_min=2, n_max=2)
    bench.running("homeless", cpu=2, n_min=3, n_max=3)
    node = next(iter(bench.app("moves").generations[1].by_node()))
    other = "b" if node == "a" else "a"
    bench.add(k.NodeDrainRequested(node=node))
    assert left(bench, node) == [
        ("moves", 2, "is moved by the next decision"),
        ("homeless", 1, "is moved by the next decision"),
    ]
    bench.settle()
    (moves, homeless) = left(bench, node)
    assert moves == ("moves", 2, f"being stopped, and continues at {other} (2)")
    assert homeless[2].startswith("being stopped, then it waits: ")
    for name in ("moves", "homeless"):
        bench.all_exited(name, 143, generation=1, asked=True)
    bench.settle()
    assert left(bench, node) == []


def test_a_lost_node_is_named_as_the_obstacle() -> None:
    bench = Bench(a=1, b=1)
    bench.running(n_min=2, n_max=2)
    bench.conclude(b=20)
    bench.add(k.NodeDrainRequested(node="a"))
    bench.settle()
    assert left(bench) == [("app", 1, "stays until b is heard again or its lease has ended")]


def test_retries_and_holds_are_described() -> None:
    bench = Bench(a=4)
    bench.running(n_min=1, n_max=4, retries={"limit": 5, "out_of_memory": 3})
    bench.add(joined("b", 1))
    for slot in (0, 1, 2, 3):
        bench.exited(slot=slot, code=None, reason="out_of_memory")
    bench.settle()
    shown = describe(bench.app(), bench.now)
    assert shown["retries_used"] == {"out_of_memory": "1 of 3"}
    assert shown["held"] == "held at 1 until it works: 1 generation has failed before they did"
