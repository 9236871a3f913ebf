"""The fold, event by event: the effect of each, and that a repeat has none."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from dorm.core.evolve import _HANDLERS, GapError, evolve
from dorm.core.settings import all_after, retention_of, tenant_retention_after
from dorm.core.state import State, digest
from events import kinds as k
from events.spec import AppSpec
from tests.core.nonsense import nonsense
from tests.core.records import CLUSTER, Bench, document, joined, record_of


def content(state: State) -> object:
    """All but what counts records."""
    return {
        **msgspec.to_builtins(state, str_keys=True),
        "seq": 0,
        "time": 0,
        "counters": 0,
        "round_seq": 0,
        "dirty_seq": 0,
        "dirty_at": 0,
    }


def unchanged_by_repeats(bench: Bench, since: int) -> None:
    """Each record after `since` (all are facts by their natural keys) once more, later."""
    before = content(bench.state)
    for seq in range(since + 1, len(bench.records) + 1):
        bench.wait(1)
        bench.repeat(seq)
        assert content(bench.state) == before, bench.records[seq - 1]


def test_every_kind_that_a_record_may_hold_is_folded() -> None:
    assert _HANDLERS.keys() == {*get_args(k.Published), k.Unknown, k.Unreadable}


def test_a_gap_is_never_folded_over() -> None:
    bench = Bench(a=4)
    with pytest.raises(GapError):
        evolve(bench.state, record_of(bench.state.seq + 2, joined("b")))


def test_log_time_never_goes_back() -> None:
    bench = Bench(a=4)
    bench.wait(-100)
    bench.add(joined("b"))
    assert bench.state.time > bench.now
    assert bench.state.nodes["b"].joined_at == bench.state.time


class TestRepeats:
    def test_submission_before_and_after_its_answer(self) -> None:
        bench = Bench(a=4)
        bench.submit(id="one")
        unchanged_by_repeats(bench, bench.state.seq - 1)
        bench.settle()
        before = content(bench.state)
        bench.submit(id="one")
        assert content(bench.state) == before
        assert bench.decided() == []

    def test_containers(self) -> None:
        bench = Bench(a=4)
        bench.submit(n_min=2, n_max=2)
        bench.settle()
        start = bench.state.seq
        bench.started()
        unchanged_by_repeats(bench, start)
        start = bench.state.seq
        bench.exited(slot=1, code=1)
        unchanged_by_repeats(bench, start)

    def test_a_late_start_does_not_revive_an_exited_container(self) -> None:
        bench = Bench(a=4)
        bench.submit(n_max=1)
        bench.settle()
        bench.exited(code=None, reason="image", message="no such image")
        bench.started()
        assert bench.app().generations[1].containers[0].state == "exited"

    def test_the_masters_rounds(self) -> None:
        bench = Bench(a=4)
        start = bench.state.seq
        bench.running(n_min=1, n_max=2)
        bench.exited(slot=0, code=3)
        bench.settle()
        unchanged_by_repeats(bench, start + 1)

    def test_drains_and_leaving(self) -> None:
        bench = Bench(a=4, b=4)
        start = bench.state.seq
        bench.add(k.NodeDrainRequested(node="a"))
        bench.add(k.NodeLeft(node="b"))
        bench.add(k.AppCancelRequested(app="app"))
        unchanged_by_repeats(bench, start)


class TestSubmissions:
    def test_another_record_with_its_id_does_not_displace_it(self) -> None:
        bench = Bench(a=4)
        bench.submit(id="one")
        bench.add(k.AppUpdated(id="one", app="nobody"))
        bench.raw(f"dorm.{CLUSTER}.AppSubmitted.eve", b"\xc1", msg_id="one")
        assert isinstance(bench.decide()[0], k.AppAccepted)

    def test_cancelled_before_it_was_accepted(self) -> None:
        bench = Bench(a=4)
        bench.submit()
        bench.add(k.AppCancelRequested(app="app", reason="a mistake"))
        (said,) = bench.decide()
        assert isinstance(said, k.AppRejected)
        assert said.reason == "a mistake"

    def test_cancelled_while_it_was_being_accepted(self) -> None:
        bench = Bench(a=4)
        bench.submit()
        facts, basis = bench.decided(), bench.state.seq
        bench.add(k.AppCancelRequested(app="app"))
        bench.say(*facts, basis=basis)
        bench.settle()
        assert bench.app().ended == "cancelled"

    def test_a_number_beyond_all_bounds_is_refused_without_harm(self) -> None:
        bench = Bench(a=4)
        bench.raw(f"dorm.{CLUSTER}.AppSubmitted.eve", b'{"spec": {"name": "x", "n_min": 1' + b"0" * 40 + b"}}")
        assert digest(bench.state)
        (said,) = bench.decide()
        assert isinstance(said, k.AppRejected)
        assert "number" in said.reason


class TestUpdates:
    def test_bounds_and_weight(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=2)
        dirty = bench.state.dirty_seq
        bench.add(k.AppUpdated(app="app", weight=2.0, n_max=3))
        app = bench.app()
        assert (app.weight, app.n_min, app.n_max) == (2.0, 1, 3)
        assert bench.state.dirty_seq > dirty

    @pytest.mark.parametrize(
        ("event", "reason"),
        [
            (k.AppUpdated(app="nobody", n_max=3), "no app 'nobody'"),
            (k.AppUpdated(app="app", n_min=5), "n_min would be 5 and n_max 2"),
            (k.AppUpdated(app="app", n_min=9, n_max=9), "all 1 nodes together, empty, take 4"),
        ],
    )
    def test_refused_with_a_reason(self, event: k.AppUpdated, reason: str) -> None:
        bench = Bench(a=4)
        before = bench.running(n_max=2)
        bounds = (before.n_min, before.n_max)
        bench.add(event)
        (said,) = bench.decide()
        assert isinstance(said, k.AppRejected)
        assert said.refused == "update"
        assert reason in said.reason
        assert (bench.app().n_min, bench.app().n_max) == bounds


class TestContainers:
    def test_exits_count_only_for_released_generations(self) -> None:
        """An unreleased container can't have started, let alone finished."""
        bench = Bench(a=4)
        bench.submit(n_max=1)
        bench.decide()
        bench.decide(allocate=True)
        bench.exited(code=0)
        assert bench.app().generations[1].containers[0].state == "desired"
        assert isinstance(bench.decide()[0], k.GenerationReleased)
        assert not bench.decided()

    def test_exits_count_only_from_their_own_node(self) -> None:
        bench = Bench(a=4, b=4)
        bench.running(n_max=1)
        app = bench.app()
        holder = app.generations[1].containers[0].node
        other = "b" if holder == "a" else "a"
        exited = k.ContainerExited(app=app.id, generation=1, slot=0, node=other, exit_code=0)
        bench.add(exited)
        bench.raw(
            f"dorm.{CLUSTER}.ContainerExited.{other}", record_of(1, msgspec.structs.replace(exited, node=holder)).body
        )
        assert app.generations[1].containers[0].state == "running"

    def test_checkpoints_of_released_generations_are_remembered(self) -> None:
        bench = Bench(a=4)
        app = bench.running(n_max=1)
        bench.add(k.AppCheckpointed(app=app.id, generation=1, step=40), "a")
        bench.add(k.AppProgressed(app=app.id, generation=1, step=45, loss=0.5))
        bench.add(k.AppCheckpointed(app=app.id, generation=7, step=99), "a")
        bench.add(k.AppCheckpointed(app=app.id, generation=1, step=77), "a node that runs no part of it")
        assert (app.checkpoint, app.step, app.loss) == (40, 45, 0.5)


