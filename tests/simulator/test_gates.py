"""Simulated apps wait for others, start at their times and end with them, as real ones do; each decision comes out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events import kinds as k
from events.log.memory import MemoryLog
from events.quantities import SECOND
from events.spec import check_spec
from replay.audit.audit import verify
from replay.simulator.scenario import Scenario
from replay.simulator.simulation import Simulation
from tests.simulator.scenarios import Written, app, nodes, played
from tests.simulator.test_simulation import FREE_DECISIONS, TIMINGS

if TYPE_CHECKING:
    from replay.simulator.workload import SimulatedApp


def gated(name: str, work: float, **gates: object) -> SimulatedApp:
    made = app(name, 0.0, work, n_max=2)
    return msgspec.structs.replace(made, spec=check_spec({**msgspec.to_builtins(made.spec), **gates}))


def scenario() -> Scenario:
    apps = (
        gated("prep", 100.0),
        gated("train", 100.0, after=["prep"]),
        gated("night", 100.0, start_after="10m"),
        gated("short", 1e6, max_runtime="60s"),
        gated("never", 100.0, after=[{"app": "short", "when": "failed"}]),
        gated("held", 100.0, hold=True),
    )
    return Scenario(
        apps=apps, nodes=nodes(4), timings=TIMINGS, decision_time=FREE_DECISIONS, progress_s=0, until_s=2000.0
    )


def ends(written: Written) -> dict[str, tuple[str, float]]:
    """How and when (seconds) each app ended."""
    return {
        one.name: (one.ended, (one.ended_at - written.simulation.begin) / SECOND)
        for one in written.state.apps.values()
        if one.ended
    }


async def test_gates_open_in_virtual_time_at_their_moments() -> None:
    simulation = Simulation(scenario())
    simulation.publish_at(1000.0, k.AppReleaseRequested(app="held"), "ann")
    written = played(simulation)
    found = ends(written)
    start_s = TIMINGS.start_s + TIMINGS.boot_s + 50.0  # Two containers share the work.
    assert found["prep"] == ("completed", 0.2 + start_s)
    assert found["train"] == ("completed", found["prep"][1] + 0.2 + start_s)
    assert found["night"] == ("completed", 600.0 + start_s)
    assert found["short"] == ("cancelled", 0.2 + TIMINGS.start_s + 60.0)
    assert found["never"] == ("cancelled", found["short"][1])
    assert found["held"] == ("completed", 1000.2 + start_s)
    report = await verify(MemoryLog(lambda: 0, written.records))
    assert report.good, report
    assert report.not_checked == 0


def test_a_held_app_does_not_prolong_a_run() -> None:
    written = played(Simulation(msgspec.structs.replace(scenario(), until_s=None)))
    assert written.simulation.unfinished == ["held"]
    assert (written.state.time - written.simulation.begin) / SECOND < 800
