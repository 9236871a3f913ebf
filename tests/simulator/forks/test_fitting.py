"""Models fitted from a log equal those that it was made with, and name their basis."""

from __future__ import annotations

import msgspec
import pytest

from events import kinds as k
from replay.simulator.forks.fitting import Curve, Fitted, Fitting
from replay.simulator.scenario import Outage
from replay.simulator.simulation import Simulation
from replay.simulator.timings import Timings
from replay.simulator.workload import Failure
from tests.simulator.histories import Seen, busy, seen, seq_at, trained, written

STATIC = {"policy": "static", "params": {"count": 2}}
"""A policy that decides in no time."""
TIMINGS = Timings(checkpoint_s=2.0, stop_s=1.0, start_s=3.0, boot_s=8.0, resume_s=5.0)


def fitted(found: Seen, name: str, *, then: bool = True) -> Fitted:
    """At the moment of the cut, or from the app's own begin."""
    app = found.app(name)
    at = found.state if then else found.end
    return Fitting(found.history).fit(found.history.courses[app], at.time, at.apps.get(app) if then else None)


@pytest.fixture(scope="module")
def whole() -> Seen:
    records = written(Simulation(busy(timings=TIMINGS)))
    return seen(records, seq_at(records, 400))


def test_speeds_are_recovered(whole: Seen) -> None:
    measured = [fitted(whole, name) for name in ("first", "second", "third", "fourth")]
    several = [one for one in measured if one.speed_from == "measured"]
    assert len(several) >= 3
    for one in several:
        assert isinstance(one.model.speed, Curve)
        assert one.model.speed.parallel == pytest.approx(0.9, abs=0.01)
        for n in (1, 2, 3, 5, 8):
            assert one.model.speed.rate((n,)) == pytest.approx(10 / (0.1 + 0.9 / n), rel=0.04)


def test_the_work_of_ended_apps_and_their_progress_is_known(whole: Seen) -> None:
    truth = {one.spec.name: one.work * 10 for one in busy().apps}
    for name, work in truth.items():
        found = fitted(whole, name)
        assert found.work_from == "known"
        assert found.model.work == pytest.approx(work, rel=0.005)
        assert 0 <= found.saved <= found.done <= found.model.work
    assert fitted(whole, "first").done > 5000
    assert fitted(whole, "sixth").done == 0


def test_phases_are_recovered(whole: Seen) -> None:
    timings = Fitting(whole.history).common
    for phase in ("checkpoint_s", "stop_s", "start_s"):
        assert getattr(timings, phase) == pytest.approx(getattr(TIMINGS, phase), abs=0.01)
    assert timings.boot_s == pytest.approx(8.0, abs=0.5)
    assert timings.resume_s == pytest.approx(5.0, abs=0.5)
    assert timings.can_checkpoint


def test_estimates_of_running_apps_have_a_basis() -> None:
    """A second run of a command is taken to be like the first; what nothing is like is a guess, and a declared amount is
    believed before all."""
    apps = (
        trained("model-1", 0, 400, command=["fit", "resnet"]),
        trained("other", 10, 4000),
        trained("told", 20, 4000, steps=50_000),
        trained("model-2", 1200, 400, command=["fit", "resnet"]),
    )
    scenario = busy(apps=apps, until_s=1230.0)
    found = seen(written(Simulation(scenario)), 10**9)
    found.state = found.end
    again, other, told = (fitted(found, name) for name in ("model-2", "other", "told"))
    assert (again.work_from, told.work_from, other.work_from) == ("alike", "declared", "guess")
    assert again.model.work == pytest.approx(4000, rel=0.01)
    assert again.least < again.model.work < again.most
    assert told.model.work == told.least == told.most == 50_000
    assert other.model.work == pytest.approx(2 * other.done)
    assert other.guessed
    assert not told.guessed
    assert other.as_if("least").model.work < other.model.work < other.as_if("most").model.work


