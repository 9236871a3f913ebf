"""What one node should run, from its part and its own facts: by the same rules as the master folds them."""

from __future__ import annotations

from typing import Any

import pytest

from agents.desired import Desired, own_subjects
from agents.runtime.interface import Key
from dorm.core.evolve import evolve
from dorm.core.state import State
from events import kinds as k
from events import subjects
from events.log.records import Record
from tests.agents.folding import desired_of
from tests.core.records import CLUSTER, Bench, joined, record_of

NODE = "a"


def fold(bench: Bench, upto: int | None = None) -> Desired:
    return desired_of(bench.records[:upto], NODE)


def wanted(desired: Desired) -> list[tuple[int, int]]:
    return [(key.generation, key.slot) for key in desired.wanted()]


def cluster(**fields: Any) -> Bench:
    """An app of two containers on node a."""
    bench = Bench(a=4)
    bench.submit(n_min=2, n_max=2, **fields)
    bench.settle()
    return bench


def test_only_released_generations_are_wanted() -> None:
    bench = cluster()
    assert wanted(fold(bench)) == [(1, 0), (1, 1)]
    released = next(number for number in range(len(bench.records), 0, -1) if wanted(fold(bench, number)) == [])
    assert released == len(bench.records) - 1
    assert fold(bench).due == {Key(bench.app().id, 1, 0), Key(bench.app().id, 1, 1)}


def test_other_nodes_records_are_ignored() -> None:
    bench = Bench(b=4)
    bench.running(n_max=1)
    desired = fold(bench)
    assert wanted(desired) == []
    bench.all_exited()
    bench.settle()
    assert bench.app().ended
    assert not [*fold(bench).apps, *fold(bench).ended], "an agent doesn't remember every app that ended elsewhere"


def test_a_newer_decision_stops_the_old_generation_at_once() -> None:
    bench = cluster()
    bench.started()
    bench.add(k.AppUpdated(app="app", n_min=1, n_max=1))
    bench.settle()
    desired = fold(bench)
    assert wanted(desired) == []
    bench.all_exited(code=143, generation=1, asked=True)
    bench.settle()
    assert wanted(fold(bench)) == [(2, 0)]


@pytest.mark.parametrize("event", ["fail", "cancel", "complete"])
def test_failed_and_ended_apps_want_nothing(event: str) -> None:
    bench = cluster()
    bench.started()
    match event:
        case "fail":
            bench.exited(slot=0, code=1)
        case "cancel":
            bench.add(k.AppCancelRequested(app="app"))
        case "complete":
            bench.all_exited()
    bench.decide()
    assert wanted(fold(bench)) == []


def test_own_facts_are_read_back() -> None:
    bench = cluster()
    bench.started(slots=[0])
    bench.exited(slot=0, code=1)
    app = bench.app().id
    desired = fold(bench)
    assert (desired.started, desired.exited, desired.due) == (set(), {Key(app, 1, 0)}, {Key(app, 1, 1)})
    on_top = desired_of(bench.records, NODE, part_at=len(bench.records) - 2)
    assert (on_top.started, on_top.exited, on_top.due) == ({Key(app, 1, 0)}, {Key(app, 1, 0)}, {Key(app, 1, 1)})


@pytest.mark.parametrize("subject", ["ContainerExited.eve", "ContainerExited.b"])
def test_facts_on_others_subjects_are_not_believed(subject: str) -> None:
    bench = cluster()
    exited = k.ContainerExited(app=bench.app().id, generation=1, slot=0, node=NODE, exit_code=0)
    desired = fold(bench)
    desired.fold(Record(len(bench.records) + 1, bench.now, f"dorm.{CLUSTER}.{subject}", record_of(1, exited).body))
    assert desired.exited == set()


