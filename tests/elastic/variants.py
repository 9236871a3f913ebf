"""Broken on purpose: variants of the protocol that the schedules have to catch, or they would not find such bugs in it.

Each removes one protection.  Which seeds catch a variant is a matter of luck, so one that did is tried first, and then the
others in their order; the tests of the schedules show that the real protocol passes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol.known import Known
from dorm.elastic.protocol.recovery import Recovery
from dorm.elastic.protocol.sums import Sums
from dorm.elastic.protocol.switching import Switching
from dorm_lab.bench.elastic.group import Group
from tests.elastic.schedules import check, random_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from dorm.elastic.protocol import views as v

__all__ = ["MOST_SEEDS", "VARIANTS", "caught_by"]

MOST_SEEDS = 40
"""Seeds within which each has to be caught: as many as the tests of the schedules try."""


@dataclass(frozen=True)
class Variant:
    apply: Callable[[pytest.MonkeyPatch], None]
    likely: int
    """A seed that has caught it."""


def caught_by(variant: Variant) -> tuple[int, str] | None:
    """Return the first seed that shows the variant's fault, and what showed it."""
    for seed in dict.fromkeys(chain([variant.likely], range(MOST_SEEDS))):
        try:
            check(random_schedule(seed), may_end=True)
        except Exception as error:  # Whatever breaks, in a member or in the check after it, shows the fault.
            return seed, f"{type(error).__name__}: {error}"
    return None


def _no_barrier(patch: pytest.MonkeyPatch) -> None:
    """The leader switches once it waits itself, wherever the others are."""

    def all_ready(self: Switching) -> bool:
        known = self._known
        return known.ready.get(known.slot) == known.step

    patch.setattr(Switching, "_all_ready", all_ready)


def _forgotten_chunk(patch: pytest.MonkeyPatch) -> None:
    """Nobody hands over the values of its chunks, and nobody waits for them."""
    patch.setattr(Switching, "_coming", lambda self, switch: [])


def _newcomer_too_early(patch: pytest.MonkeyPatch) -> None:
    """A newcomer takes part with the state that it warmed up with."""
    on_state = Switching.on_state

    def ready_at_once(self: Switching, sender: int, state: m.State) -> None:
        if state.first:
            on_state(self, sender, state)

    def check_received(self: Switching) -> None:
        known = self._known
        if known.prepared is None:
            return
        received = m.Received(known.prepared.view)
        if known.driver == known.slot:
            self.on_received(known.slot, received)
        else:
            known.send(known.driver, received)

    patch.setattr(Switching, "on_state", ready_at_once)
    patch.setattr(Switching, "_check_received", check_received)


def _step_not_undone(patch: pytest.MonkeyPatch) -> None:
    """A script keeps what an interrupted step has done to its state, and repeats the step."""
    interrupted = Group._answered

    def answered(self: Group, slot: int, answer: v.Answer) -> None:
        script = self.scripts[slot]
        if type(answer).__name__ == "Interrupted":
            script.saved = script.model
        interrupted(self, slot, answer)

    patch.setattr(Group, "_answered", answered)


def _dead_counted(patch: pytest.MonkeyPatch) -> None:
    """What a member contributed before its death is added to the sum of the survivors."""
    install, gather = Known.install, Sums.gather
    left: dict[int, list[m.Contribution]] = {}

    def keep(self: Known, view: v.View) -> None:
        left[id(self)] = [part for slot, part in self.contributions.items() if slot not in view.members]
        install(self, view)

    def add(self: Sums, sender: int, part: m.Contribution) -> None:
        for dead in left.pop(id(self._known), []):
            if (dead.step, dead.round) == (part.step, part.round):
                part.used = [one + other for one, other in zip(part.used, dead.used, strict=True)]
        gather(self, sender, part)

    patch.setattr(Known, "install", keep)
    patch.setattr(Sums, "gather", add)


def _two_groups(patch: pytest.MonkeyPatch) -> None:
    """Every part of a divided view continues, whether or not another has claimed to."""
    claimed = Recovery.claimed
    patch.setattr(Recovery, "claimed", lambda self, views, granted: claimed(self, views, granted=True))


def _steps_during_recovery(patch: pytest.MonkeyPatch) -> None:
    """Survivors report where they are, and continue."""
    begin = Recovery.begin

    def go_on(self: Recovery) -> None:
        begin(self)
        self._known.recovering = False

    patch.setattr(Recovery, "begin", go_on)


def _unequal_owners(patch: pytest.MonkeyPatch) -> None:
    """A leaver's chunks stay with it."""
    switch = Switching._switch

    def forget(self: Switching, members: tuple[int, ...]) -> None:
        known = self._known
        send = known.send

        def with_old_owners(slot: int, message: m.Message) -> None:
            if isinstance(message, m.Switch):
                message.owners = list(known.view.owners) if known.view is not None else message.owners
            send(slot, message)

        known.send = with_old_owners  # type: ignore[method-assign]
        try:
            switch(self, members)
        finally:
            known.send = send  # type: ignore[method-assign]

    patch.setattr(Switching, "_switch", forget)


VARIANTS: dict[str, Variant] = {
    "no barrier": Variant(_no_barrier, 3),
    "forgotten chunk": Variant(_forgotten_chunk, 3),
    "chunk without an owner": Variant(_unequal_owners, 0),
    "newcomer too early": Variant(_newcomer_too_early, 0),
    "repeated step not undone": Variant(_step_not_undone, 9),
    "summand of a dead member": Variant(_dead_counted, 12),
    "two groups after a cut": Variant(_two_groups, 0),
    "steps during a recovery": Variant(_steps_during_recovery, 0),
}
