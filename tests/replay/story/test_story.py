"""Stories of apps: what they say is what happened, with what led to it."""

from __future__ import annotations

import msgspec
import pytest

from dorm.core.state import State
from events import kinds as k
from events.quantities import SECOND
from replay.story.app import AppTeller
from replay.story.chapters import Cause, Chapter, Places
from replay.story.explain import explain
from replay.story.explanation import Witness
from replay.travel.travel import fold
from replay.words import moment
from tests.core.records import Bench, joined


def told(bench: Bench, name: str = "app", *, at: int | None = None) -> list[Chapter]:
    """Of the bench's log, folded anew."""
    state, teller = State(), AppTeller(name)
    fold(state, bench.records, len(bench.records) if at is None else at, None, teller.see)
    return teller.story()


def one(chapters: list[Chapter], what: str) -> Chapter:
    """The only chapter of this kind."""
    (found,) = [chapter for chapter in chapters if chapter.what == what]
    return found


def what(chapters: list[Chapter]) -> list[str]:
    return [chapter.what for chapter in chapters]


def causes(chapter: Chapter) -> list[str]:
    return [cause.text for cause in chapter.causes]


def contended() -> Bench:
    """A node of four cores that one app has to itself, until another comes."""
    bench = Bench(n1=4)
    bench.add(k.PolicyChanged(policy="dorm-exact", params={"theta2": 1.0}))
    bench.running("app", n_max=4)
    return bench


def test_who_submitted_it_and_whose_it_is() -> None:
    for user, text in (
        ("bob", "submitted by ann for bob"),
        ("ann", "submitted by ann"),
        ("\x1b[2J", "submitted by ann"),
    ):
        bench = Bench(n1=4)
        spec = {"name": "app", "command": ["work"], "demand": {"cpu": 1}, "user": user}
        bench.add(k.AppSubmitted(by="ann", spec=spec), "ann")
        assert [chapter.text for chapter in told(bench)][:1] == [text]


def test_from_submission_to_the_first_step() -> None:
    bench = Bench(n1=4)
    bench.add(
        k.AppSubmitted(by="ann", spec={"name": "app", "command": ["work"], "demand": {"cpu": 1}, "n_max": 2}), "ann"
    )
    bench.wait(1)
    bench.settle()
    bench.wait(2)
    bench.started()
    app = bench.app()
    bench.wait(3)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=7))
    submitted, accepted, started, running, resumed = chapters = told(bench)
    assert what(chapters) == ["submitted", "accepted", "started", "running", "resumed"]
    assert (submitted.text, submitted.by) == ("submitted by ann", "ann")
    assert accepted.text == f"accepted as {app.id}: 1 to 2 containers of 1 core"
    assert accepted.causes == [Cause(submitted.position, "app was submitted by ann")]
    assert started.partition == {"n1": 2}
    assert "starts with 2 containers on n1 (2)" in started.text
    assert causes(started)[0] == "app was submitted by ann"
    assert started.causes[0].position == submitted.position
    assert running.phases is not None
    assert (running.phases.start_s, running.phases.total_s) == (2, 2)
    assert [cause.position for cause in running.causes] == [started.position]
    assert "reports its first progress, at step 7, 5.0 s after the decision" in resumed.text


def test_who_was_shrunk_for_whose_sake() -> None:
    bench = contended()
    bench.add(
        k.AppSubmitted(by="bob", spec={"name": "new", "command": ["work"], "demand": {"cpu": 1}, "n_max": 4}), "bob"
    )
    bench.settle()
    shrunk = one(told(bench), "shrunk")
    assert shrunk.changed is not None
    assert (shrunk.changed.before, shrunk.changed.after) == ({"n1": 4}, {"n1": 2})
    (took,) = shrunk.changed.room_to
    assert (took.app, took.name, took.did, took.nodes) == (bench.app("new").id, "new", "started", {"n1": 2})
    assert "shrunk from 4 to 2 containers: gives up n1 (2), keeps n1 (2)" in shrunk.text
    assert "in its room, by the same decision, new started on n1 (2)" in shrunk.text
    assert causes(shrunk) == ["new was submitted by bob"]
    # The other side of it.
    started = one(told(bench, "new"), "started")
    assert started.changed is not None
    assert [(one.name, one.did, one.nodes) for one in started.changed.room_from] == [("app", "shrank", {"n1": 2})]
    assert "with room that app gave up on n1 (2) in the same decision" in started.text


