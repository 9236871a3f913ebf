"""Pollux's way of running a workload: rounds of 60 s, restarts of 30 s in which the GPUs are held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.state import digest
from dorm_lab.compare import yardstick
from dorm_lab.workloads.traces.pollux import NODES
from events import kinds as k
from events.quantities import SECOND
from events.spec import check_spec
from replay.simulator.contenders import parse
from replay.simulator.scenario import BEGIN
from replay.simulator.speed import Linear, Table
from replay.simulator.workload import SimulatedApp, Workload
from tests.simulator.scenarios import Written, play

if TYPE_CHECKING:
    from replay.simulator.speed import Speed


def job(name: str, at_s: float, gpus: int, work_s: float, *curve: tuple[int, float]) -> SimulatedApp:
    """A job with this many GPUs and this duration with them; its owner declares the curve, if there is one."""
    speed: Speed = Table(curve) if curve else Linear()
    spec = check_spec(
        {
            "name": name, "command": ["train"], "resume": ["train", "--resume"], "demand": {"gpu": 1},
            "n_min": 1, "n_max": gpus, "steps": round(work_s * speed.rate((gpus,))), "speed": [list(point) for point in curve],
        }
    )  # fmt: skip
    return SimulatedApp(at_s=at_s, spec=spec, work=work_s * speed.rate((gpus,)), speed=speed)


def run(policy: str, *jobs: SimulatedApp) -> Written:
    return play(yardstick.scenario(Workload("jobs", jobs), parse(policy)))


def ended(written: Written) -> dict[str, float]:
    """Seconds from the start, by name."""
    found = {}
    for record, event in zip(written.records, written.events, strict=True):
        for fact in event.events if isinstance(event, k.Round) else ():
            if isinstance(fact, k.AppCompleted):
                found[fact.app.rsplit("-", 1)[0]] = (record.time - BEGIN) / SECOND
    return found


def adjusted(written: Written) -> int:
    return sum(app.adjustments for app in written.state.apps.values())


def test_an_arrival_waits_for_the_round_and_starts_in_30_s() -> None:
    assert ended(run("tiresias", job("a", 53, 4, 100))) == {"a": 60 + 30 + 100}


def test_at_events_it_waits_for_a_moment_and_not_for_the_round() -> None:
    scenario = yardstick.scenario(Workload("jobs", (job("a", 53, 4, 100),)), parse("dorm-speed"))
    assert ended(play(scenario)) == {"a": 60 + 30 + 100}
    assert ended(play(yardstick.at_events(scenario))) == {
        "a": pytest.approx(53 + yardstick.QUIET_S + 30 + 100, abs=0.1)
    }


def test_decisions_are_made_in_rounds_only() -> None:
    written = run("dorm", *(job(f"j{i}", 37.0 * i, 8, 200 + 31 * i) for i in range(12)))
    at = [event.at - BEGIN for event in written.events if isinstance(event, k.Round) and event.allocated]
    assert len(at) > 5
    assert all(time % (60 * SECOND) == 0 for time in at)


def test_tiresias_stops_an_app_after_16_gpu_hours_and_continues_it_later() -> None:
    """64 GPUs for 900 s are 16 hours: started at 60 s, `large` gives way at 960 s to `small`, which waits since 100 s, and
    starts again in the round after that has ended, with 900 - 30 s of its work done."""
    written = run("tiresias", job("large", 0, 64, 2000), job("small", 100, 2, 200))
    assert ended(written) == {"small": 960 + 30 + 200, "large": 1200 + 30 + (2000 - 870)}
    assert written.state.apps[next(iter(written.state.apps))].served_ns > 64 * 900 * SECOND


def test_optimus_decides_periodically() -> None:
    """What is left of the one shrinks faster than of the other, so GPUs go over without any event."""
    near = [(n, float(n)) for n in (1, 2, 4, 8, 16, 32, 64)]
    jobs = (job("short", 0, 64, 2000, *near), job("long", 0, 64, 3000, *near))
    asked = run("optimus", *jobs)
    scenario = yardstick.scenario(Workload("jobs", jobs), parse("optimus"))
    assert scenario.rounds is not None
    seldom = msgspec.structs.replace(scenario, rounds=msgspec.structs.replace(scenario.rounds, always=False))
    assert adjusted(asked) > adjusted(play(seldom))


def test_gavel_decides_in_long_rounds_and_apps_take_turns() -> None:
    """Every 360 s one of two jobs that need all GPUs makes way for the other, which starts in 30 s."""
    scenario = yardstick.scenario(Workload("jobs", (job("a", 0, 64, 500), job("b", 0, 64, 500))), parse("gavel"))
    written = play(scenario)
    at = [event.at - BEGIN for event in written.events if isinstance(event, k.Round) and event.allocated]
    assert all(time % (360 * SECOND) == 0 for time in at)
    done = ended(written)
    assert done["a"] == 360 + 2 * 360 + 30 + (500 - 330)
    assert done["b"] > done["a"]


def test_srtf_runs_the_shorter_app_first() -> None:
    near = [(n, float(n)) for n in (1, 64)]
    written = run("srtf", job("long", 0, 64, 2000, *near), job("short", 100, 64, 200, *near))
    assert ended(written) == {"short": 120 + 30 + 200, "long": 360 + 30 + 2000 - (120 - 30 - 60)}


@pytest.mark.parametrize("policy", ["tiresias", "optimus", "srtf", "gavel", "themis", "shockwave"])
def test_rounds_end_if_nothing_more_can_happen(policy: str) -> None:
    """An app that makes no progress and reports nothing."""
    stuck = msgspec.structs.replace(job("stuck", 0, 1, 100), speed=Linear(0.0))
    scenario = msgspec.structs.replace(yardstick.scenario(Workload("j", (stuck,)), parse(policy)), progress_s=0.0)
    assert play(scenario).simulation.unfinished == ["stuck"]


def test_bounds_agree_with_the_simulator_of_pollux() -> None:
    workload = Workload("jobs", (job("a", 0, 4, 100, (1, 1.0), (4, 3.0), (16, 7.0)),))
    bounds = {}
    for policy in ("tiresias", "static", "optimus", "dorm", "gavel", "drf"):
        (app,) = yardstick.scenario(workload, parse(policy)).apps
        bounds[policy] = (app.spec.n_min, app.spec.n_max)
    rigid = dict.fromkeys(("tiresias", "static", "gavel"), (4, 4))
    assert bounds == {**rigid, "optimus": (1, 16), "dorm": (1, 4), "drf": (1, 4)}
    assert yardstick.scenario(workload, parse("dorm")).nodes == NODES


def test_one_scenario_one_log() -> None:
    jobs = [job(f"j{i}", 41.0 * i, 4 + i, 150, (1, 1.0), (16, 9.0)) for i in range(9)]
    first, second = run("optimus", *jobs), run("optimus", *jobs)
    assert [record.body for record in first.records] == [record.body for record in second.records]
    assert digest(first.state) == digest(second.state)
