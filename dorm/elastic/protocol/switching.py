"""How members proceed from one step to the next, and from one view to the next.

At most boundaries between steps a script begins its step at once.  Where the last result had the barrier set, every member
waits for the leader.  The leader lets all of them continue in the present view, or drives them into the next one: it sends
the view (Switch) and, to newcomers, the state; members send each other the values of the chunks that move; each reports when
it has everything (Received); then the leader sends Go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dorm.elastic.ledger import EMPTY, Entry
from dorm.elastic.ownership import shared_out
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.changes import balanced_owners, next_members, without_state
from dorm.elastic.protocol.handover import Handover

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from dorm.elastic.protocol.known import Known

    Arrays = list[npt.NDArray[Any]]

__all__ = ["Switching"]

_FOUNDED = 1
"""The number of a founder's view, before the first step."""


class Switching:
    """One member's way through boundaries and switches, as a newcomer, a member and the leader."""

    def __init__(self, known: Known, adopt: Callable[[m.Go], None]) -> None:
        self._known = known
        self._adopt = adopt
        """Called by the driver once all are ready for the prepared view: adopt it, and go on in it."""
        self.values: dict[int, v.Packed] = {}
        """Values of this member's chunks, as of the boundary; the shell gathers them before a switch."""
        self._owned: set[int] = set()
        """The chunks of the script's last step: the script learns at the next one which it gained and lost."""
        self._ready_since = 0.0
        """Time at which the first member reached the barrier."""
        self._received: dict[int, int] = {}
        """Members that have what they need for the prepared view, and how many bytes that was; the driver counts them."""
        self._came: dict[tuple[int, int], m.ChunkValue] = {}
        """Values of chunks that have come, by view and chunk."""
        self._handover = Handover()
        self._final: m.State | None = None
        """The state for newcomers, between the members' last step in the old view and their first in the new one."""
        self._same: frozenset[int] = frozenset()
        """The arrays of it that are as in the first state."""
        self._whole: v.Packed | None = None
        """The same for this newcomer, with the arrays that it held already."""
        self._loaded: v.Packed | None = None
        """The state that this newcomer's script loads before its first step."""
        self._offers: set[int] = set()
        """Members that have sent this newcomer a first state.  The newest need not be the one that leads it on."""
        self._others_train = False
        """Whether a first state came out of training: founding a view would begin the job again."""
        self._inherited: m.State | None = None
        """The last first state.  If its sender leaves before the first step, the next founder continues from it."""
        self._warm_s: float | None = None
        """Seconds that this newcomer's warm-up took; None before it."""

    # Newcomers.

    def warmed_up(self, seconds: float) -> None:
        self._warm_s = seconds
        self.report_warm()

    def report_warm(self) -> None:
        """Report that this newcomer is warm, once its script waits for its first step and it is connected with all
        others: after a death, they have to reach each other."""
        known = self._known
        others = set(known.announced.members) - {known.slot} - known.dead
        if self._warm_s is None or known.waiting != "boundary":
            return
        if known.view is None and others <= known.connected:
            for slot in sorted(self._offers - known.dead):
                holds = self._handover.step_held(slot)
                warm = m.Warm(0, membership=known.announced.membership, seconds=self._warm_s, holds=holds)
                known.send(slot, warm)

    def on_warm(self, sender: int, warm: m.Warm) -> None:
        self._known.warm[sender] = warm.seconds
        self._handover.holds(sender, warm.holds)
        self.consider()

    def on_lost(self, slot: int) -> None:
        """The connection with a peer is lost: a newcomer has to report again that it is warm, and what it holds."""
        self._known.warm.pop(slot, None)
        self._known.offered.discard(slot)
        self._handover.forget(slot)

    @property
    def wants(self) -> str:
        """Which state the script's thread has to gather: "first", "final" or "" (see `Member.wants`)."""
        known = self._known
        if known.view is None or known.view.leader != known.slot or known.recovering:
            return ""
        if self._all_ready() and known.prepared is None and set(next_members(known) or ()) - set(known.view.members):
            return "final"
        return "first" if without_state(known) and self._handover.offered is None else ""

    @property
    def first_arrays(self) -> Arrays:
        """The arrays of the first state that newcomers of this leader hold."""
        offered = self._handover.offered
        return offered.payload if offered is not None else []

    def supply(self, wanted: str, state: v.Packed, same: frozenset[int]) -> None:
        """Take the state that `wants` asked for, if it is still wanted; a final one comes with the positions of the arrays
        that are as in the first."""
        if wanted != self.wants:
            return
        if wanted == "first":
            self._handover.offered = self._state(state, first=True)
            self._offer()
        elif wanted == "final":
            self._final, self._same = self._state(state, first=False), same
            self.look()

    def _offer(self) -> None:
        """Send newcomers that need one the first state that others hold already, if there is one."""
        known, offered = self._known, self._handover.offered
        if known.view is None or known.view.leader != known.slot or known.recovering or offered is None:
            return
        for slot in sorted(without_state(known)):
            known.offered.add(slot)
            known.send(slot, replace(offered, view=known.view.number, membership=known.announced.membership))

    def on_state(self, sender: int, state: m.State) -> None:
        if state.first:
            self._known.first_state, self._known.driver = state, sender
            self._offers.add(sender)
            self._others_train = self._others_train or state.view > _FOUNDED
            self._inherited = state
            self._handover.keep(sender, state, self._known.dead)
            self.report_warm()
        else:
            self._final, self._whole = state, self._handover.whole(sender, state)
            self._check_received()

    def _state(self, state: v.Packed, *, first: bool) -> m.State:
        known = self._known
        assert known.view is not None
        structure, arrays = state
        return m.State(
            known.view.number,
            payload=arrays,
            step=known.step,
            used=[known.used.samples, *known.used.lanes],
            first=first,
            structure=structure,
            membership=known.announced.membership,
        )

    # Boundaries.

    def at_boundary(self) -> None:
        """Let a script that waits at a boundary begin, stop, or report to the leader."""
        known = self._known
        if known.recovering or known.waiting != "boundary":
            return
        if known.view is None:
            self._start_view()
        if known.view is None:
            return
        if known.view.membership == 0 and known.slot not in known.announced.members:
            self._leave_founding()
        elif known.stop:
            known.reply(v.Stop(known.step))
        elif known.barrier:
            ready = m.Ready(known.view.number, step=known.step)
            if known.view.leader == known.slot:
                self.on_ready(known.slot, ready)
            else:
                known.send(known.view.leader, ready)
        else:
            self.begin()

    def consider(self) -> None:
        """Check again: something has changed that a script at a boundary may have waited for."""
        if self._known.view is None or self._known.view.membership == 0:
            self.at_boundary()
        self._offer()
        self.look()

    def on_ready(self, sender: int, ready: m.Ready) -> None:
        self._known.ready[sender] = ready.step
        self.look()

    def look(self) -> None:
        """Once all members wait, the leader lets them continue, in the next view if one is due."""
        known, view = self._known, self._known.view
        if view is None or view.leader != known.slot or known.recovering or known.prepared is not None:
            return
        if known.ready and len(known.ready) == 1:
            self._ready_since = known.now
        if not self._all_ready():
            return
        members = next_members(known)
        if members is None:
            if view.membership == 0:
                return  # A founder waits for the members that were announced with it.
            known.ready.clear()
            go = m.Go(view.number, step=known.step)
            for slot in view.members:
                if slot != known.slot:
                    known.send(slot, go)
            self.begin()
        elif self._final is not None or not set(members) - set(view.members):
            self._switch(members)

    def begin(self) -> None:
        """Answer the script: it begins its step, with the changes since its last one."""
        known = self._known
        assert known.view is not None
        known.barrier, known.begun, known.broken = False, True, False
        if known.announced.membership <= known.view.membership or known.view.leader != known.slot:
            self._handover.drop()  # No member will join.
        self._offer()
        chunks = known.view.chunks_of(known.slot)
        owned = set(chunks)
        values = {chunk: value for chunk, value in self.values.items() if chunk in owned - self._owned}
        gone = tuple(sorted(self._owned - owned))
        self._owned = owned
        state, self._loaded = self._loaded, None
        lost, known.lost = known.lost, ()
        view = known.view
        known.reply(v.Begin(known.step, chunks, values, gone, lost, state, view.owners, view.members))

    def _start_view(self) -> None:
        """The lowest member of the first announcement starts a view of its own; all others join it before the first step."""
        known = self._known
        if known.plan is None or not known.may_found or known.first_state is not None or self._others_train:
            return
        if self._inherited is not None:  # The previous founder; the script has loaded its state to warm up.
            known.step, known.used = self._inherited.step, _entry(self._inherited.used)
        known.highest = max(known.highest, _FOUNDED)
        known.view = v.View(_FOUNDED, 0, (known.slot,), (known.slot,) * known.plan.chunks)
        known.barrier = True

    def _leave_founding(self) -> None:
        """Another member founds: two founders would wait for each other's newcomers."""
        known = self._known
        if known.prepared is not None:
            self._cancel_prepared()
        known.view = None
        known.reply(v.Left())

    def _all_ready(self) -> bool:
        known = self._known
        return known.view is not None and all(known.ready.get(slot) == known.step for slot in known.view.members)

    # The switch.

    def _switch(self, members: tuple[int, ...]) -> None:
        """The leader drives the members of both views into the next one."""
        known, old = self._known, self._known.view
        assert old is not None
        rebalance = members == old.members and known.announced.membership == old.membership
        owners = balanced_owners(known) if rebalance else shared_out(old.owners, members, known.rates)
        switch = m.Switch(
            known.next_number(),
            membership=max(old.membership, known.announced.membership),
            members=list(members),
            old_members=list(old.members),
            owners=list(owners),
            # Before the first step there are no values to move.
            old_owners=list(old.owners) if old.membership else [-1] * len(old.owners),
            step=known.step,
            used=[known.used.samples, *known.used.lanes],
            dead=sorted(known.dead),
        )
        self._received = {}
        for slot in sorted(set(old.members) | set(members)):
            if slot in members and slot not in old.members and self._final is not None:
                final = replace(self._final, view=switch.view)
                known.send(slot, self._handover.reduced(final, self._same, slot))
            if slot != known.slot:
                known.send(slot, switch)
        self.on_switch(known.slot, switch)

    def on_switch(self, sender: int, switch: m.Switch) -> None:
        """Prepare for the view, and send the values of chunks that leave to their new owners."""
        known = self._known
        if switch.view <= (known.view.number if known.view is not None else 0):
            return
        if known.view is not None and known.view.membership == 0 and sender != known.slot:
            return  # From the previous founder, which does not know yet that it will leave.
        known.prepared, known.driver = switch, sender
        known.highest = max(known.highest, switch.view)
        if known.view is None:
            known.mark_dead(set(switch.dead))
        if known.plan is not None and known.plan.valued:
            for chunk, (was, now) in enumerate(zip(switch.old_owners, switch.owners)):
                if was == known.slot != now and chunk in self.values:
                    structure, arrays = self.values[chunk]
                    known.send(now, m.ChunkValue(switch.view, payload=arrays, chunk=chunk, structure=structure))
        self._check_received()

    def on_chunk_value(self, value: m.ChunkValue) -> None:
        self._came[value.view, value.chunk] = value
        self._check_received()

    def _check_received(self) -> None:
        """Inform the driver once this member has everything that the prepared view needs."""
        known, switch = self._known, self._known.prepared
        if switch is None or known.plan is None:
            return
        needed = self._coming(switch)
        newcomer = known.view is None
        if any((switch.view, chunk) not in self._came for chunk in needed):
            return
        if newcomer and (self._final is None or self._final.view != switch.view):
            return
        arrays = [array for chunk in needed for array in self._came[switch.view, chunk].payload]
        if newcomer and self._final is not None:
            arrays += self._final.payload
        received = m.Received(switch.view, bytes=sum(array.nbytes for array in arrays))
        if known.driver == known.slot:
            self.on_received(known.slot, received)
        else:
            known.send(known.driver, received)

    def _coming(self, switch: m.Switch) -> list[int]:
        """Return the chunks whose values a living member sends to this one."""
        known = self._known
        if known.plan is None or not known.plan.valued:
            return []
        moves = enumerate(zip(switch.old_owners, switch.owners))
        return [chunk for chunk, (was, now) in moves if now == known.slot and was not in (known.slot, -1)]

    def on_received(self, sender: int, received: m.Received) -> None:
        """The driver sends Go once every member of both views has everything."""
        known, view, switch = self._known, self._known.view, self._known.prepared
        if switch is None or known.driver != known.slot or received.view != switch.view or view is None:
            return
        if known.recovering:
            return  # The survivors decide; a view that no member has adopted yet ends with the recovery.
        self._received[sender] = received.bytes
        everybody = set(view.members) | set(switch.members)
        if set(self._received) != everybody:
            return
        newcomers = set(switch.members) - set(view.members)
        go = m.Go(
            switch.view,
            step=switch.step,
            cause=v.cause_of(view.members, tuple(switch.members), view.membership),
            warm_up_s=max((known.warm.get(slot, 0.0) for slot in newcomers), default=0.0),
            barrier_s=known.now - self._ready_since,
            bytes_moved=sum(self._received.values()),
        )
        # First to those that train on: what leavers do then takes time from nobody's step.
        for slot in sorted(everybody - {known.slot}, key=lambda slot: (slot not in switch.members, slot)):
            known.send(slot, go)
        self._adopt(go)

    def adopt(self, go: m.Go) -> None:
        """Make the prepared view the present one.  All its members have everything; the caller handles the consequences."""
        known, switch = self._known, self._known.prepared
        assert switch is not None
        owners = set(switch.old_owners) - {-1}
        old = known.view.members if known.view is not None else tuple(sorted(owners))
        # A peer's Bye, or another survivor, may come before the driver's Go, which names the cause.
        cause = go.cause or v.cause_of(old, tuple(switch.members), len(owners))
        view = v.View(switch.view, switch.membership, tuple(switch.members), tuple(switch.owners))
        came = {chunk: self._came[switch.view, chunk] for chunk in self._coming(switch)}
        self.values.update({chunk: (value.structure, value.payload) for chunk, value in came.items()})
        if known.view is None and self._whole is not None:
            self._loaded, self._inherited = self._whole, None
            self._handover.joined()
            known.step, known.used = switch.step, _entry(switch.used)
        if not owners:
            known.founded_at = switch.step
        for slot in view.members:
            known.warm.pop(slot, None)
        self.forget_prepared()
        known.install(view)
        known.switched.append(view.number)
        if known.slot not in view.members:
            known.reply(v.Left())
        elif view.leader == known.slot:
            known.facts.append(v.Changed(view, cause, known.step, go.warm_up_s, go.barrier_s, go.bytes_moved))

    def cancel(self) -> None:
        """A newcomer was lost before the switch: the driver lets all others continue in the present view."""
        self._cancel_prepared()
        self.look()

    def _cancel_prepared(self) -> None:
        known = self._known
        assert known.prepared is not None
        for slot in sorted(known.taking_part - {known.slot}):
            if slot in known.connected:
                known.send(slot, m.Cancel(known.prepared.view))
        self.forget_prepared()

    def forget_prepared(self) -> None:
        self._known.prepared, self._final, self._whole, self._received, self._came = None, None, None, {}, {}


def _entry(used: list[int]) -> Entry:
    return Entry(used[0], tuple(used[1:])) if used else EMPTY
