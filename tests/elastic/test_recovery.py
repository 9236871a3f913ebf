"""Schedules in which members die in the middle of a switch or of a recovery, one for each way in which the survivors could
wait without end, or go on in two groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.member import Member
from dorm.elastic.protocol.recovery import MINORITY_S
from dorm_lab.bench.elastic.group import Group
from tests.elastic.schedules import around_a_message, check

if TYPE_CHECKING:
    from collections.abc import Callable


class Wire:
    """What a schedule does to messages: `lose` those that match, and run actions when one is sent."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._send, group._send = group._send, self._on_send  # type: ignore[method-assign, assignment]
        self._lost: list[Callable[[int, int, m.Message], bool]] = []
        self._actions: list[tuple[type[m.Message], Callable[[int, m.Message], bool], Callable[[], None]]] = []

    def lose(self, kind: type[m.Message], *peers: int, sender: int) -> None:
        """Messages of this kind from `sender` to these peers do not arrive: the sender dies while it sends."""
        self._lost.append(lambda s, p, message: s == sender and p in peers and isinstance(message, kind))

    def lose_barrier(self, *peers: int, sender: int) -> None:
        """Results from `sender` that announce a barrier do not arrive at these peers."""
        self._lost.append(
            lambda s, p, message: s == sender and p in peers and isinstance(message, m.Result) and message.barrier
        )

    def when(self, kind: type[m.Message], action: Callable[[], None], *, sender: int) -> None:
        """Run the action once, after the first message of this kind from `sender` and all that it sends at that moment."""
        self._actions.append((kind, lambda s, _: s == sender, action))

    def _on_send(self, sender: int, peer: int, message: m.Message) -> None:
        if not any(lost(sender, peer, message) for lost in self._lost):
            self._send(sender, peer, message)
        for entry in list(self._actions):
            kind, matches, action = entry
            if isinstance(message, kind) and matches(sender, message):
                self._actions.remove(entry)
                self._group.later(0.0, action)


def kill(group: Group, slot: int, *left: int) -> None:
    """The member dies; what it has sent arrives, and the control plane announces those that are left."""
    group.kill(slot, cleanly=True)
    group.later(3.0, lambda: group.announce(*left))


def until(group: Group, condition: Callable[[], bool], action: Callable[[], None]) -> None:
    """Run the action as soon as the condition holds."""
    if condition():
        action()
    else:
        group.later(0.001, lambda: until(group, condition, action))


def trained(group: Group) -> list[tuple[str, tuple[int, ...]]]:
    """The causes and members of all views, without moves of chunks alone."""
    changes = [fact for _, fact in group.facts if isinstance(fact, v.Changed)]
    return [(fact.cause, fact.view.members) for fact in changes if fact.cause != "balance"]


def test_a_newcomer_whose_switch_was_lost_joins_with_the_next_one() -> None:
    group = Group(1, epochs=8)
    wire = Wire(group)
    group.announce(0, 1, 2)
    group.later(2.5, lambda: group.announce(0, 1, 2, 3))
    group.later(2.5, lambda: wire.lose(m.Switch, 1, 2, sender=0))
    group.later(2.5, lambda: wire.when(m.Switch, lambda: kill(group, 0, 1, 2, 3), sender=0))
    group.run()
    check(group)
    assert trained(group)[1:] == [("death", (1, 2)), ("grow", (1, 2, 3))]
    assert group.scripts[3].ended == "finished"


def test_a_newcomer_that_has_not_heard_of_the_switch_answers_those_that_wait_for_it() -> None:
    group = Group(2, epochs=8)
    wire = Wire(group)
    group.announce(0, 1, 2)
    group.later(2.5, lambda: group.announce(0, 1, 2, 3))
    group.later(2.5, lambda: wire.lose(m.Switch, 3, sender=0))
    group.later(2.5, lambda: wire.when(m.Switch, lambda: kill(group, 0, 1, 2, 3), sender=0))
    group.run()
    check(group)
    assert trained(group)[1:] == [("death", (1, 2)), ("grow", (1, 2, 3))]


def test_one_member_heard_that_the_switch_is_complete_before_its_leader_left_and_died() -> None:
    group = Group(3, epochs=8)
    wire = Wire(group)
    group.announce(0, 1, 2)
    group.later(2.5, lambda: group.announce(1, 2, 3))
    for kind in (m.Go, m.Bye):
        group.later(2.5, lambda kind=kind: wire.lose(kind, 1, 2, sender=0))  # type: ignore[misc]
    group.later(2.5, lambda: wire.when(m.Go, lambda: group.kill(0, cleanly=True), sender=0))
    group.run()
    check(group)
    assert trained(group)[1:] == [("move", (1, 2, 3))]


def test_a_leaver_that_did_not_hear_that_the_switch_is_complete_leaves() -> None:
    group = Group(4, epochs=8)
    wire = Wire(group)
    group.announce(0, 1, 2)
    group.later(2.5, lambda: group.announce(2))
    for kind in (m.Go, m.Bye):
        group.later(2.5, lambda kind=kind: wire.lose(kind, 1, sender=0))  # type: ignore[misc]
    group.later(2.5, lambda: wire.when(m.Go, lambda: group.kill(0, cleanly=True), sender=0))
    group.run()
    check(group)
    assert [group.scripts[slot].ended for slot in (0, 1, 2)] == ["Left", "Left", "finished"]


