"""Random schedules of resizes, deaths and freezes on a group in virtual time, and how often each sample was used.

A schedule is drawn from the group's seed.  The group's model counts how often each sample is part of it, so the result itself
shows what was lost and what was used twice, independently of the members' ledger.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.elastic import ledger
from dorm.elastic.protocol import views as v
from dorm_lab.bench.elastic.group import MEASURES, Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm_lab.bench.elastic.group import Array, Script

KINDS = ("grow", "shrink", "kill", "two", "freeze", "leader", "cut")
"""Kinds of events that may happen to a group.  `two` kills two members at once, `leader` the leading one; `cut` divides the
members in two."""


class Tally(NamedTuple):
    """How often the samples were used in one schedule."""

    happened: Counter[str]
    """Number of events by kind, without those that could not happen, such as a death of the only member."""
    finished: bool
    """Whether a member trained to the end.  If not, all ended, and the app starts again from its checkpoint."""
    used: int
    """Samples used, over all epochs."""
    lost: int
    """Samples that an epoch left out."""
    repeated: int
    """Samples that an epoch used again, beyond the step in flight."""
    computed_again: int
    """Samples of interrupted steps, whose first results were not used."""
    wrong_epochs: int
    """Epochs whose ledger is not that of each sample once."""


def tallies(schedules: int) -> Iterator[Tally]:
    """Yield the outcome of one schedule after the other."""
    for seed in range(schedules):
        group = Group(seed, rounds=1 + seed % 2, valued=seed % 3 == 0, epochs=6)
        happened = disturb(group)
        group.run()
        yield tally(group, happened)


def tally(group: Group, happened: Counter[str]) -> Tally:
    """Compare what the model of a group that has ended holds with each sample once an epoch."""
    scripts = list(group.scripts.values())
    ended = [script for script in scripts if script.ended == "finished"]
    # If nobody finished, the furthest result counts: a checkpoint could have held it.
    compared = ended or [
        max(scripts, key=lambda script: (len(script.completed) > 0, max(script.completed, default=-1)))
    ]
    lost = repeated = 0
    for script in compared:
        last = group.steps - 1 if ended else max(script.completed, default=-1)
        difference = _times(group, script, last) - _wanted(group, last)
        lost = max(lost, int(-difference[difference < 0].sum()))
        repeated = max(repeated, int(difference[difference > 0].sum()))
    right = ledger.expected(group.chunks.samples)
    done = {(fact.epoch, fact.used) for _, fact in group.facts if isinstance(fact, v.EpochDone)}
    return Tally(
        happened=happened,
        finished=bool(ended),
        used=int(_wanted(group, group.steps - 1 if ended else max(compared[0].completed, default=-1)).sum()),
        lost=lost,
        repeated=repeated,
        computed_again=group.computed_again,
        wrong_epochs=sum(used != right for _, used in done),
    )


def _times(group: Group, script: Script, last: int) -> Array:
    """Return how often the model holds each sample after its last completed step."""
    whole = script.ended == "finished" or script.step == last or script.saved is None
    model = script.model if whole or script.saved is None else script.saved
    return np.round(model[MEASURES:] / group.rounds)


def _wanted(group: Group, last: int) -> Array:
    """Return how often each sample is due in the steps up to `last`: once an epoch."""
    per_epoch = group.chunks.steps_per_epoch
    epochs, rest = divmod(last + 1, per_epoch)
    wanted = np.full(group.chunks.samples, float(epochs))
    for step in range(epochs * per_epoch, epochs * per_epoch + rest):
        for chunk in range(group.chunks.count):
            wanted[group.chunks.part(step, chunk)] += 1
    return wanted


def disturb(group: Group) -> Counter[str]:
    """Start one to four members, and disturb them up to five times while they train.  Return the counts of disturbances by
    kind, which are complete once the group has run."""
    random = group.random
    size = random.randint(1, 4)
    happened: Counter[str] = Counter()
    group.announce(*range(size))
    fresh = size
    at = 1.0
    for _ in range(random.randint(1, 5)):
        at += random.uniform(0.0, 2.0)
        kind = random.choice(KINDS)
        new: list[int] = []
        if kind == "grow":
            new = list(range(fresh, fresh + random.randint(1, 2)))
            fresh += len(new)
        group.later(at, partial(_happen, group, kind, new, happened))
    return happened


def _happen(group: Group, kind: str, new: list[int], happened: Counter[str]) -> None:
    if kind == "grow":
        did = grow(group, new)
    elif kind == "shrink":
        did = shrink(group)
    elif kind == "freeze":
        did = freeze(group)
    elif kind == "cut":
        did = cut(group)
    else:
        did = kill(group, kind)
    happened[kind] += did


def survivors(group: Group) -> list[int]:
    """Return the announced members that still take part."""
    return [s for s in group.announced if s in group.alive and group.scripts[s].ended not in ("Left", "Behind")]


def in_view(group: Group) -> list[int]:
    """Return the members of the newest view."""
    views = [
        m.view
        for s, m in group.members.items()
        if s in group.alive and m.view is not None and not group.scripts[s].ended
    ]
    return list(max(views, key=lambda view: view.number).members) if views else []


def grow(group: Group, new: list[int]) -> bool:
    """Announce newcomers.  Like all of these functions, return whether it happened."""
    group.announce(*sorted({*survivors(group), *new}))
    return True


def shrink(group: Group) -> bool:
    inside = [s for s in survivors(group) if s in in_view(group)]
    if len(inside) > 1:
        group.announce(*group.random.sample(inside, len(inside) - 1))
    return len(inside) > 1


def kill(group: Group, kind: str) -> bool:
    """Kill one member, two at once, or the leader; at least one is left."""
    inside = [s for s in in_view(group) if s in group.alive and s not in group.frozen]
    victims = {"leader": 1, "kill": 1, "two": 2}[kind]
    if len(inside) <= victims or (kind == "leader" and len(inside) < 2):
        return False
    chosen = [min(inside)] if kind == "leader" else group.random.sample(inside, victims)
    for slot in chosen:
        group.kill(slot)
    # The control plane announces the remaining ones.
    group.later(3.0, lambda: group.announce(*survivors(group)) if survivors(group) else None)
    return True


def freeze(group: Group) -> bool:
    inside = [s for s in in_view(group) if s in group.alive and s not in group.frozen]
    if len(inside) > 1:
        group.freeze(group.random.choice(inside), group.random.uniform(0.1, 4.0))
    return len(inside) > 1


def cut(group: Group) -> bool:
    """Cut the members in two; the control plane kills the smaller part's processes when their node's lease ends."""
    inside = [s for s in in_view(group) if s in group.alive and s not in group.frozen]
    if len(inside) < 2 or group.cut:
        return False
    part = set(group.random.sample(inside, group.random.randint(1, len(inside) - 1)))
    group.cut_off(part, group.random.uniform(1.0, 5.0))
    return True
