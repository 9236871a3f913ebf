"""A master of the virtual cluster: the real leader state machine, driven step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

import dorm.core.evolve as evolving
import dorm.core.leader as leading
import dorm.core.next_round as deciding
import dorm.core.timing as living
from dorm.core.state import State, digest
from events import kinds as k
from events.codec import encode
from events.quantities import SECOND
from tests.core.records import subject_of

if TYPE_CHECKING:
    from tests.core.virtual.world import World

LATER = 3600 * SECOND


class VirtualMaster:
    """The master's loop, cut into steps.  It may be late, paused, replaced, and wake up again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.name = f"m{len(world.log)}"
        self.state = State()
        self.epoch = 0
        self.dead = False
        self.leader = leading.Leader(self.state, Heard(world))

    def fold(self, most: int) -> None:
        for record in self.world.log[self.state.seq : self.state.seq + most]:
            evolving.evolve(self.state, record)
        self.leader.folded(self.world.now)

    def publish(self, said: leading.Publish, *, slip: bool = True) -> bool:
        if slip:
            self.world.something_slips_in()
        event = msgspec.structs.replace(said.round, id=f"{self.name}.{said.round.epoch}.{said.round.basis}", by="m")
        seq = self.world.append(subject_of(event, "master"), encode(event), expected_last=said.expected_last)
        self.fold(seq - self.state.seq if seq else len(self.world.log))
        # A deposed master may get a few void rounds through before it notices.
        self.dead = self.leader.deposed and self.epoch > 0
        return seq is not None

    def elect(self) -> None:
        self.fold(len(self.world.log))
        if self.publish(self.leader.elect(self.now())):
            self.epoch = self.leader.epoch
            self.leader.elected(self.world.now, dirty_at=self.world.now)
            self.world.heard = dict.fromkeys(self.state.nodes, self.now())

    def now(self) -> int:
        return max(self.world.now, self.state.time)

    def moment(self) -> leading.Moment:
        """Its quiet time is over whenever it is asked: how records fall together is drawn by the world."""
        return leading.Moment(self.now(), self.world.now + LATER)

    def decide(self, *, slip: bool = True) -> bool:
        """One round; False if there was nothing to say."""
        if self.epoch == 0:
            self.elect()
            return True
        before = digest(self.state)
        ready = self.leader.step(self.moment())
        said = ready.publish
        if ready.compute is not None:
            decision = deciding.decide(self.state, ready.compute.now, allocate=True)
            said = self.leader.computed(ready.compute, decision)
        self.world.hold(digest(self.state) == before, "a decision changed the state it was made on")
        if said is None:
            return False
        self.check_tick(said.round.events)
        if not self.publish(said, slip=slip):
            self.leader.overtaken(said, self.world.now)
        return True

    def idle(self) -> bool:
        """Nothing has happened since the last allocation, so another one moves no app (a reason may be worded
        differently)."""
        facts = deciding.decide(self.state, self.now(), allocate=True).facts
        return self.epoch == 0 or all(isinstance(fact, k.Resized) and not fact.changes for fact in facts)

    def check_tick(self, facts: list[Any]) -> None:
        """Ticks come only when all was quiet, at most one in `idle_s`, and first in their round."""
        ticks = [index for index, fact in enumerate(facts) if isinstance(fact, k.IdleTicked)]
        if ticks:
            idle = int(self.state.settings.idle_s * SECOND)
            quiet = self.now() - max(self.state.dirty_at, self.state.ticked_at)
            self.world.hold(ticks == [0] and quiet >= idle, f"a tick after {quiet / SECOND} s: {facts}")

    def conclude(self) -> None:
        """What follows from silence, and from nothing else."""
        facts = living.conclude(self.state, self.world.heard, self.now()) if self.epoch else []
        if facts:
            self.publish(self.leader.round(facts, self.now()))


class Heard:
    """When each node of a world was heard last; looked at before every decision."""

    alive = None
    asks = False

    def __init__(self, world: World) -> None:
        self._world = world

    def look_at(self) -> int:
        return 0

    def looked(self, at: int) -> None:
        del at

    def unsure(self, at: int) -> bool:
        del at
        return False

    def heard(self, moment: leading.Moment) -> dict[str, int]:
        del moment
        return self._world.heard