def test_a_leaver_that_is_cut_off_at_the_end_of_the_switch_does_not_go_on_alone() -> None:
    group = Group(5, epochs=30)
    wire = Wire(group)
    group.announce(0, 1)
    group.later(2.5, lambda: group.announce(0))
    group.later(2.5, lambda: wire.lose(m.Go, 1, sender=0))
    group.later(2.5, lambda: wire.when(m.Go, lambda: group.cut_off({1}, 60.0), sender=0))
    group.run()
    check(group)
    assert [group.scripts[slot].ended for slot in (0, 1)] == ["finished", "Behind"]


def test_all_members_are_replaced_at_once() -> None:
    group = Group(6, epochs=8)
    group.announce(0, 1)
    group.later(2.5, lambda: group.announce(2, 3))
    group.run()
    check(group)
    assert trained(group) == [("start", (0, 1)), ("move", (2, 3))]


def test_the_newcomers_are_ready_before_a_member_of_the_old_view_has_connected() -> None:
    """The lowest newcomer begins nothing, though it has heard of nobody that trains."""
    group = Group(7, epochs=12)
    group.announce(0, 1)
    for slot in (0, 1):
        group.later(2.5, lambda slot=slot: group.freeze(slot, 1.2))  # type: ignore[misc]
    group.later(2.6, lambda: group.announce(2, 3))
    group.run()
    check(group)
    assert trained(group) == [("start", (0, 1)), ("move", (2, 3))]


def test_a_leaver_dies_while_all_members_are_replaced() -> None:
    group = Group(8, epochs=8)
    wire = Wire(group)
    group.announce(0, 1)
    group.later(2.5, lambda: group.announce(2, 3))
    group.later(2.5, lambda: wire.lose(m.Received, 0, sender=1))
    group.later(2.5, lambda: wire.when(m.Received, lambda: group.kill(1), sender=1))
    group.run()
    check(group)
    assert trained(group) == [("start", (0, 1)), ("death", (0,)), ("move", (2, 3))]


def test_the_coordinator_dies_while_it_sends_its_decision() -> None:
    group = Group(9, epochs=8, valued=True)
    wire = Wire(group)
    group.announce(0, 1, 2, 3)
    group.later(2.5, lambda: kill(group, 0, 2, 3))
    wire.lose(m.Recover, 3, sender=1)
    wire.when(m.Recover, lambda: group.kill(1, cleanly=True), sender=1)
    group.run()
    check(group)
    assert trained(group)[-1] == ("death", (2, 3))


def test_the_member_with_the_last_result_dies_before_it_has_passed_it_on() -> None:
    group = Group(10, epochs=8)
    wire = Wire(group)
    group.announce(0, 1, 2)

    def fail() -> None:
        wire.lose(m.Result, 2, sender=0)
        wire.lose(m.Result, 2, sender=1)
        wire.when(m.Recover, lambda: group.kill(1, cleanly=True), sender=1)
        until(
            group, lambda: group.members[1].round > 0 and group.members[2].waiting == "sum", lambda: kill(group, 0, 2)
        )

    group.later(2.5, fail)
    group.run()
    check(group)
    assert trained(group)[-1] == ("death", (2,))


def test_the_leader_dies_while_it_sends_a_result_that_announces_a_barrier() -> None:
    """Those that had the result go on without the barrier, since its leader is dead; so must those that get it later."""
    group = Group(13, epochs=8)
    wire = Wire(group)
    group.announce(0, 1, 2)
    wire.lose_barrier(2, sender=0)

    def had_it() -> bool:
        return group.members[1].barrier and group.members[1].round > 0 and group.members[2].waiting == "sum"

    group.later(2.5, lambda: group.announce(0, 1, 2, 3))
    group.later(2.5, lambda: until(group, had_it, lambda: kill(group, 0, 1, 2, 3)))
    group.run()
    check(group)
    assert trained(group)[-2:] == [("death", (1, 2)), ("grow", (1, 2, 3))]


@pytest.mark.parametrize(("hangs_up", "least_s", "most_s"), [(True, 0.0, 0.3), (False, MINORITY_S, MINORITY_S + 0.5)])
def test_the_last_member_continues_after_the_leader_is_gone(hangs_up: bool, least_s: float, most_s: float) -> None:
    """Its connections end with its process; if it is only silent, it may live and has the first claim."""
    group = Group(14, epochs=8)
    group.announce(0, 1)
    lost: list[float] = []
    continued: list[float] = []

    def lose(slot: int, peer: int, *, hung_up: bool = False) -> None:
        lost.append(group.now)
        before(slot, peer, hung_up=hung_up)

    before, group._lose = group._lose, lose  # type: ignore[method-assign]
    group.later(2.5, lambda: group.kill(0) if hangs_up else group.freeze(0, 30.0))
    until(group, lambda: trained(group)[-1:] == [("death", (1,))], lambda: continued.append(group.now))
    group.later(6.0, lambda: group.announce(1))
    group.run()
    assert least_s <= continued[0] - lost[0] <= most_s
    assert group.scripts[1].ended == "finished"


