"""Holds: a held app does not run, nothing is reserved for it, and it continues where it stopped."""

from __future__ import annotations

import pytest

from dorm.core.asking import problem_of
from dorm.core.gates import age_ns, hold_of, reason_of
from dorm.core.query.views import app_row, describe, sizes
from dorm.core.timing import next_deadline
from events import kinds as k
from events.kinds import GenerationReleased, Resized
from events.quantities import SECOND
from tests.core.fold.test_identities import Said, trusting
from tests.core.records import Bench, document, joined


def held(bench: Bench, name: str = "app") -> str:
    """Why it does not run."""
    reason = reason_of(bench.app(name), bench.now)
    return f"{reason.code}: {reason.text}" if reason is not None else ""


def test_a_held_waiting_app_is_not_part_of_the_demand() -> None:
    bench = Bench(a=2)
    bench.submit("app", n_max=2, hold=True)
    bench.submit("other", n_max=2)
    bench.settle()
    assert sizes(bench.app("other")) == {"a": 2}
    assert sizes(bench.app()) == {}
    assert [one.id for one in problem_of(bench.state, bench.now).apps] == [bench.app("other").id]
    assert held(bench) == "hold: held by someone: submitted so"
    bench.started("other")
    bench.settle()
    tick = next_deadline(bench.state, bench.now)
    assert tick == bench.now + 30 * SECOND  # It does not wait, so it runs out of no patience.
    bench.wait(1e6)
    assert {type(fact) for fact in bench.settle()} == {k.IdleTicked}
    assert next_deadline(bench.state, bench.now) is None


def test_a_released_app_waits_from_its_release() -> None:
    bench = Bench(a=2)
    bench.submit("app", n_max=2, hold=True)
    bench.settle()
    bench.wait(100.0)
    bench.add(k.AppReleaseRequested(app="app"))
    assert age_ns(bench.app(), bench.now) == 0
    assert bench.app().waiting_since == bench.now
    bench.settle()
    assert (sizes(bench.app()), held(bench)) == ({"a": 2}, "")


def test_a_held_app_gives_its_containers_back_and_continues_from_its_checkpoint() -> None:
    bench = Bench(a=2)
    app = bench.running("app", n_max=2)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=40), "a")
    bench.submit("other", n_max=2)
    bench.settle()
    before = sizes(bench.app())
    bench.add(k.AppHoldRequested(app="app", reason="wrong data"), "ann")
    assert held(bench) == "hold: held by ann: wrong data"
    facts = bench.settle()
    stop = next(one for fact in facts if isinstance(fact, Resized) for one in fact.changes if one.app == app.id)
    assert (stop.adjustment, stop.placement) == ("stop", [])
    assert before
    assert bench.app().phase == "stopping"
    bench.all_exited("app", asked=True, generation=1)
    bench.settle()
    assert bench.app().phase == "waiting"
    bench.add(k.AppReleaseRequested(app="app"), "ann")
    bench.add(k.AppCancelRequested(app="other"))
    bench.settle()
    bench.all_exited("other", asked=True)
    (released,) = [fact for fact in bench.settle() if isinstance(fact, GenerationReleased)]
    assert (released.app, released.resume, released.checkpoint) == (app.id, True, 40)
    assert hold_of(bench.app()) is None


def test_a_hold_overtakes_a_decision_that_did_not_know_of_it() -> None:
    bench = Bench(a=2)
    bench.submit("app")
    bench.decide()
    facts, basis = bench.decided(allocate=True), bench.state.seq
    bench.add(k.AppHoldRequested(app="app"))
    bench.say(*facts, basis=basis)
    assert sizes(bench.app()) == {}
    assert not any(isinstance(fact, GenerationReleased) for fact in bench.settle())


def test_a_planned_place_is_not_released_once_the_app_is_held() -> None:
    bench = Bench(a=2)
    bench.running("old", n_max=2)
    bench.submit("app", n_max=1)
    bench.settle()  # The old one shrinks first.
    assert bench.app().phase == "starting"
    bench.add(k.AppHoldRequested(app="app"))
    bench.all_exited("old", asked=True, generation=1)
    assert not [fact for fact in bench.settle() if isinstance(fact, GenerationReleased) and fact.app == bench.app().id]
    assert (sizes(bench.app()), bench.app().phase) == ({}, "waiting")


