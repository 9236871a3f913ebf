"""Apps that are not resized: `resizable: never`, and apps that have run for a while and reported no checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dorm.core.asking import answered, problem_of, question
from dorm.core.placement import Arranged
from dorm.core.query.assumed import Assumed
from dorm.core.query.plans import plan
from dorm.core.query.views import describe
from dorm.core.resizable import CHEAP_S, KEPT_FROM_S, NEVER, NO_CHECKPOINT, begins_again, kept_whole
from dorm.policies import integer
from dorm.policies.problem import Allocation, Problem
from events import kinds as k
from events.codec import decode
from events.quantities import SECOND
from tests.core.decide.test_neighbors import POLICIES, Street
from tests.core.records import checked
from tests.tries import tries

RESUMES = ["work", "--resume"]
LONG_S = 3000


def ended(found: Street, name: str) -> None:
    app = found.app(name)
    assert app.current is not None
    for slot in sorted(app.current.containers):
        found.bench.exited(app.id, slot, 0)
    found.rest()


def saves(found: Street, name: str, step: int = 5) -> None:
    app = found.app(name)
    assert app.current is not None
    node = app.current.containers[min(app.current.containers)].node
    found.bench.add(k.AppCheckpointed(app=app.id, generation=app.generation, step=step), node)
    found.rest()


def changes(found: Street) -> list[k.Resize]:
    rounds = [event for record in found.bench.records if isinstance(event := decode(record), k.Round)]
    facts = [fact for event in rounds for fact in event.events if isinstance(fact, k.Resized)]
    return [change for fact in facts for change in fact.changes]


def beside_a_rigid_app(policy: str = "dorm", ran_s: float = LONG_S, **fields: Any) -> Street:
    """`wide` could use the room of `brief`, which ends after a while."""
    found = Street(policy, (2, 2))
    found.submit("brief", n_min=2, n_max=2)
    found.submit("wide", **{"n_min": 1, "n_max": 4, **fields})
    assert (found.size("brief"), found.size("wide")) == (2, 2)
    found.wait(ran_s)
    return found


# --- without a checkpoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_an_app_that_never_saved_is_not_restarted_to_grow(policy: str) -> None:
    found = Street(policy, (2, 2))
    found.submit("brief", n_min=2, n_max=2)
    found.submit("wide", n_min=1, n_max=4)
    found.wait(LONG_S)
    ended(found, "brief")
    found.wait(LONG_S)
    assert found.app("wide").adjustments == 0


@pytest.mark.parametrize("policy", ["dorm", "dorm-exact", "dorm-speed"])
def test_it_grows_once_it_has_saved(policy: str) -> None:
    found = beside_a_rigid_app(policy)
    ended(found, "brief")
    found.wait(60)
    assert found.size("wide") == 2
    reason = found.app("wide").waiting
    assert reason is not None
    assert reason.code == NO_CHECKPOINT
    assert "50 min" in reason.text
    assert describe(found.app("wide"), found.bench.now)["kept_whole"].startswith(
        "it has reported no checkpoint in the 51"
    )
    saves(found, "wide")
    found.bench.add(k.PolicyChanged(idle_s=29))
    found.wait(120)
    assert found.size("wide") == 4
    assert all(change.lost_s == 0 for change in changes(found))


@pytest.mark.parametrize("fields", [{"resume": RESUMES}, {"checkpoint": ["save"]}])
def test_an_owner_who_gives_a_command_to_resume_or_save_is_believed(fields: dict[str, Any]) -> None:
    found = beside_a_rigid_app(**fields)
    ended(found, "brief")
    found.wait(60)
    assert found.size("wide") == 4
    assert all(change.lost_s == 0 for change in changes(found))


@pytest.mark.parametrize(("fields", "again"), [({"resume": RESUMES}, True), ({"resume": ["work"]}, False)])
def test_a_word_that_an_adjustment_has_disproved_counts_no_more(fields: dict[str, Any], again: bool) -> None:
    """Without a report of a checkpoint, `command` started again; the same command to resume says that nothing is lost."""
    found = beside_a_rigid_app(**fields)
    assert not begins_again(found.app("wide"))
    ended(found, "brief")
    found.wait(LONG_S)
    assert found.app("wide").adjustments == 1
    assert begins_again(found.app("wide")) is again
    saves(found, "wide")
    assert not begins_again(found.app("wide"))


def test_an_app_that_has_just_started_grows_like_any_other() -> None:
    found = beside_a_rigid_app(ran_s=CHEAP_S - 1)
    ended(found, "brief")
    assert found.size("wide") == 4


def test_the_work_since_its_start_is_part_of_the_price() -> None:
    found = beside_a_rigid_app(ran_s=100)
    prices = {app.id: app.adjust_s for app in problem_of(found.bench.state, found.bench.now).apps}
    assert prices == {found.app("brief").id: CHEAP_S + 100, found.app("wide").id: CHEAP_S + 100}
    saves(found, "wide")
    prices = {app.id: app.adjust_s for app in problem_of(found.bench.state, found.bench.now).apps}
    assert prices == {found.app("brief").id: CHEAP_S + 100, found.app("wide").id: None}


def test_many_short_generations_lose_no_more_than_one() -> None:
    """Otherwise an app could be restarted every few minutes, and never come to its end."""
    found = Street("dorm", (2, 2))
    found.submit("brief-0", n_min=2, n_max=2)
    found.submit("wide", n_min=1, n_max=4)
    ran = 0
    for number in range(1, 8):
        found.wait(KEPT_FROM_S / 3)
        before = found.app("wide").generation
        ran += KEPT_FROM_S // 3
        ended(found, f"brief-{number - 1}")
        if ran >= KEPT_FROM_S:
            assert found.app("wide").generation == before
        found.submit(f"brief-{number}", n_min=2, n_max=2)
    assert 1 <= found.app("wide").adjustments <= 6


@pytest.mark.parametrize("policy", ["dorm", "dorm-exact", "dorm-speed"])
def test_it_shrinks_if_another_app_would_wait_and_the_decision_says_what_is_lost(policy: str) -> None:
    found = Street(policy, (2, 2))
    found.submit("wide", n_min=1, n_max=4)
    assert found.size("wide") == 4
    found.wait(LONG_S)
    found.submit("late", n_min=1, n_max=1)
    assert found.size("late") == 1
    assert 1 <= found.size("wide") <= 3
    (change,) = [one for one in changes(found) if one.adjustment == "restart"]
    assert change.lost_s == pytest.approx(LONG_S, abs=1)


def test_of_several_the_one_that_has_run_for_the_shortest_time_makes_room() -> None:
    found = Street("dorm", (2, 2, 2))
    found.submit("old", n_min=2, n_max=3)
    found.wait(LONG_S)
    found.submit("young", n_min=2, n_max=3)
    found.wait(LONG_S)
    assert (found.size("old"), found.size("young")) == (3, 3)
    found.submit("late", n_min=1, n_max=1)
    assert (found.size("old"), found.size("young"), found.size("late")) == (3, 2, 1)
    assert found.app("old").generation == 1


def test_one_that_has_its_n_min_is_not_moved_for_another() -> None:
    """As a script that needs exactly so many containers and cannot resume."""
    found = Street("dorm", (2, 2))
    found.submit("first", n_min=1, n_max=1, placement="spread")
    found.submit("second", n_min=1, n_max=1, placement="spread")
    found.wait(LONG_S)
    found.submit("pair", n_min=2, n_max=2, gang=2)
    found.wait(LONG_S)
    assert [found.app(name).generation for name in ("first", "second")] == [1, 1]


def test_it_leaves_a_node_that_is_drained() -> None:
    found = Street("dorm", (2, 2))
    found.submit("rigid", n_min=2, n_max=2, placement="pack", resizable="never")
    found.wait(LONG_S)
    (node,) = {container.node for container in found.app("rigid").current.containers.values()}
    found.bench.add(k.NodeDrainRequested(node=node))
    found.rest()
    assert {container.node for container in found.app("rigid").current.containers.values()} == {"n0", "n1"} - {node}
    assert changes(found)[-1].lost_s == pytest.approx(LONG_S, abs=1)


def test_its_owner_may_restart_it_and_change_its_bounds() -> None:
    found = Street("dorm", (2, 2))
    found.submit("app", n_min=1, n_max=4, resizable="never")
    found.wait(LONG_S)
    found.bench.add(k.AppUpdated(app="app", n_max=3))
    found.rest()
    assert found.size("app") == 3
    found.bench.add(k.AppRestartRequested(id="r", app="app"))
    found.rest()
    assert found.app("app").generation == 3


# --- never --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_an_app_that_is_never_resized_keeps_what_it_started_with(policy: str) -> None:
    found = Street(policy, (2, 2))
    found.submit("brief", n_min=2, n_max=2)
    found.submit("wide", n_min=1, n_max=4, resizable="never", resume=RESUMES)
    found.wait(10)
    size, before = found.size("wide"), found.app("wide").generation
    saves(found, "wide")
    ended(found, "brief")
    found.submit("late", n_min=1, n_max=2)
    found.wait(LONG_S)
    assert (found.size("wide"), found.app("wide").generation) == (size, before)


def test_it_starts_with_its_fair_share_and_says_so() -> None:
    found = Street("fifo", (4, 4))
    found.submit("other", n_min=1, n_max=2)
    found.submit("app", n_min=1, n_max=8, resizable="never")
    assert found.size("app") == 6
    found = Street("dorm", (4, 4))
    found.bench.submit("one", n_min=1, n_max=8, resizable="never")
    found.submit("two", n_min=1, n_max=8, resizable="never")
    assert (found.size("one"), found.size("two")) == (4, 4)
    reason = found.app("two").waiting
    assert reason is not None
    assert (reason.code, "at most 4 containers" in reason.text or "it started" in reason.text) == (NEVER, True)


@pytest.mark.parametrize("policy", ["dorm", "dorm-exact", "dorm-speed"])
def test_the_first_app_cannot_keep_an_idle_cluster(policy: str) -> None:
    found = Street(policy, (8, 8))
    found.submit("first", n_min=1, n_max=16, resizable="never")
    assert found.size("first") == 16
    found.wait(LONG_S)
    for number in range(7):
        found.submit(f"late-{number}", n_min=1, n_max=16, resume=RESUMES)
        found.wait(60)
        assert found.size(f"late-{number}") >= 1
    found.wait(LONG_S)
    assert found.size("first") <= 4, "twice its fair share"
    assert found.app("first").adjustments <= 4


def test_it_keeps_what_its_n_min_says() -> None:
    found = Street("dorm", (4,))
    found.submit("first", n_min=3, n_max=4, resizable="never")
    for number in range(3):
        found.submit(f"late-{number}", n_min=1, n_max=4)
    found.wait(LONG_S)
    assert found.size("first") == 3


# --- all together -------------------------------------------------------------------------------------------------------

_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "end", "save", "wait", "drain", "undrain"]),
        st.integers(0, 5),
        st.sampled_from([1, 1, 2]),
        st.sampled_from([0, 1, 3]),
        st.sampled_from(["never", "auto", "auto"]),
    ),
    max_size=24,
)


@pytest.mark.parametrize("policy", ["dorm", "dorm-speed", "drf", "srtf"])
@settings(deadline=None, max_examples=tries(4, 150), phases=[Phase.explicit, Phase.generate, Phase.shrink])
@given(acts=_ACTS)
def test_whatever_happens_apps_that_are_kept_whole_only_shrink_for_others(policy: str, acts: list[Any]) -> None:
    found = Street(policy, (3, 3))
    say = found.bench.say

    def watched(*facts: Any, **more: Any) -> Any:
        for fact in facts:
            if isinstance(fact, k.Resized):
                _check(found, fact)
        return say(*facts, **more)

    found.bench.say = watched  # type: ignore[method-assign]
    for number, (act, which, n_min, more, resizable) in enumerate(acts):
        running = [app for app in found.bench.state.live_apps() if app.current is not None]
        if act == "submit":
            found.submit(f"a{number}", n_min=n_min, n_max=n_min + more, resizable=resizable)
        elif act == "wait":
            found.wait([10, 100, 400, 400, 3000, 3000][which])
        elif act in ("drain", "undrain"):
            found.bench.add(k.NodeDrainRequested(node=f"n{which % 2}", drain=act == "drain"))
            found.rest()
        elif running:
            app = running[which % len(running)]
            (ended if act == "end" else saves)(found, app.id)


def _check(found: Street, fact: k.Resized) -> None:
    state, now = found.bench.state, found.bench.now
    problem = problem_of(state, now)
    instance = integer.read(problem)
    forced = dict(zip((app.id for app in instance.apps), instance.forced.tolist(), strict=True))
    fair = integer.theoretical_shares(instance, instance.possible)
    for change in fact.changes:
        app = state.apps[change.app]
        ran = app.current is not None and app.current.started_at
        if change.adjustment in ("restart", "stop") and app.checkpoint is None and ran:
            assert app.current is not None
            assert change.lost_s == pytest.approx((now - app.current.started_at) / SECOND, abs=0.01)
        else:
            assert change.lost_s == 0
        if forced.get(app.id) or kept_whole(app, now) is None:
            continue
        row = [one.id for one in instance.apps].index(app.id)
        had = len(app.current.containers) if app.current is not None else 0
        least = app.n_min
        if app.spec.resizable == "never":
            least = max(least, int(fair[row] / instance.unit[row] + 1e-6))
        assert least <= len(change.placement) <= had
        others = [other for other in problem.apps if other.id != app.id]
        shares = {one.id: fair[i] / instance.unit[i] for i, one in enumerate(instance.apps)}
        assert any(sum(other.holds.values()) < shares[other.id] for other in others), "nobody needs its room"


def _answer(counts: dict[str, dict[str, int]]) -> Allocation:
    return Allocation(
        counts=counts, reasons={}, utilization=0, fairness_loss=0, fairness_budget=-1, excess=0, overhead=0,
        overhead_budget=-1, shortage={}, status="near", bound=0,
    )  # fmt: skip


def test_a_released_app_may_shrink_and_not_grow() -> None:
    found = Street("dorm", (4, 4))
    for name in ("one", "two"):
        found.submit(name, n_min=1, n_max=8)
    found.wait(LONG_S)
    found.bench.submit("late", n_min=1, n_max=1)
    found.bench.decide()
    asked = question(found.bench.state, found.bench.now)
    seen: list[Problem] = []

    def ask(problem: Problem) -> Arranged:
        seen.append(problem)
        return Arranged(_answer({app.id: dict(app.current) for app in problem.apps}), [], {})

    answered(found.bench.state, asked.problem, asked.whole, found.bench.now, ask)
    released = [[app for app in problem.apps if app.current and not app.pinned] for problem in seen]
    assert [len(apps) for apps in released] == [0, 1, 2]
    for apps in released:
        for app in apps:
            assert (app.n_min, app.n_max) == (1, sum(app.current.values()))


def test_a_plan_says_what_is_lost_next_to_the_pause() -> None:
    found = Street("dorm", (2, 2))
    found.submit("wide", n_min=1, n_max=4)
    found.wait(LONG_S)
    late = checked("late", n_min=1, n_max=1)
    planned = plan(found.bench.state, found.bench.now, Assumed(specs=(late,)), rounds=2)
    wide = next(app for app in planned.apps if app.name == "wide")
    assert (wide.kind, wide.before, wide.after) == ("restart", 4, 3)
    assert wide.lost_s == pytest.approx(LONG_S, abs=1)
    assert (wide.adjust_s, wide.measured) == (CHEAP_S, False)
