"""Counters follow from the log alone, and a restart at any record leaves out nothing and counts nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm.metrics.cluster_metrics import LogFigures, cluster_metrics, exposition, log_metrics
from dorm.metrics.families import CLUSTER, LOG, OTHER
from dorm.metrics.tally import Tally
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.nats.settings import Room
from events.quantities import SECOND
from tests.core import suspect_node
from tests.metrics.scrapes import series, values
from tests.replay.busy import busy_log
from tests.replay.made_log import Story, all_facts, two_apps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record


@pytest.fixture(scope="module")
def busy() -> list[Record]:
    return busy_log(3000, apps=20, nodes=6)


def counted(records: Sequence[Record], *, restarts: Sequence[int] = ()) -> tuple[State, Tally]:
    """The tally of a log.  At each of the sequences the process ends, and the next one folds from the start with the tally
    that was kept."""
    state, tally = State(), Tally()
    for seq in (*restarts, len(records)):
        state = State()
        tally = msgspec.json.decode(msgspec.json.encode(tally), type=Tally)
        for record in records[:seq]:
            tally.see(state, record, evolve(state, record))
    return state, tally


def test_counts_agree_with_the_log(busy: list[Record]) -> None:
    state, tally = counted(busy)
    assert state.counters.void_rounds == 0, "facts below are counted without asking whether they are void"
    assert sum(tally.records.values()) == len(busy)
    assert tally.submissions == sum(isinstance(decode(record), k.AppSubmitted) for record in busy)
    assert tally.accepted == len(all_facts(busy, k.AppAccepted)) > 10
    assert tally.nodes_lost == len(all_facts(busy, k.NodeLost)) > 0
    assert tally.lost_steps == sum(fact.lost_steps for fact in all_facts(busy, k.GenerationReleased)) > 0
    assert sum(tally.decisions.values()) == len(all_facts(busy, k.Resized)) > 10
    changes = [change.adjustment for fact in all_facts(busy, k.Resized) for change in fact.changes]
    assert tally.changes["restart"] == changes.count("restart") > 0
    failed = len(all_facts(busy, k.GenerationFailed)) + len(all_facts(busy, k.AppFailed))
    assert sum(tally.failures.values()) == failed > 0


def test_phases_agree_with_the_state(busy: list[Record]) -> None:
    """An app's history in the state is kept for views: both have to agree on every restart that completed."""
    state, tally = counted(busy)
    done = [
        (record.released_at, record.started_at)
        for app in state.apps.values()
        for record in app.history
        if record.started_at and not record.live
    ]
    # What the state has dropped is counted, too.
    assert tally.adjustments["restart"] >= len(done) > 0
    started = tally.phases["restart.start"]
    assert sum(started.counts) == tally.adjustments["restart"]
    assert started.total >= sum(end - begin for begin, end in done) / SECOND - 1e-6


def test_a_restart_at_any_record_counts_the_same(busy: list[Record]) -> None:
    _, once = counted(busy)
    for restarts in ([1], [700], [1500, 1501], [len(busy)]):
        assert counted(busy, restarts=restarts)[1] == once


def test_counting_may_start_in_the_middle(busy: list[Record]) -> None:
    state = State()
    for record in busy[:1000]:
        evolve(state, record)
    tally = Tally.begin(state)
    for record in busy[1000:]:
        tally.see(state, record, evolve(state, record))
    assert tally.since == 1000
    assert sum(tally.records.values()) == 2000
    assert counted(busy)[1].accepted == len(all_facts(busy[:1000], k.AppAccepted)) + tally.accepted


def test_ends_are_counted() -> None:
    story = two_apps()
    tally = counted(story.records)[1]
    assert tally.ended == {
        "completed": len(all_facts(story.records, k.AppCompleted)),
        "failed": len(all_facts(story.records, k.AppFailed)),
        "cancelled": len(all_facts(story.records, k.AppCancelled)),
    }
    assert sum(tally.turnarounds.counts) == sum(tally.ended.values()) > 0
    assert tally.rejected == len(all_facts(story.records, k.AppRejected)) > 0
    assert tally.elections == story.epoch


