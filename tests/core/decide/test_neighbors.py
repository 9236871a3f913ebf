"""The cost of one app's failures for the others: at most two restarts until it has run stably."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from dorm.core.claims import HOLD_S, KEPT_S
from dorm.core.query.views import describe
from dorm.core.sizes import ROOM_S, SETTLE_S, STABLE_S, TRIAL_S
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined
from tests.tries import tries

POLICIES = (
    "dorm", "dorm-exact", "dorm-speed", "static", "tiresias", "optimus", "app-level", "task-level",
    "fifo", "srtf", "drf", "gavel", "themis", "shockwave", "market",
)  # fmt: skip
DAY = 86_400


class Street:
    """A cluster on which agents and apps answer at once: what is asked to stop has stopped, what is released has started,
    and every app but `loop` makes a step as soon as it runs."""

    def __init__(self, policy: str = "dorm", nodes: tuple[float, ...] = (2, 2)) -> None:
        self.bench = Bench()
        # With their whole counts apps would take turns under the last two, whether one fails or not.
        counts = {"static": 4, "srtf": 2, "gavel": 2, "shockwave": 2}
        params = {"count": counts[policy]} if policy in counts else None
        self.bench.add(k.PolicyChanged(policy=policy, params=params, idle_s=30))
        for number, cpus in enumerate(nodes):
            self.bench.add(joined(f"n{number}", cpus))
        self.allocated_at = 0
        self.works = False
        """Whether `loop` makes steps."""

    def app(self, name: str) -> Any:
        return self.bench.app(name)

    def size(self, name: str) -> int:
        current = self.app(name).current
        return len(current.containers) if current is not None else 0

    def submit(self, name: str, **fields: Any) -> None:
        self.bench.submit(name, **fields)
        self.rest()

    def rest(self) -> None:
        """All that follows at this moment, until nothing does."""
        for _ in range(100):
            self.bench.settle()
            if not self._agents():
                self.allocated_at = self.bench.now
                return
        raise AssertionError("it never comes to rest")

    def _agents(self) -> bool:
        acted = False
        for app in list(self.bench.state.apps.values()):
            for number, generation in sorted(app.generations.items()):
                if not generation.released:
                    continue
                over = app.ended or generation.failed or number != app.generation
                for slot, container in sorted(generation.containers.items()):
                    if over and container.state != "exited":
                        self.bench.exited(app.id, slot, 143, generation=number, asked=True)
                        acted = True
                    elif not over and container.state == "desired":
                        self.bench.started(app.id, slots=[slot])
                        acted = True
            current = app.current if app.name != "loop" or self.works else None
            if current is not None and current.started_at and not current.worked and not app.ended:
                self.bench.add(k.AppProgressed(app=app.id, generation=app.generation, step=app.step + 1))
                acted = True
        return acted

    def wait(self, seconds: float) -> None:
        """Time passes, and the master looks whenever something is due."""
        end = self.bench.now + int(seconds * SECOND)
        for _ in range(10_000):
            due = next_deadline(self.bench.state, self.allocated_at)
            if due is None or due > end:
                break
            self.bench.now = max(self.bench.now, due)
            self.rest()
            self.allocated_at = max(self.allocated_at, due)
        self.bench.now = end

    def fail(self, code: int | None = 1, **how: Any) -> None:
        """`loop` fails on its node."""
        app = self.app("loop")
        if app.current is not None and app.current.started_at and not app.ended:
            self.bench.exited("loop", min(app.current.containers), code, **how)
            self.rest()


def street(policy: str = "dorm", **loop: Any) -> Street:
    """Two nodes of two cores, all of which one app has, while another one begins to fail."""
    found = Street(policy)
    found.submit("victim", n_min=1, n_max=4, resume=["work"])
    retries = {"limit": 1000, "backoff": "1s", "longest": "1s", **loop.pop("retries", {})}
    found.submit("loop", **{"n_min": 1, "n_max": 1, "retries": retries, **loop})
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_crash_loop_that_works_a_little_restarts_no_other_app(policy: str) -> None:
    found = street(policy)
    found.works = True
    found.wait(60)
    before = found.app("victim").generation
    for _ in range(20):
        found.wait(2)
        found.fail()
        found.wait(10)  # its pauses grow up to this long
    # If no app ever makes room for it, it does not even start.
    assert found.app("loop").debt == (20 if policy not in ("static", "app-level", "fifo", "themis") else 0)
    assert found.app("victim").generation == before


def test_the_room_of_an_app_in_a_long_pause_is_used() -> None:
    found = street(retries={"backoff": "1h", "longest": "1h"})
    assert (found.size("victim"), found.size("loop")) == (3, 1)
    found.fail()
    found.wait(60)
    assert found.size("victim") == 4


def test_others_make_room_for_a_crash_loop_once() -> None:
    found = street(retries={"backoff": "20m", "longest": "20m"})
    found.works = True
    found.wait(60)
    sizes = []
    before = found.app("victim").generation
    for _ in range(6):
        found.fail()
        found.wait(60)
        sizes.append(found.size("victim"))
        found.wait(20 * 60)
    assert found.app("victim").generation == before + 2, sizes
    assert sizes == [4, 3, 3, 3, 3, 3], "then its room is kept"


def test_running_stably_pays_its_debt() -> None:
    found = street(retries={"backoff": "20m", "longest": "20m"})
    found.works = True
    for count in range(2):
        found.fail()
        found.wait(21 * 60)
        assert (found.app("loop").debt, found.app("loop").disturbs) == (count + 1, True)
    found.wait(2 * STABLE_S + 1)
    before = found.app("victim").generation
    found.fail()
    found.wait(60)
    assert (found.app("loop").debt, found.app("loop").disturbs) == (1, False)
    assert found.app("victim").generation == before + 1


def test_after_the_next_failure_others_do_not_grow_into_the_room_again() -> None:
    """It comes back into room that became free meanwhile, so no app shrinks for it; without a place of its own,
    others would grow into that room as well, and have to shrink for its next try."""
    found = Street(nodes=(2, 3))
    found.submit("victim", n_min=1, n_max=5)
    found.submit("brief", n_min=1, n_max=1)
    found.works = True
    found.submit("loop", n_min=1, n_max=1, retries={"limit": 1000, "backoff": "20m", "longest": "20m"})
    found.wait(60)
    before = found.app("victim").generation
    found.fail()
    found.wait(20 * 60 - 1)
    assert (found.size("victim"), found.size("brief")) == (4, 1)
    found.bench.exited("brief", 0, 0)
    found.bench.now += SECOND
    found.rest()
    assert (found.size("victim"), found.size("loop")) == (4, 1)
    for _ in range(3):
        found.fail()
        found.wait(20 * 60 + 1)
        assert (found.size("victim"), found.size("loop")) == (4, 1)
    assert found.app("victim").generation == before + 1


def test_it_does_not_take_room_that_is_being_cleared_for_another() -> None:
    """Two have to shrink for `large`, in two rounds; taken after the first, the room would have to be made once more."""
    found = Street(nodes=(4,))
    for name in ("left", "right"):
        found.submit(name, n_min=1, n_max=2)
    found.submit("loop", n_min=1, n_max=1, retries={"limit": 1000, "backoff": "1s", "longest": "1s"})
    for _ in range(2):
        found.fail()
        found.wait(5)
    assert (found.size("left"), found.size("right"), found.size("loop")) == (2, 2, 0)
    before = {name: found.app(name).generation for name in ("left", "right")}
    found.bench.submit("large", cpu=2, n_min=1, n_max=1)
    found.bench.decide()
    found.bench.decide(allocate=True)
    assert found.size("left") + found.size("right") == 3
    waiting = found.app("loop").waiting
    assert waiting is not None
    assert waiting.code == "reserved"
    assert waiting.text.startswith(f"room is being made for {found.app('large').id}, over several rounds (")
    found.rest()
    assert (found.size("large"), found.size("loop")) == (1, 0)
    assert {name: found.app(name).generation - number for name, number in before.items()} == {"left": 1, "right": 1}


def test_a_waiting_app_starts_in_the_place_of_a_pausing_one_and_restarts_no_other() -> None:
    found = street()
    found.wait(60)
    before = found.app("victim").generation
    found.submit("third", n_min=1, n_max=1)
    third = found.size("third")
    found.fail()
    assert found.size("third") == 1
    assert found.app("victim").generation == before + (third == 1)


def test_reserved_room_is_reported() -> None:
    found = Street()
    found.submit("victim", n_min=4, n_max=4)
    found.submit("late", n_min=1)
    assert found.size("late") == 0
    found.bench.add(joined("n9", 1))
    found.rest()
    assert found.size("late") == 1


# --- in words -----------------------------------------------------------------------------------------------------------


def test_a_waiting_app_sees_for_which_app_room_is_kept() -> None:
    found = street(retries={"backoff": "200s", "longest": "200s"})
    found.works = True
    found.wait(60)
    found.fail()
    found.submit("late", n_min=4, n_max=4)
    waiting = found.app("late").waiting
    assert waiting is not None
    assert f"; what {found.app('loop').id} left by failing is kept for the next try" in waiting.text


def test_an_app_in_debt_sees_why_it_gets_no_more_and_why_it_waits() -> None:
    found = street(retries={"backoff": "20m", "longest": "20m"})
    found.works = True
    found.wait(60)
    found.fail()
    found.wait(21 * 60)
    held = "others made room for it after 1 failure: gets no more before it has run for 30 min"
    assert describe(found.app("loop"), found.bench.now)["held"] == held
    found.fail()
    found.wait(60)
    held = describe(found.app("loop"), found.bench.now)["held"]
    assert held == (
        "others made room for it after 2 failures: gets no more before it has run for 60 min; "
        "nobody is resized for it before it has waited for 30 min"
    )


def test_a_newcomer_that_waits_for_a_restart_names_the_other_machine() -> None:
    found = Street()
    found.submit("older", n_min=4, n_max=4)
    for node in ("n0", "n1"):
        found.bench.add(k.NodeLeft(node=node))
    found.rest()
    found.submit("younger", n_min=1, n_max=1)
    found.bench.add(joined("n0", 2))
    found.rest()
    waiting = found.app("younger").waiting
    assert waiting is not None
    older = found.app("older").id
    assert waiting.text == f"{older} ran before its nodes went away and comes first, for at most 60 s"


@pytest.mark.parametrize("policy", POLICIES)
def test_no_newcomer_starts_in_the_room_that_is_denied_to_another(policy: str) -> None:
    """There is room for either, and not for both: whichever the policy prefers, the other one waits as well."""
    found = Street(policy)
    found.submit("older", n_min=4, n_max=4)
    for node in ("n0", "n1"):
        found.bench.add(k.NodeLeft(node=node))
    found.rest()
    found.submit("small", n_min=1, n_max=1)
    found.submit("large", n_min=2, n_max=2)
    found.submit("impossible", n_min=3, n_max=3)
    found.bench.add(joined("n0", 2))
    found.rest()
    assert found.size("small") == found.size("large") == 0
    codes = {name: found.app(name).waiting.code for name in ("small", "large", "impossible")}
    assert codes == {"small": "reserved", "large": "reserved", "impossible": "no_nodes"}
    found.wait(HOLD_S)
    found.rest()
    assert found.size("small") + found.size("large") > 0


# --- settling -----------------------------------------------------------------------------------------------------------


def resized(*, tells: bool = True) -> tuple[Bench, Any]:
    """An app that was resized and runs again, and has not worked since."""
    bench = Bench(a=4)
    bench.add(k.PolicyChanged(idle_s=DAY))
    first = bench.running("first", n_min=1, n_max=4)
    if tells:
        bench.add(k.AppProgressed(app=first.id, generation=first.generation, step=5))
    bench.submit("second", n_min=1, n_max=1)
    bench.settle()
    bench.all_exited("first", 143, generation=1, asked=True)
    bench.settle()
    bench.started("first")
    bench.started("second")
    bench.settle()
    assert first.generation == 2
    return bench, first


@pytest.mark.parametrize("tells", [True, False])
def test_no_app_is_resized_again_before_it_has_worked(tells: bool) -> None:
    bench, first = resized(tells=tells)
    bench.submit("third", n_min=1, n_max=1)
    bench.settle()
    third = bench.app("third")
    assert (first.generation, third.current) == (2, None)
    assert third.waiting is not None
    assert third.waiting.code == "settling"
    assert "first" in third.waiting.text
    assert next_deadline(bench.state, bench.now) == bench.now + (SETTLE_S if tells else TRIAL_S) * SECOND


def test_one_step_ends_the_settling_time() -> None:
    bench, first = resized()
    bench.submit("third", n_min=1, n_max=1)
    bench.settle()
    dirty = bench.state.dirty_seq
    bench.add(k.AppProgressed(app=first.id, generation=2, step=6))
    assert bench.state.dirty_seq > dirty
    bench.settle()
    assert first.generation == 3


def test_a_hanging_app_does_not_block_others_permanently() -> None:
    bench, first = resized()
    bench.submit("third", n_min=1, n_max=1)
    bench.settle()
    bench.wait(SETTLE_S)
    bench.settle()
    assert first.generation == 3


@pytest.mark.parametrize("policy", ["dorm", "dorm-exact"])
def test_an_edit_that_asks_for_more_moves_no_neighbor_that_settles(policy: str) -> None:
    """What the edited app holds no longer fits by its new demand; that is for it to give up."""
    bench, first = resized()
    bench.add(joined("a", 4, abilities=["edits"]))
    bench.add(k.PolicyChanged(policy=policy, params={}))
    second = bench.app("second")
    spec = msgspec.to_builtins(second.owners_spec)
    bench.add(k.AppEditRequested(id="e", app=second.id, spec={**spec, "demand": {"cpu": 2}}), "ann")
    bench.settle()
    assert second.owners_spec.demand == {"cpu": 2}
    assert first.generation == 2
    assert first.current is not None


def test_forced_changes_go_ahead() -> None:
    bench, first = resized()
    bench.add(joined("b", 4))
    bench.add(k.NodeDrainRequested(node="a"))
    bench.settle()
    assert first.generation == 3
    assert first.current.by_node() == {"b": 3}


# --- whatever it does ---------------------------------------------------------------------------------------------------

ACTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 5.0, 30.0, 61.0, 70.0, 100.0]),  # how long it runs
        st.booleans(),  # whether it makes steps
        st.sampled_from(["exit", "exit", "out_of_memory", "port", "unknown"]),
        st.booleans(),  # whether its owner touches it meanwhile
        st.sampled_from([0.0, 0.0, 2.0, 400.0]),  # how long after the failure someone looks
    ),
    min_size=3,
    max_size=14,
)


@pytest.mark.soak
@settings(max_examples=tries(8, 2000), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    acts=ACTS,
    policy=st.sampled_from(["dorm", "dorm", "dorm-exact", "static", "app-level"]),
    size=st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 2), (2, 3)]),
    backoff=st.sampled_from(["0s", "1s", "1m", "6m", "20m", "2h"]),
    longest=st.sampled_from(["1s", "10m", "1h"]),
    reset=st.sampled_from(["0s", "1m", "1h"]),
    crowd=st.integers(0, 2),
)
@example(  # Once it had failed twice without having worked, it gave up what others had made room for.
    acts=[
        (61.0, True, "exit", False, 0.0),
        (30.0, True, "exit", True, 2.0),
        (70.0, False, "port", True, 0.0),
        (5.0, False, "exit", False, 400.0),
        (1.0, False, "exit", True, 400.0),
        (5.0, True, "unknown", False, 2.0),
    ],
    policy="dorm",
    size=(1, 4),
    backoff="6m",
    longest="1h",
    reset="0s",
    crowd=0,
)
@example(  # Room was cleared for it over several rounds, and given back each time.
    acts=[(0.0, False, "exit", False, 0.0)] * 3,
    policy="dorm",
    size=(2, 2),
    backoff="6m",
    longest="1s",
    reset="1h",
    crowd=2,
)
def test_a_crash_loop_restarts_a_neighbor_at_most_twice(
    acts: list[tuple[float, bool, str, bool, float]],
    policy: str,
    size: tuple[int, int],
    backoff: str,
    longest: str,
    reset: str,
    crowd: int,
) -> None:
    found = Street(policy, (2, 3))
    found.submit("victim", n_min=1, n_max=5)
    for number in range(crowd):
        found.submit(f"other{number}", n_min=1, n_max=2)
    retries = {"limit": 1000, "backoff": backoff, "longest": longest, "reset": reset}
    found.works = acts[0][1]
    found.submit("loop", n_min=size[0], n_max=size[1], retries=retries)
    found.wait(3600)  # What its arrival costs is over.
    neighbors = [app for app in found.bench.state.apps.values() if app.name != "loop"]
    before = {app.id: app.generation for app in neighbors}
    waited = 0.0
    for runs_s, works, reason, touched, later_s in acts:
        found.works = works
        found.wait(runs_s)
        if touched:
            found.bench.add(k.AppUpdated(app="loop", n_max=size[1]))
            found.rest()
        found.fail(1, reason=reason)
        found.wait(later_s)
        app = found.app("loop")
        while not app.ended and app.current is None and waited < ROOM_S:
            waited += 60 if app.retry_at == 0 else 0
            found.wait(60)
    app = found.app("loop")
    assert not app.debt or app.debt <= len(acts)
    restarts = {app.id: app.generation - before[app.id] for app in neighbors}
    allowed = 2 + 2 * int(waited // ROOM_S)
    assert max(restarts.values()) <= allowed, restarts


@pytest.mark.soak
def test_days_of_a_crash_loop_cost_no_further_restarts() -> None:
    found = street(retries={"backoff": "1s", "longest": "10m"})
    found.works = True
    found.wait(60)
    before = found.app("victim").generation
    end = found.bench.now + DAY * SECOND
    while found.bench.now < end:
        found.wait(70)
        found.fail()
        found.wait(KEPT_S)
    assert found.app("victim").generation <= before + 2
