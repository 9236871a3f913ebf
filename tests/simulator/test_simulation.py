"""Invariants of every run in any scenario, and small runs computed by hand, to the nanosecond."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings

from dorm.core.invariants import violations
from events import kinds as k
from events.log.memory import MemoryLog
from events.quantities import SECOND
from replay.audit.audit import verify
from replay.simulator import SimulationError
from replay.simulator.scenario import BEGIN, DecisionTime, Outage, Scenario
from replay.simulator.simulation import Simulation
from replay.simulator.speed import Linear, Table
from replay.simulator.timings import Timings
from replay.simulator.workload import Failure
from tests.errors import raises
from tests.simulator.scenarios import Written, app, nodes, play, scenarios
from tests.tries import tries

FREE_DECISIONS = DecisionTime(0.0, 0.0)
TIMINGS = Timings(checkpoint_s=5.0, stop_s=2.0, start_s=3.0, boot_s=4.0, resume_s=6.0)


E = TypeVar("E")


def of(written: Written, kind: type[E]) -> list[tuple[float, E]]:
    """Facts of this kind, with the second of the run at which they were written."""
    return [
        ((record.time - written.simulation.begin) / SECOND, fact)
        for record, event in zip(written.records, written.events, strict=True)
        for fact in (event.events if isinstance(event, k.Round) else [event])
        if isinstance(fact, kind)
    ]


@pytest.mark.soak
@settings(max_examples=tries(6, 20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
@example(
    # Most of the work is done in a container of which the log never says that it ended: its node does not come back.
    Scenario(
        apps=(app("a", 0.0, 21.0),),
        nodes=nodes(2),
        outages=(Outage("n0", 22.0, None),),
        timings=Timings(checkpoint_every_s=5.0, checkpoint_s=0.0),
    )
)
async def test_every_run_is_sound_and_ends(scenario: Scenario) -> None:
    simulation = Simulation(scenario)
    records = []
    began: dict[tuple[str, int, int], tuple[int, str]] = {}
    worked: dict[str, int] = {}
    ended: dict[str, str] = {}

    def watch(_state, record, _folded) -> None:  # type: ignore[no-untyped-def]
        event = _folded.event
        records.append(record)
        assert violations(simulation.state) == []
        if isinstance(event, k.ContainerStarted):
            began[event.app, event.generation, event.slot] = record.time, event.node
        elif isinstance(event, k.ContainerExited):
            start, _ = began.pop((event.app, event.generation, event.slot), (record.time, ""))
            worked[event.app] = worked.get(event.app, 0) + record.time - start
        for fact in event.events if isinstance(event, k.Round) else ():
            if isinstance(fact, k.AppCompleted | k.AppFailed | k.AppCancelled | k.AppRejected):
                assert fact.app not in ended
                ended[fact.app] = type(fact).__name__

    simulation.observe(watch)
    simulation.run()
    for (lost, _, _), (start, node) in began.items():  # They worked until their nodes failed.
        fails = [simulation.begin + round(one.at_s * SECOND) for one in scenario.outages if one.node == node]
        worked[lost] = worked.get(lost, 0) + min((at for at in fails if at >= start), default=start) - start
    assert not simulation.state.submissions
    assert len(ended) + len(simulation.unfinished) == len(scenario.apps)
    for one in scenario.apps:
        (how,) = [how for app, how in ended.items() if app.rpartition("-")[0] == one.spec.name] or [""]
        if how == "AppCompleted":
            got_s = sum(ns for app, ns in worked.items() if app.rpartition("-")[0] == one.spec.name) / SECOND
            assert got_s * getattr(one.speed, "one", 1.0) >= one.work - 1e-6  # None is faster than in proportion.
    if all(outage.for_s is not None for outage in scenario.outages):
        assert simulation.unfinished == []
    report = await verify(MemoryLog(lambda: 0, records))
    assert report.good, report
    assert report.not_checked == 0
    assert report.events == len(records)


def small() -> Scenario:
    return Scenario(
        apps=tuple(
            app(f"a-{i}", 40.0 * i, 700.0 + 13 * i, n_max=5, cancel_at_s=200 if i == 2 else None) for i in range(5)
        ),
        nodes=nodes(3),
        outages=(Outage("n1", 100, 50), Outage("n2", 300, 400)),
        progress_s=20.0,
    )


@pytest.mark.soak
def test_one_scenario_has_one_log_under_any_hash_seed() -> None:
    here = play(small()).records
    code = "from tests.simulator.test_simulation import play, small\nfor record in play(small()).records: print(record)"
    printed = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True, check=True
    ).stdout.decode()
    assert printed.splitlines() == [str(record) for record in here]


def test_an_app_alone_takes_its_phases_and_its_work() -> None:
    written = play(
        Scenario(
            apps=(app("a", 10.0, 100.0, n_max=4),),
            nodes=nodes(1),
            policy="static",
            params={"count": 3},
            timings=TIMINGS,
            decision_time=FREE_DECISIONS,
            progress_s=0,
        )
    )
    # 10 s, 0.2 s of quiet, 3 s until the containers run, 4 s until they work, 100 units of work by three.
    ((at, _),) = of(written, k.AppCompleted)
    assert at == 10 + 0.2 + 3 + 4 + round(100 / 3 * 1e9) / 1e9
    assert written.records[0].time == BEGIN


def test_an_adjustment_costs_its_pause_to_the_nanosecond() -> None:
    """a runs alone on four cores, until b comes and takes two of them."""
    written = play(
        Scenario(
            apps=(app("a", 0.0, 400.0, n_max=4), app("b", 50.0, 1000.0, n_min=2, n_max=2)),
            nodes=nodes(1),
            timings=TIMINGS,
            decision_time=FREE_DECISIONS,
            progress_s=0,
        )
    )
    (stopped, checkpoint), *_ = of(written, k.AppCheckpointed)
    began = 0.2 + 3 + 4
    assert stopped == 50.2 + 5
    assert checkpoint.step == int(4 * (50.2 - began))
    ended = {fact.app.rpartition("-")[0]: at for at, fact in of(written, k.AppCompleted)}
    works_again = 50.2 + 5 + 2 + 3 + 6
    left = 400 - 4 * (50.2 - began)
    assert ended["a"] == pytest.approx(works_again + left / 2, abs=2e-9)


def test_unsaved_work_is_repeated() -> None:
    """a is stopped in the middle and can't save; b is twice as far when its node crashes, and saves every 30 s."""
    scenario = Scenario(
        apps=(
            app("a", 0.0, 100.0, n_max=1, timings=Timings(checkpoint_every_s=30.0, start_s=0, boot_s=0, resume_s=0)),
        ),
        nodes=nodes(1),
        decision_time=FREE_DECISIONS,
        outages=(Outage("n0", 80.2, 20.0),),
        progress_s=0,
    )
    written = play(scenario)
    assert [fact.step for _, fact in of(written, k.AppCheckpointed)] == [30, 60, 90]
    ((at, _),) = of(written, k.AppCompleted)
    ((released, _),) = of(written, k.GenerationReleased)[1:]
    assert at == pytest.approx(released + 40, abs=2e-9)


