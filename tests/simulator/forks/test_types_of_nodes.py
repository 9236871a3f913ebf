"""Forks of a log whose apps are faster on some types of nodes: the models know it, and forecasts with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.query.assumed import Assumed
from dorm_lab.workloads.nodes import parse
from events import kinds as k
from replay.moments import AtSequence
from replay.simulator.forks.fitting import Fitting
from replay.simulator.forks.whatif import whatif
from replay.simulator.simulation import Simulation
from tests.replay.made_log import log_of
from tests.simulator.histories import Seen, busy, seen, seq_at, trained, written

if TYPE_CHECKING:
    from replay.simulator.workload import SimulatedApp

TIMES = 3.0
NODES = parse("1x cpu=2,memory=8GiB type=fast; 1x cpu=2,memory=8GiB type=slow")
WHOLE = {"policy": "fifo"}
"""A policy that decides in no time, and puts an app on few nodes."""


def faster(name: str, at_s: float, work: float, **spec: object) -> SimulatedApp:
    one = trained(name, at_s, work, n_min=2, n_max=2, command=["train", "same"], **spec)
    return msgspec.structs.replace(one, faster_on={"fast": TIMES})


def moved(*apps: SimulatedApp) -> Simulation:
    """The first app has its node for 300 s, and then the other one."""
    simulation = Simulation(busy(apps=apps, nodes=NODES, **WHOLE))
    simulation.publish_at(300.0, k.NodeDrainRequested(node="node-1"), "operator")
    return simulation


def ratio(found: Seen, name: str) -> float:
    model = Fitting(found.history).fit(found.history.courses[found.app(name)], found.end.time).model
    return model.pace_on(["fast"]) / model.pace_on(["slow"])


def test_the_ratio_of_types_follows_from_measurements_on_both() -> None:
    found = seen(written(moved(faster("one", 0, 3000))), 10**9)
    types = [one.types for one in found.history.courses[found.app("one")].stretches]
    assert sorted(types) == [("fast",), ("slow",)]
    assert ratio(found, "one") == pytest.approx(TIMES, rel=0.1)  # By some minutes of measurement, not quite.


def test_the_ratio_is_taken_from_similar_apps_and_declarations() -> None:
    """Neither has worked on the other type."""
    told = trained("told", 320, 100, n_min=2, n_max=2, speed=[(1, 10.0)], speed_on={"fast": [(1, 20.0)]})
    later = faster("later", 5, 4000)
    found = seen(written(moved(faster("one", 0, 1500), later, told)), 10**9)
    assert ratio(found, "later") == pytest.approx(TIMES, rel=0.1)
    assert ratio(found, "told") == pytest.approx(2.0, rel=0.05)


def test_without_a_difference_between_types_none_counts_as_faster() -> None:
    plain = trained("plain", 0, 3000, n_min=2, n_max=2)
    found = seen(written(moved(plain)), 10**9)
    assert not Fitting(found.history).fit(found.history.courses[found.app("plain")], found.end.time).model.faster_on


def test_the_backtest_of_an_app_that_changes_its_type_has_no_error() -> None:
    """From before it moves: without types it would be expected to continue as slowly, or as fast."""
    records = written(moved(faster("one", 0, 3000)))
    found = asyncio.run(whatif(log_of(records), AtSequence(seq_at(records, 200)), Assumed()))
    assert found.backtest is not None
    assert found.backtest.apps == 1
    assert found.backtest.completion_error == pytest.approx(0, abs=0.03)