def test_an_app_that_pauses_after_a_failure_can_be_held_and_keeps_its_failures() -> None:
    bench = Bench(a=2)
    bench.running("app", n_max=1, retries={"backoff": "60s"})
    bench.exited("app", code=1)
    bench.settle()
    bench.add(k.AppHoldRequested(app="app"))
    assert held(bench).startswith("hold")
    bench.wait(3600.0)
    assert {type(fact) for fact in bench.settle()} <= {k.IdleTicked}
    bench.add(k.AppReleaseRequested(app="app"))
    bench.settle()
    assert (sizes(bench.app()), bench.app().failures) == ({"a": 1}, 1)


def test_no_room_is_kept_for_a_held_app_that_pauses() -> None:
    """As it is for others that are tried again soon, so that no neighbor grows and shrinks for nothing."""
    for held_too, grows in ((False, {"a": 1}), (True, {"a": 2})):
        bench = Bench(a=2)
        bench.running("app", n_max=1, retries={"backoff": "60s"})
        bench.running("other", n_max=2)
        bench.exited("app", code=1)
        if held_too:
            bench.add(k.AppHoldRequested(app="app"))
        bench.settle()
        assert sizes(bench.app("other")) == grows


def test_a_repeated_hold_keeps_the_first_and_an_unneeded_release_changes_nothing() -> None:
    bench = Bench(a=2)
    bench.running("app")
    bench.add(k.AppReleaseRequested(app="app"))
    bench.add(k.AppHoldRequested(app="app", reason="one"), "ann")
    bench.add(k.AppHoldRequested(app="app", reason="two"), "bob")
    bench.add(k.AppHoldRequested(app="nobody"))
    assert held(bench) == "hold: held by ann: one"
    assert bench.state.counters.ignored == 3


def test_a_held_app_can_be_cancelled_and_no_gate_is_left() -> None:
    bench = Bench(a=2)
    bench.submit("app", hold=True)
    bench.settle()
    bench.add(k.AppCancelRequested(app="app"))
    bench.settle()
    assert bench.app().ended == "cancelled"
    assert reason_of(bench.app(), bench.now) is None
    assert describe(bench.app(), bench.now)["hold"] is None


def test_the_holder_is_shown() -> None:
    bench = Bench(a=2)
    bench.running("app")
    bench.add(k.AppHoldRequested(app="app", reason="wrong data"), "ann")
    assert app_row(bench.app(), bench.now).note == "held by ann: wrong data"
    assert describe(bench.app(), bench.now)["hold"] == {
        "by": "ann", "at": bench.now, "reason": "wrong data", "operator": False,
    }  # fmt: skip


# --- who may ------------------------------------------------------------------------------------------------------------


def cluster() -> Said:
    said = trusting(ann="user", mallory="user", op="operator")
    said.by("root", k.NodeEnrolled(node="n1"))
    said.by("n1", joined("n1"))
    said.by("ann", k.AppSubmitted(spec=document("app")))
    said.bench.settle()
    return said


def test_strangers_hold_and_release_nothing() -> None:
    said = cluster()
    app = said.bench.app()
    assert said.by("mallory", k.AppHoldRequested(app=app.id)) == "app.not_owner"
    assert said.by("ann", k.AppHoldRequested(app=app.id)) == ""
    assert said.by("mallory", k.AppReleaseRequested(app=app.id)) == "app.not_owner"
    assert hold_of(app) is not None
    assert said.by("ann", k.AppReleaseRequested(app="app")) == ""
    assert hold_of(app) is None


@pytest.mark.parametrize("first", ["ann", ""])
def test_an_owner_cannot_release_an_operators_hold(first: str) -> None:
    said = cluster()
    app = said.bench.app()
    if first:
        said.by(first, k.AppHoldRequested(app=app.id, reason="mine"))
    assert said.by("op", k.AppHoldRequested(app=app.id, reason="it fills the disk")) == ""
    hold = hold_of(app)
    assert hold is not None
    assert (hold.by, hold.operator) == ("op", True)
    assert said.by("ann", k.AppReleaseRequested(app=app.id)) == "app.held_by_operator"
    said.by("ann", k.AppHoldRequested(app=app.id))
    assert hold_of(app) == hold
    assert said.by("root", k.AppReleaseRequested(app=app.id)) == ""
    assert hold_of(app) is None
