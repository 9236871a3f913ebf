"""A group of members in virtual time: their state machines, a network with delays, and scripts that compute slowly.

Everything that happens is drawn from one seed: delays, how long a step takes, deaths, freezes, cuts, announcements.  Two
things are observed from outside and never by the members themselves: which samples each completed step used, and the model
that each script holds.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dorm.elastic import ledger
from dorm.elastic.chunks import Chunks
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.handover import unchanged
from dorm.elastic.protocol.member import Member
from dorm.elastic.summing import partial_sums
from dorm.elastic.values import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

MEASURES = 3
"""Number of sums over the samples that a model holds."""
TABLE = np.arange(1000.0)
"""The part of the scripts' state that never changes."""
SILENT_S = 1.5
"""A peer that is silent for this long counts as dead."""


class Claims:
    """The shared folder: the first to claim a view may continue after it."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}

    def __call__(self, slot: int, views: tuple[int, ...]) -> bool:
        if any(view in self.taken for view in views):
            return False
        self.taken.update(dict.fromkeys(views, slot))
        return True


@dataclass
class Script:
    """What a training script holds: a sum over all samples it has seen, in every round of every step."""

    slot: int
    model: Array
    """Three sums over the samples, followed by how often each sample is part of them."""
    saved: Array | None = None
    """The model at the first sum of the step, for a repeat."""
    chunks: list[int] = field(default_factory=list)
    values: dict[int, Array] = field(default_factory=dict)
    """Per chunk: how many samples its owners have used, which moves with the chunk."""
    step: int = -1
    round: int = 0
    done: bool = False
    ended: str = ""
    busy_until: float = 0.0
    asks: bool = False
    """Whether it waits for an answer."""
    completed: list[int] = field(default_factory=list)


class Group:
    """The members, the network and the scripts of one run."""

    def __init__(
        self,
        seed: int,
        *,
        samples: int = 97,
        batch: int = 10,
        chunks: int = 8,
        epochs: int = 3,
        rounds: int = 1,
        valued: bool = False,
        make: Callable[[int], Member] = Member,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.chunks = Chunks(samples, batch, chunks, seed=seed)
        self.plan = v.Plan(chunks, self.chunks.steps_per_epoch, valued=valued)
        self.steps = epochs * self.chunks.steps_per_epoch
        self.rounds = rounds
        self.now = 0.0
        self.claims = Claims()
        self.members: dict[int, Member] = {}
        self.scripts: dict[int, Script] = {}
        self.alive: set[int] = set()
        self.frozen: dict[int, float] = {}
        """Frozen members, and when they go on."""
        self.cut: dict[frozenset[int], float] = {}
        """Pairs that cannot hear each other, and until when."""
        self.linked: set[frozenset[int]] = set()
        self.used: dict[int, list[tuple[int, ...]]] = {}
        """Samples that a completed step used, by step and member, as the scripts saw it."""
        self.computed_again = 0
        """Samples of interrupted steps, as far as their scripts live."""
        self.facts: list[tuple[int, v.Changed | v.EpochDone]] = []
        self.sums: list[tuple[int, int]] = []
        """View and leader of each complete sum, in order."""
        self._make = make
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._last_delivery: dict[tuple[int, int], float] = {}
        self.membership = 0
        self.announced: tuple[int, ...] = ()
        self.founders: tuple[int, ...] = ()

    # What the cluster does.

    def announce(self, *slots: int) -> None:
        """Announce a membership; start slots that do not run yet."""
        self.membership += 1
        self.announced = tuple(sorted(slots))
        self.founders = self.founders or self.announced
        for slot in slots:
            if slot not in self.members:
                self._start(slot)
        announced = v.Announced(self.membership, self.announced, self.founders)
        for slot in sorted(self.alive):
            self.later(self.random.uniform(0.0, 0.2), lambda s=slot: self._announce(s, announced))  # type: ignore[misc]

    def kill(self, slot: int, *, cleanly: bool = False) -> None:
        """End the process; the others see its connections close.  Everything that it sent arrives before, unless it was killed
        while sending."""
        if slot not in self.alive:
            return
        self.alive.discard(slot)
        for peer in sorted(self.alive):
            if frozenset((slot, peer)) in self.linked:
                due = self._last_delivery.get((slot, peer), 0.0) if cleanly or self.random.random() < 0.5 else 0.0
                due = max(self.now, due) + self.random.uniform(0.0, 0.05)
                self.later(due - self.now, lambda p=peer: self._hang_up(slot, p))  # type: ignore[misc]

    def _hang_up(self, slot: int, peer: int) -> None:
        self.linked.discard(frozenset((slot, peer)))
        self._lose(peer, slot, hung_up=True)

    def freeze(self, slot: int, seconds: float) -> None:
        if slot in self.alive:
            self.frozen[slot] = self.now + seconds
            self._fall_silent({slot})
            self.later(seconds + 0.01, lambda: self._link(slot))

    def cut_off(self, slots: set[int], seconds: float) -> None:
        """For a while, keep these members and the rest from hearing each other.  Their messages arrive late, or are lost with
        the connection."""
        pairs = {frozenset((a, b)) for a in slots for b in self.alive - slots}
        self.cut.update(dict.fromkeys(pairs, self.now + seconds))
        self._fall_silent(slots)

        def heal() -> None:
            for pair in pairs:
                self.cut.pop(pair, None)

        self.later(seconds, heal)

    def _fall_silent(self, slots: set[int]) -> None:
        def notice() -> None:
            for a in sorted(slots):
                for b in sorted(self.alive - slots):
                    still = a in self.frozen or b in self.frozen or frozenset((a, b)) in self.cut
                    if still and frozenset((a, b)) in self.linked:
                        self.linked.discard(frozenset((a, b)))
                        self._lose(b, a)
                        self._lose(a, b)

        self.later(SILENT_S, notice)

    # Virtual time.

    def later(self, delay: float, action: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, action))

    def run(self, until: float = 600.0) -> None:
        """Run until every living script has ended, or the time is over."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()

    def _start(self, slot: int) -> None:
        self.members[slot] = self._make(slot)
        self.scripts[slot] = Script(slot, np.zeros(MEASURES + self.chunks.samples))
        self.alive.add(slot)
        self.later(self.random.uniform(0.1, 1.0), lambda: self._join(slot))
        self._tick(slot)

    def _tick(self, slot: int) -> None:
        if slot in self.alive:
            self._do(slot, lambda: self.members[slot].tick())
            self.later(0.1, lambda: self._tick(slot))

    def _announce(self, slot: int, announced: v.Announced) -> None:
        if slot in self.alive:
            self._do(slot, lambda: self.members[slot].announce(announced))
            self._link(slot)

    def _join(self, slot: int) -> None:
        if slot not in self.alive:
            return
        self._do(slot, lambda: self.members[slot].announce(v.Announced(self.membership, self.announced, self.founders)))
        self._link(slot)
        self._do(slot, lambda: self.members[slot].start(self.plan))
        self._ask(slot)

    def _link(self, slot: int) -> None:
        """Connect all announced members, and those from before: the lower slot dials, and so does a member that leaves."""
        for peer in sorted(self.alive - {slot}) if slot in self.alive else []:
            pair = frozenset((slot, peer))
            dials = self._dials(min(pair), max(pair)) or self._dials(max(pair), min(pair))
            if dials and pair not in self.linked | self.cut.keys() and not pair & self.frozen.keys():
                self.linked.add(pair)
                for dialing, peer_ in ((slot, peer), (peer, slot)):
                    self._do(dialing, lambda a=dialing, b=peer_: self.members[a].connect(b))  # type: ignore[misc]

    def _dials(self, slot: int, peer: int) -> bool:
        announced = self.members[slot].announced.members
        return peer in announced and (slot < peer or slot not in announced)

    def _lose(self, slot: int, peer: int, *, hung_up: bool = False) -> None:
        if slot in self.alive:
            self._do(slot, lambda: self.members[slot].lose(peer, hung_up=hung_up))

    def _do(self, slot: int, action: Callable[[], object]) -> None:
        """Call a member, later if it is frozen, and carry out its requests."""
        if slot not in self.alive:
            return
        if slot in self.frozen:
            if self.now < self.frozen[slot]:
                self.later(self.frozen[slot] - self.now, lambda: self._do(slot, action))
                return
            del self.frozen[slot]
        member = self.members[slot]
        member.now = self.now
        action()
        self._carry_out(slot)

    def _carry_out(self, slot: int) -> None:
        member = self.members[slot]
        while member.wants:
            if self.scripts[slot].busy_until > self.now:
                break  # Its script gathers the state at the next boundary.
            packed = pack([self.scripts[slot].model.copy(), TABLE])
            member.supply(member.wants, packed, unchanged(member.first_arrays, packed[1]))
        outbox, member.outbox = member.outbox, []
        for peer, message in outbox:
            self._send(slot, peer, message)
        for peer in sorted(member.disconnect):
            pair = frozenset((slot, peer))
            if pair in self.linked:
                self.linked.discard(pair)
                self.later(self.random.uniform(0.0, 0.05), lambda p=peer: self._lose(p, slot))  # type: ignore[misc]
        member.disconnect.clear()
        self.facts += [(slot, fact) for fact in member.facts]
        member.facts.clear()
        if member.recovery.claim:
            views, member.recovery.claim = member.recovery.claim, ()
            self.later(self.random.uniform(0.0, 0.01), lambda: self._claim(slot, views))
        if member.first_state is not None:
            state, member.first_state = member.first_state, None
            assert state.structure is not None
            self.later(self.random.uniform(0.0, 1.5), lambda: self._do(slot, lambda: member.warmed_up(0.1)))
        script = self.scripts[slot]
        if member.deserted and not script.ended:
            self._end(script, "Left")
            return
        if member.answer is not None and script.asks:  # A script that computes learns of it at its next call.
            answer, member.answer = member.answer, None
            script.asks = False
            self._answered(slot, answer)

    def _claim(self, slot: int, views: tuple[int, ...]) -> None:
        if slot in self.alive:
            granted = self.claims(slot, views)
            self.later(self.random.uniform(0.0, 0.01), lambda: self._claimed(slot, views, granted))

    def _claimed(self, slot: int, views: tuple[int, ...], granted: bool) -> None:
        self._do(slot, lambda: self.members[slot].recovery.claimed(views, granted))

    def _send(self, slot: int, peer: int, message: m.Message) -> None:
        """Deliver in order, after a delay, unless the connection breaks before."""
        pair = frozenset((slot, peer))
        header, payload = m.encode(message)
        copied = m.decode(header, [array.copy() for array in payload])
        due = max(self.now + self.random.expovariate(1 / 0.003), self._last_delivery.get((slot, peer), 0.0))
        self._last_delivery[slot, peer] = due

        def deliver() -> None:
            if pair in self.cut:
                self.later(self.cut[pair] - self.now + 0.001, deliver)
            elif peer in self.alive and pair in self.linked:
                self._do(peer, lambda: self.members[peer].receive(slot, copied))

        self.later(due - self.now, deliver)

    # The scripts.

    def _ask(self, slot: int) -> None:
        script = self.scripts[slot]
        if script.step + 1 >= self.steps:
            self._end(script, "finished")
            return
        script.busy_until = 0.0
        script.asks = True
        values = {chunk: pack(script.values[chunk].copy()) for chunk in script.chunks if chunk in script.values}
        self._do(slot, lambda: self.members[slot].boundary(script.step + 1, values=values))

    def _answered(self, slot: int, answer: v.Answer) -> None:
        script = self.scripts[slot]
        if isinstance(answer, v.Begin):
            self._begin(script, answer)
        elif isinstance(answer, v.Summed):
            view = self.members[slot].view
            if view is not None and view.leader == slot:
                self.sums.append((view.number, slot))
            script.model = script.model + answer.arrays[0]
            script.round += 1
            self._busy(script, self._next_round)
        elif isinstance(answer, v.Interrupted):
            assert script.saved is not None
            self.computed_again += sum(len(self.chunks.part(script.step, chunk)) for chunk in script.chunks)
            script.model, script.step = script.saved, script.step - 1
            self._busy(script, lambda s: self._ask(s.slot))
        elif isinstance(answer, v.Stop):
            self._end(script, "stopped")
        else:
            self._end(script, type(answer).__name__)

    def _begin(self, script: Script, answer: v.Begin) -> None:
        if answer.state is not None:
            script.model, table = unpack(*answer.state)
            assert np.array_equal(table, TABLE)
        if answer.step >= self.steps:
            self._end(script, "finished")
            return
        script.step, script.round, script.chunks = answer.step, 0, answer.chunks
        script.saved = script.model.copy()
        for chunk in answer.gone:
            script.values.pop(chunk, None)
        script.values.update({chunk: unpack(*value) for chunk, value in answer.values.items()})
        if self.plan.valued:
            for chunk in answer.chunks:
                script.values.setdefault(chunk, np.zeros(1))
        self._busy(script, self._contribute)

    def _busy(self, script: Script, then: Callable[[Script], None]) -> None:
        seconds = self.random.uniform(0.005, 0.05)
        script.busy_until = self.now + seconds
        self.later(seconds, lambda: self._unless_dead(script, then))

    def _unless_dead(self, script: Script, then: Callable[[Script], None]) -> None:
        if script.slot in self.frozen and self.now < self.frozen[script.slot]:
            self.later(self.frozen[script.slot] - self.now, lambda: self._unless_dead(script, then))
        elif script.slot in self.alive and not script.ended:
            script.busy_until = 0.0
            then(script)

    def _contribute(self, script: Script) -> None:
        parts = {chunk: self.chunks.part(script.step, chunk) for chunk in script.chunks}
        sums = partial_sums(
            self.plan.chunks,
            script.chunks,
            lambda chunk: [self._sums_of(chunk, parts[chunk])],
        )
        used = ledger.entry_of([np.concatenate(list(parts.values()))] if parts else [])
        script.asks = True
        self._do(script.slot, lambda: self.members[script.slot].contribute(sums, used, 0.01, stop=False))

    def _sums_of(self, chunk: int, samples: npt.NDArray[np.int64]) -> Array:
        times = np.bincount(samples, minlength=self.chunks.samples).astype(np.float64)
        return np.concatenate([[samples.sum() * 0.1, len(samples), 1.0 / (1 + chunk)], times])

    def _next_round(self, script: Script) -> None:
        if script.round < self.rounds:
            self._contribute(script)
            return
        for chunk in script.chunks:
            samples = tuple(int(sample) for sample in self.chunks.part(script.step, chunk))
            if self.plan.valued:
                script.values[chunk] = script.values[chunk] + len(samples)
            self.used.setdefault(script.step, []).append(samples)
        script.completed.append(script.step)
        self._ask(script.slot)

    def _end(self, script: Script, how: str) -> None:
        script.ended = how
        if how == "Behind":  # Its process ends at once.
            self.later(0.01, lambda: self.kill(script.slot))
            return
        member = self.members[script.slot]
        if how == "finished":
            self._do(script.slot, lambda: member.finish(script.step + 1))
        bye = m.Bye(member.view.number if member.view is not None else 0, step=member.step, finished=member.finished)
        for peer in sorted(self.alive - {script.slot}):
            self._send(script.slot, peer, bye)
        self.later(0.1, lambda: self.kill(script.slot, cleanly=True))