class TestLease:
    def test_settings_come_from_the_log(self) -> None:
        bench = Bench()
        bench.add(k.PolicyChanged(node_lease_s=60, heartbeat_s=2.5, node_grace_s=6, retention_s=5))
        bench.add(k.PolicyChanged(policy="none such", node_lease_s=70))
        desired = fold(bench)
        assert (desired.lease_s, desired.retention_of("any")) == (70, 5)
        assert bench.state.settings.node_lease_s == 70
        # Were a node heard no more often than its grace time is long, it would be lost again and again.
        assert [desired.pace(interval_s) for interval_s in (0.5, 5, 60)] == [0.5, 2, 2]

    def test_heartbeats_are_in_time_for_a_short_lease(self) -> None:
        bench = Bench()
        bench.add(k.PolicyChanged(heartbeat_s=1.4, node_lease_s=4.5, node_grace_s=3))
        assert fold(bench).pace(5) == 1
        bench.add(k.PolicyChanged(heartbeat_s=0.5, node_lease_s=300))
        assert fold(bench).pace(5) == 0.5

    def test_containers_ended_by_a_lease_must_not_run_again(self) -> None:
        """The master gives its room and its app's next generation away from then on."""
        bench = cluster()
        bench.conclude(a=20)
        assert fold(bench).condition == "lost"
        bench.conclude(a=320)
        desired = fold(bench)
        assert (desired.due, len(desired.exited)) == (set(), 2)
        bench.conclude(a=1)
        assert (fold(bench).condition, fold(bench).due) == ("up", set())

    def test_a_lease_that_ended_too_late_ends_nothing(self) -> None:
        bench = cluster()
        bench.conclude(a=20)
        basis = bench.state.seq
        bench.add(joined("a"))
        bench.say(k.NodeLeaseEnded(node="a", last_heard=0), basis=basis)
        assert len(fold(bench).due) == 2
        assert bench.app().generations[1].containers[0].state == "desired"

    def test_releases_to_a_node_that_left_never_start(self) -> None:
        bench = Bench(a=4)
        bench.submit(n_max=1)
        bench.decide()
        bench.decide(allocate=True)
        facts, basis = bench.decided(), bench.state.seq
        bench.add(k.NodeLeft(node="a"))
        bench.say(*facts, basis=basis)
        bench.add(joined("a"))
        desired = fold(bench)
        assert desired.exited == {Key(bench.app().id, 1, 0)}
        assert desired.due == set()


def test_an_app_is_not_forgotten_while_an_end_is_unreported() -> None:
    bench = cluster()
    bench.add(k.AppCancelRequested(app="app"))
    bench.settle()
    before, app = len(bench.records), bench.app().id
    desired = fold(bench)
    desired.forget(app)
    assert len(desired.due) == 2
    bench.all_exited(asked=True)
    desired = desired_of(bench.records, NODE, part_at=before)
    desired.forget(app)
    assert (desired.apps, desired.started, desired.exited) == ({}, set(), set())


def test_master_and_agent_agree_on_every_container() -> None:
    """`due` equals the containers that the master counts as possibly running here, after every record of a full
    life."""
    bench = Bench(a=4, b=4)
    bench.running("one", n_min=2, n_max=5)
    bench.submit("two", n_min=2, n_max=2)
    bench.settle()
    bench.conclude(a=20)
    bench.conclude(a=320)
    bench.wait(60)
    bench.settle()
    bench.add(joined("a"))
    bench.settle()
    state = State()
    for record in bench.records:
        evolve(state, record)
        desired = fold(bench, record.seq)
        counted = {
            Key(app.id, generation.number, slot)
            for app in state.apps.values()
            for generation in app.generations.values()
            for slot, container in generation.containers.items()
            if generation.released and container.node == NODE and container.state != "exited"
        }
        assert desired.due == counted, record.seq


def test_a_server_can_filter_the_subjects_of_an_agent() -> None:
    """If two patterns match the same subject, the reader has to filter, and receives the whole log."""
    patterns = own_subjects("demo", "master")
    assert not any(subjects.overlap(a, b) for index, a in enumerate(patterns) for b in patterns[:index])


def test_an_agent_reads_back_its_own_progress() -> None:
    """An agent that starts again must not report the whole file again: an old checkpoint would count as the latest."""
    bench = cluster()
    app = bench.app()
    for kind, step in ((k.AppProgressed, 1), (k.AppCheckpointed, 2), (k.AppProgressed, 3)):
        said = kind(app=app.id, generation=1, step=step, id=f"{NODE}.{app.id}-1-0.{kind.__name__}.{100 * step}")
        bench.add(said, NODE)
    logged = fold(bench).logged[Key(app.id, 1, 0)]
    assert (logged.progressed, logged.checkpointed) == (300, 200)


# --- live apps ----------------------------------------------------------------------------------------------------------


def _membership(bench: Bench, number: int, members: list[int], change: Any) -> None:
    app = bench.app()
    said = k.MembershipChanged(app=app.id, generation=1, membership=number, step=1, members=members, change=change)
    bench.add(said, NODE)