class TestNodes:
    def test_silence_and_return(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=1)
        assert [type(fact) for fact in bench.conclude(a=20)] == [k.NodeLost]
        assert not bench.state.nodes["a"].usable
        assert [type(fact) for fact in bench.conclude(a=1)] == [k.NodeRecovered]
        assert bench.state.nodes["a"].usable
        assert bench.app().phase == "running"

    def test_leaving_ends_its_containers(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=1)
        bench.add(k.NodeLeft(node="a"))
        assert bench.app().generations[1].containers[0].reason == "lost"
        bench.add(joined("a"))
        bench.settle()
        bench.wait(10)
        bench.settle()
        assert bench.app().generation == 2

    def test_a_release_that_crosses_with_leaving_leaves_nothing_in_limbo(self) -> None:
        bench = Bench(a=4)
        bench.submit(n_max=1)
        bench.decide()
        bench.decide(allocate=True)
        facts, basis = bench.decided(), bench.state.seq
        assert isinstance(facts[0], k.GenerationReleased)
        bench.add(k.NodeLeft(node="a"))
        bench.say(*facts, basis=basis)
        assert bench.app().generations[1].ended
        assert isinstance(bench.decide()[0], k.GenerationFailed)

    def test_a_release_that_crosses_with_a_drain_remains_valid(self) -> None:
        """Agents know of no drains: what was released starts, and is moved once it runs."""
        bench = Bench(a=4, b=4)
        bench.submit(n_max=1)
        bench.decide()
        bench.decide(allocate=True)
        facts, basis = bench.decided(), bench.state.seq
        node = bench.app().generations[1].containers[0].node
        bench.add(k.NodeDrainRequested(node=node))
        bench.say(*facts, basis=basis)
        bench.settle()
        assert bench.app().generation == 1
        bench.started()
        bench.settle()
        assert set(bench.app().generations[2].by_node()) == {"a", "b"} - {node}

    def test_plans_on_a_node_that_came_back_smaller_are_void(self) -> None:
        bench = Bench(a=4, b=1)
        bench.submit(n_min=3, n_max=3)
        bench.decide()
        bench.decide(allocate=True)
        bench.add(joined("a", 2))
        assert bench.app().current is None
        bench.settle()
        assert bench.app().generations[2].by_node() == {"a": 2, "b": 1}

    def test_a_drained_node_is_still_drained_when_it_joins_again(self) -> None:
        bench = Bench(a=4)
        bench.add(k.NodeDrainRequested(node="a", until_rejoin=True))
        bench.add(joined("a"))
        assert bench.state.nodes["a"].usable
        bench.add(k.NodeDrainRequested(node="a"))
        bench.add(joined("a"))
        assert not bench.state.nodes["a"].usable
        bench.add(k.NodeDrainRequested(node="a", drain=False))
        assert bench.state.nodes["a"].usable

    def test_only_the_node_itself_joins_and_leaves(self) -> None:
        bench = Bench(a=4)
        bench.raw(f"dorm.{CLUSTER}.NodeLeft.b", record_of(1, k.NodeLeft(node="a")).body)
        assert bench.state.nodes["a"].condition == "up"


