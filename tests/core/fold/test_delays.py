"""What nodes state of containers that they try to start, or to stop, again and again."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.delays import delays_of
from dorm.core.query.views import app_row, describe
from dorm.core.snapshot import copy, restore
from dorm.doctor.cluster_findings import judge_delays
from events import kinds as k
from events import subjects
from events.codec import encode
from tests.core.records import CLUSTER, Bench

DRIVER = "invalid log driver (500)"


def delayed(bench: Bench, **fields: Any) -> None:
    app = bench.app()
    slot = fields.get("slot", 0)
    node = app.generations[app.generation].containers[slot].node
    said = {
        "app": app.id,
        "generation": app.generation,
        "slot": slot,
        "node": node,
        "doing": "create",
        "reason": DRIVER,
    }
    bench.add(k.ContainerDelayed(**{**said, "for_s": 2.0, **fields}), str(fields.get("node", node)))


def released(**fields: Any) -> Bench:
    bench = Bench(a=4)
    bench.submit(n_max=2, **fields)
    bench.settle()
    assert bench.app().phase == "starting"
    return bench


def note(bench: Bench) -> str:
    return app_row(bench.app(), bench.now).note


def test_what_delays_a_start_is_shown_with_its_duration() -> None:
    bench = released()
    delayed(bench)
    bench.wait(10)
    assert note(bench) == f"a can't create it: {DRIVER} (12 s)"
    assert describe(bench.app(), bench.now)["containers_now"][0]["delay"]["doing"] == "create"
    delayed(bench, slot=1, for_s=3.0)
    assert note(bench) == f"a can't create it: {DRIVER}, and 1 more of its containers is delayed (12 s)"
    bench.wait(600)
    assert note(bench).endswith("(10 min)")


def test_a_failure_is_shown_before_what_takes_long() -> None:
    bench = released()
    delayed(bench, doing="pull", reason="", failing=False, for_s=100.0)
    assert note(bench) == "a pulls its image (100 s)"
    delayed(bench, slot=1)
    assert note(bench).startswith("a can't create it")


@pytest.mark.parametrize("end", ["over", "started", "exited"])
def test_it_ends(end: str) -> None:
    bench = released()
    delayed(bench)
    match end:
        case "over":
            delayed(bench, over=True)
        case "started":
            bench.started(slots=[0])
        case _:
            bench.exited(slot=0, code=None, reason="start")
    container = bench.app().generations[1].containers[0]
    assert container.delay is None
    assert "delay" not in describe(bench.app(), bench.now)["containers_now"][0]


def test_a_late_report_about_a_start_says_nothing_of_a_container_that_runs() -> None:
    bench = released()
    bench.started()
    delayed(bench)
    assert not list(delays_of(bench.app()))
    delayed(bench, doing="stop", reason="it is still there")
    assert note(bench) == "a can't stop it: it is still there (2 s)"


def test_only_its_own_node_delays_a_container() -> None:
    bench = released()
    foreign = k.ContainerDelayed(app=bench.app().id, generation=1, slot=0, node="a", reason="no")
    bench.raw(subjects.fact(CLUSTER, "ContainerDelayed", "b"), encode(foreign))
    bench.add(k.ContainerDelayed(app=bench.app().id, generation=1, slot=0, node="b", reason="no"), "b")
    bench.add(k.ContainerDelayed(app="nobody-000000", generation=1, slot=0, node="a", reason="no"), "a")
    bench.add(k.ContainerDelayed(app=bench.app().id, generation=1, slot=0, node="a", identity="x" * 32), "a")
    assert not list(delays_of(bench.app()))


def test_it_is_part_of_a_snapshot() -> None:
    bench = released()
    delayed(bench)
    again = restore(copy(bench.state)).apps[bench.app().id]
    assert list(delays_of(again)) == list(delays_of(bench.app())) != []


def test_the_doctor_sees_it_from_afar() -> None:
    bench = released()
    assert not list(judge_delays(bench.state))
    delayed(bench, reason="its folder cannot be made: No space left on device")
    delayed(bench, slot=1, reason="its folder cannot be made: No space left on device", for_s=9.0)
    (one,) = judge_delays(bench.state)
    assert (one.level, one.check, one.about) == ("wrong", "starts", "a")
    assert "app and 1 more: a can't create it: its folder cannot be made: No space left on device (for 9 s" in one.text
    assert "inodes" in one.todo
    delayed(bench, doing="pull", reason="", failing=False)
    delayed(bench, slot=1, doing="pull", reason="", failing=False)
    assert not list(judge_delays(bench.state))


def test_a_node_that_can_not_start_it_costs_the_app_no_retry() -> None:
    bench = released(retries={"limit": 0})
    bench.exited(slot=0, code=None, reason="start", message=f"its node could not create it for 20 s: {DRIVER}")
    bench.all_exited(code=143, asked=True)
    (failed, *_) = bench.decide()
    assert isinstance(failed, k.GenerationFailed)
    assert (failed.failure, failed.counted, failed.limit) == ("start", False, 0)
    assert failed.reason == f"slot 0 on a: its node could not create it for 20 s: {DRIVER}"
    assert failed.retry_at > bench.now


def test_a_deadline_for_the_start_is_still_the_apps_own() -> None:
    bench = released(retries={"limit": 0}, deadlines={"start": "10s"})
    bench.wait(60)
    (end, *_) = bench.decide()
    assert isinstance(end, k.AppFailed)
    assert end.failure == "start"