def test_nobody_is_blamed_who_would_have_fitted_beside_it() -> None:
    """The owner asks for less just as another app comes, for which there is room anyway."""
    bench = Bench(n1=8)
    bench.add(k.PolicyChanged(policy="dorm-exact", params={"theta2": 1.0}))
    bench.running("app", n_max=4)
    bench.add(k.AppUpdated(app="app", n_max=2, by="ann"), "ann")
    bench.submit("new", n_max=2)
    bench.settle()
    chapters = told(bench)
    assert one(chapters, "updated").text == "ann requested n_max=2"
    shrunk = one(chapters, "shrunk")
    assert shrunk.changed is not None
    assert shrunk.changed.room_to == []
    assert "no app took that room in this decision" in shrunk.text
    assert "ann changed app" in causes(shrunk)


def decision(*changes: k.Resize, **fields: object) -> k.Resized:
    given = {
        "policy": "dorm", "policy_version": 1, "params": {}, "solver": "s", "reasons": {}, "utilization": 1.0,
        "fairness_loss": 0.0, "fairness_budget": 0.0, "excess": 0.0, "overhead": 1, "overhead_budget": 1,
        "status": "optimal", "bound": 1.0, "digest": "", **fields,
    }  # fmt: skip
    return k.Resized(changes=list(changes), **given)  # type: ignore[arg-type]  # a test's short way to write one


def resize(bench: Bench, name: str, places: Places, port: int) -> k.Resize:
    app = bench.app(name)
    nodes = [node for node, count in places.items() for _ in range(count)]
    placed = [
        k.Placed(slot=slot, node=node, address=f"addr-{node}", port=port + slot) for slot, node in enumerate(nodes)
    ]
    return k.Resize(
        app=app.id,
        from_generation=app.generation,
        to_generation=app.generation + 1,
        placement=placed,
        adjustment="restart" if app.generation else "start",
    )


def test_room_that_another_moved_out_of() -> None:
    """`app` gives n1 up to `mover`, and what that leaves on n2 is what `new` needed."""
    bench = Bench(n1=2, n2=2)
    for name in ("app", "mover", "new"):
        bench.submit(name, n_max=2)
    bench.decide()
    bench.say(decision(resize(bench, "app", {"n1": 2}, 20100), resize(bench, "mover", {"n2": 1}, 20200)))
    bench.decide()
    for name in ("app", "mover"):
        bench.started(name)
    bench.say(
        decision(
            resize(bench, "app", {"n1": 1}, 20300),
            resize(bench, "mover", {"n1": 1}, 20400),
            resize(bench, "new", {"n2": 2}, 20500),
        )
    )
    changed = one(told(bench), "shrunk").changed
    assert changed is not None
    assert [(one.name, one.did, one.nodes, one.through) for one in changed.room_to] == [
        ("mover", "moved", {"n1": 1}, ""),
        ("new", "started", {"n2": 2}, "mover"),
    ]
    assert (
        "mover moved on n1 (1) and new started on n2 (2) (in the room that mover moved out of)"
        in one(told(bench), "shrunk").text
    )


