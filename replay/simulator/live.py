"""Live adjustments in a simulated cluster: newcomers start next to the members, and all of them pause for a moment to agree.

The members of a live app pause for `LIVE.pause_s`; everything before that happens while they work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.invariants import may_run
from events import kinds as k
from events.quantities import SECOND
from replay.simulator.timings import LIVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import Generation
    from replay.simulator.agenda import Agenda
    from replay.simulator.partitions import Partition

    Append = Callable[[k.Event, str], None]
    Exited = Callable[[Partition, int, str], None]
    Act = Callable[[Partition], None]

_AGAIN_S = 1.0


class LiveMembers:
    """The members of all live apps.  `exited` reports that one has left by itself, `work` lets an app work on."""

    def __init__(
        self, agenda: Agenda, append: Append, *, is_up: Callable[[str], bool], exited: Exited, work: Act
    ) -> None:
        self._agenda = agenda
        self._append = append
        self._is_up = is_up
        self._exited = exited
        self._work = work

    def released(self, partition: Partition, fact: k.MembersReleased | k.MembersLost) -> None:
        """Follow an announcement; after a loss, the remaining members continue at once."""
        if (
            partition.runs_generation != fact.generation
            or partition.generation != fact.generation
            or partition.stopping
        ):
            return
        members = {placed.slot: placed.node for placed in fact.members}
        before = partition.membership
        partition.membership, partition.target = fact.membership, members
        if isinstance(fact, k.MembersLost):
            for slot in fact.lost:
                partition.runs.pop(slot, None)
                partition.joining.pop(slot, None)
            if partition.doing == "standing" and partition.runs:
                self._agree(partition, lambda: None)
        else:
            partition.joining = {slot: members[slot] for slot in fact.newcomers}
            self._later(partition, partition.timings.start_s, self._start)
        if before != fact.membership and set(partition.runs) != set(members):
            warm_up_s = partition.timings.start_s + LIVE.boot_s if partition.joining else 0.0
            self._later(partition, warm_up_s, self._switch)

    def adopt(self, partition: Partition, generation: Generation) -> None:
        """Continue a change that was announced before the fork, including members that were about to leave."""
        partition.membership = generation.announced
        for slot, container in sorted(generation.leaving.items()):
            self._leave(partition, slot, container.node)
        change = generation.change
        if change is None or not change.released_at or not may_run(generation):
            return
        partition.target = {slot: container.node for slot, container in generation.planned.items()}
        partition.joining = {
            slot: newcomer.node for slot, newcomer in change.newcomers.items() if newcomer.state != "exited"
        }
        partition.started |= {slot for slot, newcomer in change.newcomers.items() if newcomer.state == "running"}
        self._later(partition, 0.0, self._start)
        self._later(partition, LIVE.boot_s, self._switch)

    def _leave(self, partition: Partition, slot: int, node: str) -> None:
        self._agenda.at(self._agenda.now, lambda: self._exited(partition, slot, node))

    def _later(self, partition: Partition, seconds: float, act: Act) -> None:
        """Run `act` then, unless another membership is announced or the app stops before."""
        membership, generation = partition.membership, partition.generation

        def if_still() -> None:
            if (partition.membership, partition.generation) == (membership, generation) and not partition.over:
                act(partition)

        self._agenda.at(self._agenda.now + int(seconds * SECOND), if_still)

    def _start(self, partition: Partition) -> None:
        for slot, node in sorted(partition.joining.items()):
            if slot not in partition.started and self._is_up(node):
                partition.started.add(slot)
                self._append(
                    k.ContainerStarted(
                        app=partition.app,
                        generation=partition.generation,
                        slot=slot,
                        node=node,
                        started_at=self._agenda.now,
                    ),
                    node,
                )

    def _switch(self, partition: Partition) -> None:
        ready = all(slot in partition.started and self._is_up(node) for slot, node in partition.joining.items())
        if partition.doing != "working" or not ready:
            self._later(partition, _AGAIN_S, self._switch)
            return
        self._agree(partition, lambda: self._changed(partition))

    def _agree(self, partition: Partition, then: Callable[[], None]) -> None:
        """Pause, then work on in the new membership."""
        partition.rest(self._agenda.now, "agreeing")
        turn = partition.turn

        def agreed() -> None:
            if partition.turn == turn:
                then()
                self._work(partition)

        self._agenda.at(self._agenda.now + int(LIVE.pause_s * SECOND), agreed)

    def _changed(self, partition: Partition) -> None:
        before, target = partition.runs, partition.target
        leavers = {slot: node for slot, node in before.items() if slot not in target}
        partition.runs, partition.joining = dict(target), {}
        grows, shrinks = len(target) > len(before) - len(leavers), bool(leavers)
        self._append(
            k.MembershipChanged(
                app=partition.app,
                generation=partition.generation,
                membership=partition.membership,
                step=partition.step_by(self._agenda.now),
                members=sorted(target),
                change="move" if grows and shrinks else "shrink" if shrinks else "grow",
                warm_up_s=LIVE.boot_s if grows else 0.0,
                barrier_s=LIVE.pause_s,
                pause_s=LIVE.pause_s,
            ),
            target[min(target)],
        )
        for slot, node in sorted(leavers.items()):
            if self._is_up(node):
                self._exited(partition, slot, node)
