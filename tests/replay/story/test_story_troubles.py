"""Stories of failures, of overtaken, refused and repeated changes, and of requests."""

from __future__ import annotations

import msgspec

from dorm.core.notes import MOST
from dorm.core.state import State
from events import kinds as k
from events.quantities import SECOND
from replay.story.chapters import Cause
from replay.story.explanation import Witness, explain
from replay.travel import fold
from replay.words import moment
from tests.core.records import Bench, joined
from tests.replay.story.telling import causes, contended, decision, one, resize, told, what


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


def test_notes_of_people_are_chapters_also_after_the_end() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=1)
    bench.add(k.AppNoted(app="app", text="the data are in", by="ann"), "ann")
    bench.all_exited("app")
    bench.settle()
    for number in range(30):
        bench.add(k.AppNoted(app=bench.app("app").id, text=f"thought {number}", by="bob"), "bob")
    chapters = told(bench)
    assert next(chapter.text for chapter in chapters if chapter.what == "noted") == "ann noted: the data are in"
    assert what(chapters)[-1] == "noted"
    kept = bench.app("app").notes
    assert (len(kept), kept[-1].by, kept[-1].text) == (MOST, "bob", "thought 29")


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


def test_refusals_and_requests_name_their_sender() -> None:
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


def test_an_unanswered_submission() -> None:
    bench = Bench(n1=4)
    bench.submit("app")
    assert what(told(bench)) == ["submitted"]
    assert told(bench, at=1) == []


def test_void_rounds_and_repeats_have_no_effect() -> None:
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


def test_causes_that_waited_for_an_adjustment_are_still_causes() -> None:
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


def test_foreign_text_is_kept_on_its_line() -> None:
    bench = Bench(n1=4)
    bench.running("app", n_max=1, retries={"limit": 0})
    bench.exited("app", 0, 1, message="a\x1b[2J\nb" + "x" * 5000)
    bench.settle()
    failed = one(told(bench), "container_failed")
    assert "\n" not in failed.text
    assert len(failed.text) < 500
    assert failed.exit is not None
    assert "\n" in failed.exit.message


def test_killed_containers_are_in_the_story() -> None:
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


def test_a_request_for_less_is_the_reason_for_a_smaller_size() -> None:
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
