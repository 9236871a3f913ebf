"""One member's state machine.

The shell calls it with what happens (an announcement, a connection, a message, a call of the script) and takes from it what
is to be sent (`outbox`), what the waiting script is answered (`answer`), what state the script's thread has to gather
(`wants`) and what belongs on the log (`facts`).  It reads no clock: the shell sets `now` (seconds, monotonic) before each
call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.elastic.errors import ContractError
from dorm.elastic.ledger import EMPTY, Entry
from dorm.elastic.ownership import owned_by, shared_out
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.recovery import Recovery
from dorm.elastic.summing import combine, in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Arrays = list[npt.NDArray[Any]]

__all__ = ["BALANCE_EVERY", "BALANCE_GAIN", "Member"]

BALANCE_EVERY = 20
"""Steps in a view before chunks may move for balance."""
BALANCE_GAIN = 0.1
"""Share of the time of a step that a move for balance must save."""
_NEWEST_RATE = 0.3
"""Weight of the newest measurement in a member's rate."""


class Member:
    """What one member knows.  All methods but the shell's calls are private."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.now = 0.0
        self.outbox: list[tuple[int, m.Message]] = []
        self.facts: list[v.Changed | v.EpochDone] = []
        self.answer: v.Answer | None = None
        self.first_state: m.State | None = None
        """The newest state to warm up with; the shell takes it."""
        self.disconnect: set[int] = set()
        """Peers whose connections the shell must close."""
        self.plan: v.Plan | None = None
        self.view: v.View | None = None
        self.announced = v.Announced()
        self.connected: set[int] = set()
        self.dead: set[int] = set()
        self.used = EMPTY
        """The ledger of this epoch, up to the last completed step."""
        self.step = 0
        self.round = 0
        """Sums of this step that are complete."""
        self.begun = False
        """Whether the script is inside the step."""
        self.waiting = ""
        """What the script waits for: "", "boundary" or "sum"."""
        self.recovery = Recovery(self)
        self.values: dict[int, v.Packed] = {}
        """Values of this member's chunks, as of the boundary; the shell gathers them before a switch."""
        self._highest = 0
        self._warm: dict[int, float] = {}
        """Newcomers that have warmed up, and how long that took."""
        self._offered: set[int] = set()
        self._rates: dict[int, float] = {}
        self._changed_at = 0
        """The step at which the view last changed."""
        self._barrier = True
        self._stop = False
        self._mine: m.Contribution | None = None
        self._gathered: dict[int, m.Contribution] = {}
        self._ready: dict[int, int] = {}
        self._ready_since = 0.0
        self._last: m.Result | None = None
        self._pending = EMPTY
        self._broken = False
        """Whether the step cannot complete, because a member's part of it is missing."""
        self._early: list[tuple[int, m.Message]] = []
        self._prepared: m.Switch | None = None
        self._driver = -1
        self._came: dict[tuple[int, int], m.ChunkValue] = {}
        self._final: m.State | None = None
        self._have_final: v.Packed | None = None
        self._received: dict[int, int] = {}
        self._lost: tuple[int, ...] = ()
        self._old_owned: set[int] = set()
        self._epoch_done: v.EpochDone | None = None
        """The last complete epoch: a leader may have died before it reported it."""
        self.finished = False
        self._over = False
        self._ended: dict[int, int] = {}
        """Peers that ended in good order, and the step before which they did."""
        self._behind: v.Behind | None = None
        """Set once the others continue without this member."""
        self._gone: set[int] = set()
        """Peers that were connected and are not any more."""
        self._warm_s: float | None = None
        """How long this newcomer's warm-up took; None before."""

    # What the shell says.

    def start(self, plan: v.Plan, step: int = 0, used: Entry = EMPTY) -> None:
        """The script is ready for its first step.  A founder may continue from a checkpoint before `step`."""
        self.plan, self.step = plan, step
        if self.view is None:
            self.used = used

    def announce(self, announced: v.Announced) -> None:
        if announced.membership > self.announced.membership:
            self.announced = announced
            self._say_warm()
            self._consider()

    def connect(self, slot: int) -> None:
        if slot in self.dead:
            self.disconnect.add(slot)
            return
        self.connected.add(slot)
        self._gone.discard(slot)
        self._say_warm()
        self._consider()

    def lose(self, slot: int) -> None:
        """The connection is lost, or the peer has been silent for too long."""
        self.connected.discard(slot)
        self._warm.pop(slot, None)
        self._offered.discard(slot)
        if self.finished or self._ended.get(slot, 0) > self.step:
            return  # It has finished what this member is about to finish.
        self._gone.add(slot)
        orphan = self.view is None and self._prepared is not None and slot == self._driver
        if orphan or (self.view is not None and slot in self.view.members):
            self.dead.add(slot)
            self.recovery.begin()
        elif self._prepared is not None and self._driver == self.slot and slot in self._prepared.members:
            self._cancel()

    def tick(self) -> None:
        self.recovery.tick()

    def boundary(self, step: int, *, values: Mapping[int, v.Packed] | None = None) -> None:
        """The script asks for `step`: the next one, or the same again after `Interrupted`."""
        if step > self.step:
            self._complete(step - 1)
        self.step, self.round, self.begun, self.waiting = step, 0, False, "boundary"
        self._broken = False
        if self._behind is not None:
            self._reply(self._behind)
            return
        if values is not None:
            self.values = dict(values)
        members = self.view.members if self.view is not None else ()
        for slot in sorted(slot for slot in members if self._ended.get(slot, step + 1) <= step):
            self.lose(slot)  # It ended its script where this one goes on.
        self._say_warm()
        self._at_boundary()

    def finish(self, step: int) -> None:
        """The script ends before `step`; who ends now has finished too."""
        self.finished = True
        if step > self.step:
            self._complete(step - 1)
            self.step, self.round, self.begun = step, 0, False

    def contribute(self, sums: Mapping[tuple[int, int], Arrays], used: Entry, seconds: float, *, stop: bool) -> None:
        """The script gives its part of a sum: arrays by node of `summing`, or by (-1, -1) one for the member as a whole."""
        self.waiting = "sum"
        if self._behind is not None:
            self._reply(self._behind)
            return
        payload = [array for arrays in sums.values() for array in arrays]
        self._mine = m.Contribution(
            view=0,
            payload=payload,
            step=self.step,
            round=self.round,
            nodes=[[low, high, len(arrays)] for (low, high), arrays in sums.items()],
            used=[used.samples, *used.lanes],
            seconds=seconds,
            stop=stop,
        )
        self._give()

    def warmed_up(self, seconds: float) -> None:
        """This newcomer has loaded the first state and warmed up."""
        self._warm_s = seconds
        self._say_warm()

    def _say_warm(self) -> None:
        """Tell the leader, once the script waits for its first step and this newcomer is connected with all others: after a
        death they have to find each other."""
        others = set(self.announced.members) - {self.slot} - self.dead
        if self._warm_s is None or self.waiting != "boundary":
            return
        if self.view is None and others <= self.connected:
            self._send(self._driver, m.Warm(0, membership=self.announced.membership, seconds=self._warm_s))

    @property
    def ended(self) -> set[int]:
        """Peers that ended in good order."""
        return set(self._ended)

    @property
    def deserted(self) -> bool:
        """Whether the job is complete before this newcomer has joined it."""
        return self.view is None and self._over

    @property
    def wants(self) -> str:
        """What the script's thread gathers at a boundary: "first" (a copy of the state, for newcomers to warm up),
        "final" (the state, nothing of it changes until the answer) or ""."""
        if self.view is None or self.view.leader != self.slot or self.recovery.active:
            return ""
        if self._all_ready() and self._prepared is None and set(self._change() or ()) - set(self.view.members):
            return "final"
        return "first" if self._cold() else ""

    def supply(self, state: v.Packed) -> None:
        """Give the state that `wants` asked for."""
        wanted = self.wants
        if wanted == "first":
            for slot in sorted(self._cold()):
                self._offered.add(slot)
                self._send(slot, self._state(state, first=True))
        elif wanted == "final":
            self._final = self._state(state, first=False)
            self._look()

    def receive(self, sender: int, message: m.Message) -> None:
        """Handle a peer's message."""
        if sender in self.dead:
            return
        if isinstance(message, (m.Status, m.Recover)):
            self.recovery.receive(sender, message)
        elif isinstance(message, m.State):
            self._on_state(sender, message)
        elif isinstance(message, m.Warm):
            self._warm[sender] = message.seconds
            self._consider()
        elif isinstance(message, m.Switch):
            self._on_switch(sender, message)
        elif isinstance(message, m.ChunkValue):
            self._came[message.view, message.chunk] = message
            self._check_received()
        elif isinstance(message, m.Received):
            self._on_received(sender, message)
        elif isinstance(message, m.Cancel):
            if self._prepared is not None and self._prepared.view == message.view:
                self._forget_prepared()
        elif isinstance(message, m.Bye):
            self._on_bye(sender, message)
        elif isinstance(message, m.Go) and self._prepared is not None and message.view == self._prepared.view:
            self._adopt(message)
        elif self.view is None or message.view > self.view.number:
            self._early.append((sender, message))
        elif message.view == self.view.number:
            self._in_view(sender, message)

    # Steps and sums.

    def _in_view(self, sender: int, message: m.Message) -> None:
        if isinstance(message, m.Contribution):
            self._gather(sender, message)
        elif isinstance(message, m.Result):
            self._on_result(message)
        elif isinstance(message, m.Ready):
            self._ready[sender] = message.step
            self._look()
        elif isinstance(message, m.Go) and self.waiting == "boundary" and message.step == self.step:
            self._begin()

    def _complete(self, step: int) -> None:
        """The script has finished a step: its samples count."""
        assert self.plan is not None
        self.used, self._pending = self.used + self._pending, EMPTY
        if (step + 1) % self.plan.steps_per_epoch == 0:
            self._epoch_done = v.EpochDone(step // self.plan.steps_per_epoch, step, self.used)
            if self.view is not None and self.view.leader == self.slot:
                self.facts.append(self._epoch_done)
            self.used = EMPTY

    def _at_boundary(self) -> None:
        if self.recovery.active or self.waiting != "boundary":
            return
        if self.view is None:
            self._found()
        if self.view is None:
            return
        if self._stop:
            self._reply(v.Stop(self.step))
        elif self._barrier:
            self._to_leader(m.Ready(self.view.number, step=self.step))
        else:
            self._begin()

    def _begin(self) -> None:
        assert self.view is not None
        self._barrier, self.begun, self._broken = False, True, False
        chunks = self.view.chunks_of(self.slot)
        owned = set(chunks)
        values = {chunk: value for chunk, value in self.values.items() if chunk in owned - self._old_owned}
        gone = tuple(sorted(self._old_owned - owned))
        self._old_owned = owned
        state, self._have_final = self._have_final, None
        lost, self._lost = self._lost, ()
        self._reply(v.Begin(self.step, chunks, values, gone, lost, state))

    def _give(self) -> None:
        """Send this member's part of the sum, unless the step has to be repeated."""
        if self.recovery.active or self._mine is None or self.view is None:
            return
        if self._broken:
            self._pending, self._mine = EMPTY, None
            self._reply(v.Interrupted())
            return
        self._mine.view = self.view.number
        self._to_leader(self._mine)

    def _gather(self, sender: int, part: m.Contribution) -> None:
        """Add up once every member has given its part."""
        assert self.view is not None
        if sender not in self.view.members:
            return
        self._gathered[sender] = part
        if set(self._gathered) != set(self.view.members):
            return
        parts, self._gathered = [self._gathered[slot] for slot in self.view.members], {}
        if len({(part.step, part.round) for part in parts}) > 1:
            known = zip(self.view.members, parts)
            places = ", ".join(f"slot {slot}: step {part.step}, sum {part.round}" for slot, part in known)
            text = f"the members disagree about the next sum ({places}); each must call allreduce equally often"
            raise ContractError(text, code="elastic.contract.sums_differ")
        for slot, one in zip(self.view.members, parts):
            self._measure(slot, one)
        used = [sum(column) for column in zip(*(one.used for one in parts))]
        result = m.Result(
            self.view.number,
            payload=self._summed(parts),
            step=parts[0].step,
            round=parts[0].round,
            used=[used[0], *(lane % 2**64 for lane in used[1:])],
            barrier=self._change() is not None,
            stop=any(one.stop for one in parts),
        )
        for slot in self.view.members:
            if slot != self.slot:
                self._send(slot, result)
        self._on_result(result)

    def _summed(self, parts: Sequence[m.Contribution]) -> Arrays:
        assert self.plan is not None
        sums: dict[tuple[int, int], Arrays] = {}
        if any([low, high] == [-1, -1] for part in parts for low, high, _ in part.nodes):
            return in_order([part.payload for part in parts])
        for part in parts:
            rest = iter(part.payload)
            for low, high, count in part.nodes:
                sums[low, high] = [next(rest) for _ in range(count)]
        if not any(sums.values()):
            return []
        return combine(self.plan.chunks, sums)

    def _measure(self, slot: int, part: m.Contribution) -> None:
        """Learn how fast a member computes, from the first sum of a step."""
        if part.round == 0 and part.seconds > 0 and part.used[0] > 0:
            rate = part.used[0] / part.seconds
            known = self._rates.get(slot)
            self._rates[slot] = rate if known is None else (1 - _NEWEST_RATE) * known + _NEWEST_RATE * rate

    def _on_result(self, result: m.Result) -> None:
        if self.waiting != "sum" or (result.step, result.round) != (self.step, self.round):
            return
        self._last, self._mine = result, None
        self.round += 1
        self._pending = Entry(result.used[0], tuple(result.used[1:]))
        self._barrier = self._barrier or result.barrier
        self._stop = self._stop or result.stop
        self._reply(v.Summed(result.payload))

    # Switching to the next view.

    def _found(self) -> None:
        """The lowest member of the first announcement starts a view of its own; all others join it before the first step."""
        slots = self.announced.members
        if self.plan is None or not slots or self.slot != min(slots) or self.first_state is not None:
            return
        self._highest = 1
        self.view = v.View(1, 0, (self.slot,), (self.slot,) * self.plan.chunks)
        self._barrier = True

    def _change(self) -> tuple[int, ...] | None:
        """Return the members of the next view if one is due and everybody is ready for it; a tuple equal to the present
        members means that chunks move for balance, or only the membership's number changes."""
        assert self.view is not None
        if self.announced.membership > self.view.membership:
            members = tuple(sorted(set(self.announced.members) - self.dead))
            newcomers = set(members) - set(self.view.members)
            if not members or newcomers - self._warm.keys() or newcomers - self.connected:
                return None
            return members
        return self.view.members if self._balanced() != self.view.owners else None

    def _balanced(self) -> tuple[int, ...]:
        """Return owners by measured speed, if they would make steps shorter by `BALANCE_GAIN`."""
        assert self.view is not None
        view, rates = self.view, self._rates
        if (
            self.step - self._changed_at < BALANCE_EVERY
            or len(view.members) < 2
            or any(s not in rates for s in view.members)
        ):
            return view.owners
        moved = shared_out(view.owners, view.members, rates)
        before, after = (max(len(owned_by(o, s)) / rates[s] for s in view.members) for o in (view.owners, moved))
        return moved if after < (1 - BALANCE_GAIN) * before else view.owners

    def _cold(self) -> set[int]:
        """Newcomers that have not yet been sent a first state."""
        assert self.view is not None
        if self.announced.membership <= self.view.membership:
            return set()
        newcomers = set(self.announced.members) - set(self.view.members) - self.dead
        return {slot for slot in newcomers & self.connected if slot not in self._warm and slot not in self._offered}

    def _consider(self) -> None:
        """Something changed that a script at a boundary may have waited for."""
        if self.view is None:
            self._at_boundary()
        self._look()

    def _all_ready(self) -> bool:
        return self.view is not None and all(self._ready.get(slot) == self.step for slot in self.view.members)

    def _look(self) -> None:
        """The leader looks whether all members wait, and lets them go on, in the next view if one is due."""
        if self.view is None or self.view.leader != self.slot or self.recovery.active or self._prepared is not None:
            return
        if self._ready and len(self._ready) == 1:
            self._ready_since = self.now
        if not self._all_ready():
            return
        members = self._change()
        if members is None:
            if self.view.membership == 0:
                return  # A founder waits for those that were announced with it.
            self._ready.clear()
            go = m.Go(self.view.number, step=self.step)
            for slot in self.view.members:
                if slot != self.slot:
                    self._send(slot, go)
            self._begin()
        elif self._final is not None or not set(members) - set(self.view.members):
            self._switch(members)

    def _switch(self, members: tuple[int, ...]) -> None:
        assert self.view is not None
        old = self.view
        self._highest += 1
        rebalance = members == old.members and self.announced.membership == old.membership
        owners = self._balanced() if rebalance else shared_out(old.owners, members, self._rates)
        membership = max(old.membership, self.announced.membership)
        switch = m.Switch(
            self._highest,
            membership=membership,
            members=list(members),
            owners=list(owners),
            # Before the first step there are no values to move.
            old_owners=list(old.owners) if old.membership else [-1] * len(old.owners),
            step=self.step,
            used=[self.used.samples, *self.used.lanes],
        )
        self._received = {}
        for slot in sorted(set(old.members) | set(members)):
            if slot in members and slot not in old.members and self._final is not None:
                self._final.view = switch.view
                self._send(slot, self._final)
            if slot != self.slot:
                self._send(slot, switch)
        self._on_switch(self.slot, switch)

    def _on_state(self, sender: int, state: m.State) -> None:
        if state.first:
            self.first_state, self._driver = state, sender
            self._say_warm()
        else:
            self._final = state
            self._check_received()

    def _on_switch(self, sender: int, switch: m.Switch) -> None:
        if switch.view <= (self.view.number if self.view is not None else 0):
            return
        self._prepared, self._driver = switch, sender
        self._highest = max(self._highest, switch.view)
        if self.plan is not None and self.plan.valued:
            for chunk, (was, now) in enumerate(zip(switch.old_owners, switch.owners)):
                if was == self.slot != now and chunk in self.values:
                    structure, arrays = self.values[chunk]
                    self._send(now, m.ChunkValue(switch.view, payload=arrays, chunk=chunk, structure=structure))
        self._check_received()

    def _check_received(self) -> None:
        """Say so once everything has come that the prepared view needs."""
        switch = self._prepared
        if switch is None or self.plan is None:
            return
        needed = self._coming(switch)
        newcomer = self.view is None
        if any((switch.view, chunk) not in self._came for chunk in needed):
            return
        if newcomer and (self._final is None or self._final.view != switch.view):
            return
        arrays = [array for chunk in needed for array in self._came[switch.view, chunk].payload]
        if newcomer and self._final is not None:
            arrays += self._final.payload
        received = m.Received(switch.view, bytes=sum(array.nbytes for array in arrays))
        if self._driver == self.slot:
            self._on_received(self.slot, received)
        else:
            self._send(self._driver, received)

    def _coming(self, switch: m.Switch) -> list[int]:
        """Chunks whose values a living member sends to this one."""
        if self.plan is None or not self.plan.valued:
            return []
        moves = enumerate(zip(switch.old_owners, switch.owners))
        return [chunk for chunk, (was, now) in moves if now == self.slot and was not in (self.slot, -1)]

    def _on_received(self, sender: int, received: m.Received) -> None:
        switch = self._prepared
        if switch is None or self._driver != self.slot or received.view != switch.view or self.view is None:
            return
        self._received[sender] = received.bytes
        everybody = set(self.view.members) | set(switch.members)
        if set(self._received) != everybody:
            return
        newcomers = set(switch.members) - set(self.view.members)
        go = m.Go(
            switch.view,
            step=switch.step,
            cause=v.cause_of(self.view.members, tuple(switch.members), self.view.membership),
            warm_up_s=max((self._warm.get(slot, 0.0) for slot in newcomers), default=0.0),
            barrier_s=self.now - self._ready_since,
            bytes_moved=sum(self._received.values()),
        )
        for slot in sorted(everybody - {self.slot}):
            self._send(slot, go)
        self._adopt(go)

    def _adopt(self, go: m.Go) -> None:
        """The prepared view is the present one."""
        switch = self._prepared
        assert switch is not None
        view = v.View(switch.view, switch.membership, tuple(switch.members), tuple(switch.owners))
        newcomer = self.view is None
        came = {chunk: self._came[switch.view, chunk] for chunk in self._coming(switch)}
        self.values.update({chunk: (value.structure, value.payload) for chunk, value in came.items()})
        if newcomer and self._final is not None:
            self._have_final = (self._final.structure, self._final.payload)
            self.step, self.used = switch.step, Entry(switch.used[0], tuple(switch.used[1:]))
        for slot in view.members:
            self._warm.pop(slot, None)
        self._forget_prepared()
        self.install(view)
        if self.slot not in view.members:
            self._reply(v.Left())
            return
        if view.leader == self.slot:
            self.facts.append(v.Changed(view, go.cause, self.step, go.warm_up_s, go.barrier_s, go.bytes_moved))
        for slot in sorted(set(view.members) & self._gone):
            self.lose(slot)
        if self.waiting == "boundary" and not self.recovery.active:
            self._begin()
        self._replay_early()

    # After a death (called by `recovery`).

    @property
    def prepared_number(self) -> int:
        return self._prepared.view if self._prepared is not None else 0

    @property
    def prepared_members(self) -> list[int]:
        return self._prepared.members if self._prepared is not None else []

    def next_number(self, least: int) -> int:
        self._highest = max(self._highest, least) + 1
        return self._highest

    def adopt_prepared_quietly(self) -> None:
        """Others have gone on in the prepared view, so everything for it has been received; nobody begins a step in it."""
        if self._prepared is not None:
            waiting, self.waiting = self.waiting, ""
            self.recovery.active, active = True, self.recovery.active
            self._adopt(m.Go(self._prepared.view, step=self._prepared.step))
            self.recovery.active, self.waiting = active, waiting

    def recovered(self, recover: m.Recover) -> None:
        """Go on in the view of the survivors."""
        view = v.View(recover.view, recover.membership, tuple(recover.members), tuple(recover.owners))
        self._forget_prepared()
        last = self._last
        if self.slot == recover.holder and last is not None:
            for slot in recover.behind:
                self._send(slot, m.Result(**{**vars(last), "view": view.number}))
        self.install(view)
        self._changed_at = recover.step
        self._lost += tuple(recover.lost)
        # The dead member's part of the next sum is missing, unless this step has no further one.
        self._broken = self.begun and self.step == recover.step
        if view.leader == self.slot:
            repeated = self._broken and recover.round == 0
            self.facts.append(v.Changed(view, "death", recover.step, lost=tuple(recover.dead), repeated=repeated))
            self.facts += [self._epoch_done] if self._epoch_done is not None else []
        if self.slot in recover.behind:
            self._mine = None
        elif self.waiting == "sum":
            self._give()
        self._at_boundary()
        self._consider()
        self._replay_early()

    def excluded(self, recover: m.Recover) -> None:
        """The survivors go on without this member: it was to leave, or they take it for dead."""
        if self.slot in recover.dead:
            self.fall_behind("the others took this member for dead and continue without it; its process should end")
        elif self.view is not None:
            self._reply(v.Left())

    def fall_behind(self, text: str) -> None:
        """Nothing that the script asks from now on gets another answer."""
        self._behind = v.Behind(text)
        self._reply(self._behind)

    def install(self, view: v.View) -> None:
        """Take a view as the present one; nothing that was gathered in the one before counts."""
        self.view = view
        self._highest = max(self._highest, view.number)
        self._gathered, self._ready = {}, {}
        self._offered.clear()
        self._barrier, self._changed_at = False, self.step
        self._rates = {slot: rate for slot, rate in self._rates.items() if slot in view.members}

    def _replay_early(self) -> None:
        early, self._early = self._early, []
        for sender, message in early:
            self.receive(sender, message)

    def _cancel(self) -> None:
        """A newcomer was lost before the switch: all go on in the present view."""
        assert self._prepared is not None
        assert self.view is not None
        for slot in sorted(set(self.view.members) | set(self._prepared.members)):
            if slot != self.slot and slot in self.connected:
                self._send(slot, m.Cancel(self._prepared.view))
        self._forget_prepared()
        self._look()

    def _forget_prepared(self) -> None:
        self._prepared, self._final, self._received, self._came = None, None, {}, {}

    def _on_bye(self, sender: int, bye: m.Bye) -> None:
        """A peer ends in good order: where it had been told to go on in the prepared view, so has this member."""
        if self._prepared is not None and bye.view == self._prepared.view and sender not in self._prepared.members:
            self._adopt(m.Go(bye.view, step=self._prepared.step))
        else:
            self._ended[sender] = bye.step
            self._over = self._over or bye.finished

    def _state(self, state: v.Packed, *, first: bool) -> m.State:
        assert self.view is not None
        structure, arrays = state
        return m.State(
            self.view.number,
            payload=arrays,
            step=self.step,
            first=first,
            structure=structure,
            membership=self.announced.membership,
        )

    def _to_leader(self, message: m.Message) -> None:
        assert self.view is not None
        if self.view.leader == self.slot:
            self._in_view(self.slot, message)
        else:
            self._send(self.view.leader, message)

    def _send(self, slot: int, message: m.Message) -> None:
        self.outbox.append((slot, message))

    def _reply(self, answer: v.Answer) -> None:
        self.answer, self.waiting = self._behind or answer, ""
