"""Members agree in virtual time: whatever dies, freezes or is announced, each sample counts once an epoch."""

from __future__ import annotations

import pytest

from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm_lab.bench.elastic.group import Group
from tests.elastic.schedules import around_a_barrier, around_a_message, check, random_schedule
from tests.tries import tries


def test_one_member_alone() -> None:
    group = Group(1)
    group.announce(0)
    group.run()
    check(group)


def test_members_start_together() -> None:
    group = Group(2)
    group.announce(0, 1, 2)
    group.run()
    check(group)
    changes = [fact for _, fact in group.facts if isinstance(fact, v.Changed)]
    assert [(c.cause, c.view.members, c.step) for c in changes] == [("start", (0, 1, 2), 0)]


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("valued", [False, True])
def test_members_join_and_leave_while_the_others_train(rounds: int, valued: bool) -> None:
    group = Group(3, rounds=rounds, valued=valued, epochs=12)
    group.announce(0, 1)
    group.later(2.5, lambda: group.announce(0, 1, 2, 3))
    group.later(6.0, lambda: group.announce(1, 3))
    group.run()
    check(group)
    changes = [fact for _, fact in group.facts if isinstance(fact, v.Changed)]
    assert [c.cause for c in changes] == ["start", "grow", "shrink"]
    assert group.scripts[0].ended == group.scripts[2].ended == "Left"


def test_a_newcomer_is_sent_only_what_has_changed_since_its_first_state() -> None:
    """The scripts' state is a model that changes with every step and a table that never does."""
    group = Group(3, epochs=12)
    group.announce(0, 1)
    group.later(2.5, lambda: group.announce(0, 1, 2, 3))
    group.run()
    check(group)
    changes = [fact for _, fact in group.facts if isinstance(fact, v.Changed)]
    moved = {change.cause: change.bytes_moved for change in changes}
    assert moved == {"start": 0, "grow": 2 * group.scripts[0].model.nbytes}


@pytest.mark.parametrize("seed", range(tries(8, 3000)))
def test_random_schedules(seed: int) -> None:
    check(random_schedule(seed), may_end=True)


@pytest.mark.parametrize("seed", range(tries(5, 2000)))
def test_members_and_newcomers_die_around_a_message(seed: int) -> None:
    check(around_a_message(seed), may_end=True)


@pytest.mark.parametrize("seed", [27, 50, 910098, 2010038, *range(tries(2, 2000))])
def test_members_die_while_a_barrier_is_announced(seed: int) -> None:
    check(around_a_barrier(seed), may_end=True)


def test_members_that_stay_hear_of_the_switch_before_those_that_leave() -> None:
    """On a machine that they share, the end of a leaver's process would take time from the others' step."""
    group = Group(3, epochs=4)
    heard: list[int] = []
    send = group._send

    def noted(sender: int, peer: int, message: m.Message) -> None:
        if isinstance(message, m.Go) and message.cause == "shrink":
            heard.append(peer)
        send(sender, peer, message)

    group._send = noted  # type: ignore[method-assign, assignment]
    group.announce(0, 1, 2, 3, 4)
    group.later(2.5, lambda: group.announce(0, 3, 4))
    group.run()
    assert heard == [3, 4, 1, 2]
    check(group)
