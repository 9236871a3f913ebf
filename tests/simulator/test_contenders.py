"""Contenders as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from dorm_lab.workloads.requests import by_request
from replay.simulator import SimulationError
from replay.simulator.contenders import STATIC_COUNTS, parse, parse_all, parse_timings
from replay.simulator.scenario import Scenario, Tasks
from replay.simulator.timings import LIVE, Timings
from replay.simulator.workload import Workload
from tests.errors import raises
from tests.simulator.scenarios import app, nodes


@pytest.mark.parametrize(
    ("text", "label", "policy", "params"),
    [
        ("dorm", "dorm", "dorm", {}),
        ("dorm,theta1=0.2,theta2=0.1", "dorm,theta1=0.2,theta2=0.1", "dorm", {"theta1": 0.2, "theta2": 0.1}),
        ("fair: dorm , theta1 = 0", "fair", "dorm", {"theta1": 0}),
        ("static,counts={lr-*: 8, 'm,f': 4},count=1", None, "static", {"counts": {"lr-*": 8, "m,f": 4}, "count": 1}),
        ("static,counts=paper", None, "static", {"counts": STATIC_COUNTS}),
        ("app-level,grow=true", None, "app-level", {"grow": True}),
    ],
)
def test_a_policy_with_its_parameters(text: str, label: str | None, policy: str, params: dict[str, Any]) -> None:
    found = parse(text)
    assert (found.label, found.policy, found.params) == (label or text, policy, params)
    assert found.tasks is None
    assert found.timings is None


def test_several_in_one_text() -> None:
    found = parse_all(["dorm,theta1=0.2,static,counts={a: 1, b: 2},few:dorm,theta2=0.05", "task-level"])
    assert [one.label for one in found] == ["dorm,theta1=0.2", "static,counts={a: 1, b: 2}", "few", "task-level"]


def test_sharing_by_tasks_pays_for_tasks() -> None:
    assert parse("task-level").tasks == Tasks()
    found = parse("task-level,task_s=2,overhead_s=0s,probes=3")
    assert found.tasks == Tasks(task_s=2.0, overhead_s=0.0)
    assert found.params == {"probes": 3}


def test_a_contenders_timings_apply_to_all_apps() -> None:
    own = app("b", 0, 10, timings=Timings(resume_s=9))
    scenario = Scenario(apps=(app("a", 0, 10), own), nodes=nodes(1))
    found = parse("dorm,timings=live").of(scenario)
    assert found.timings == LIVE
    assert [one.timings for one in found.apps] == [None, None]
    assert parse("dorm,pause=30s").of(scenario).timings.pause_s == 30
    kept = parse("static,count=3").of(scenario)
    assert kept.apps == scenario.apps
    assert (kept.policy, kept.params) == ("static", {"count": 3})


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["lottery"], "policy.unknown"),
        ([""], "contender.malformed"),
        ([":dorm"], "contender.malformed"),
        (["me:"], "policy.unknown"),
        (["dorm,theta9=1"], "policy.parameter.unknown"),
        (["dorm,theta1=7"], "policy.parameter.out_of_range"),
        (["dorm,theta1=["], "contender.parameter.not_yaml"),
        (["dorm,theta1=0,theta1=1"], "contender.parameter.given_twice"),
        (["dorm,=1"], "contender.malformed"),
        (["dorm", "static,dorm"], "contender.given_twice"),
        (["dorm,timings=slow"], "timings.unknown"),
        (["dorm,pause=soon"], "timings.malformed"),
        (["dorm,pause=nan"], "timings.out_of_range"),
        (["dorm,pause=1,timings=live"], "timings.given_twice"),
        (["dorm,task_s=1"], "policy.parameter.unknown"),
        (["task-level,task_s=0"], "timings.out_of_range"),
        (["static,counts=papers"], "policy.parameter.wrong_type"),
    ],
)
def test_impossible_requests_are_reported(texts: list[str], code: str) -> None:
    with raises(SimulationError, code) as raised:
        parse_all(texts)
    assert "\n" not in str(raised.value)


def test_timings_by_name() -> None:
    assert parse_timings("live") == LIVE
    assert parse_timings("docker") == Timings()
    assert parse_timings("pause=30").pause_s == 30
    with raises(SimulationError, "timings.out_of_range"):
        parse_timings("pause=-1")


def test_names_contain_the_containers_of_a_traces_jobs() -> None:
    apps = (
        app("a", 0, 10, had=4),
        app("b", 1, 10, had=1),
        app("c", 2, 10),
        app("d" * 48, 3, 10, had=4),
        app("d" * 47, 4, 10, had=4, line=7),
    )
    named, counts = by_request(Workload("trace", apps))
    assert counts == {"x1-*": 1, "x4-*": 4}
    assert [one.spec.name for one in named.apps] == ["x4-a", "x1-b", "c", f"x4-{'d' * 45}", "x4-line-7"]
    unknown = Workload("made", apps[2:3])
    assert by_request(unknown) == (unknown, {})
