"""The assumptions of a plan, as facts of their publishers."""

from __future__ import annotations

import pytest

from dorm.core.query.assumed import Assumed, NewNodes, PlanError
from dorm.core.query.plans import assumed_events, plan
from dorm.core.state import digest
from events import kinds as k
from tests.core.records import Bench, checked, joined


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    for name in ("n1", "n2"):
        bench.add(joined(name, 4))
    bench.running("one", n_min=1, n_max=4)
    return bench


def test_each_assumption_is_described(bench: Bench) -> None:
    before = digest(bench.state)
    assumed = Assumed(
        settings={"theta2": 0.5},
        joins=(NewNodes(count=2, like="n1"),),
        removed=("n2",),
        drained=("n1",),
        updated=(k.AppUpdated(app="one", n_max=2, weight=3.0),),
        specs=(checked("two"),),
    )
    words, said = assumed_events(bench.state, bench.state.time, assumed)
    kinds = [(type(event).__name__, who) for event, who in said]
    assert kinds == [
        ("PolicyChanged", "plan"),
        ("NodeJoined", "new-1"),
        ("NodeJoined", "new-2"),
        ("NodeLeft", "n2"),
        ("NodeDrainRequested", "plan"),
        ("AppUpdated", "plan"),
        ("AppSubmitted", "plan"),
    ]
    assert "one with n_max = 2 (now 4) and weight = 3.0 (now 1.0)" in words
    assert digest(bench.state) == before


def test_an_app_with_other_bounds_is_planned(bench: Bench) -> None:
    found = plan(bench.state, bench.state.time, Assumed(updated=(k.AppUpdated(app="one", n_max=1),)))
    assert found.assumed == ["one with n_max = 1 (now 4)"]


@pytest.mark.parametrize("change", [k.AppUpdated(app="nobody", n_max=2), k.AppUpdated(app="one", n_min=50, n_max=60)])
def test_a_change_that_would_be_refused_can_not_be_assumed(bench: Bench, change: k.AppUpdated) -> None:
    with pytest.raises(PlanError):
        assumed_events(bench.state, bench.state.time, Assumed(updated=(change,)))
