"""What an app may claim that was interrupted, and what asking for that costs where none was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.claims import HOLD_S, first_until, held_back_for
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined

if TYPE_CHECKING:
    from dorm.core.state import Node


class Counted(dict[str, "Node"]):
    """Nodes that count how often all of them are looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_apps_that_were_never_interrupted_cost_no_look_at_the_nodes() -> None:
    """With ten thousand apps on a thousand nodes, looking for each of them took half of a decision."""
    bench = Bench(a=2, b=2)
    bench.running(n_max=4)
    for name in ("second", "third"):
        bench.submit(name)
    bench.settle()
    bench.state.nodes = nodes = Counted(bench.state.nodes)
    assert held_back_for(bench.state, {}, bench.now) is None
    assert nodes.looks == 0


def test_an_interrupted_app_comes_first_once_a_node_is_back() -> None:
    bench = Bench(a=2)
    app = bench.running(n_max=2)
    bench.add(k.NodeLeft(node="a"), "a")
    bench.settle()
    assert bench.app().interrupted_at
    assert first_until(bench.state, app, HOLD_S) is None, "no node is there"
    bench.wait(100)
    bench.add(joined("a", 2))
    assert first_until(bench.state, bench.app(), HOLD_S) == bench.now + HOLD_S * SECOND