def test_a_failed_app_is_retried_from_its_checkpoint() -> None:
    written = play(
        Scenario(
            apps=(
                app(
                    "a",
                    0.0,
                    100.0,
                    n_max=2,
                    n_min=2,
                    retries={"limit": 2, "backoff": "10s"},
                    fails_at=(Failure(50.0, 3),),
                ),
            ),
            nodes=nodes(1),
            progress_s=0,
        )
    )
    ((failed_at, failure),) = of(written, k.GenerationFailed)
    assert failure.counted
    assert "exit code 3" in failure.reason
    assert [fact.exit_code for _, fact in of(written, k.ContainerExited)] == [3, 143, 0, 0]
    ((at, _),) = of(written, k.AppCompleted)
    assert at >= failed_at + 10 + 50  # nothing was saved, so all of it by two


def test_apps_that_can_never_run_are_named_and_the_run_ends() -> None:
    stuck = Scenario(
        apps=(
            app("slow", 0.0, 10.0, speed=Table(())),
            app("fine", 0.0, 10.0, n_max=2),
            app("late", 5.0, 1e300),
            app("shut-out", 50.0, 10.0, n_min=4),
        ),
        nodes=nodes(2),
        policy="static",
        params={"count": 1},
        outages=(Outage("n1", 20.0, None),),
    )
    simulation = Simulation(stuck)
    simulation.run()
    assert simulation.unfinished == ["late", "shut-out", "slow"]


