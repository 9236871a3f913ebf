"""The programs of live apps: members that follow announcements, over their own network, which never fails.

All members know everything at once, so a group of members is one object.  Its leader, the lowest slot that works,
takes the steps, notices who is gone, and switches to a new membership once all of its members are ready for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agents.runtime.interface import MEMBERS_FILE
from tests.simulation.machines.apps import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.machines.apps import AppPlan
    from tests.simulation.machines.machine import Container


class Group:
    """The members of one generation."""

    def __init__(self) -> None:
        self.programs: dict[int, LiveProgram] = {}
        self.membership = 0
        """The one that trains; 0 before the first."""
        self.slots: list[int] = []
        self.step = 0
        self.begun = 0

    def ready_for(self, membership: int, slots: list[int]) -> bool:
        return all(
            slot in self.programs and self.programs[slot].works and self.programs[slot].announced()[0] == membership
            for slot in slots
        )


class LiveProgram(Program):
    """The program in one container of a live app."""

    def __init__(
        self, container: Container, plan: AppPlan, seed: int, later: Callable[..., Any], group: Group, *, calm: bool
    ) -> None:
        super().__init__(container, plan, seed, later, calm=calm)
        self._group = group
        self._booted = False
        self._slot = container.key.slot
        group.programs[self._slot] = self

    @property
    def works(self) -> bool:
        return self._booted and self._alive() and not self._hangs

    def announced(self) -> tuple[int, list[int]]:
        told = msgspec.json.decode((self._container.folder / MEMBERS_FILE).read_bytes())
        return told["membership"], [member["slot"] for member in told["members"]]

    def _work(self) -> None:
        if not self._alive() or self._hangs:
            return
        self._booted = True
        group = self._group
        if not group.membership:
            self._first_membership()
        elif self._slot in group.slots:
            if self._is_done():
                self._end_well()
                return
            if self._slot == next((slot for slot in group.slots if group.programs[slot].works), None):
                self._lead()
        self._later(self._plan.step_s, self._work)

    def _is_done(self) -> bool:
        group = self._group
        return group.step >= self._plan.steps or (self.calm and group.step >= group.begun + 3)

    def _first_membership(self) -> None:
        """Return the latest announced membership: a member may have failed before any trained."""
        membership, slots = self.announced()
        if self._slot == slots[0] and self._group.ready_for(membership, slots):
            self._group.step = self._group.begun = self.step
            self._switch(membership, slots, "start")

    def _lead(self) -> None:
        group = self._group
        lost = [slot for slot in group.slots if not group.programs[slot].works]
        if lost:
            group.slots = [slot for slot in group.slots if slot not in lost]
            self._say(
                membership=group.membership, step=group.step, members=group.slots, cause="death", lost=lost, pause_s=0.1
            )
        membership, slots = self.announced()
        if membership > group.membership and group.ready_for(membership, slots):
            grows, shrinks = set(slots) - set(group.slots), set(group.slots) - set(slots)
            cause = "move" if grows and shrinks else "grow" if grows else "shrink" if shrinks else "death"
            group.programs[min(slots)]._switch(membership, slots, cause)
            return
        group.step = self.step = group.step + 1
        self._say(step=self.step, loss=round(1 / self.step, 4))
        every = self._plan.checkpoint_every
        if every and self.step % every == 0:
            self.save()

    def _switch(self, membership: int, slots: list[int], cause: str) -> None:
        group = self._group
        before, group.slots, group.membership = group.slots, slots, membership
        self._say(membership=membership, step=group.step, members=slots, cause=cause, pause_s=0.01)
        for slot in before:
            if slot not in slots and group.programs[slot].works:
                group.programs[slot]._later(0.1, group.programs[slot]._end_well)

    def _end_well(self) -> None:
        if self._alive():
            self._container.finished = not self._asked
            self._container.end(0)

    def save(self) -> None:
        """The leader saves for all."""
        self._first = bool(self._group.slots) and self._slot == self._group.slots[0]
        if self._group.membership:  # Before the first one, it has only its initial state.
            self.step = self._group.step
        super().save()

    def peer_died(self) -> None:
        """Its peers continue."""
