"""A cluster with a node that is suspect, because three apps failed there at their start, and an app that runs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from events import kinds as k
from tests.core.records import Bench

if TYPE_CHECKING:
    from dorm.core.state import App

BAD = "bad"
NAMES = ("one", "two", "three")


def failing(**fields: Any) -> Bench:
    """Three apps have failed on `BAD`, each with an open fault, and `well` runs on another node."""
    bench = Bench(bad=4, good=1, other=4)
    for node in (BAD, "other"):
        bench.add(k.NodeDrainRequested(node=node))
    bench.running("well", n_max=1)
    bench.add(k.NodeDrainRequested(node=BAD, drain=False))
    for name in NAMES:
        bench.submit(name, n_max=1, **fields)
    bench.settle()
    bench.add(k.NodeDrainRequested(node="other", drain=False))
    return bench


def fails(bench: Bench, name: str) -> list[object]:
    """What follows from the end of an app's container on `BAD`, at its start."""
    assert bench.placed(name) == BAD
    bench.exited(name, code=None, reason="command", message=f"{name}: no such file")
    return bench.decide()


def suspect(**fields: Any) -> Bench:
    """All three have failed, and `BAD` is suspect."""
    bench = failing(**fields)
    for name in NAMES:
        fails(bench, name)
    bench.decide()
    assert bench.state.nodes[BAD].suspect is not None
    return bench


def apps(bench: Bench) -> list[App]:
    return [bench.app(name) for name in NAMES]
