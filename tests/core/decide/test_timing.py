"""When an allocation is due without any further record: pauses, patience, idle ticks; and what each is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.core.app import AdjustmentRecord
from dorm.core.next_round import decide
from dorm.core.timing import next_deadline, tick_is_due, trigger
from dorm.policies import registry as policies
from dorm.policies.parameters import RESTS_FROM_S
from dorm.policies.problem import Allocation, Problem
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Iterator


def tick_after(bench: Bench, seconds: float) -> list[Any]:
    """The facts after this long without an event."""
    bench.wait(seconds)
    return bench.decide(allocate=True)


def names(facts: list[Any]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[OneAtATime]]:
    """The policy `one`, as a name in the log."""
    monkeypatch.setitem(policies._REGISTRY, "one", (__name__, "OneAtATime"))
    policies._own.cache_clear()
    monkeypatch.setattr(OneAtATime, "status", "optimal")
    yield OneAtATime
    policies._own.cache_clear()


class OneAtATime:
    """Gives apps one container more, one app a round, as long as there is room on the first node."""

    name = "one"
    version = 1
    status = "optimal"

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return params

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        node = problem.nodes[0]
        free = node.capacity["cpu"] - sum(app.demand["cpu"] * sum(app.current.values()) for app in problem.apps)
        counts = {app.id: dict(app.current) for app in problem.apps}
        changed = 0
        for app in problem.apps:
            n = sum(app.current.values())
            if not app.pinned and n < app.n_max and app.demand["cpu"] <= free and (not n or not changed):
                counts[app.id] = {node.id: n + 1}
                free -= app.demand["cpu"]
                changed += bool(n)
        return Allocation(
            counts=counts, reasons={}, utilization=0.0, fairness_loss=0.0, fairness_budget=-1.0, excess=0.0,
            overhead=changed, overhead_budget=1, shortage={}, status=self.status, bound=0.0,
        )  # fmt: skip


class TestTicks:
    def test_a_departure_is_followed_by_one_tick_and_no_more(self) -> None:
        bench = Bench(a=4)
        bench.running("stays", n_max=1)
        bench.running("goes", n_max=1)
        assert names(tick_after(bench, 30)) == ["IdleTicked"], "nodes had joined"
        bench.all_exited("goes")
        bench.settle()
        quiet_since = bench.state.time
        assert next_deadline(bench.state, bench.now) == quiet_since + 30 * SECOND
        assert not tick_is_due(bench.state, quiet_since + 30 * SECOND - 1)
        assert names(tick_after(bench, 30)) == ["IdleTicked"]
        before = bench.state.seq
        for _ in range(5):
            assert next_deadline(bench.state, bench.now) is None
            assert tick_after(bench, 1000) == []
        assert bench.state.seq == before, "an idle log does not grow"

    @pytest.mark.parametrize(
        "cause",
        [
            [joined("b")],
            [k.NodeDrainRequested(node="a"), k.NodeDrainRequested(node="a", drain=False)],
        ],
        ids=["joined", "used again"],
    )
    def test_other_events_cause_a_tick_too(self, cause: list[k.Event]) -> None:
        bench = Bench(a=4)
        bench.running(n_max=1)
        tick_after(bench, 30)
        assert bench.state.rebalance_from == 0
        for event in cause:
            bench.add(event)
        assert bench.state.rebalance_from
        bench.settle()
        assert tick_is_due(bench.state, bench.now + 30 * SECOND)

    def test_a_recovered_node_causes_a_tick_too(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=1)
        tick_after(bench, 30)
        bench.conclude(a=20)
        assert bench.state.rebalance_from == 0
        bench.conclude(a=1)
        assert bench.state.rebalance_from

    def test_without_apps_nothing_ticks(self) -> None:
        bench = Bench(a=4)
        assert next_deadline(bench.state, 0) is None
        assert not tick_is_due(bench.state, bench.now + 1000 * SECOND)

    def test_each_tick_that_changes_something_is_followed_by_another(self, budget: type[OneAtATime]) -> None:
        """One app a round, and no event that asks for more: the room of the one that ended is given out tick by tick."""
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(policy="one", idle_s=10))
        for name in ("big", "one", "two"):
            bench.running(name, n_max=1, cpu=2 if name == "big" else 1)
        for name in ("one", "two"):
            bench.add(k.AppUpdated(app=name, n_max=2))
        bench.all_exited("big")
        bench.decide()
        said = []
        for _ in range(4):
            assert not tick_is_due(bench.state, bench.now + 10 * SECOND - 1)
            facts = tick_after(bench, 10)
            said.append(names(facts))
            assert all(fact.trigger == "idle" for fact in facts if isinstance(fact, k.Resized))
        assert said == [["IdleTicked", "Resized"], ["IdleTicked", "Resized"], ["IdleTicked"], []]
        assert {app.generation for app in bench.state.live_apps()} == {2}

    @pytest.mark.parametrize(
        ("status", "n_max", "loose"), [("optimal", 2, True), ("node_limit", 1, True), ("optimal", 1, False)]
    )
    def test_an_unfinished_decision_causes_a_tick(
        self, budget: type[OneAtATime], status: str, n_max: int, loose: bool
    ) -> None:
        """Its budget used up, or its solver stopped at a limit."""
        budget.status = status
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(policy="one"))
        bench.running("first", n_max=1)
        bench.wait(30)
        bench.settle()
        bench.state.rebalance_from = 0
        bench.submit("second", n_max=1)
        bench.add(k.AppUpdated(app="first", n_max=n_max))
        bench.decide()
        (decision,) = bench.decide(allocate=True)
        assert isinstance(decision, k.Resized)
        assert (decision.trigger, decision.overhead, decision.status) == ("events", n_max - 1, status)
        assert bool(bench.state.rebalance_from) == loose

    def test_an_event_after_the_basis_of_a_tick_causes_another_one(self) -> None:
        """A node joins between the basis of a tick and the tick."""
        bench = Bench(a=4)
        bench.running(n_max=1)
        bench.wait(30)
        facts, basis = bench.decided(allocate=True), bench.state.seq
        assert names(facts) == ["IdleTicked"]
        bench.add(joined("b"))
        bench.say(*facts, basis=basis)
        assert bench.state.rebalance_from
        assert names(tick_after(bench, 30)) == ["IdleTicked"]
        assert bench.state.rebalance_from == 0

    def test_facts_that_are_due_come_before_a_tick(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=1)
        bench.submit("other")
        bench.wait(1000)
        assert names(bench.decide(allocate=True)) == ["AppAccepted"]
        assert names(bench.decide(allocate=True)) == ["Resized"]
        assert bench.state.ticked_at == 0


class TestPatience:
    def waiting(self, **params: Any) -> Bench:
        bench = Bench(a=2)
        bench.add(k.PolicyChanged(params=params or None))
        bench.running("first", n_min=2, n_max=2)
        bench.submit("second", n_min=2, n_max=2)
        bench.settle()
        assert bench.app("second").phase == "waiting"
        tick_after(bench, 30)
        return bench

    @pytest.mark.parametrize(("params", "patience_s"), [({}, 600), ({"patience_s": 90.5}, 90)])
    def test_the_moment_at_which_it_is_over_is_a_deadline(self, params: dict[str, Any], patience_s: int) -> None:
        bench = self.waiting(**params)
        since = bench.app("second").waiting_since
        deadline = next_deadline(bench.state, bench.now)
        assert deadline == since + (patience_s + 1) * SECOND
        assert trigger(bench.state, deadline) == "deadline"
        assert trigger(bench.state, deadline - 1) == "events"
        assert next_deadline(bench.state, deadline) is None, "once it has been looked at"

    def test_policies_that_have_none_have_no_such_deadline(self) -> None:
        bench = self.waiting()
        bench.add(k.PolicyChanged(policy="static"))
        assert next_deadline(bench.state, bench.now) is None

    def test_the_wait_begins_with_the_acceptance_and_ends_with_the_release(self) -> None:
        bench = self.waiting()
        second = bench.app("second")
        assert second.waiting_since == second.accepted_at
        assert bench.app("first").waiting_since == 0
        bench.all_exited("first")
        bench.settle()
        assert second.waiting_since == 0
        bench.wait(50)
        bench.started("second")
        bench.exited("second", code=1)
        (failed, *_) = bench.settle()
        assert isinstance(failed, k.GenerationFailed)
        assert second.waiting_since == failed.retry_at > bench.now, "a pause after a failure is no wait for room"

    def test_a_withdrawn_place_does_not_restart_the_wait(self) -> None:
        bench = self.waiting()
        second = bench.app("second")
        since = second.waiting_since
        bench.all_exited("first")
        bench.decide()
        bench.decide(allocate=True)
        assert second.current is not None
        bench.add(k.NodeDrainRequested(node="a"))
        assert second.current is None
        assert second.waiting_since == since


@pytest.mark.soak
@settings(max_examples=tries(8, 300), deadline=None)
@given(st.data())
def test_ticks_end_after_any_history(data: st.DataObject) -> None:
    """After any history, asking again every `idle_s` soon changes nothing any more."""
    bench = Bench(a=4, b=3)
    bench.add(k.PolicyChanged(params={"theta2": data.draw(st.sampled_from([0.0, 0.1, 1.0]))}))
    for number in range(data.draw(st.integers(1, 4))):
        bench.submit(f"app-{number}", n_max=data.draw(st.integers(1, 6)), cpu=data.draw(st.sampled_from([0.5, 1, 2])))
        bench.settle()
    for name in data.draw(st.lists(st.sampled_from([app.name for app in bench.state.live_apps()]), unique=True)):
        bench.add(k.AppCancelRequested(app=name))
    bench.settle()
    for _ in range(60):
        if not bench.state.rebalance_from:
            break
        bench.wait(30)
        for app in list(bench.state.live_apps()):
            for number, generation in list(app.generations.items()):
                if generation.released and not generation.ended and number < app.generation:
                    bench.all_exited(app.id, 143, generation=number, asked=True)
        bench.settle()
        for app in list(bench.state.live_apps()):
            if app.current is not None and app.current.released and not app.settled:
                bench.started(app.id)
        bench.settle()
    end = bench.state.seq
    bench.wait(10_000)
    said = decide(bench.state, bench.now, allocate=True).facts
    assert not any(isinstance(fact, k.IdleTicked) for fact in said)
    assert bench.state.seq == end


class TestRests:
    """Under `dorm-speed` with `rest=10`, an app rests for 200 s after a restart of 20 s, and no event ends that."""

    @staticmethod
    def restarted(bench: Bench, pause_s: int) -> int:
        """An app that has had its containers since then (UTC ns)."""
        app = bench.running("app", n_max=2)
        tick_after(bench, 30)
        assert app.current is not None
        since = app.current.decided_at
        app.history.append(
            AdjustmentRecord(
                from_generation=0, to_generation=1, containers_before=1, containers_after=2, decided_at=since,
                stopped_at=since, released_at=since, started_at=since + pause_s * SECOND,
            )
        )  # fmt: skip
        return since

    @pytest.mark.parametrize(("pause_s", "rest"), [(20, 10.0), (20, 3.0), (4, 10.0), (20, None)])
    def test_the_end_of_a_rest_is_due(self, pause_s: int, rest: float | None) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(policy="dorm-speed", params={} if rest is None else {"rest": rest}))
        since = self.restarted(bench, pause_s)
        due = next_deadline(bench.state, bench.now)
        if pause_s < RESTS_FROM_S or rest is None:
            assert due is None
            return
        over = since + int(pause_s * rest) * SECOND
        assert due is not None
        assert over < due <= over + SECOND
        assert trigger(bench.state, due) == "deadline"
        assert next_deadline(bench.state, due) is None

    def test_another_policy_knows_no_rest(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(policy="dorm"))
        self.restarted(bench, 20)
        assert next_deadline(bench.state, bench.now) is None
