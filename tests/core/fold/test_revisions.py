"""Edits and restarts: the answers, when they take effect, and the spec of each generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.asking import problem_of
from dorm.core.parts.deriving import part_of
from dorm.core.query.assumed import Assumed, PlanError
from dorm.core.query.plans import plan
from dorm.core.query.views import describe, sizes
from dorm.core.snapshot import copy, restore
from dorm.core.state import digest
from events import kinds as k
from events.spec.editing import fingerprint
from tests.core.records import Bench, checked, document, joined

if TYPE_CHECKING:
    from dorm.core.app import App


def bench_of(cpu: float = 4, *names: str, **fields: Any) -> Bench:
    """Nodes whose agents follow edits, and an app that runs on all of them."""
    bench = Bench()
    for node in names or ("a",):
        bench.add(joined(node, cpu, abilities=["edits"]))
    bench.running(**fields)
    return bench


def edit(bench: Bench, *, id: str = "e", made_from: str = "", of: str = "app", **fields: Any) -> Any:
    """The answer to an edit."""
    app = bench.app(of)
    before = msgspec.to_builtins(app.owners_spec)
    bench.add(k.AppEditRequested(id=id, app=app.id, spec={**before, **fields}, made_from=made_from), "ann")
    return answer(bench, id)


def restart(bench: Bench, *, id: str = "r", **fields: Any) -> Any:
    bench.add(k.AppRestartRequested(id=id, app=bench.app().id, **fields), "ann")
    return answer(bench, id)


def answer(bench: Bench, id: str) -> Any:
    said = [fact for fact in bench.decide() if getattr(fact, "submission", "") == id]
    assert len(said) == 1
    return said[0]


def replaced(bench: Bench, *, code: int = 143) -> k.GenerationReleased:
    """The decision that replaces the latest generation is carried out."""
    before = bench.app().generation
    bench.settle()
    assert bench.app().generation == before + 1
    bench.all_exited(generation=before, code=code, asked=True)
    released = [fact for fact in bench.settle() if isinstance(fact, k.GenerationReleased)]
    bench.started()
    bench.settle()
    return released[0]


# --- edits --------------------------------------------------------------------------------------------------------------


def test_fields_in_force_at_once_restart_nothing() -> None:
    bench = bench_of(n_max=2)
    said = edit(bench, weight=3, n_max=4, retries={"limit": 9})
    assert isinstance(said, k.AppRevised)
    assert (said.revision, said.changed, said.next, said.restarts) == (2, ["n_max", "weight", "retries"], None, False)
    app = bench.app()
    assert (app.weight, app.n_max, app.spec.retries.limit, app.restart_wanted) == (3, 4, 9, False)
    assert bench.decided(allocate=True), "the policy gives it what it may have now"


def test_other_fields_take_effect_in_the_next_generation() -> None:
    bench = bench_of(n_max=2)
    app = bench.app()
    places = sizes(app)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=7), "a")
    said = edit(bench, image="trainer:2", env={"LR": "0.1"}, weight=2)
    assert (said.restarts, said.changed) == (True, ["weight", "image", "env"])
    assert (app.spec.image, app.next_spec.image, app.weight, app.restart_wanted) == ("", "trainer:2", 2, True)
    assert part_of(bench.state, "c", "a").apps[app.id].spec.image == ""
    assert describe(app, bench.now)["next_spec"]["image"] == "trainer:2"
    released = replaced(bench)
    assert (released.resume, released.checkpoint) == (True, 7)
    assert sizes(app) == places, "with the partition that it had"
    assert (app.spec.image, app.restart_wanted, app.generations[2].revision) == ("trainer:2", False, 2)
    assert app.history[-1].revision == 2
    assert part_of(bench.state, "c", "a").apps[app.id].spec.image == "trainer:2"
    assert bench.settle() == [], "it is restarted once"


def test_stopping_containers_keep_their_spec() -> None:
    bench = bench_of(n_max=2, checkpoint=["save"])
    app = bench.app()
    edit(bench, checkpoint=["store"], demand={"cpu": 2})
    bench.settle()
    part = part_of(bench.state, "c", "a").apps[app.id]
    assert (part.spec.checkpoint, part.earlier_until) == (["store"], 1)
    assert part.earlier is not None
    assert part.earlier.checkpoint == ["save"]
    assert (app.needs(app.generations[1]), app.needs(app.generations[2])) == ({"cpu": 1000}, {"cpu": 2000})
    assert not app.generations[2].released, "its room is not free"
    bench.all_exited(generation=1, code=143, asked=True)
    bench.settle()
    assert app.generations[2].released
    assert part_of(bench.state, "c", "a").apps[app.id].earlier is None


@pytest.mark.parametrize("cpu", [1, 2, 3, 4])
def test_a_larger_demand_takes_fewer_containers(cpu: int) -> None:
    bench = bench_of(n_max=4, n_min=1)
    assert sizes(bench.app()) == {"a": 4}
    if cpu > 1:
        edit(bench, demand={"cpu": cpu})
        replaced(bench)
    assert sizes(bench.app()) == {"a": 4 // cpu}


@pytest.mark.parametrize(("ended", "cpu"), [(False, 500), (True, 1000)])
def test_a_pinned_app_keeps_its_demand_after_an_edit(ended: bool, cpu: int) -> None:
    """A part of it has ended, so nothing can be decided about it: the room that an edit gives up is not free yet."""
    bench = bench_of(n_min=2, n_max=2)
    if ended:
        bench.add(k.ContainerExited(app=bench.app().id, generation=1, slot=0, node="a", exit_code=0))
    edit(bench, demand={"cpu": 0.5})
    (app,) = problem_of(bench.state, bench.now).apps
    assert (app.pinned, app.demand) == (ended, {"cpu": cpu})


def test_an_app_without_room_for_its_new_demand_waits() -> None:
    bench = bench_of(n_max=1)
    bench.running("other", n_min=3, n_max=3)
    app = bench.app()
    edit(bench, demand={"cpu": 2}, n_min=1)
    bench.settle()
    assert (app.current, sizes(bench.app("other"))) == (None, {"a": 3}), "nobody else stops for it"
    bench.all_exited(generation=1, code=143, asked=True)
    bench.settle()
    assert app.phase == "waiting"
    bench.all_exited("other")
    bench.settle()
    assert sizes(app) == {"a": 1}


def test_a_waiting_app_gets_its_edit_at_once() -> None:
    bench = bench_of(n_max=4, n_min=4)
    bench.submit("later", n_min=4, n_max=4)
    bench.settle()
    said = edit(bench, of="later", command=["train"])
    later = bench.app("later")
    assert (said.next, later.spec.command, later.phase) == (None, ["train"], "waiting")


def test_an_edit_of_a_pausing_app_is_tried_at_once() -> None:
    bench = bench_of(n_max=1, retries={"limit": 1, "backoff": "1h", "longest": "1h"})
    bench.exited(code=127)
    bench.settle()
    app = bench.app()
    assert (app.phase, app.retries_used) == ("retrying", {"limit": 1})
    edit(bench, command=["right"])
    bench.settle()
    assert (app.retries_used, app.generation, app.spec.command) == ({}, 2, ["right"])
    assert app.generations[2].released


def test_unstarted_containers_are_placed_again() -> None:
    """The decision before the edit waits for room that another one still has; with the new demand it would take more."""
    bench = bench_of(n_max=4, n_min=1)
    bench.submit("new", n_min=2, n_max=2)
    bench.settle()
    new = bench.app("new")
    assert new.current is not None
    assert not new.current.released
    edit(bench, of="new", demand={"cpu": 2}, n_min=1, n_max=1)
    bench.settle()
    bench.all_exited(generation=1, code=143, asked=True)
    bench.settle()
    assert (sizes(new), new.generations[new.generation].revision) == ({"a": 1}, 2)


def test_the_second_of_two_editors_has_to_reread() -> None:
    bench = bench_of(n_max=2)
    read = fingerprint(bench.app().owners_spec)
    bench.add(k.AppEditRequested(id="1", app="app", spec=document(n_max=2, weight=2), made_from=read), "ann")
    bench.add(k.AppEditRequested(id="2", app="app", spec=document(n_max=2, weight=3), made_from=read), "bob")
    first, second = bench.decide()
    assert (first.revision, first.editor) == (2, "ann")
    assert (second.code, second.refused) == ("edit.stale", "update")
    assert edit(bench, id="3", made_from=read, weight=4).code == "edit.stale"
    assert "revision 2 by ann" in edit(bench, id="4", made_from=read, weight=4).reason
    assert edit(bench, id="5", made_from=fingerprint(bench.app().owners_spec), weight=4).revision == 3


def test_an_update_counts_as_a_change() -> None:
    bench = bench_of(n_max=2)
    read = fingerprint(bench.app().owners_spec)
    bench.add(k.AppUpdated(app="app", weight=5))
    assert edit(bench, made_from=read, n_max=3).code == "edit.stale"


def test_an_update_between_answer_and_round_overtakes_an_edit() -> None:
    bench = bench_of(n_max=2)
    bench.add(k.AppEditRequested(id="e", app="app", spec=document(n_max=2, weight=2)), "ann")
    basis, said = bench.state.seq, bench.decided()
    bench.add(k.AppUpdated(app="app", weight=7))
    bench.say(*said, basis=basis)
    assert (bench.app().weight, bench.app().revision) == (7, 1)
    (refused,) = bench.decide()
    assert (refused.submission, refused.code) == ("e", "edit.stale")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "other"}, "edit.another_app"),
        ({"user": "mallory"}, "edit.another_app"),
        ({"weight": -1}, "spec.weight.out_of_range"),
        ({"n_min": 9, "n_max": 9}, "spec.n_min.no_room"),
        ({"demand": {"cpu": 90}}, "spec.demand.too_large"),
        ({"colour": "red"}, "spec.unknown_field"),
        ({}, "edit.no_change"),
    ],
)
def test_an_edit_that_is_impossible(fields: dict[str, Any], code: str) -> None:
    bench = bench_of(n_max=2)
    before = msgspec.to_builtins(bench.app())
    assert edit(bench, **fields).code == code
    assert msgspec.to_builtins(bench.app()) == before


def test_missing_and_ended_apps() -> None:
    bench = bench_of(n_max=1)
    bench.add(k.AppEditRequested(id="1", app="nobody", spec=document()), "ann")
    assert answer(bench, "1").code == "app.not_found"
    bench.exited()
    bench.settle()
    assert edit(bench, id="2", weight=2).code == "app.ended"
    assert restart(bench).code == "app.ended"


def test_nodes_with_an_older_agent() -> None:
    bench = bench_of(n_max=1)
    bench.add(joined("old", 4))
    assert edit(bench, weight=2).code == "steering.agents_too_old"
    bench.add(joined("old", 4, abilities=["edits"]))
    assert edit(bench, id="e2", weight=2).revision == 2
    assert isinstance(restart(bench), k.AppRestarted), "a restart of what runs is an adjustment like any other"


def test_reverting_to_the_running_spec_needs_no_restart() -> None:
    bench = bench_of(n_max=1)
    bench.state.paused = None
    app = bench.app()
    edit(bench, id="1", image="two")
    said = edit(bench, id="2", image="")
    assert (said.revision, said.restarts, app.restart_wanted, app.spec.image) == (3, False, False, "")


# --- restarts -----------------------------------------------------------------------------------------------------------


def test_a_running_app_is_restarted_in_its_place() -> None:
    bench = bench_of(2, "a", "b", n_max=3)
    app = bench.app()
    places = sizes(app)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=5), "a")
    said = restart(bench, reason="odd losses")
    assert (said.fresh, said.spec, said.editor, said.reason) == (False, None, "ann", "odd losses")
    assert restart(bench, id="again").generation == 1
    released = replaced(bench)
    assert (sizes(app), released.checkpoint, app.restart) == (places, 5, None)
    assert bench.settle() == []


def test_a_fresh_start_ignores_the_checkpoint_that_stopping_saves() -> None:
    bench = bench_of(n_max=1)
    app = bench.app()
    restart(bench, fresh=True)
    bench.settle()
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=9), "a")
    bench.all_exited(generation=1, code=143, asked=True)
    (released,) = [fact for fact in bench.settle() if isinstance(fact, k.GenerationReleased)]
    assert (released.resume, released.checkpoint, released.lost_steps, app.checkpoint) == (False, None, 9, None)
    bench.started()
    bench.add(k.AppCheckpointed(app=app.id, generation=2, step=3), "a")
    assert app.checkpoint == 3


def failed(bench: Bench) -> App:
    app = bench.app()
    bench.add(k.AppCheckpointed(app=app.id, generation=app.generation, step=4), "a")
    bench.exited(code=1)
    bench.settle()
    assert app.ended == "failed"
    return app


def test_a_failed_app_continues_under_its_name() -> None:
    bench = bench_of(n_max=1, retries={"limit": 0})
    app = failed(bench)
    bench.wait(60)
    said = restart(bench)
    assert said.spec == app.spec
    assert (app.ended, bench.state.names["app"], app.generations[1].failed) == ("", app.id, True)
    bench.settle()
    assert (app.generation, app.generations[2].resume, sizes(app)) == (2, True, {"a": 1})
    bench.started()
    bench.exited(code=1)
    bench.settle()
    assert (app.ended, app.retries_used) == ("failed", {}), "its retries were reset, and it has none"
    assert isinstance(restart(bench, id="2"), k.AppRestarted)


def test_a_failed_app_is_edited_and_restarted() -> None:
    bench = bench_of(n_max=1, retries={"limit": 0})
    app = failed(bench)
    said = edit(bench, command=["right"])
    assert (said.next, app.spec.command, app.ended) == (None, ["right"], "failed")
    assert restart(bench).spec.command == ["right"]
    bench.settle()
    assert (app.generation, app.generations[2].revision, sizes(app)) == (2, 2, {"a": 1})
    assert part_of(bench.state, "c", "a").apps[app.id].spec.command == ["right"]


def test_a_cancelled_app_continues() -> None:
    bench = bench_of(n_max=1)
    bench.add(k.AppCancelRequested(app="app"))
    bench.settle()
    assert restart(bench).code == "restart.still_stopping"
    bench.all_exited(code=143, asked=True)
    restart(bench, id="2")
    bench.settle()
    assert (bench.app().phase, bench.app().generation) == ("starting", 2)


def test_a_restart_under_a_taken_name_is_refused() -> None:
    bench = bench_of(n_max=1, retries={"limit": 0})
    old = failed(bench)
    bench.submit(n_max=1)
    bench.settle()
    bench.add(k.AppRestartRequested(id="r", app=old.id), "ann")
    assert answer(bench, "r").code == "spec.name.taken"


def test_a_waiting_app_has_nothing_to_restart() -> None:
    bench = bench_of(n_max=4, n_min=4)
    bench.submit("later", n_min=4, n_max=4)
    bench.settle()
    bench.add(k.AppRestartRequested(id="r", app="later"), "ann")
    assert answer(bench, "r").code == "restart.waits"


def test_a_live_app_is_restarted_too() -> None:
    bench = bench_of(n_max=2, elastic="live")
    restart(bench)
    (resized,) = [fact for fact in bench.settle() if isinstance(fact, k.Resized)]
    assert [(change.adjustment, change.why) for change in resized.changes] == [("restart", "")]


def test_an_edit_is_kept_in_snapshots() -> None:
    bench = bench_of(n_max=1)
    edit(bench, image="two", id="1")
    kept = restore(copy(bench.state))
    assert digest(kept) == digest(bench.state)
    assert kept.apps[bench.app().id].next_spec.image == "two"


def test_a_restart_is_planned_first() -> None:
    bench = bench_of(n_max=2)
    before = digest(bench.state)
    after = msgspec.structs.replace(bench.app().owners_spec, image="two")
    found = plan(bench.state, bench.now, Assumed(edited=(("app", after),)))
    assert [(one.kind, one.before, one.after) for one in found.apps] == [("restart", 2, 2)]
    assert found.assumed == ["app edited (revision 2)"]
    assert digest(bench.state) == before
    found = plan(bench.state, bench.now, Assumed(restarted=("app",)))
    assert [one.kind for one in found.apps] == ["restart"]
    with pytest.raises(PlanError, match="no app"):
        plan(bench.state, bench.now, Assumed(edited=(("nobody", checked()),)))
