"""Simulated apps that are faster on one type of nodes."""

from __future__ import annotations

import msgspec
import pytest

from dorm.policies.speed import speed_policy
from dorm_lab.workloads import by_name
from dorm_lab.workloads.nodes import parse
from dorm_lab.workloads.options import WrongOption
from events.kinds import AppCompleted
from replay.simulator.scenario import Scenario
from replay.simulator.timings import Timings
from tests.errors import raises
from tests.simulator.scenarios import app, play


def mean_s(scenario: Scenario) -> float:
    """Mean time from submission to completion."""
    state = play(scenario).state
    times = [(each.ended_at - each.submitted_at) / 1e9 for each in state.apps.values()]
    assert all(each.ended == "completed" for each in state.apps.values())
    return sum(times) / len(times)


@pytest.mark.parametrize(
    ("cluster", "seconds"),
    [
        ("1x cpu=2,memory=8GiB type=fast", 100.0),
        ("1x cpu=2,memory=8GiB type=slow", 300.0),
        ("1x cpu=1,memory=8GiB type=fast; 1x cpu=1,memory=8GiB type=slow", 300.0),
    ],
)
def test_a_partition_works_at_the_pace_of_its_slowest_type(cluster: str, seconds: float) -> None:
    one = msgspec.structs.replace(app("one", 0, 600, n_min=2, n_max=2), faster_on={"fast": 3.0})
    written = play(Scenario(apps=(one,), nodes=parse(cluster), progress_s=0))
    (done,) = [event for event in written.events if type(event).__name__ == "Round" and _completes(event)]
    assert done is not None
    (ended,) = written.state.apps.values()
    started = ended.generations[1].started_at
    assert (ended.ended_at - started) / 1e9 == pytest.approx(seconds, abs=5.0)


def _completes(event: object) -> bool:
    return any(isinstance(fact, AppCompleted) for fact in getattr(event, "events", ()))


def test_dorm_speed_gains_by_knowing_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds are learned from what the apps report; half of them are three times as fast on a third of the nodes.
    A restart takes half a minute, so that trying places out is expensive."""
    workload = by_name.load(
        "parametric,apps=12,faster=fast:3:0.5,arrival=exponential:10m,work=lognormal:2h:1,n_max=8,speed=amdahl:0.95",
        seed=1,
    )
    scenario = Scenario(
        apps=workload.apps,
        nodes=parse("1x cpu=16,memory=64GiB type=fast; 2x cpu=16,memory=64GiB type=slow"),
        policy="dorm-speed",
        retention_s=1e7,
        timings=Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=30.0, resume_s=30.0),
    )
    knows = mean_s(scenario)
    monkeypatch.setattr(speed_policy, "types_of", lambda _: None)
    monkeypatch.setattr(speed_policy, "names_of", lambda _: ())
    assert knows < 0.95 * mean_s(scenario)


def test_the_workload_states_which_apps_are_faster() -> None:
    apps = by_name.load("parametric,apps=8,faster=fast:3:0.25").apps
    assert [bool(each.faster_on) for each in apps] == [False, False, False, True] * 2
    assert [each.spec.command for each in apps[2:4]] == [["train"], ["train", "faster-on-fast"]]
    assert all(each.faster_on == {"a100": 0.5} for each in by_name.load("parametric,apps=3,faster=a100:0.5").apps)


@pytest.mark.parametrize(
    "text", ["fast", ":3", "fast:x", "fast:0", "fast:2:0", "fast:2:1.5", "fast:2:0.5:1", "fast:nan"]
)
def test_malformed_options_are_refused(text: str) -> None:
    with raises(WrongOption, "workload.option.malformed"):
        by_name.load(f"parametric,apps=3,faster={text}")