def test_an_app_that_no_node_could_hold_is_refused_and_not_waited_for() -> None:
    written = play(Scenario(apps=(app("a", 0.0, 10.0, cpu=99), app("b", 0.0, 10.0)), nodes=nodes(1)))
    assert written.simulation.unfinished == []
    assert len(of(written, k.AppRejected)) == len(of(written, k.AppCompleted)) == 1


def test_a_cut_off_run_names_unfinished_apps() -> None:
    scenario = Scenario(apps=(app("a", 0.0, 1e6), app("b", 900.0, 1.0)), nodes=nodes(1), until_s=100.0)
    written = play(scenario)
    assert written.simulation.unfinished == ["a", "b"]
    assert written.records[-1].time <= BEGIN + 100 * SECOND


def test_a_crash_in_each_phase_of_an_adjustment_is_recovered_from() -> None:
    """b's arrival moves a at 50.2 s; the phases of that end at 55.2, 57.2, 60.2 and 66.2 s."""
    for at_s in (50.1, 53.0, 56.0, 58.0, 62.0):
        for for_s in (1.0, 1000.0):
            written = play(
                Scenario(
                    apps=(app("a", 0.0, 400.0, n_max=8), app("b", 50.0, 300.0, n_min=2, n_max=2)),
                    nodes=nodes(2),
                    timings=TIMINGS,
                    outages=(Outage("n0", at_s, for_s),),
                )
            )
            assert len(of(written, k.AppCompleted)) == 2, (at_s, for_s)
            assert violations(written.state) == []


def test_outages_of_a_node_may_overlap() -> None:
    scenario = Scenario(
        apps=(app("a", 0.0, 10.0),),
        nodes=nodes(1),
        outages=(Outage("n0", 1.0, 100.0), Outage("n0", 50.0, 500.0), Outage("n0", 60.0, 5.0)),
    )
    written = play(scenario)
    assert [at for at, _ in of(written, k.NodeJoined)] == [0.0, 550.0]
    assert len(of(written, k.AppCompleted)) == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"outages": (Outage("n7", 1.0, 1.0),)}, "outage.unknown_node"),
        ({"outages": (Outage("n0", 1.0, float("nan")),)}, "outage.out_of_range"),
        ({"nodes": (*nodes(1), *nodes(1))}, "node.given_twice"),
        ({"apps": (app("a", 0.0, -1.0),)}, "app.out_of_range"),
        ({"apps": (app("a", float("inf"), 1.0),)}, "app.out_of_range"),
        ({"apps": (app("a", 0.0, float("nan")),)}, "app.out_of_range"),
    ],
    ids=["outage", "endless", "names", "negative", "never", "nothing"],
)
def test_nonsense_is_reported_in_a_line(change: dict[str, object], code: str) -> None:
    fields = {"apps": (app("a", 0.0, 1.0, speed=Linear()),), "nodes": nodes(1)} | change
    with raises(SimulationError, f"simulation.{code}"):
        Simulation(Scenario(**fields))  # type: ignore[arg-type]