def test_members_that_leave_are_wanted_until_the_membership_is_committed() -> None:
    bench = Bench(a=2)
    bench.running(n_max=2, elastic="live")
    bench.submit("other", n_max=1)
    bench.settle()
    desired = fold(bench)
    app = desired.apps[bench.app().id]
    assert wanted(desired) == [(1, 0), (1, 1)], "it trains on"
    assert (app.membership, [placed.slot for placed in app.members]) == (2, [0])
    _membership(bench, 2, [0], "shrink")
    assert wanted(fold(bench)) == [(1, 0), (1, 1)], "the master has the last word"
    bench.settle()
    assert wanted(fold(bench)) == [(1, 0)]


def test_newcomers_are_wanted_from_their_release_on_with_the_membership_that_they_join() -> None:
    bench = Bench(a=3)
    bench.running(n_max=2, elastic="live")
    bench.running("other", n_max=1)
    bench.add(k.AppUpdated(app="app", n_max=3))
    bench.add(k.AppCancelRequested(app="other"))
    bench.settle()
    assert [key.slot for key in fold(bench).wanted() if key.app == bench.app().id] == [0, 1], "its room is not free"
    bench.all_exited("other", 143, asked=True)
    bench.settle()
    desired = fold(bench)
    app = desired.apps[bench.app().id]
    assert [key.slot for key in desired.wanted()] == [0, 1, 2]
    assert Key(bench.app().id, 1, 2) in desired.due
    assert [placed.slot for placed in app.joined_as(2)] == [0, 1, 2]
    assert [placed.slot for placed in app.joined_as(0)] == [0, 1]
    assert app.founders == [0, 1]


def test_a_lost_member_is_not_wanted_again() -> None:
    bench = Bench(a=2)
    bench.running(n_max=2, elastic="live")
    bench.exited(slot=1, code=1)
    bench.decide()
    desired = fold(bench)
    assert wanted(desired) == [(1, 0)]
    assert desired.apps[bench.app().id].membership == 2


def test_after_a_missed_deadline_the_old_generation_is_stopped() -> None:
    bench = Bench(a=2)
    bench.running(n_max=2, elastic="live")
    bench.submit("other", n_max=1)
    bench.settle()
    bench.wait(100)
    bench.decide()
    assert wanted(fold(bench)) == []
    bench.all_exited(generation=1, code=143, asked=True)
    bench.settle()
    assert sorted(wanted(fold(bench))) == [(1, 0), (2, 0)]


class TestPreparing:
    """The generation before works on while the next one is prepared (`Resize.prepare_s`)."""

    def shrunk(self) -> Bench:
        """An app on a and b makes room for another; its next generation has a container on each."""
        bench = Bench()
        bench.add(joined("a", 2, prepares=True))
        bench.add(joined("b", 2, prepares=True))
        bench.running(n_max=4)
        bench.submit("other", n_max=1)
        bench.settle()
        assert bench.app().generation == 2
        return bench

    def prepared(self, bench: Bench, node: str) -> None:
        app = bench.app()
        bench.add(k.ContainersPrepared(app=app.id, generation=app.generation, node=node, created=1), node)

    def works_on(self, bench: Bench, after_s: float = 0.0) -> bool:
        desired = fold(bench)
        key = Key(bench.app().id, 1, 0)
        assert key not in desired.wanted()
        return desired.works_on(key, bench.now + int(after_s * 1e9))

    def test_until_all_nodes_have_prepared(self) -> None:
        bench = self.shrunk()
        ahead = fold(bench).to_prepare()
        assert {key.generation for key in ahead} == {2}
        nodes = sorted({one.node for one in bench.app().generations[2].containers.values()})
        for node in nodes:
            assert self.works_on(bench)
            self.prepared(bench, node)
        assert not self.works_on(bench)

    def test_at_most_until_the_deadline(self) -> None:
        bench = self.shrunk()
        assert self.works_on(bench, 29.9)
        assert not self.works_on(bench, 30.0)

    def test_not_while_one_of_its_nodes_is_lost(self) -> None:
        bench = self.shrunk()
        bench.say(k.NodeLost(node="b", last_heard=bench.now))
        assert not self.works_on(bench)

    def test_not_once_it_has_ended(self) -> None:
        bench = self.shrunk()
        bench.add(k.AppCancelRequested(app="app"))
        bench.decide()
        assert not self.works_on(bench)
        assert fold(bench).to_prepare() == {}

    def test_nothing_is_prepared_that_is_released_or_overtaken(self) -> None:
        bench = self.shrunk()
        bench.all_exited(generation=1, code=143, asked=True)
        bench.settle()
        desired = fold(bench)
        assert desired.to_prepare() == {}
        assert [key.generation for key in desired.wanted() if key.app == bench.app().id]