def test_what_an_adjustment_cost() -> None:
    bench = contended()
    app = bench.app()
    bench.add(k.AppProgressed(app=app.id, generation=1, step=10))
    bench.wait(10)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=110, loss=0.5))
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=100), "n1")
    bench.submit("new", n_max=4)
    bench.settle()
    bench.wait(2)
    bench.all_exited("app", 143, generation=1, asked=True)
    bench.wait(1)
    bench.settle()
    bench.wait(3)
    bench.started("app")
    bench.wait(4)
    bench.add(k.AppProgressed(app=app.id, generation=2, step=101))
    chapters = told(bench)
    assert what(chapters)[-4:] == ["shrunk", "released", "running", "resumed"]
    shrunk, released, running, resumed = chapters[-4:]
    assert released.phases is not None
    phases = released.phases
    assert (phases.previous, phases.stop_s, phases.wait_s, phases.lost_steps, phases.checkpoint) == (1, 2, 1, 10, 100)
    assert released.causes[0].position == shrunk.position
    assert "slot 3 on n1 ended with exit code 143" in causes(released)[1]
    assert released.work is not None
    assert (released.work.first_step, released.work.last_step, released.work.steps_per_s) == (10, 110, 10)
    assert "continues from its checkpoint at step 100, 10 steps lost" in released.text
    assert "it worked from step 10 to 110 (10 steps/s), loss 0.5" in released.text
    assert running.phases is not None
    assert (running.phases.start_s, running.phases.total_s) == (3, 6)
    assert resumed.phases is not None
    assert resumed.phases.resumed_s == 10
    # It took up work a step's time before it told of it, twice that of before, and did 10 steps, a second's work, once more.
    assert resumed.phases.cost_s == pytest.approx(9.8 + 1)
    assert "works again, at step 101, 10 s after the decision; it made 10 steps/s before" in resumed.text
    assert "this adjustment cost 11 s of its work, counting the pause and lost steps" in resumed.text


def test_progress_is_summed_up() -> None:
    bench = contended()
    app, before = bench.app(), len(told(contended()))
    for step in range(500):
        bench.wait(0.1)
        bench.add(k.AppProgressed(app=app.id, generation=1, step=step))
    assert len(told(bench)) == before + 1


def test_waits_are_told_when_their_reason_changes() -> None:
    bench = Bench(n1=4, n2=4)
    bench.add(k.PolicyChanged(policy="dorm-exact"))
    bench.running("app", n_min=8, n_max=8)
    bench.submit("late", n_min=4, n_max=8)
    bench.settle()
    for number in range(3):
        bench.submit(f"more{number}", n_min=4)
        bench.settle()
    waits = one(told(bench, "late"), "waits")
    reason = bench.app("late").waiting
    assert reason is not None
    assert waits.text.startswith("waits because no node has 1 core free")
    assert waits.text.endswith(f"({reason.code})")
    assert causes(waits) == ["late was submitted by someone"]
    bench.all_exited()
    bench.settle()
    started = told(bench, "late")[-1]
    assert started.what == "started"
    assert "app completed" in causes(started)


def test_an_app_that_fails_again_and_again() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=2, retries={"limit": 1, "backoff": "1s"})
    bench.exited("app", 1, 137, reason="out_of_memory", message="killed;\nby the kernel")
    bench.exited("app", 0, 1)
    bench.settle()
    bench.wait(2)
    bench.settle()
    bench.started()
    bench.exited("app", 0, 3)
    bench.settle()
    chapters = told(bench)
    assert what(chapters)[3:] == [
        "running", "container_failed", "retried", "restarted", "released", "running", "container_failed", "failed",
    ]  # fmt: skip
    first, second = (chapter for chapter in chapters if chapter.what == "container_failed")
    assert first.exit is not None
    assert (first.exit.slot, first.exit.node, first.exit.exit_code, first.exit.reason) == (
        1,
        "n1",
        137,
        "out_of_memory",
    )
    retried = one(chapters, "retried")
    assert retried.partition == {}
    assert [cause.position for cause in retried.causes] == [first.position]
    assert "(retry 1 of 1)" in retried.text
    assert "1 other container ended the same way" in retried.text
    failed = one(chapters, "failed")
    assert [cause.position for cause in failed.causes] == [second.position]
    assert "slot 0 on n1 ended with exit code 3 (1 of 1 retry used up)" in failed.text
    assert failed.totals is not None
    assert (failed.totals.generations, failed.totals.failures, failed.totals.waited_s) == (2, 1, 2)


