"""Schedules of joins, leaves and deaths, drawn from a seed, and their invariants."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dorm.elastic import ledger
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.member import Member
from dorm_lab.bench.elastic.group import Group
from dorm_lab.bench.elastic.schedules import disturb, grow, survivors

if TYPE_CHECKING:
    from collections.abc import Callable

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
    one_group_goes_on(group)
    if not finished and may_end:
        return
    assert finished, {s: (x.ended, x.step) for s, x in group.scripts.items()}
    wanted = rigid(group)
    for slot in finished:
        assert group.scripts[slot].model.tobytes() == wanted.tobytes(), slot
    changes = [fact for _, fact in group.facts if isinstance(fact, v.Changed)]
    whole = not any(change.cause == "death" for change in changes) and {*changes[-1].view.members} <= {*finished}
    if group.plan.valued and whole:
        held = {c: group.scripts[s].values[c][0] for s in finished for c in group.scripts[s].chunks}
        assert sum(held.values()) == group.steps // group.chunks.steps_per_epoch * group.chunks.samples, (
            "values are lost"
        )
    epochs: dict[int, str] = {}
    for _, fact in group.facts:
        if isinstance(fact, v.EpochDone):
            assert epochs.setdefault(fact.epoch, fact.used.digest) == fact.used.digest
    expected = ledger.expected(group.chunks.samples).digest
    assert epochs == dict.fromkeys(range(group.steps // group.chunks.steps_per_epoch), expected)


def one_group_goes_on(group: Group) -> None:
    """Each view has one leader, and once a later view has completed a sum, an earlier one completes no other than the sum
    whose parts were on their way."""
    leaders: dict[int, int] = {}
    late: dict[int, int] = {}
    newest = 0
    for view, leader in group.sums:
        assert leaders.setdefault(view, leader) == leader, f"{leaders[view]} and {leader} both lead view {view}"
        newest = max(newest, view)
        late[view] = late.get(view, 0) + (view < newest)
    assert all(count <= 1 for count in late.values()), f"two groups go on: {late}"


def random_schedule(seed: int, make: Callable[[int], Member] = Member, kind: type[Group] = Group) -> Group:
    """Members join, leave, die, freeze and are cut off at random times."""
    group = kind(seed, rounds=1 + seed % 2, valued=seed % 3 == 0, epochs=6, make=make)
    disturb(group)
    group.run()
    return group


MOMENTS = [m.State, m.Warm, m.Switch, m.ChunkValue, m.Received, m.Cancel, m.Go, m.Status, m.Recover]


def around_a_message(seed: int, make: Callable[[int], Member] = Member, kind: type[Group] = Group) -> Group:
    """One or two of all processes die just after a message of one kind, most of which belong to a switch."""
    moment = MOMENTS[seed % len(MOMENTS)]
    return _around(seed, lambda message: isinstance(message, moment), make, kind)


def around_a_barrier(seed: int) -> Group:
    """One or two of all processes die while a leader sends the result that announces a barrier."""
    return _around(seed, lambda message: isinstance(message, m.Result) and message.barrier, Member, Group)


def _around(seed: int, matches: Callable[[m.Message], bool], make: Callable[[int], Member], kind: type[Group]) -> Group:
    group = kind(seed, rounds=1 + seed % 2, valued=seed % 3 == 0, epochs=6, make=make)
    random = group.random
    size = random.randint(2, 4)
    group.announce(*range(size))
    for first in (size, size + 2):
        new = list(range(first, first + random.randint(1, 2)))
        group.later(1.5 + random.uniform(0.0, 2.0) + first - size, partial(random.choice([grow, move]), group, new))
    skip = random.randint(0, 3)
    seen = 0

    def watch(sender: int, peer: int, message: m.Message) -> None:
        nonlocal seen
        send(sender, peer, message)
        if not matches(message) or group.membership < 2:
            return
        seen += 1
        running = [slot for slot in sorted(group.alive) if not group.scripts[slot].ended]
        if seen == skip + 1 and len(running) > 1:
            for slot in random.sample(running, min(len(running) - 1, random.randint(1, 2))):
                group.later(random.uniform(0.0, 0.02), partial(group.kill, slot))
            group.later(3.0, lambda: group.announce(*survivors(group)) if survivors(group) else None)

    send, group._send = group._send, watch  # type: ignore[method-assign, assignment]
    group.run()
    return group


def move(group: Group, new: list[int]) -> bool:
    """Newcomers take the place of one member."""
    group.announce(*sorted({*survivors(group)[1:], *new}))
    return True
