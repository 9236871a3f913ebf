"""Members agree in virtual time: whatever dies, freezes or is announced, each sample counts once an epoch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from dorm.bench.elastic.group import Group
from dorm.bench.elastic.schedules import disturb, grow, survivors
from dorm.elastic import ledger
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from tests.tries import tries

if TYPE_CHECKING:
    import numpy as np


def rigid(group: Group) -> np.ndarray:
    """The model of a run with one member and no change."""
    alone = Group(
        group.seed,
        samples=group.chunks.samples,
        batch=group.chunks.batch,
        chunks=group.chunks.count,
        epochs=group.steps // group.chunks.steps_per_epoch,
        rounds=group.rounds,
    )
    alone.announce(0)
    alone.run()
    assert alone.scripts[0].ended == "finished"
    return alone.scripts[0].model


def check(group: Group, *, may_end: bool = False) -> None:
    """The survivors finished with the model of a rigid run, and the ledger is that of every sample once; or, where deaths
    met a recovery, all have ended, to start again from a checkpoint.  Nobody waits without end."""
    finished = [s for s, script in group.scripts.items() if script.ended == "finished"]
    # A newcomer that nobody is left to receive waits for the control plane to end it; nobody else waits.
    waiting = {slot for slot in group.alive if group.members[slot].view is not None}
    assert not waiting, {s: (x.ended, x.step) for s, x in group.scripts.items()}
    if not finished and may_end:
        return
    assert finished, {s: (x.ended, x.step) for s, x in group.scripts.items()}
    wanted = rigid(group)
    for slot in finished:
        assert group.scripts[slot].model.tobytes() == wanted.tobytes(), slot
    epochs: dict[int, str] = {}
    for _, fact in group.facts:
        if isinstance(fact, v.EpochDone):
            assert epochs.setdefault(fact.epoch, fact.used.digest) == fact.used.digest
    expected = ledger.expected(group.chunks.samples).digest
    assert epochs == dict.fromkeys(range(group.steps // group.chunks.steps_per_epoch), expected)


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
    if valued:
        ended = [script for script in group.scripts.values() if script.ended == "finished"]
        held = {chunk: script.values[chunk][0] for script in ended for chunk in script.chunks}
        assert sum(held.values()) == group.steps // group.chunks.steps_per_epoch * group.chunks.samples


@pytest.mark.parametrize("seed", range(tries(60, 3000)))
def test_random_schedules(seed: int) -> None:
    group = Group(seed, rounds=1 + seed % 2, valued=seed % 3 == 0, epochs=6)
    disturb(group)
    group.run()
    check(group, may_end=True)


MOMENTS = [m.State, m.Warm, m.Switch, m.ChunkValue, m.Received, m.Cancel, m.Go, m.Status, m.Recover]


@pytest.mark.parametrize("seed", range(tries(40, 2000)))
def test_members_and_newcomers_die_around_a_message(seed: int) -> None:
    """One or two of all processes die just after a message of one kind, most of which belong to a switch."""
    group = Group(seed, rounds=1 + seed % 2, valued=seed % 3 == 0, epochs=6)
    random = group.random
    size = random.randint(2, 4)
    group.announce(*range(size))
    for first in (size, size + 2):
        new = list(range(first, first + random.randint(1, 2)))
        group.later(
            1.5 + random.uniform(0.0, 2.0) + first - size,
            partial(join, group, new, replace=random.choice([False, True])),
        )
    kind, skip = MOMENTS[seed % len(MOMENTS)], random.randint(0, 3)
    seen = 0

    def watch(sender: int, peer: int, message: m.Message) -> None:
        nonlocal seen
        send(sender, peer, message)
        if not isinstance(message, kind) or group.membership < 2:
            return
        seen += 1
        running = [slot for slot in sorted(group.alive) if not group.scripts[slot].ended]
        if seen == skip + 1 and len(running) > 1:
            for slot in random.sample(running, min(len(running) - 1, random.randint(1, 2))):
                group.later(random.uniform(0.0, 0.02), partial(group.kill, slot))
            group.later(3.0, lambda: group.announce(*survivors(group)) if survivors(group) else None)

    send, group._send = group._send, watch  # type: ignore[method-assign, assignment]
    group.run()
    check(group, may_end=True)


def join(group: Group, new: list[int], *, replace: bool) -> None:
    """Newcomers come, or take the place of one member."""
    if replace:
        group.announce(*sorted({*survivors(group)[1:], *new}))
    else:
        grow(group, new)