def test_hindsight_includes_the_work_until_the_logs_end() -> None:
    """At the cut each has worked for some 20 s; the log continues for 280 s, in which none of them ends."""
    for progress_s in (10.0, 0.0):
        apps = (trained("steady", 0, 5000, n_max=2), trained("later", 40, 5000, n_max=2))
        simulation = Simulation(busy(apps=apps, progress_s=progress_s, until_s=300.0, **STATIC))
        simulation.publish_at(299.0, k.PolicyChanged(set_params={"count": 2}), "operator")
        records = written(simulation)
        found = seen(records, seq_at(records, 30))
        fitting = Fitting(found.history)
        for name in ("steady", "later"):
            one = fitted(found, name, then=name == "steady")
            course = found.history.courses[found.app(name)]
            by_end = fitting.fit(course, found.end.time, found.end.apps[course.app]).done
            assert by_end > 2 * one.done
            assert one.work_from == "guess"
            assert one.least >= by_end * 0.999
            assert one.model.work >= 2 * by_end * 0.999


@pytest.mark.parametrize(("steps", "seconds"), [(0, 200.0), (0, 215.0), (4000, 200.0)])
def test_work_is_known_only_if_the_last_pace_is(steps: int, seconds: float) -> None:
    """It ends after one report or none since it was adjusted, so what it did is worked out by the speed that it had."""
    apps = (trained("one", 0, 400, steps=steps), trained("two", 0, 2000))
    simulation = Simulation(busy(apps=apps, timings=TIMINGS, progress_s=40.0, policy="static", params={"count": 2}))
    simulation.publish_at(seconds, k.AppUpdated(app="one", n_max=1), "client")
    found = seen(written(simulation), 10**9)
    one = fitted(found, "one", then=False)
    last = found.history.courses[found.app("one")].stretches[-1]
    assert last.containers == 1
    assert last.rate == 0
    assert one.work_from == ("declared" if steps else one.speed_from) != "known"
    assert one.model.work == pytest.approx(4000, rel=0 if steps else 0.05)


def test_an_app_without_reports_is_measured_in_container_seconds() -> None:
    found = seen(written(Simulation(busy(progress_s=0.0, **STATIC))), 10**9)
    one = fitted(found, "seventh", then=False)
    app = found.end.apps[found.app("seventh")]
    assert (one.work_from, one.speed_from) == ("known", "guess")
    assert one.model.work == pytest.approx(app.served_ns / 1e9, rel=0.02)
    assert one.model.speed.rate((2, 1)) == 3.0


def test_failures_are_repeated() -> None:
    doomed = msgspec.structs.replace(
        trained("doomed", 0, 900, retries={"limit": 1, "backoff": "5s"}),
        fails_at=(Failure(100, 3), Failure(50, 4)),
    )
    found = seen(written(Simulation(busy(apps=(doomed,)))), 10**9)
    one = fitted(found, "doomed", then=False)
    assert [failure.exit_code for failure in one.model.fails_at] == [3, 4]
    assert [failure.work for failure in one.model.fails_at] == pytest.approx([1000, 500], rel=0.03)
    assert one.model.work > 1000
    assert one.work_from == "known"


def test_cancelled_work_was_not_done() -> None:
    given_up = msgspec.structs.replace(trained("given-up", 0, 9000), cancel_at_s=300.0)
    found = seen(written(Simulation(busy(apps=(given_up,)))), 10**9)
    one = fitted(found, "given-up", then=False)
    assert one.work_from == "cancelled"
    assert one.model.work > 90_000
    assert not one.guessed


def test_silences_are_kept_until_the_agent_restarts() -> None:
    scenario = busy(outages=(Outage("n1", 300.0, 60.0), Outage("n0", 700.0, None)), **STATIC)
    history = seen(written(Simulation(msgspec.structs.replace(scenario, until_s=900.0))), 1).history
    spans = [(one.node, round((one.since - history.begin) / 1e9), one.until > 0) for one in history.silences]
    assert spans == [("n1", 300, True), ("n0", 700, False)]
    assert not any(isinstance(said.event, k.NodeJoined) for said in history.published[5:])
