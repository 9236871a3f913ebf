"""One member's state machine.

The shell calls it for each event: an announcement, a connection, a message, a call of the script.  From it, the shell takes
messages to send (`outbox`), the answer to the script (`answer`), the state that the script's thread must gather (`wants`) and
facts for the log (`facts`).  It reads no clock: the shell sets `now` (seconds, monotonic) before each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.elastic.ledger import EMPTY, Entry
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.known import Known
from dorm.elastic.protocol.recovery import Recovery
from dorm.elastic.protocol.sums import Sums
from dorm.elastic.protocol.switching import Switching

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Arrays = list[npt.NDArray[Any]]

__all__ = ["Member"]


class Member(Known):
    """The knowledge of one member, with the calls of its shell.  It sends each call and message to the part that handles
    it."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self._sums = Sums(self)
        self._switching = Switching(self, self._adopt)
        self.recovery = Recovery(self, self._switching, self._on_recovered)
        self._early: list[tuple[int, m.Message]] = []
        """Messages of views that this member has not adopted yet."""

    # What happens around the script.

    def announce(self, announced: v.Announced) -> None:
        if announced.membership > self.announced.membership:
            self.announced = announced
            self._switching.report_warm()
            self._switching.consider()

    def connect(self, slot: int) -> None:
        if slot in self.dead:
            self.disconnect.add(slot)
            return
        self.connected.add(slot)
        self.gone.discard(slot)
        self.hung_up.discard(slot)
        self._switching.report_warm()
        self._switching.consider()

    def lose(self, slot: int, *, hung_up: bool = False) -> None:
        """The connection is lost, or the peer has been silent for too long; `hung_up` if its side has ended the connection."""
        if hung_up:
            self.hung_up.add(slot)
        self.connected.discard(slot)
        self._switching.on_lost(slot)
        if self.finished:
            return
        if self.ended_before.get(slot, 0) > self.step and not self.recovery.needs(slot):
            self.gone.add(slot)  # A recovery that begins later cannot wait for it.
            return  # It has finished what this member is about to finish.
        if self.stop and not self.begun and self.ended_before.get(slot, -1) == self.step:
            return  # It has stopped where this member will stop.
        self.gone.add(slot)
        orphan = self.view is None and self.prepared is not None and slot == self.driver
        needed = self.recovering and slot in self.taking_part  # The recovery waits for newcomers too.
        if orphan or needed or (self.view is not None and {slot, self.slot} <= set(self.view.members)):
            self.dead.add(slot)
            self.recovery.begin()
        elif self._drives() and slot in self.prepared_members:
            self._switching.cancel()

    def _drives(self) -> bool:
        """Whether this member leads a switch that may still complete; what follows a recovery replaces it."""
        return self.prepared is not None and self.driver == self.slot and not self.recovering

    def tick(self) -> None:
        self.recovery.tick()

    def receive(self, sender: int, message: m.Message) -> None:
        """Handle a peer's message."""
        if sender in self.dead:
            return
        if isinstance(message, (m.Status, m.Recover)):
            self.recovery.receive(sender, message)
        elif isinstance(message, m.State):
            self._switching.on_state(sender, message)
        elif isinstance(message, m.Warm):
            self._switching.on_warm(sender, message)
        elif isinstance(message, m.Switch):
            self._switching.on_switch(sender, message)
            self.recovery.on_prepared()
        elif isinstance(message, m.ChunkValue):
            self._switching.on_chunk_value(message)
        elif isinstance(message, m.Received):
            self._switching.on_received(sender, message)
        elif isinstance(message, m.Cancel):
            if self.prepared is not None and message.view == self.prepared.view:
                self._switching.forget_prepared()
                self.recovery.on_cancel()
        elif isinstance(message, m.Bye):
            self._on_bye(sender, message)
        elif isinstance(message, m.Go) and self.prepared is not None and message.view == self.prepared.view:
            self._adopt(message)
        elif self.view is None or message.view > self.view.number:
            self._early.append((sender, message))
        elif message.view == self.view.number:
            self._receive_in_view(sender, message)

    # What the script does.

    def start(self, plan: v.Plan, step: int = 0, used: Entry = EMPTY) -> None:
        """The script is ready for its first step.  A founder may continue from a checkpoint before `step`."""
        self.plan, self.step = plan, step
        if self.view is None:
            self.used = used

    def boundary(self, step: int, *, values: Mapping[int, v.Packed] | None = None) -> None:
        """The script asks for `step`: the next one, or the same again after `Interrupted`."""
        if step > self.step:
            self._sums.complete(step - 1)
        self.step, self.round, self.begun, self.waiting = step, 0, False, "boundary"
        self.broken = False
        if self.behind is not None:
            self.reply(self.behind)
            return
        if values is not None:
            self._switching.values = dict(values)
        # If all stop here, members that have already stopped are not missed.
        members = self.view.members if self.view is not None and not self.stop else ()
        for slot in sorted(slot for slot in members if self.ended_before.get(slot, step + 1) <= step):
            self.lose(slot)  # It ended its script at a step that this member continues with.
        self._switching.report_warm()
        self._switching.at_boundary()

    def contribute(self, sums: Mapping[tuple[int, int], Arrays], used: Entry, seconds: float, *, stop: bool) -> None:
        """The script gives its part of a sum: arrays by node of `summing`, or by (-1, -1) one for the member as a whole.

        `used` are its samples of this step, `seconds` is how long it computed for them, and `stop` is whether it was asked to
        stop."""
        self.waiting = "sum"
        if self.behind is not None:
            self.reply(self.behind)
            return
        self._sums.contribute(sums, used, seconds, stop=stop)

    def finish(self, step: int) -> None:
        """The script ends before `step`; a peer that ends now has finished too."""
        self.finished = True
        if step > self.step:
            self._sums.complete(step - 1)
            self.step, self.round, self.begun = step, 0, False
        self._sums.report_last()

    def warmed_up(self, seconds: float) -> None:
        """This newcomer has loaded the first state and warmed up."""
        self._switching.warmed_up(seconds)

    @property
    def wants(self) -> str:
        """What the script's thread gathers at a boundary: "first" (a copy of the state, for newcomers to warm up),
        "final" (the state, nothing of it changes until the answer) or ""."""
        return self._switching.wants

    @property
    def first_arrays(self) -> Arrays:
        """The arrays of the first state that newcomers hold, for comparison with those of a final one."""
        return self._switching.first_arrays

    def supply(self, wanted: str, state: v.Packed, same: frozenset[int] = frozenset()) -> None:
        """Give the state that `wants` asked for; `same` are the positions of arrays that are as in `first_arrays`."""
        self._switching.supply(wanted, state, same)

    @property
    def ended(self) -> set[int]:
        """Peers that ended gracefully."""
        return set(self.ended_before)

    @property
    def deserted(self) -> bool:
        """Whether the job is complete before this newcomer has joined it."""
        return self.view is None and self.job_complete

    # Messages, by view.

    def _receive_in_view(self, sender: int, message: m.Message) -> None:
        """Handle a message of the present view."""
        if isinstance(message, m.Contribution):
            self._sums.gather(sender, message)
        elif isinstance(message, m.Result):
            self._sums.take(message)
        elif isinstance(message, m.Ready):
            self._switching.on_ready(sender, message)
        elif isinstance(message, m.Go) and self._waits_before(message.step):
            self._switching.begin()

    def _waits_before(self, step: int) -> bool:
        return self.waiting == "boundary" and self.step == step and not self.recovering

    def _on_bye(self, sender: int, bye: m.Bye) -> None:
        """A peer ends gracefully: if it was asked to continue in the prepared view, so was this member."""
        if self.prepared is not None and bye.view == self.prepared.view and sender not in self.prepared.members:
            self._adopt(m.Go(bye.view, step=self.prepared.step))
        else:
            self.ended_before[sender] = bye.step
            self.job_complete = self.job_complete or bye.finished

    def _replay_early(self) -> None:
        early, self._early = self._early, []
        for sender, message in early:
            self.receive(sender, message)

    # A new view.

    def _adopt(self, go: m.Go) -> None:
        """Continue in the view after a switch.  A recovery of the view before it ends: the members had all agreed by then."""
        self.recovery.end()
        self._switching.adopt(go)
        assert self.view is not None
        if self.slot not in self.view.members:
            return
        self._count_dead()
        if self.waiting == "boundary" and not self.recovering:
            self._switching.begin()
        self._replay_early()

    def _count_dead(self) -> None:
        """Count members of a new view that are already gone as dead from now on."""
        assert self.view is not None
        for slot in sorted(set(self.view.members) & (self.gone | self.dead)):
            self.lose(slot)

    def _on_recovered(self, recover: m.Recover) -> None:
        """Continue in the view of the survivors."""
        view = v.View(recover.view, recover.membership, tuple(recover.members), tuple(recover.owners))
        self._switching.forget_prepared()
        self._sums.pass_on(recover)
        self.install(view)
        self.changed_at = recover.step
        self.lost += tuple(recover.lost)
        # The dead member's part of the next sum is missing, unless this step has no further sum.
        self.broken = self.begun and self.step == recover.step
        if view.leader == self.slot:
            repeated = self.broken and recover.round == 0
            self.facts.append(v.Changed(view, "death", recover.step, lost=tuple(recover.dead), repeated=repeated))
            self.facts += [self._sums.epoch_done] if self._sums.epoch_done is not None else []
        self._count_dead()
        self._sums.resume(recover)
        self._switching.at_boundary()
        self._switching.consider()
        self._replay_early()