def test_a_lost_node() -> None:
    bench = Bench(n1=2, n2=2)
    bench.running("app", n_max=4)
    bench.conclude(n2=20, n1=1)
    bench.conclude(n2=400, n1=1)
    bench.settle()
    chapters = told(bench)
    lost, lease, retried = one(chapters, "node_lost"), one(chapters, "node_lease_ended"), one(chapters, "retried")
    assert ", has not been heard since " in lost.text
    assert "where it has 2 containers" in lost.text
    assert [cause.position for cause in lease.causes] == [lost.position]
    assert "which ended the app's 2 containers there" in lease.text
    assert [cause.position for cause in retried.causes] == [lease.position]
    assert "not counted as a retry" in retried.text
    # Nothing of it is there any more when the node comes back.
    bench.conclude(n2=1, n1=1)
    bench.all_exited("app", 143, asked=True)
    bench.wait(60)
    bench.settle()
    assert what(told(bench))[len(chapters) :] == ["restarted", "released"]
    released = told(bench)[-1]
    assert released.phases is not None
    assert released.phases.lease_ended == ["n2"]
    assert "(n2: when its lease ended)" in released.text


def test_a_drained_node() -> None:
    bench = Bench(n1=2, n2=2)
    bench.running("app", n_max=4)
    bench.add(k.NodeDrainRequested(node="n2", by="ops", reason="new disk"), "ops")
    bench.settle()
    chapters = told(bench)
    drained, shrunk = one(chapters, "node_drained"), one(chapters, "shrunk")
    assert drained.text == "ops started draining n2: new disk; it has 2 containers there"
    assert drained.by == "ops"
    assert shrunk.changed is not None
    assert (shrunk.changed.closed, shrunk.changed.room_to) == (["n2"], [])
    assert "n2 takes no new containers" in shrunk.text
    assert shrunk.causes == [Cause(drained.position, "ops started draining n2: new disk")]


def test_a_pause_and_a_retry_now() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=1, retries={"backoff": "1h"})
    bench.exited("app", code=1)
    bench.settle()
    bench.add(k.SchedulingPaused(by="ops", reason="a new switch"), "ops")
    bench.add(k.AppRetryRequested(app="app", by="ann"), "ann")
    bench.settle()
    bench.add(k.SchedulingResumed(by="ops"), "ops")
    bench.settle()
    chapters = told(bench)
    assert what(chapters)[-5:] == ["paused", "retry_requested", "scheduling_resumed", "restarted", "released"]
    assert one(chapters, "paused").text == "ops paused scheduling: a new switch"
    assert one(chapters, "retry_requested").by == "ann"
    causes = [cause.text for cause in one(chapters, "restarted").causes]
    assert (causes[0], causes[-1]) == ("ann asked to retry app now", "ops resumed scheduling")


def test_a_decision_that_was_overtaken() -> None:
    bench = Bench(n1=4, n2=4)
    bench.submit("app", n_max=8)
    bench.decide()
    facts, basis = bench.decided(allocate=True), bench.state.seq
    bench.add(k.NodeDrainRequested(node="n2", by="ops"), "ops")
    bench.say(*facts, basis=basis)
    bench.settle()
    first, second = (chapter for chapter in told(bench) if chapter.what in ("started", "restarted"))
    assert first.changed is not None
    assert first.changed.overtaken
    assert first.partition is None
    assert "never took effect" in first.text
    assert second.partition == {"n1": 4}


def test_refusals_and_requests_with_who_asked() -> None:
    bench = Bench(n1=4)
    bench.submit("app", cpu=9)
    bench.settle()
    submitted, refused = told(bench)
    assert "refused: demand.cpu: one container needs 9 cores" in refused.text
    assert refused.causes == [Cause(submitted.position, "app was submitted by someone")]
    app = bench.running("app", n_max=2)
    bench.submit("app", id="again")
    bench.add(k.AppUpdated(app=app.id, n_min=3, by="ann"), "ann")
    bench.settle()
    bench.add(k.AppCancelRequested(app="app", by="bob", reason="enough"), "bob")
    bench.decide()
    chapters = told(bench)
    assert chapters[0].position != submitted.position
    assert "a later submission of this name was refused" in one(chapters, "refused").text
    assert "this update was refused: n_min would be 3" in one(chapters, "update_refused").text
    assert causes(one(chapters, "update_refused")) == ["ann requested n_min=3"]
    asked, cancelled = one(chapters, "cancel_requested"), one(chapters, "cancelled")
    assert (asked.text, asked.by) == ("bob asked to cancel it: enough", "bob")
    assert cancelled.causes == [Cause(asked.position, asked.text)]


