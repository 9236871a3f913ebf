"""Explanations agree with the log."""

from __future__ import annotations

import pytest

from dorm.cli.explain import _speed_lines
from dorm.core.state import State
from events import kinds as k
from events.quantities import SECOND
from replay.moments import AtSequence
from replay.story.explanation import ExplainError, Explanation, Witness, explain
from replay.travel import fold, state_at
from tests.core.records import Bench, joined
from tests.errors import raises
from tests.replay.made_log import all_facts, log_of, rounds_with, two_apps


def explained(bench: Bench, name: str = "app", *, at: int | None = None) -> Explanation:
    """The state of the bench's log, folded from its start."""
    state, witness = State(), Witness(name)
    last = len(bench.records) if at is None else at
    fold(state, bench.records, last, None, witness.see)
    return explain(state, witness, max(state.time, bench.now) if at is None else state.time)


def full() -> Bench:
    """Two nodes of four cores, all taken by one app with bounds 6 and 8; another waits."""
    bench = Bench(n1=4, n2=4)
    bench.add(k.PolicyChanged(policy="dorm-exact"))
    bench.running("app", n_min=6, n_max=8)
    bench.wait(30)
    bench.submit("late", n_min=4, n_max=8)
    bench.settle()
    return bench


def test_an_app_with_all_it_can_use() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=2)
    found = explained(bench)
    assert (found.state, found.phase, found.containers, found.n_max) == ("live", "running", 2, 2)
    assert found.nodes == {"n1": 2}
    assert (found.dominant, found.share, found.fair_share) == ("cpu", 0.5, 0.5)
    assert found.reason is None
    assert "app is running with all 2 containers, on n1 (2); that is 50% of all cpu" in found.text
    assert found.last_change is not None
    assert (found.last_change.adjustment, found.last_change.containers) == ("start", 2)


def test_an_app_that_waits() -> None:
    bench = full()
    bench.wait(60)
    found = explained(bench, "late")
    app = bench.app("late")
    assert app.waiting is not None
    assert found.reason is not None
    assert (found.reason.code, found.reason.text) == (app.waiting.code, app.waiting.text)
    assert found.containers == 0
    assert found.share == 0
    assert found.waiting_since == app.accepted_at
    assert "late is waiting and has had no containers for 60 s; it needs at least 4 and can use 8" in found.text
    assert app.waiting.text in found.text
    assert found.last_change is None


def test_the_last_decision_and_its_position_are_named() -> None:
    bench = full()
    found = explained(bench, "late")
    seqs = rounds_with(bench.records, k.Resized)
    fact = all_facts(bench.records, k.Resized)[-1]
    assert found.decision is not None
    assert found.decision.position.split(".")[0] == str(seqs[-1])
    for name in ("utilization", "fairness_loss", "fairness_budget", "overhead", "overhead_budget", "status", "excess"):
        assert getattr(found.decision, name) == getattr(fact, name)
    # The app before it was changed by an earlier one.
    change = explained(bench).last_change
    assert change is not None
    assert change.position.split(".")[0] == str(seqs[0])
    assert found.decision.position in found.text


def test_a_reason_lasts_from_when_its_code_appeared() -> None:
    bench = full()
    since = bench.state.time
    bench.wait(100)
    bench.submit("third", n_min=4, n_max=4)
    bench.settle()
    found = explained(bench, "late")
    assert found.reason is not None
    assert found.reason.since == since
    third = explained(bench, "third").reason
    assert third is not None
    assert third.since == since + 100 * SECOND


def test_an_earlier_moment() -> None:
    bench = full()
    seq = rounds_with(bench.records, k.AppAccepted)[-1]
    found = explained(bench, "late", at=seq)
    assert found.seq == seq
    assert found.reason is None
    assert found.phase == "waiting"
    assert "gave no reason; the next one considers it" in found.text
    found = explained(bench, "late", at=seq - 1)
    assert (found.state, found.phase) == ("pending", "pending")
    assert "no master has answered yet" in found.text
    with raises(ExplainError, "app.not_found") as refused:
        explained(bench, "late", at=seq - 2)
    assert f"sequence {seq - 2}" in str(refused.value)


def test_an_adjustment_in_progress_and_its_cost() -> None:
    bench = Bench(n1=4)
    bench.add(k.PolicyChanged(policy="dorm-exact", params={"theta2": 1.0}))
    bench.running("app", n_max=4)
    bench.submit("new", n_max=4)
    bench.settle()
    found = explained(bench)
    assert found.phase == "adjusting"
    assert f"It gets {found.containers} containers as soon as 4 of the previous 4 have stopped" in found.text
    bench.wait(2)
    bench.all_exited("app", 143, generation=1, asked=True)
    bench.settle()
    assert "0 of 2 containers have started" in explained(bench).text
    bench.wait(3)
    bench.started("app")
    found = explained(bench)
    assert found.adjustments == 1
    assert "Its last adjustment (4 -> 2 containers) took 5.0 s; whether work was lost is unknown" in found.text
    assert found.history[-1]["stop_s"] == 2
    assert found.history[-1]["start_s"] == 3
    assert found.adjust_s == 5.0