class TestPolicies:
    def test_a_valid_change(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(policy="static", params={"count": 3}, quiet_ms=5))
        settings = bench.state.settings
        assert (settings.policy, settings.params, settings.quiet_ms) == ("static", {"count": 3}, 5)
        bench.add(k.PolicyChanged(policy="dorm"))
        assert settings.params == {}

    @pytest.mark.parametrize(
        "event",
        [
            k.PolicyChanged(policy="none such"),
            k.PolicyChanged(params={"theta9": 1}),
            k.PolicyChanged(params={"theta1": 7}),
            k.PolicyChanged(policy="static", params={"count": "many"}),
        ],
    )
    def test_an_invalid_one_leaves_the_policy_in_force(self, event: k.PolicyChanged) -> None:
        bench = Bench(a=4)
        bench.add(event)
        assert (bench.state.settings.policy, bench.state.settings.params) == ("dorm", {})
        assert bench.state.counters.ignored == 1

    def test_one_parameter_without_the_others(self) -> None:
        bench = Bench(a=4)
        settings = bench.state.settings
        bench.add(k.PolicyChanged(set_params={"theta1": 0.2}))
        bench.add(k.PolicyChanged(set_params={"theta2": 0.3}))
        assert settings.params == {"theta1": 0.2, "theta2": 0.3}
        bench.add(k.PolicyChanged(set_params={"theta1": None, "floor": 0}))
        assert settings.params == {"theta2": 0.3, "floor": 0}
        bench.add(k.PolicyChanged(params={"theta1": 0.4}, set_params={"floor": 0.1}))
        assert settings.params == {"theta1": 0.4, "floor": 0.1}, (
            "`params` replace all parameters, and these come on top"
        )
        bench.add(k.PolicyChanged(policy="static", set_params={"count": 3}))
        assert (settings.policy, settings.params) == ("static", {"count": 3}), "another policy starts with its defaults"
        bench.add(k.PolicyChanged(set_params={"theta1": 0.2}))
        assert (settings.params, bench.state.counters.ignored) == ({"count": 3}, 1)

    def test_parameters_of_an_earlier_version_are_ignored_and_the_rest_holds(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(params={"theta1": 0.2, "change_price": 0.02}, quiet_ms=7))
        assert (bench.state.settings.params, bench.state.settings.quiet_ms) == ({}, 7)
        assert bench.state.counters.ignored == 1

    def test_the_question_follows_from_the_fold(self) -> None:
        bench = Bench(a=4)
        for change in (
            k.PolicyChanged(set_params={"theta1": 0.2}, idle_s=60),
            k.PolicyChanged(policy="static", params={"count": 3}, quiet_ms=1, quiet_limit_ms=2),
            k.PolicyChanged(heartbeat_s=0.4, node_grace_s=1, node_lease_s=3, retention_s=3, set_params={"count": None}),
        ):
            before = msgspec.structs.replace(bench.state.settings)
            expected = all_after(before, change)
            assert before == bench.state.settings, "asking changes nothing"
            bench.add(change)
            assert bench.state.settings == expected

    def test_huge_parameters_end_no_process(self) -> None:
        bench = Bench(a=4)
        bench.raw(f"dorm.{CLUSTER}.PolicyChanged.eve", b'{"params": {"theta1": 1' + b"0" * 400 + b"}}")
        assert bench.state.settings.params == {}

    def test_agents_and_master_agree_on_the_lease_under_any_policy(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(policy="none such", node_lease_s=900))
        assert bench.state.settings.node_lease_s == 900
        assert bench.state.nodes["a"].lease_s == 900