def test_a_leader_that_has_stopped_before_the_others_is_not_dead() -> None:
    """All stop before the same step.  A member that took the first one's end for a death would save in its place."""
    member = Member(1)
    member.start(v.Plan(4, 10))
    member.install(v.View(5, 1, (0, 1), (0, 0, 1, 1)))
    member.connect(0)
    member.step, member.stop = 6, True
    member.boundary(7)
    assert member.answer == v.Stop(7)
    member.receive(0, m.Bye(5, step=7))
    member.lose(0, hung_up=True)
    assert not member.recovering
    assert member.view is not None
    assert member.view.leader == 0


def test_a_report_of_an_earlier_recovery_counts_in_none_after_it() -> None:
    group = Group(11, epochs=12)
    wire = Wire(group)
    group.announce(0, 1, 2, 3)
    late: list[m.Message] = []

    def keep(sender: int, peer: int, message: m.Message) -> None:
        if not isinstance(message, m.Status) or (sender, peer) != (3, 1):
            wire._on_send(sender, peer, message)
        elif message.dead == [0]:
            late.append(message)
            wire._on_send(sender, peer, message)
        else:
            group.later(0.2, lambda: wire._on_send(sender, peer, message))

    group._send = keep  # type: ignore[method-assign, assignment]
    group.later(2.5, lambda: kill(group, 0, 1, 3))

    def repeat() -> None:
        group._do(1, lambda: group.members[1].receive(3, late[0]))
        group.kill(2, cleanly=True)

    def one_ahead() -> bool:
        """Whether member 3 has begun its next step, and the coordinator has not: an old report would undo a step."""
        return group.scripts[3].step == group.scripts[1].step + 1

    group.later(3.5, lambda: until(group, one_ahead, repeat))
    group.run()
    check(group)
    assert trained(group)[-1] == ("death", (1, 3))


def test_a_founder_that_leaves_before_the_first_step_never_leads() -> None:
    group = Group(12, epochs=3)
    wire = Wire(group)
    group.announce(0, 1, 2)
    wire.when(m.State, lambda: group.announce(1, 2), sender=0)

    def warm() -> None:
        for slot in (1, 2):
            group._do(0, lambda slot=slot: group.members[0].receive(slot, m.Warm(0, membership=2)))  # type: ignore[misc]

    until(group, lambda: group.scripts[0].ended == "Left", warm)
    group.run()
    check(group)
    assert trained(group) == [("start", (1, 2))]


def test_a_leader_learns_of_a_newcomers_death_from_a_report_before_its_connection_ends() -> None:
    group = Group(13, epochs=8)
    wire = Wire(group)
    group.announce(0, 1, 2)
    group.later(2.5, lambda: group.announce(0, 1, 2, 3, 4))

    def slow(sender: int, peer: int, message: m.Message) -> None:
        late = isinstance(message, m.Status) and (sender, peer) == (4, 0) and 3 in message.dead
        group.later(0.2 if late else 0.0, lambda: wire._on_send(sender, peer, message))

    group._send = slow  # type: ignore[method-assign, assignment]

    def fail() -> None:
        """Member 2 and a newcomer die; the other newcomer notices its death first, the leader last."""
        wire.lose(m.Received, 0, sender=2)
        group.alive -= {2, 3}
        group._do(0, lambda: group._lose(0, 2))
        for slot, seconds in ((4, 0.05), (1, 0.1), (0, 0.15)):
            group.later(seconds, lambda slot=slot: group._do(slot, lambda: group._lose(slot, 3)))  # type: ignore[misc]
        group.later(3.0, lambda: group.announce(0, 1, 4))

    group.later(2.5, lambda: wire.when(m.Switch, fail, sender=0))
    group.run()
    check(group)
    assert trained(group)[1:] == [("death", (0, 1)), ("grow", (0, 1, 4))]


def test_a_newcomer_learns_at_the_switch_who_has_died_before() -> None:
    """Else the first report of another death would be news of all of them, and everyone would report again."""
    group = Group(9, epochs=12)
    group.announce(0, 1, 2, 3)
    group.later(2.5, lambda: kill(group, 3, 0, 1, 2))
    group.later(6.0, lambda: group.announce(0, 1, 2, 4, 5))
    members = (0, 1, 2, 4, 5)
    known: list[set[int]] = []
    until(
        group,
        lambda: ("grow", members) in trained(group) and all(group.members[slot].view is not None for slot in members),
        lambda: known.extend(set(group.members[slot].dead) for slot in members),
    )
    group.run()
    assert trained(group) == [("start", (0, 1, 2, 3)), ("death", (0, 1, 2)), ("grow", members)]
    assert known == [{3}] * 5
    check(group)


def test_a_newcomer_reports_a_death_to_a_member_that_has_not_heard_of_its_switch_yet() -> None:
    """The leader dies after it has sent the switch, and one newcomer notices before the switch has reached the last member.
    The newcomer reports once; the member must not forget that."""
    check(around_a_message(910235))