def test_a_drained_node_is_named() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=2)
    bench.add(k.NodeDrainRequested(node="n1"))
    assert "on n1 (2, drained)" in explained(bench).text


def test_a_pause_explains_why_nothing_happens() -> None:
    bench = Bench(n1=4)
    bench.add(k.SchedulingPaused(by="ops", reason="a new switch"), "ops")
    bench.submit("app")
    bench.settle()
    text = explained(bench).text
    assert "Scheduling is paused since " in text
    assert "by ops: a new switch, so nothing new is decided; `dorm resume` continues." in text


def test_an_app_that_is_tried_again() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=1)
    bench.exited("app", code=3)
    bench.decide()
    found = explained(bench)
    assert found.phase in ("retrying", "stopping")
    assert "It failed: slot 0 on n1 ended with exit code 3.  It is retried at " in found.text


@pytest.mark.parametrize(("code", "ended"), [(0, "completed"), (3, "failed")])
def test_an_app_that_has_ended(code: int, ended: str) -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=1, retries={"limit": 0})
    bench.exited("app", code=code)
    bench.decide()
    bench.wait(7)
    found = explained(bench)
    assert (found.state, found.phase) == ("ended", ended)
    assert f"app {ended} at " in found.text
    assert "7.0 s ago" in found.text
    assert found.ended_at


def test_an_app_that_has_left_the_state() -> None:
    bench = Bench(n1=4)
    bench.add(k.PolicyChanged(retention_s=1.0))
    bench.running("app", n_max=1)
    bench.exited("app")
    bench.decide()
    seq = len(bench.records)
    bench.wait(10)
    bench.submit("other")
    bench.settle()
    assert bench.state.find_app("app") is None
    found = explained(bench)
    assert found.state == "gone"
    assert f"app completed at {seq}.0" in found.text
    assert explained(bench, at=seq).state == "ended"


def test_a_refused_app_has_a_reason() -> None:
    bench = Bench(n1=4)
    bench.submit("big", cpu=5)
    bench.settle()
    found = explained(bench, "big")
    assert found.state == "refused"
    assert found.refusal is not None
    assert found.refusal.code == "spec.demand.too_large"
    assert found.refusal.reason in found.text
    with raises(ExplainError, "app.not_found") as refused:
        explained(bench, "bog")
    assert "did you mean big?" in str(refused.value)
    # Accepted later, the refusal is history.
    bench.add(k.NodeJoined(node="n9", address="a", capacity={"cpu": 8000}, ports=(20000, 20100)))
    bench.running("big", cpu=5)
    found = explained(bench, "big")
    assert (found.state, found.refusal) == ("live", None)


def test_a_refused_update_is_in_the_story() -> None:
    bench = Bench(n1=4)
    app = bench.running("app", n_max=2)
    bench.add(k.AppUpdated(app="app", n_min=3))
    bench.settle()
    for name in ("app", app.id):
        assert "An update was refused" in explained(bench, name).text


def test_a_later_submission_of_the_name_is_in_the_story() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=2)
    bench.submit("app", id="second")
    bench.settle()
    assert "A later submission of this name was refused" in explained(bench).text


def test_void_rounds_are_not_decisions() -> None:
    bench = full()
    before = explained(bench, "late")
    fact = all_facts(bench.records, k.Resized)[-1]
    bench.say(fact, epoch=0)
    bench.say(k.AppRejected(app="x", submission="s", reason="never said"), epoch=0)
    assert bench.state.counters.void_rounds == 2
    after = explained(bench, "late")
    assert (after.decision, after.reason) == (before.decision, before.reason)
    with pytest.raises(ExplainError):
        explained(bench, "x")


async def test_every_moment_of_a_log_explains_every_app() -> None:
    log = log_of(two_apps().records)
    states = set()
    for seq in range(len(log.records) + 1):
        for name in ("one", "two", "three", "bad"):
            witness = Witness(name)
            state = await state_at(log, AtSequence(seq), seen=witness.see)
            try:
                found = explain(state, witness, state.time)
            except ExplainError:
                assert state.find_app(name) is None
                continue
            states.add((found.state, found.phase))
            assert found.text.startswith(name)
            assert found.text.endswith((".", ")"))
    assert {("live", "waiting"), ("live", "running"), ("refused", "refused"), ("pending", "pending")} <= states
    assert ("ended", "completed") in states


