"""Edits of gates: when an app may start, from where, for how long, and how many of its sweep run at once."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.deadlines import ends_at
from dorm.core.gates import age_ns, hold_of, limit_of, reason_of
from dorm.core.query.sweep_rows import sweep_row, sweeps
from dorm.core.query.views import sizes
from dorm.core.snapshot import copy, restore
from dorm.core.state import digest
from events import kinds as k
from events.quantities import SECOND
from tests.core.apps.test_groups import placed
from tests.core.apps.test_groups import submit as submit_group
from tests.core.fold.test_revisions import bench_of, edit
from tests.core.records import Bench, document, joined


def nodes(cpu: float = 4) -> Bench:
    bench = Bench()
    bench.add(joined("a", cpu, abilities=["edits"]))
    return bench


def waits(bench: Bench, name: str = "app") -> str:
    reason = reason_of(bench.app(name), bench.now)
    return reason.code if reason is not None else ""


def refused(bench: Bench, **fields: Any) -> str:
    said = edit(bench, **fields)
    assert isinstance(said, k.AppRejected), said
    return said.code


def test_an_edit_can_begin_and_end_a_hold() -> None:
    bench = nodes()
    bench.submit("app", hold=True)
    bench.settle()
    bench.wait(100)
    said = edit(bench, hold=False)
    assert (said.changed, said.restarts, hold_of(bench.app())) == (["hold"], False, None)
    assert (bench.app().waiting_since, age_ns(bench.app(), bench.now)) == (bench.now, 0)
    said = edit(bench, id="e2", hold=True)
    hold = hold_of(bench.app())
    assert hold is not None
    assert (hold.by, hold.operator) == (said.editor, False)
    assert bench.settle() == []
    bench.add(k.AppReleaseRequested(app="app"))
    bench.settle()
    assert sizes(bench.app()) == {"a": 4}


def test_a_time_moves_and_counts_from_the_submission() -> None:
    bench = nodes()
    bench.submit("app", start_after="1h")
    bench.settle()
    bench.wait(600)
    edit(bench, start_after="30m")
    app = bench.app()
    assert app.waiting_since == app.submitted_at + 1800 * SECOND
    bench.wait(1200)
    assert waits(bench) == ""
    assert age_ns(app, bench.now) == 0, "a closed gate is no age"
    bench.settle()
    assert sizes(app) == {"a": 4}


def test_a_time_that_has_passed_or_is_taken_away_opens_the_gate_now() -> None:
    for start in ("5m", ""):
        bench = nodes()
        bench.submit("app", start_after="1h")
        bench.settle()
        bench.wait(600)
        edit(bench, start_after=start)
        assert (bench.app().waiting_since, age_ns(bench.app(), bench.now)) == (bench.now, 0)
        bench.settle()
        assert sizes(bench.app()) == {"a": 4}


def test_an_edit_adds_and_removes_awaited_apps() -> None:
    bench = nodes()
    for name in ("prep", "clean"):
        bench.running(name, n_max=1, retries={"limit": 0})
    bench.submit("app", after=["prep"], n_max=1)
    bench.settle()
    said = edit(bench, after=["prep", {"app": "clean", "when": "ended"}])
    assert said.after == [bench.app("clean").id], "what it waited for before stays as it was"
    bench.all_exited("prep")
    bench.settle()
    assert waits(bench) == "after"
    bench.submit("later", after=["app"])
    bench.settle()
    edit(bench, id="e2", after=["prep"])
    assert waits(bench) != "after"
    bench.settle()
    assert sizes(bench.app()) == {"a": 1}
    assert not bench.app("clean").awaited_by, "it does not wait for that one any more"
    bench.all_exited("clean", code=1)
    bench.settle()
    assert not bench.app().ended


def test_an_edit_cannot_make_apps_wait_for_each_other() -> None:
    bench = nodes(1)
    bench.running("full")
    bench.submit("one", after=["full"])
    bench.submit("two", after=["one"])
    bench.settle()
    assert refused(bench, of="one", after=["full", "two"]) == "edit.after.cycle"
    bench.submit("three", hold=True)
    bench.submit("four", hold=True)
    bench.settle()
    for name, other in (("three", "four"), ("four", "three")):
        before = {"command": ["work"], "demand": {"cpu": 1}, "n_max": 4, "hold": True, "name": name}
        bench.add(k.AppEditRequested(id=f"e.{name}", app=name, spec={**before, "after": [other]}), "ann")
    answers = bench.decide()
    assert [type(one).__name__ for one in answers] == ["AppRevised", "AppRejected"], (
        "answers of one round know each other"
    )
    assert answers[1].code == "edit.after.cycle"


def test_other_ended_and_unknown_apps_are_refused() -> None:
    bench = nodes(2)
    bench.running("prep", n_max=1, retries={"limit": 0})
    bench.submit("app", hold=True)
    bench.settle()
    bench.all_exited("prep", code=1)
    bench.settle()
    assert refused(bench, after=["prep"]) == "spec.after.never"
    assert refused(bench, id="e2", after=["nobody"]) == "spec.after.unknown"


def test_from_can_change_before_the_start_and_repeating_it_changes_nothing() -> None:
    bench = nodes(1)
    first = bench.running("first", n_max=1)
    bench.add(k.AppCheckpointed(app=first.id, generation=1, step=40), "a")
    bench.submit("app", n_max=1)
    bench.settle()
    edit(bench, **{"from": "first@30"})
    app = bench.app()
    assert (app.spec.origin, app.checkpoint) == (f"{first.id}@30", 30)
    assert refused(bench, id="e2", **{"from": "first@30"}) == "edit.no_change"
    assert refused(bench, id="e3", **{"from": "first"}) == "edit.no_change", "as its author wrote it"
    assert refused(bench, id="e4", **{"from": "first@50"}) == "spec.from.no_step"
    bench.add(k.AppEditRequested(id="e5", app=app.id, spec=document("app", n_max=1)), "ann")
    bench.decide()
    assert (app.spec.origin, app.checkpoint) == ("", None)
    edit(bench, id="e6", **{"from": "first"})
    bench.all_exited("first")
    released = [fact for fact in bench.settle() if isinstance(fact, k.GenerationReleased)]
    assert (released[0].resume, released[0].checkpoint) == (True, 40)


@pytest.mark.parametrize(
    "fields", [{"hold": True}, {"after": ["other"]}, {"start_after": "1h"}, {"from": "other"}], ids=str
)
def test_a_started_app_is_refused_with_advice(fields: dict[str, Any]) -> None:
    bench = bench_of(2, n_max=1)
    said = edit(bench, **fields)
    assert isinstance(said, k.AppRejected)
    assert said.code == "edit.started"
    assert "; " in said.reason


def test_a_limit_of_time_counts_from_the_containers_that_run() -> None:
    bench = bench_of(2, n_max=1)
    started = bench.now
    bench.wait(50)
    said = edit(bench, max_runtime="100s")
    assert (said.restarts, ends_at(bench.app())) == (False, started + 100 * SECOND)
    edit(bench, id="e2", max_runtime="")
    assert ends_at(bench.app()) is None
    bench.wait(100)
    bench.settle()
    assert not bench.app().ended
    edit(bench, id="e3", max_runtime="60s")
    (ended,) = [fact for fact in bench.settle() if isinstance(fact, k.AppCancelled)]
    assert ended.code == "max_runtime", "its time was over already"


def test_the_limit_of_a_sweep_changes_for_all_its_apps() -> None:
    bench = nodes(8)
    submit_group(bench, 6, 1)
    bench.settle()
    before = digest(bench.state)
    group = {"name": "lr", "index": 5, "count": 6, "parallel": 3}
    said = edit(bench, of="lr-0005", group=group)
    assert (said.changed, said.restarts) == (["group"], False)
    bench.settle()
    assert placed(bench) == ["lr-0000", "lr-0001", "lr-0002"]
    assert {limit_of(app) for app in bench.state.live_apps()} == {3}
    submit_group(bench, 7, 1, first=6)  # Its client continues with the first answer.
    bench.settle()
    assert limit_of(bench.app("lr-0006")) == 3
    (apps,) = sweeps(bench.state).values()
    assert sweep_row(apps, bench.now).parallel == 3
    assert digest(restore(copy(bench.state))) == digest(bench.state) != before

    edit(bench, id="e2", of="lr-0001", group={**group, "index": 1, "parallel": 1})
    bench.started("lr-0000")
    bench.all_exited("lr-0000")
    bench.settle()
    assert placed(bench) == ["lr-0001", "lr-0002"], "it stops nothing, and starts nothing"
    edit(bench, id="e3", of="lr-0002", group={**group, "index": 2, "parallel": 0})
    bench.settle()
    assert len(placed(bench)) == 6


def test_an_edit_moves_no_app_into_another_sweep() -> None:
    bench = nodes(2)
    submit_group(bench, 1, 1)
    bench.settle()
    for number, group in enumerate(({"name": "lr", "index": 0, "count": 2}, {"name": "other"}, None)):
        assert refused(bench, id=f"e{number}", of="lr-0000", group=group, env={}) == "edit.group"
