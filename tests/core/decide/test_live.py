"""Live resizing: the decisions, the effect of each fact, and members that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.core.costs import UNMEASURED_LIVE_S, adjust_s
from dorm.core.faults import SHORT_S
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined

if TYPE_CHECKING:
    from dorm.core.state import App, Generation


NOTICED_S = 17
"""With the default settings: `node_grace` and the master's margin."""


def bench_of(*capacities: int) -> Bench:
    """Nodes a, b, … with these cores."""
    return Bench(**dict(zip("abcd", capacities, strict=False)))


def live_app(bench: Bench, name: str = "app", **fields: Any) -> App:
    return bench.running(name, **{"n_max": 4, "elastic": "live", "retries": {"limit": 2, "backoff": "0s"}, **fields})


def current(bench: Bench, name: str = "app") -> Generation:
    found = bench.app(name).current
    assert found is not None
    return found


def train(bench: Bench, name: str = "app", **words: Any) -> None:
    """The leader says that the announced membership trains."""
    generation = current(bench, name)
    members = words.pop("members", sorted(generation.planned))
    number = words.pop("membership", generation.announced)
    said = k.MembershipChanged(
        app=bench.app(name).id,
        generation=generation.number,
        membership=number,
        step=words.pop("step", 7),
        members=members,
        change=words.pop("change", "grow"),
        **words,
    )
    leader = generation.find(min(members))
    assert leader is not None
    bench.add(said, leader.node)


def start(bench: Bench, *slots: int, name: str = "app") -> None:
    generation = current(bench, name)
    for slot in slots:
        container = generation.find(slot)
        assert container is not None
        bench.add(
            k.ContainerStarted(app=bench.app(name).id, generation=generation.number, slot=slot, node=container.node)
        )