def test_a_plan_is_explained_with_its_price() -> None:
    bench = Bench(a=4)
    bench.now += 100 * SECOND - bench.now % (100 * SECOND)
    bench.add(k.PolicyChanged(policy="oasis", params={"slot_s": 100.0, "slots": 20}))
    urgent = {"worth": 10.0, "decay": 36.0, "target": "150s"}
    for name, seconds in (("first", 8), ("second", 4)):
        bench.submit(name, n_max=4, utility=urgent, work={"mini_batch": f"{seconds}s", "chunks": 100})
        bench.settle()
    found = explained(bench, "first")
    assert found.plan is not None
    assert f"Its plan, made at {found.plan.seq} (0.0 s ago), is done at " in found.text
    assert f"worth {found.plan.worth:.3g} at a cost of {found.plan.cost:.3g}." in found.text
    later = explained(bench, "second")
    assert later.reason is not None
    assert later.reason.code == "queue"
    assert "It has 4 from " in later.text


def test_the_batch_size_of_an_app_with_the_decision_that_gave_it() -> None:
    bench = Bench(n1=4)
    bench.add(k.PolicyChanged(policy="pollux"))
    accepts = {"initial": 64, "least": 32, "most": 4096, "per_container": 512}
    app = bench.running(n_max=4, batch=accepts, speed=[[1, 1.0], [2, 1.8], [4, 3.0]], steps=100_000)
    found = explained(bench).batch
    assert found is not None
    assert (found.now.now, found.position) == (64, "")
    bench.add(k.AppProgressed(app=app.id, generation=1, step=5, noise=100_000.0), "n1")
    bench.settle()
    found = explained(bench).batch
    assert found is not None
    assert (found.now.now, found.policy) == (bench.app().batch, "pollux")
    assert found.now.now > 64
    assert found.position.split(".")[0] == str(len(bench.records))


def test_its_speed_on_each_type_of_node() -> None:
    bench = Bench()
    for name, kind in (("n1", "fast"), ("n2", "slow")):
        bench.add(joined(name, 2, labels={"type": kind}))
    for name in ("first", "second"):
        app = bench.running(name, n_min=2, n_max=2)
        steps = 180 if bench.placed(name) == "n1" else 60
        bench.add(k.AppProgressed(app=app.id, generation=1, step=0))
        bench.wait(60)
        bench.add(k.AppProgressed(app=app.id, generation=1, step=steps))
    speed = explained(bench, "first").speed
    assert speed is not None
    assert [one.type for one in speed.types] == ["fast", "slow"]
    assert 2.0 < speed.types[0].times < 3.0, "as an app like it shows, less what a minute is trusted"
    assert speed.types[1].times == 1.0
    lines = dict(_speed_lines(speed))
    assert lines["on fast"] == f"{speed.types[0].times:.2f} times the slowest (measured): 2: 3 steps/s"
    assert lines["on slow"] == f"the slowest (measured): 2: {3 / speed.types[0].times:.3g} steps/s"


def test_on_a_cluster_of_one_type_its_speed_is_the_one_declared_for_it() -> None:
    bench = Bench()
    bench.add(joined("n1", 2, labels={"type": "fast"}))
    bench.running("app", n_max=2, speed=[[1, 1.0], [2, 2.0]], speed_on={"fast": [[1, 3.0], [2, 5.0]]})
    speed = explained(bench, "app").speed
    assert speed is not None
    assert [point.containers for point in speed.points] == [1, 2]
    assert [point.steps_per_s for point in speed.points] == pytest.approx([3.0, 5.0])
    assert speed.types == []


def test_its_speed_across_nodes_where_that_is_lower() -> None:
    bench = Bench(n1=3, n2=1)
    told = [[1, 1.0], [2, 1.95], [3, 2.6], [4, 1.2]]
    bench.running("app", n_min=3, n_max=4, speed=told, steps=100_000)
    speed = explained(bench, "app").speed
    assert speed is not None
    assert [point.containers for point in speed.points] == [3, 4]
    assert [point.containers for point in speed.across] == [3]
    assert speed.across[0].steps_per_s == pytest.approx(1 / (1 / 3 + 1 / 1.2 - 1 / 4), rel=1e-6)
    assert dict(_speed_lines(speed))["across"] == "if they are on several nodes, 3: 1.09 steps/s"


def test_an_app_that_lies_across_nodes_needs_longer() -> None:
    bench = Bench()
    for name in ("n1", "n2"):
        bench.add(joined(name, 2, labels={"side": name}))
        bench.running(f"on-{name}", n_max=1, require=f'side == "{name}"')
    bench.running("app", n_min=2, n_max=2, speed=[[1, 1.0], [2, 1.95], [3, 1.1]], steps=100_000)
    current = bench.app("app").current
    assert current is not None
    assert len({one.node for one in current.all_containers()}) == 2
    speed = explained(bench, "app").speed
    assert speed is not None
    (two,) = speed.across
    assert two.steps_per_s is not None
    assert two.steps_per_s < 1.5
    assert speed.remaining_s == pytest.approx(100_000 / two.steps_per_s, rel=1e-6)