def test_rotations_are_counted() -> None:
    story = two_apps()
    story.say(k.RotationFailed(code="archive.not_written", reason="no room"), "master")
    story.say(k.RotationFailed(code="archive.not_written", reason="no room"), "master")
    story.say(k.RotationFailed(code="rotation.nothing_due", reason="asked too early"), "master")
    hash = "0" * 64
    cut = k.LogRotated(id="cut", by="master", after=0, upto=2, chain=hash, snapshot=hash, archive="a", bytes=1)
    story.store(subjects.rotations("story"), encode(cut), cut.id)
    assert counted(story.records)[1].rotations == {"done": 1, "failed": 2}
    assert counted(story.records, restarts=(len(story.records) - 2,))[1].rotations == {"done": 1, "failed": 2}


def test_waits_end_with_a_release() -> None:
    story = Story(nodes=1)
    story.submit("one", n_min=3, n_max=3)
    story.settle()
    story.submit("two", n_min=3, n_max=3)
    story.settle()
    state, tally = counted(story.records)
    assert sum(tally.waits.counts) == 1
    assert list(tally.waiting) == [state.names["two"]]
    story.exit("one", 0)
    story.settle()
    state, tally = counted(story.records)
    assert sum(tally.waits.counts) == 2
    assert not tally.waiting
    two = state.apps[state.names["two"]]
    assert tally.waits.total > (two.generations[1].released_at - two.submitted_at) / SECOND > 0


def test_failures_count_by_whose_fault_they_are_and_suspect_nodes_as_well() -> None:
    bench = suspect_node.suspect()
    bench.add(k.NodeTrustRequested(node=suspect_node.BAD))
    bench.add(k.NodeTrustRequested(node=suspect_node.BAD))  # There is nothing left to trust.
    tally = counted(bench.records)[1]
    assert tally.faults == {"app": 0, "node": 0, "open": 3, "other": 0}
    assert (tally.suspected, tally.trusted) == (1, {"probe": 0, "evidence": 0, "operator": 1})


def test_void_rounds_count_as_void_alone() -> None:
    story = two_apps()
    before = counted(story.records)[1]
    story.round([k.NodeLost(node="n0", last_heard=0)], epoch=1)
    after = counted(story.records)[1]
    assert after.records["void"] == before.records["void"] + 1
    assert after.nodes_lost == before.nodes_lost


def test_every_family_is_there_with_its_labels_and_no_names_of_apps(busy: list[Record]) -> None:
    state, tally = counted(busy)
    body = exposition([*cluster_metrics(state, tally, state.time), *log_metrics(LogFigures(9, Room(1, 10)), 8)])
    found = series(body)
    for family in (*CLUSTER, *LOG):
        names = (
            [family.name] if family.type != "histogram" else [f"{family.name}_{x}" for x in ("bucket", "sum", "count")]
        )
        for name in names:
            own = {"le"} if name.endswith("_bucket") else set()
            assert name in found, name
            assert all(set(labels) == {*family.labels, *own} for labels in found[name]), name
    text = body.decode()
    assert not [app.name for app in state.apps.values() if app.name in text or app.id in text]


def test_the_number_of_series_does_not_grow_with_the_cluster(busy: list[Record]) -> None:
    small, large = counted(busy[:200]), counted(busy)
    assert len(large[0].apps) > len(small[0].apps)
    bodies = [exposition(cluster_metrics(state, tally, state.time)) for state, tally in (small, large)]
    assert len(values(bodies[0])) == len(values(bodies[1]))


def test_a_reason_or_a_cause_that_is_not_known_counts_as_other() -> None:
    story = Story(nodes=1)
    story.submit("one", n_min=9, n_max=9)
    story.submit("two", n_min=3, n_max=3)
    story.settle()
    app = (
        next(app for app in story.state.live_apps() if app.current is None)
        if any(app.current is None for app in story.state.live_apps())
        else next(story.state.live_apps())
    )
    app.generations.clear()
    app.waiting = k.Waiting(code="a_plug_in_says_so", text="")
    found = values(exposition(cluster_metrics(story.state, Tally(), story.now)))
    assert found["dorm_apps_waiting", (("reason", OTHER),)] == 1


def test_without_an_answer_the_log_has_no_metrics() -> None:
    found = values(exposition(log_metrics(LogFigures(None, None), 3)))
    assert found == {("dorm_log_up", ()): 0.0}
