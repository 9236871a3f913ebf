"""Stories of nodes, and how full they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.core.state import State
from events import kinds as k
from events.quantities import SECOND
from replay.story.node import COLUMNS, Course, NodeTeller, NodeTotals
from replay.travel import fold
from tests.core.records import START, Bench, joined

if TYPE_CHECKING:
    from replay.story.chapters import Chapter


def told(bench: Bench, node: str = "n1") -> tuple[list[Chapter], NodeTotals]:
    state, teller = State(), NodeTeller(node)
    fold(state, bench.records, len(bench.records), None, teller.see)
    return teller.story(), teller.totals(state)


def what(chapters: list[Chapter]) -> list[str]:
    return [chapter.what for chapter in chapters]


def test_decisions_for_a_node_and_its_containers() -> None:
    bench = Bench(n1=4, n2=4)
    bench.wait(10)
    bench.running("app", n_max=8)
    bench.wait(10)
    bench.add(k.PolicyChanged(params={"theta2": 1.0}))
    bench.submit("new", n_min=2, n_max=4)
    bench.settle()
    bench.all_exited("app", 143, generation=1, asked=True)
    bench.settle()
    bench.started("app")
    bench.started("new")
    bench.settle()
    chapters, totals = told(bench)
    assert what(chapters)[:3] == ["joined", "decided", "started"]
    first_join, first, started, second, ended = chapters[:5]
    assert first_join.text == "joined with 4 cores, runtime process"
    assert first.text == "decided: app gets 4"
    assert started.text == "4 containers of app (generation 1) run"
    assert [cause.position for cause in started.causes] == [first.position]
    assert started.app == bench.app().id
    assert second.text.startswith("decided: app ")
    assert "new was submitted by someone" in [cause.text for cause in second.causes]
    assert ended.text == "all containers of app (generation 1) have ended"
    assert [cause.position for cause in ended.causes] == [second.position]
    here = sum(
        c.node == "n1"
        for app in bench.state.apps.values()
        for g in app.generations.values()
        for c in g.containers.values()
    )
    assert totals.running == here
    (use,) = totals.use
    assert use.peak == 1
    assert use.mean == pytest.approx(0.5)


def test_only_a_few_failed_containers_are_listed_one_by_one() -> None:
    bench = Bench(n1=8)
    bench.running("app", n_max=8)
    for slot in range(8):
        bench.exited("app", slot, 1, message="no such file")
    chapters, totals = told(bench)
    failed = [chapter for chapter in chapters if chapter.what == "container_failed"]
    assert len(failed) == 3
    assert failed[0].text == "app (generation 1): slot 0 on n1 ended with exit code 1: no such file"
    assert chapters[-1].text == "all containers of app (generation 1) have ended, 8 of which failed"
    assert (totals.failed, totals.running) == (8, 0)


def test_a_final_stop_is_named_as_the_cause() -> None:
    bench = Bench(n1=8)
    bench.running("app", n_max=2)
    bench.running("other", n_max=2)
    bench.add(k.AppCancelRequested(app="app"))
    bench.exited("other", 0, 1)
    bench.settle()
    bench.all_exited(bench.app().id, 143, asked=True)
    bench.all_exited("other", 143, asked=True)
    ended = [chapter for chapter in told(bench)[0] if chapter.what == "ended"]
    assert [chapter.causes[0].text for chapter in ended] == ["app was cancelled", "other failed"]


def test_a_node_is_drained_lost_and_returns_with_less() -> None:
    bench = Bench(n1=4, n2=4)
    bench.running("app", n_min=8, n_max=8)
    bench.wait(100)
    bench.add(k.NodeDrainRequested(node="n1", by="ops", reason="new disk"), "ops")
    bench.wait(10)
    bench.add(k.NodeDrainRequested(node="n1", drain=False, by="ops"), "ops")
    bench.wait(5)
    bench.conclude(n1=20, n2=1)
    bench.wait(400)
    bench.conclude(n1=420, n2=1)
    bench.wait(1)
    bench.add(joined("n1", 2, labels={"zone": "a"}))
    bench.wait(1)
    bench.add(k.NodeLeft(node="n1"))
    bench.wait(2)
    bench.add(joined("n1", 2))
    chapters, totals = told(bench)
    assert what(chapters) == [
        "joined", "decided", "started", "drained", "undrained", "lost", "lease_ended", "rejoined", "left", "rejoined",
    ]  # fmt: skip
    words = {chapter.what: chapter for chapter in chapters}
    assert words["drained"].text == "ops started draining n1: new disk"
    assert words["drained"].by == "ops"
    assert "4 containers" in words["lease_ended"].text
    again, left, last = chapters[-3:]
    assert again.text == "joined again, with 2 cores, labels zone=a, runtime process (before: 4 cores)"
    assert [cause.position for cause in again.causes] == [words["lost"].position]
    assert last.text.startswith("its agent is back")
    assert [cause.position for cause in last.causes] == [left.position]
    assert (totals.drained_s, totals.lost_s, totals.left_s) == (10, 401, 2)
    assert totals.up_s == 116


def test_a_node_in_maintenance_is_forgotten() -> None:
    bench = Bench(n1=4, n2=4)
    bench.add(k.NodeDrainRequested(node="n1", by="ops", reason="a fan is loud", maintenance=True), "ops")
    bench.conclude(n1=20, n2=1)
    bench.conclude(n1=420, n2=1)
    bench.wait(5)
    bench.add(k.NodeForgetRequested(node="n1", by="ops", reason="scrapped"), "ops")
    bench.wait(50)
    bench.add(joined("n2", 4))
    chapters, totals = told(bench)
    assert what(chapters) == ["joined", "drained", "lost", "lease_ended", "forgotten"]
    assert chapters[1].text == "ops put n1 into maintenance: a fan is loud"
    assert chapters[-1].text == "ops had n1 forgotten: scrapped"
    assert totals.lost_s == 5
    bench.add(joined("n1", 2))
    assert what(told(bench)[0])[-1] == "rejoined"


def test_a_node_that_is_heard_again() -> None:
    bench = Bench(n1=4)
    bench.conclude(n1=20)
    bench.wait(7)
    bench.conclude(n1=1)
    chapters, totals = told(bench)
    assert what(chapters) == ["joined", "lost", "recovered"]
    assert chapters[-1].text == "heard again after 7.0 s"
    assert [cause.position for cause in chapters[-1].causes] == [chapters[1].position]
    assert totals.lost_s == 7


def test_a_node_that_never_joined() -> None:
    state, teller = State(), NodeTeller("n9")
    bench = Bench(n1=4)
    fold(state, bench.records, len(bench.records), None, teller.see)
    assert not teller.known
    assert teller.story() == []


@given(st.lists(st.tuples(st.integers(0, 50 * SECOND), st.floats(0, 1)), min_size=1, max_size=200))
def test_the_course_of_use_keeps_the_mean_in_bounded_memory(steps: list[tuple[int, float]]) -> None:
    course, time, part, area = Course(START), START, 0.0, 0.0
    for length, after in steps:
        area += part * length
        time += length
        course.set(time, after)
        part = after
    assert len(course.columns) <= COLUMNS
    use = course.use("cpu", time)
    assert use.mean == pytest.approx(area / max(1, time - START), abs=1e-9)
    assert use.peak == max(after for _, after in steps)
    assert all(0 <= column <= 1 + 1e-6 for column in use.course)
    assert course.use("cpu", time) == use


def test_a_node_that_takes_nothing_new_and_returns() -> None:
    bench = Bench()
    full = k.NodeOffers(unfit=[k.Unfit("data_bytes", "its data folder is full")])
    bench.add(joined("n1", 4, process="p1"))
    for offers in (full, k.NodeOffers(), k.NodeOffers(tenant="ann")):
        bench.wait(60)
        bench.add(joined("n1", 4, process="p1", offers=offers))
    bench.add(joined("n1", 4, process="p2", offers=full))
    chapters = told(bench)[0]
    assert what(chapters) == ["joined", "unfit", "fit", "rejoined", "rejoined"]
    assert [one.text.partition(",")[0] for one in chapters[1:]] == [
        "takes nothing new: its data folder is full; what runs there stays",
        "takes containers again",
        "announced again",
        "its agent is back",
    ]
    assert chapters[-1].text.endswith(", and takes nothing new: its data folder is full")