def test_a_submission_that_nobody_has_answered() -> None:
    bench = Bench(n1=4)
    bench.submit("app")
    assert what(told(bench)) == ["submitted"]
    assert told(bench, at=1) == []


def test_void_rounds_and_repeats_say_nothing() -> None:
    bench = contended()
    before = told(bench)
    for record in list(bench.records):
        bench.repeat(record.seq)
    bench.say(k.AppCompleted(app=bench.app().id, generation=1), epoch=0)
    # A submission without an id is another one each time.
    assert [chapter for chapter in told(bench) if chapter.what not in ("submitted", "refused")] == [
        chapter for chapter in before if chapter.what != "submitted"
    ]


def test_an_idle_tick_is_a_cause() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=2)
    bench.wait(60)
    tick = k.IdleTicked(policy="dorm", policy_version=1, solver="s", status="optimal", digest="")
    bench.say(tick, decision(resize(bench, "app", {"n1": 1}, 20100), trigger="idle"))
    shrunk = one(told(bench), "shrunk")
    assert shrunk.changed is not None
    assert (shrunk.position, shrunk.changed.trigger) == (f"{bench.state.seq}.1", "idle")
    assert [cause.position for cause in shrunk.causes] == [f"{bench.state.seq}.0"]
    assert "the log was quiet" in causes(shrunk)[0]


def test_what_had_to_wait_for_an_adjustment_is_still_a_cause() -> None:
    bench = contended()
    bench.submit("new", n_max=4)
    bench.settle()
    bench.wait(1)
    bench.add(joined("n2", 4))
    bench.wait(60)
    bench.all_exited("app", 143, generation=1, asked=True)
    bench.settle()
    bench.started("app")
    bench.add(k.AppProgressed(app=bench.app().id, generation=2, step=1))  # Until then it is left alone.
    bench.started("new")
    bench.settle()
    grown = [chapter for name in ("app", "new") for chapter in told(bench, name) if chapter.what == "grown"]
    assert len(grown) == 2
    for chapter in grown:
        assert causes(chapter)[0] == "n2 joined"
        assert "ran with 2 containers" in causes(chapter)[1]


def test_a_name_is_its_newest_app_and_an_id_that_one() -> None:
    bench = contended()
    first = bench.app().id
    bench.all_exited()
    bench.settle()
    bench.running("app", n_max=1)
    second = bench.app().id
    by_name, by_first, by_second = (told(bench, wanted) for wanted in ("app", first, second))
    assert by_name == by_second
    assert by_first != by_second
    assert "completed" in what(by_first)
    assert told(bench, "ap") == []


def test_an_app_that_has_left_the_state() -> None:
    bench = contended()
    bench.add(k.PolicyChanged(retention_s=1.0))
    bench.all_exited()
    bench.settle()
    whole = told(bench)
    bench.wait(10)
    bench.submit("other")
    bench.settle()
    assert bench.state.find_app("app") is None
    assert told(bench) == whole
    assert whole[-1].what == "completed"


def test_what_strangers_write_stays_on_its_line() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=1, retries={"limit": 0})
    bench.exited("app", 0, 1, message="a\x1b[2J\nb" + "x" * 5000)
    bench.settle()
    failed = one(told(bench), "container_failed")
    assert "\n" not in failed.text
    assert len(failed.text) < 500
    assert failed.exit is not None
    assert "\n" in failed.exit.message


