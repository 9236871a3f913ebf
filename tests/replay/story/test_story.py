"""Stories of apps agree with the log, and name the causes."""

from __future__ import annotations

import pytest

from events import kinds as k
from replay.story.chapters import Cause
from tests.core.records import Bench
from tests.replay.story.telling import causes, contended, decision, one, resize, told, what


def test_the_submitter_and_the_owner() -> None:
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


def test_which_app_shrank_for_which() -> None:
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


def test_no_app_is_blamed_if_it_would_have_fitted_next_to_the_new_one() -> None:
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


def test_an_app_that_moved_away_is_named_as_the_source_of_room() -> None:
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


def test_the_cost_of_an_adjustment() -> None:
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
    assert causes(released)[1] == "slot 3 on n1 stopped as asked, with exit code 143"
    assert released.work is not None
    assert (released.work.first_step, released.work.last_step, released.work.steps_per_s) == (10, 110, 10)
    assert "continues from its checkpoint at step 100, 10 steps lost" in released.text
    assert "it worked from step 10 to 110 (10 steps/s), loss 0.5" in released.text
    assert running.phases is not None
    assert (running.phases.start_s, running.phases.total_s) == (3, 6)
    assert resumed.phases is not None
    assert resumed.phases.resumed_s == pytest.approx(9.8)
    # It took up work a step's time before it told of it, twice that of before, and did 10 steps, a second's work, once more.
    assert resumed.phases.cost_s == pytest.approx(9.8 + 1)
    assert "works again, at step 101, 9.8 s after the decision; it made 10 steps/s before" in resumed.text
    assert "this adjustment cost 11 s of its work, counting the pause and lost steps" in resumed.text


def test_progress_is_summed_up() -> None:
    bench = contended()
    app, before = bench.app(), len(told(contended()))
    for step in range(500):
        bench.wait(0.1)
        bench.add(k.AppProgressed(app=app.id, generation=1, step=step))
    assert len(told(bench)) == before + 1


def test_waits_are_reported_when_their_reason_changes() -> None:
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


def test_a_loss_that_is_not_a_number_is_reported_as_the_last_one() -> None:
    bench = Bench(n1=4)
    app = bench.running("app")
    bench.add(k.AppProgressed(app=app.id, generation=1, step=1, loss=0.5))
    bench.wait(5)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=9, loss_is="nan"))
    bench.all_exited()
    bench.settle()
    assert "it worked from step 1 to 9 (1.6 steps/s), loss nan" in told(bench)[-1].text
