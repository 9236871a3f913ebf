"""Timings fitted from logs whose timings are known, and runs played again whose end is known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.admission import app_id
from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm_lab.bench.calibration import contentions_compared, resizes_compared
from dorm_lab.rehearsal import Row, phase_rows
from events.kinds import AppUpdated
from replay.simulator import SimulationError
from replay.simulator.forks.fitting_timings import Phases, PhaseWatch, fit
from replay.simulator.scenario import Outage, Scenario
from replay.simulator.simulation import Simulation
from replay.simulator.speed import Amdahl
from replay.simulator.timings import Timings
from tests.errors import raises
from tests.simulator.scenarios import app, nodes, played

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.simulator.workload import SimulatedApp

TIMINGS = Timings(checkpoint_s=0.4, stop_s=0.9, start_s=1.7, boot_s=2.5, resume_s=3.1)
MILLION = 1e6


def fine(simulated: SimulatedApp, steps: int = 0) -> SimulatedApp:
    """One whose steps are so small that counting them back loses nothing."""
    spec = msgspec.structs.replace(simulated.spec, steps=steps or int(simulated.work * MILLION))
    return msgspec.structs.replace(simulated, spec=spec, steps_per_unit=MILLION)


def resized(sizes: tuple[int, ...], timings: Timings = TIMINGS) -> list[Record]:
    """The log of an app that is resized every 60 s."""
    endless = fine(app("a", 1.0, 1e7, n_max=4, speed=Amdahl(0.9)))
    until_s = 60.0 * (len(sizes) + 1)
    simulation = Simulation(Scenario((endless,), nodes(2), timings=timings, progress_s=1.3, until_s=until_s))
    for number, size in enumerate(sizes):
        asked = AppUpdated(app=app_id("a", "simulator-0"), n_max=size)
        simulation.publish_at(60.0 * (number + 1), asked, "client")
    return played(simulation).records


def contended(order: str, gap_s: float) -> list[Record]:
    apps = tuple(fine(app(name, gap_s * index, 600.0, n_max=6, speed=Amdahl(0.9))) for index, name in enumerate(order))
    return played(Simulation(Scenario(apps, nodes(2), timings=TIMINGS, progress_s=1.3))).records


def watched(records: list[Record]) -> PhaseWatch:
    state = State()
    watch = PhaseWatch(state)
    for record in records:
        watch.see(state, record, evolve(state, record))
    return watch


def test_timings_are_recovered_from_a_log() -> None:
    watch = watched(resized((2, 4, 1, 3)))
    assert [(one.kind, one.containers_before, one.containers) for one in watch.phases] == [
        ("start", 0, 4), ("restart", 4, 2), ("restart", 2, 4), ("restart", 4, 1), ("restart", 1, 3)
    ]  # fmt: skip
    found = msgspec.to_builtins(fit(watch.phases))
    assert found == pytest.approx(msgspec.to_builtins(TIMINGS), abs=1e-4)
    assert watch.phases[1].pause_s == pytest.approx(TIMINGS.pause_s, abs=1e-4)


def test_apps_that_never_save_are_recognized() -> None:
    found = fit(watched(resized((2, 4), msgspec.structs.replace(TIMINGS, can_checkpoint=False))).phases)
    assert not found.can_checkpoint
    assert found.stop_s == pytest.approx(TIMINGS.stop_s)
    assert found.checkpoint_s == Timings().checkpoint_s  # none was seen


def test_the_checkpoint_interval_is_measured() -> None:
    saving = msgspec.structs.replace(TIMINGS, checkpoint_every_s=8.0)
    watch = watched(resized((2, 4), saving))
    ((name, gaps),) = watch.checkpoint_gaps_s.items()
    assert name == app_id("a", "simulator-0")
    assert fit(watch.phases, gaps_s=gaps).checkpoint_every_s == pytest.approx(8.0)


def test_without_observations_the_assumptions_stay() -> None:
    assert fit([]) == Timings()
    assert fit([], default=TIMINGS) == TIMINGS


def test_an_app_that_never_reports_has_no_deadline_to_work() -> None:
    silent = Simulation(Scenario((app("a", 1.0, 100.0),), nodes(1), timings=TIMINGS, progress_s=0.0))
    (only,) = watched(played(silent).records).phases
    assert only.start_s == pytest.approx(TIMINGS.start_s)
    assert (only.work_s, only.pause_s) == (None, None)


def test_a_start_after_a_failure_is_not_an_adjustment() -> None:
    crashed = Simulation(
        Scenario(
            (app("a", 1.0, 1000.0, n_max=8),),
            nodes(2),
            timings=TIMINGS,
            progress_s=1.0,
            outages=(Outage("n1", 50.0, 5.0),),
        )
    )
    assert {one.kind for one in watched(played(crashed).records).phases[:2]} == {"start"}


def test_every_second_turn_of_resizes_matches_the_others() -> None:
    timings, rows, same = resizes_compared(resized((2, 4, 1, 3, 2, 4, 1, 3)))
    assert timings.start_s == pytest.approx(TIMINGS.start_s, abs=1e-4)
    assert [row.name for row in rows] == ["checkpoint", "stop", "wait", "start", "work", "pause"]
    for row in rows:
        assert row.simulated_s == pytest.approx(row.real_s, rel=1e-3, abs=1e-3)
    assert rows[-1].real_s == pytest.approx(TIMINGS.pause_s, abs=1e-3)
    assert same


def test_one_contention_predicts_another() -> None:
    rows, alike = contentions_compared(contended("abc", 60.0), contended("cab", 45.0))
    assert [row.name for row in rows] == ["c", "a", "b"]
    assert alike == 3
    assert max(abs(row.error) for row in rows) < 0.02


def test_without_an_adjustment_nothing_is_compared() -> None:
    one = Phases("a", 1, "start", 0, 4, 0, None, 0.0, 0.0, 1.0, 1.0, False)
    with raises(SimulationError, "simulation.no_adjustments"):
        phase_rows([], [one])


def test_errors_are_relative_to_the_real_values() -> None:
    assert Row("x", 2.0, 1.0).error == -0.5
    assert Row("x", 0.0, 0.0).error == 0.0
    assert math.isinf(Row("x", 0.0, 1.0).error)