def kinds(facts: list[Any]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


def only(facts: list[Any], kind: type) -> Any:
    (found,) = [fact for fact in facts if isinstance(fact, kind)]
    return found


def shrinking(bench: Bench) -> list[Any]:
    """A live app with four containers makes room for another app."""
    live_app(bench)
    assert sorted(current(bench).containers) == [0, 1, 2, 3]
    bench.submit("other", n_max=1)
    return bench.settle()


def test_it_shrinks_in_place_and_releases_its_room_afterwards() -> None:
    bench = bench_of(2, 2)
    said = shrinking(bench)
    change = next(change for change in only(said, k.Resized).changes if change.app == bench.app().id)
    assert (change.adjustment, change.why, change.membership) == ("live", "members_stay", 2)
    assert (change.from_generation, change.to_generation) == (1, 1)
    released = only(said, k.MembersReleased)
    assert (released.newcomers, len(released.leavers), len(released.members)) == ([], 1, 3)
    assert not current(bench, "other").released, "the leaver still runs"
    (leaver,) = released.leavers
    train(bench, change="shrink", pause_s=0.02)
    assert kinds(bench.settle()) == ["MembershipCommitted"]
    assert sorted(current(bench).leaving) == [leaver]
    assert not current(bench, "other").released, "it is no member any more, and still runs"
    node = current(bench).leaving[leaver].node
    bench.add(k.ContainerExited(app=bench.app().id, generation=1, slot=leaver, node=node, exit_code=0))
    assert kinds(bench.settle()) == ["GenerationReleased"]
    assert bench.app().phase == "running"
    assert (bench.app().adjustments, bench.app().history[-1].pause_s) == (1, 0.02)


def test_newcomers_start_when_their_room_is_free_and_have_slots_of_their_own() -> None:
    bench = bench_of(2, 2)
    (leaver,) = only(shrinking(bench), k.MembersReleased).leavers
    node = current(bench).containers[leaver].node
    bench.add(k.ContainerExited(app=bench.app().id, generation=1, slot=leaver, node=node, exit_code=0))
    train(bench, change="shrink")
    bench.settle()
    bench.started("other")
    bench.settle()
    bench.add(k.AppCancelRequested(app="other"))
    said = bench.settle()
    change = next(change for change in only(said, k.Resized).changes if change.app == bench.app().id)
    assert max(placed.slot for placed in change.placement) == 4, "slot 3 is final"
    assert not [fact for fact in said if isinstance(fact, k.MembersReleased)], "the other app still runs there"
    bench.all_exited("other", 143, asked=True)
    released = only(bench.settle(), k.MembersReleased)
    assert (released.membership, released.newcomers) == (3, [4])
    assert bench.app().phase == "adjusting"
    start(bench, 4)
    train(bench)
    bench.settle()
    assert len(current(bench).containers) == 4
    assert (bench.app().phase, current(bench).membership, bench.app().generation) == ("running", 3, 1)


def test_a_leader_speaks_for_the_members_that_were_announced_only() -> None:
    bench = bench_of(2, 2)
    shrinking(bench)
    for words in ({"membership": 1}, {"membership": 3}, {"members": [0]}, {"members": [0, 1, 2, 3]}):
        train(bench, change="shrink", **words)
        assert current(bench).change is not None, words
    said = k.MembershipChanged(
        app=bench.app().id, generation=1, membership=2, step=1, members=sorted(current(bench).planned), change="shrink"
    )
    bench.add(said, "c")  # A node without any of its containers.
    assert current(bench).change is not None


def test_a_member_that_fails_costs_a_retry_and_no_generation() -> None:
    bench = bench_of(2, 2)
    live_app(bench)
    bench.wait(SHORT_S)  # It had what it needs to start.
    bench.exited(slot=2, code=1)
    said = bench.decide()
    lost = only(said, k.MembersLost)
    assert (lost.lost, [one.slot for one in lost.members], lost.membership) == ([2], [0, 1, 3], 2)
    assert (lost.counted, lost.retries, lost.limit, lost.failure) == (True, 1, 2, "exit")
    assert (bench.app().generation, bench.app().failures, bench.app().phase) == (1, 1, "running")
    released = only(bench.settle(), k.MembersReleased)
    assert released.newcomers == [4], "it grows again"


def test_failures_of_members_end_an_app_that_has_no_retries_left() -> None:
    bench = bench_of(2, 2)
    live_app(bench, retries={"limit": 0})
    bench.wait(SHORT_S)
    bench.exited(slot=2, code=1)
    assert kinds(bench.decide()) == ["AppFailed"]


def test_with_fewer_than_n_min_it_is_restarted() -> None:
    bench = bench_of(2, 2)
    live_app(bench, n_min=4)
    bench.exited(slot=2, code=1)
    assert kinds(bench.decide()) == ["GenerationFailed"]


def test_a_member_that_its_peers_report_is_stopped_and_holds_its_room_until_then() -> None:
    bench = bench_of(2, 2)
    live_app(bench)
    train(bench, membership=1, members=[0, 1, 3], change="death", lost=[2])
    bench.wait(NOTICED_S)
    lost = only(bench.decide(), k.MembersLost)
    assert (lost.lost, lost.failure) == ([2], "stalled")
    assert sorted(current(bench).leaving) == [2]
    assert "MembersReleased" not in kinds(bench.settle()), "its room is not free yet"
    bench.add(k.ContainerExited(app=bench.app().id, generation=1, slot=2, node="b", exit_code=137, asked=True))
    assert "MembersReleased" in kinds(bench.settle())


def accused(**fields: Any) -> Bench:
    """A live app of three, in which the survivors report slot 2 as gone before its agent reports its end."""
    bench = bench_of(2, 2)
    live_app(bench, **{"n_min": 3, "n_max": 3, **fields})
    train(bench, membership=1, members=[0, 1], change="death", lost=[2])
    assert bench.settle() == [], "its own end may explain it"
    return bench


def due_s(bench: Bench) -> float:
    """In how many seconds something is due without any record."""
    due = next_deadline(bench.state, bench.now)
    assert due is not None
    return (due - bench.now) / SECOND


@pytest.mark.parametrize(("n_min", "kind"), [(3, "GenerationFailed"), (2, "MembersLost")])
def test_the_end_of_a_member_explains_what_its_peers_report(n_min: int, kind: str) -> None:
    bench = accused(n_min=n_min)
    bench.wait(1)
    bench.exited(slot=2, code=3, message="ValueError: label 17")
    (said,) = [fact for fact in bench.settle() if type(fact).__name__ == kind]
    assert (said.failure, said.reason) == ("exit", "slot 2 on b ended with exit code 3: ValueError: label 17")


@pytest.mark.parametrize("n_min", [3, 2])
def test_a_final_exit_code_is_final_even_if_the_peers_report_comes_first(n_min: int) -> None:
    bench = accused(n_min=n_min, retries={"limit": 2, "backoff": "0s", "fatal_exit_codes": [3]})
    bench.exited(slot=2, code=3)
    end = only(bench.decide(), k.AppFailed)
    assert (end.failure, end.exit_codes["2"]) == ("exit", 3)


def test_a_member_that_is_only_silent_is_given_up_when_its_node_would_have_been_noticed() -> None:
    bench = accused()
    assert due_s(bench) == NOTICED_S, "the master wakes up by itself"
    bench.wait(NOTICED_S)
    said = only(bench.decide(), k.GenerationFailed)
    assert (said.failure, said.counted, said.reason) == ("stalled", True, "slot 2 on b does not answer its peers")


def test_a_member_that_is_silent_with_its_node_costs_no_retry() -> None:
    bench = accused()
    bench.wait(NOTICED_S - 1)
    bench.conclude(b=NOTICED_S - 1)
    said = only(bench.decide(), k.GenerationFailed)
    assert (said.failure, said.counted) == ("lost", False)


def test_peers_that_end_because_a_silent_member_is_gone_are_not_the_cause() -> None:
    bench = accused()
    bench.exited(slot=0, code=1, message="LeftBehind: the others ended", peer_lost=True)
    assert bench.settle() == []
    bench.exited(slot=2, code=3)
    assert only(bench.decide(), k.GenerationFailed).reason == "slot 2 on b ended with exit code 3"


def test_a_member_that_its_peers_gave_up_first_ends_for_its_own_reason() -> None:
    """A frozen worker wakes up, and ends because the others went on without it: nobody else's end explains that."""
    bench = accused()
    bench.exited(slot=2, code=1, message="LeftBehind: the others took this member for dead", peer_lost=True)
    assert only(bench.decide(), k.GenerationFailed).failure == "exit"


def test_a_gang_is_whole_or_leaves() -> None:
    bench = bench_of(4)
    live_app(bench, n_min=2, gang=2)
    bench.exited(slot=1, code=1)
    lost = only(bench.decide(), k.MembersLost)
    assert (lost.lost, len(lost.members), lost.leavers) == ([1], 2, [3])


def test_an_app_that_does_not_follow_is_restarted_into_the_target() -> None:
    bench = bench_of(2, 2)
    shrinking(bench)
    target = current(bench).by_node()
    bench.wait(60 + 15 + 1)
    assert bench.decide() == []
    bench.wait(2)
    failed = only(bench.decide(), k.LiveResizeFailed)
    assert failed.reason == "membership 2 did not train within 60s of its announcement"
    assert (bench.app().generation, current(bench).by_node(), bench.app().failures) == (2, target, 0)
    bench.all_exited(generation=1, code=143, asked=True)
    bench.settle()
    bench.started()
    bench.started("other")
    bench.settle()
    bench.wait(100)
    bench.add(k.AppUpdated(app="app", n_max=2))
    change = only(bench.settle(), k.Resized).changes[0]
    assert (change.adjustment, change.why) == ("restart", "missed_deadline")


def test_a_late_leader_is_heard_again() -> None:
    bench = bench_of(2, 2)
    shrinking(bench)
    bench.wait(100)
    bench.settle()
    bench.all_exited(generation=1, code=143, asked=True)
    bench.settle()
    bench.started()
    assert bench.app().missed_live
    train(bench, change="start", membership=1)
    assert not bench.app().missed_live


def test_a_live_resize_misses_no_deadline_while_a_node_is_silent() -> None:
    bench = bench_of(2, 2)
    shrinking(bench)
    bench.wait(20)
    bench.conclude(a=20, b=0)
    bench.wait(100)
    assert "LiveResizeFailed" not in kinds(bench.decide())


def test_it_is_restarted_if_no_member_would_stay() -> None:
    bench = bench_of(2, 2)
    live_app(bench, n_max=1)
    (node,) = current(bench).by_node()
    bench.wait(100)
    bench.add(k.NodeDrainRequested(node=node))
    (change,) = only(bench.settle(), k.Resized).changes
    assert (change.adjustment, change.why) == ("restart", "no_member_stays")


def test_a_drained_node_is_left_live() -> None:
    bench = bench_of(2, 2, 2)
    live_app(bench, n_min=4)
    bench.wait(100)
    first, *_ = current(bench).by_node()
    bench.add(k.NodeDrainRequested(node=first))
    said = bench.settle()
    change = only(said, k.Resized).changes[0]
    assert change.adjustment == "live"
    assert first not in {placed.node for placed in change.placement}
    assert only(said, k.MembersReleased).newcomers


def test_an_overtaken_live_adjustment_leaves_no_app_waiting_for_its_room() -> None:
    """The app stays as it is, so what was planned in its room is placed again."""
    bench = bench_of(2, 2)
    live_app(bench)
    bench.submit("other", n_max=1)
    bench.decide()
    decided, basis = bench.decided(allocate=True), bench.state.seq
    assert any(change.adjustment == "live" for change in only(decided, k.Resized).changes)
    bench.exited(slot=0, code=1)
    bench.say(*decided, basis=basis)
    assert current(bench).change is None
    said = bench.settle()
    assert "MembersLost" in kinds(said)
    assert bench.app("other").current is not None


def test_newcomers_that_lose_their_node_before_the_release_are_forgotten() -> None:
    bench = bench_of(2, 2)
    live_app(bench, n_max=2)
    bench.running("other", n_max=2)
    bench.add(k.AppUpdated(app="app", n_max=4))
    bench.add(k.AppCancelRequested(app="other"))
    bench.settle()
    change = current(bench).change
    assert change is not None
    assert not change.released_at
    node = next(iter(change.newcomers.values())).node
    bench.add(k.NodeDrainRequested(node=node))
    assert current(bench).change is None
    assert current(bench).membership == 1


def test_the_price_of_a_live_resize_is_its_pause() -> None:
    bench = bench_of(2, 2)
    shrinking(bench)
    assert adjust_s(bench.app()) == UNMEASURED_LIVE_S
    train(bench, change="shrink", pause_s=0.25)
    assert adjust_s(bench.app()) == 0.25


def test_all_members_done_completes_it_even_if_newcomers_never_joined() -> None:
    bench = bench_of(2, 2)
    live_app(bench, n_max=3)
    bench.add(k.AppUpdated(app="app", n_max=4))
    assert only(bench.settle(), k.MembersReleased).newcomers == [3]
    bench.all_exited()
    assert kinds(bench.decide()) == ["AppCompleted"]
    assert sorted(bench.app().generations[1].leaving) == [3]


def test_newcomers_that_fail_on_one_node_are_tried_on_another() -> None:
    bench = bench_of(3)
    live_app(bench, n_max=3, retries={"limit": 0})
    train(bench)
    bench.add(joined("bad", 2))
    bench.add(k.AppUpdated(app="app", n_max=4))
    assert only(bench.settle(), k.MembersReleased).newcomers == [3]
    bench.add(k.ContainerExited(app=bench.app().id, generation=1, slot=3, node="bad", reason="command"))
    bench.add(joined("good", 2))
    lost = only(bench.decide(), k.MembersLost)
    assert (lost.fault, lost.node, lost.counted) == ("open", "bad", False)
    assert bench.app().held_most is None
    bench.wait(600)
    placed = only(bench.settle(), k.MembersReleased)
    assert [member.node for member in placed.members if member.slot in placed.newcomers] == ["good"]


def test_newcomers_that_fail_cost_no_retry_and_are_not_tried_again_at_once() -> None:
    bench = bench_of(2, 2)
    live_app(bench, n_max=3, retries={"limit": 0})
    bench.add(k.AppUpdated(app="app", n_max=4))
    assert only(bench.settle(), k.MembersReleased).newcomers == [3]
    newcomer = current(bench).find(3)
    assert newcomer is not None
    bench.add(k.ContainerExited(app=bench.app().id, generation=1, slot=3, node=newcomer.node, reason="image"))
    lost = only(bench.settle(), k.MembersLost)
    assert (lost.lost, lost.counted, lost.failure) == ([3], False, "image")
    assert (bench.app().failures, len(current(bench).containers), bench.app().phase) == (0, 3, "running")
    bench.wait(600)
    assert "MembersReleased" not in kinds(bench.settle())
    held = bench.app().held_most
    assert held is not None
    assert (held.containers, held.worked_with) == (4, 3)