class TestRounds:
    def test_a_deposed_master_publishes_nothing(self) -> None:
        bench = Bench(a=4)
        bench.say(k.MasterElected(epoch=2), epoch=2)
        before = content(bench.state)
        bench.say(k.NodeLost(node="a", last_heard=0), epoch=1)
        assert content(bench.state) == before
        assert bench.state.counters.void_rounds == 1
        assert bench.state.round_seq == bench.state.seq, "the log fences by it all the same"

    def test_a_round_that_ignores_the_previous_one_is_void(self) -> None:
        bench = Bench(a=4)
        basis = bench.state.seq
        bench.say(k.NodeLost(node="a", last_heard=0))
        bench.say(k.NodeLeaseEnded(node="a", last_heard=0), basis=basis - 2)
        assert not bench.state.nodes["a"].lease_ended

    @pytest.mark.parametrize("body", [b"\xc1", b"{}", b'{"kind": "Round", "v": 99}'])
    def test_garbage_moves_the_fence(self, body: bytes) -> None:
        bench = Bench(a=4)
        bench.raw(f"dorm.{CLUSTER}.round.master", body)
        assert bench.state.round_seq == bench.state.seq


class TestEndedApps:
    def test_ended_apps_leave_after_the_retention(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(retention_s=60))
        app = bench.running(n_max=1)
        bench.all_exited()
        bench.settle()
        assert app.ended == "completed"
        bench.wait(59)
        bench.say()
        assert app.id in bench.state.apps
        bench.wait(2)
        bench.say()
        assert app.id not in bench.state.apps

    def test_ended_apps_leave_after_their_tenants_own_retention(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(retention_s=60))
        app = bench.running(n_max=1)
        before = digest(bench.state)
        bench.add(k.PolicyChanged(tenant_retention_s={app.spec.user: 600.0, "other": 1.0}))
        bench.add(k.PolicyChanged(tenant_retention_s={"other": None}))
        assert bench.state.settings.tenant_retention_s == {app.spec.user: 600.0}
        bench.all_exited()
        bench.settle()
        bench.wait(599)
        bench.say()
        assert app.id in bench.state.apps
        bench.add(k.PolicyChanged(heartbeat_s=1.0, node_grace_s=1.0, tenant_retention_s={app.spec.user: 1.0}))
        assert retention_of(bench.state.settings, app.spec.user) == 600, "harmful times refuse the whole change"
        bench.wait(2)
        bench.say()
        assert app.id not in bench.state.apps
        bench.add(k.PolicyChanged(tenant_retention_s={app.spec.user: None}))
        assert tenant_retention_after(bench.state.settings, k.PolicyChanged()) == {}
        assert len({before, digest(bench.state)}) == 2

    def test_ended_apps_stay_while_their_containers_may_run(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(retention_s=0))
        app = bench.running(n_min=4, n_max=4)
        bench.add(k.AppCancelRequested(app="app"))
        bench.settle()
        bench.wait(1000)
        bench.say()
        assert app.ended
        assert app.id in bench.state.apps
        bench.submit("next", n_min=4, n_max=4)
        bench.settle()
        assert not bench.app("next").generations[1].released, "its room is not free"
        bench.all_exited(app.id, asked=True)
        bench.settle()
        assert bench.app("next").generations[1].released
        assert app.id not in bench.state.apps

    def test_names_of_ended_apps_are_free_at_once(self) -> None:
        bench = Bench(a=4)
        first = bench.running(n_max=1)
        bench.add(k.AppCancelRequested(app="app"))
        bench.settle()
        bench.submit(n_max=1)
        bench.settle()
        assert bench.app().id != first.id


def test_nonsense_changes_only_counters_and_answers() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=1)
    for subject, body in nonsense("a", app.id):
        bench.raw(f"dorm.{CLUSTER}.{subject}", body)
        assert digest(bench.state)
    assert bench.state.nodes["a"].condition == "up"
    assert app.phase == "running"
    refused = bench.settle()
    assert refused
    assert all(isinstance(fact, k.AppRejected) for fact in refused)
    assert all(fact.reason for fact in refused)


@pytest.mark.parametrize(
    "unchecked",
    [
        {"demand": {"cpu": -0.5}},
        {"demand": {"cpu": "much"}},
        {"retries": {"backoff": "x"}},
        {"deadlines": {"start": "x"}},
    ],
    ids=str,
)
def test_an_unchecked_spec_is_ignored(unchecked: dict[str, object]) -> None:
    bench = Bench(a=4)
    spec = msgspec.convert({**document(), **unchecked}, AppSpec)
    bench.say(k.AppAccepted(app="app-aaaaaa", spec=spec, submission="s"))
    assert (bench.state.apps, bench.state.counters.ignored) == ({}, 1)
    bench.settle()