def test_containers_that_had_to_be_killed_are_told() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=3)
    bench.add(k.AppUpdated(app="app", n_max=2))
    bench.settle()
    bench.exited(slot=0, code=143, asked=True, generation=1)
    bench.all_exited(code=137, asked=True, killed=True, generation=1)
    bench.settle()
    released = [chapter for chapter in told(bench) if chapter.what == "released"][-1]
    assert released.phases is not None
    assert released.phases.killed == 2
    assert "2 containers killed at the end of their grace time" in released.text


def test_an_app_that_asked_for_less_says_why() -> None:
    bench = contended()
    app = bench.app()
    bench.add(k.AppResizeRequested(app=app.id, generation=1, containers=2, reason="the gap\x1b grows"), "n1")
    bench.settle()
    chapters = told(bench)
    asked = one(chapters, "size_requested")
    assert asked.text == "it asked for no more than 2 containers: the gap\x1b grows"
    shrunk = one(chapters, "shrunk")
    assert shrunk.causes[0] == Cause(asked.position, "app asked for 2 containers")
    bench.all_exited(generation=1, asked=True)
    bench.settle()
    bench.add(k.AppResizeRequested(app=app.id, generation=2), "n1")
    withdrawn = told(bench)[-1]
    assert withdrawn.text.startswith("it withdrew its request for fewer containers; counts from ")


def test_an_app_that_works_on_while_its_resize_is_prepared() -> None:
    bench = Bench()
    for node in ("n1", "n2"):
        bench.add(joined(node, 2, prepares=True))
    app = bench.running("app", n_max=4)
    bench.add(k.AppUpdated(app="app", n_max=2))
    bench.settle()
    nodes = list(app.generations[2].preparing)
    state, witness = State(), Witness("app")
    fold(state, bench.records, len(bench.records), None, witness.see)
    assert f"works on until {', '.join(nodes)} prepared them" in explain(state, witness, bench.now).text
    for node in nodes:
        bench.wait(0.5)
        bench.add(k.ContainersPrepared(app=app.id, generation=2, node=node, created=1))
    bench.wait(1)
    bench.all_exited(generation=1, code=143, asked=True)
    bench.settle()
    released = one(told(bench), "released")
    assert released.phases is not None
    assert (released.phases.prepare_s, released.phases.stop_s) == (0.5 * len(nodes), 1.0)
    assert "stopped after 1.0 s, having worked on for" in released.text
    assert "while generation 2 was prepared" in released.text


def test_a_plan_and_its_end_are_chapters() -> None:
    bench = Bench(n1=4)
    bench.now -= bench.now % (100 * SECOND)
    bench.add(k.PolicyChanged(policy="oasis", params={"slot_s": 100.0, "slots": 20}))
    bench.submit("app", n_max=4, work={"mini_batch": "8s", "chunks": 100}, utility={"worth": 10.0, "target": "150s"})
    bench.settle()
    planned = one(told(bench), "planned")
    promised = bench.app().plan
    assert promised is not None
    assert planned.text == (
        f"planned until {moment(promised.slots[-1].at)} (3 min): up to 4 containers, all the time; "
        f"worth {promised.worth:.3g} at a cost of {promised.cost:.3g}"
    )
    bench.say(k.AppPlanned(app=bench.app().id, slots=[]))
    assert [chapter.text for chapter in told(bench) if chapter.what == "planned"][1:] == ["its plan was withdrawn"]


def test_a_policy_that_fails_is_a_chapter_once() -> None:
    bench = contended()
    failed = k.PolicyFailed(
        policy="acme", policy_version=3, code="policy.raised", reason="it raised\nKeyError", digest=""
    )
    bench.say(failed)
    bench.wait(60)
    bench.say(msgspec.structs.replace(failed, trigger="idle"))
    assert one(told(bench), "policy_failed").text == (
        "policy acme gave no usable answer, so every app keeps what it has: it raised KeyError (policy.raised)"
    )
    bench.wait(60)
    bench.say(msgspec.structs.replace(failed, code="policy.infeasible", reason="too much"))
    assert [chapter.text[-18:] for chapter in told(bench) if chapter.what == "policy_failed"][1:] == [
        "policy.infeasible)"
    ]
