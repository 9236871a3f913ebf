"""What survivors do after a death.

Each reports where it is to all others, and from then on takes no step.  When the lowest survivor, the coordinator, has
heard from all that it takes to be alive, it claims the right to continue after this view; of two halves that cannot hear
each other only one gets it.  Then it says how they go on: in which view, from which step, and who sends the last result to
those that have not received it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dorm.elastic.ownership import shared_out
from dorm.elastic.protocol import messages as m

if TYPE_CHECKING:
    from dorm.elastic.protocol import views as v

__all__ = ["MINORITY_S", "Recovery"]

MINORITY_S = 1.0
"""Seconds that the smaller part of a view waits before it claims, so that the larger part comes first."""


class Survivor(Protocol):
    """What a recovery needs of the member that it belongs to."""

    slot: int
    now: float
    outbox: list[tuple[int, m.Message]]
    disconnect: set[int]
    plan: v.Plan | None
    view: v.View | None
    connected: set[int]
    dead: set[int]
    step: int
    round: int
    begun: bool

    @property
    def prepared_number(self) -> int: ...
    @property
    def prepared_members(self) -> list[int]: ...
    def next_number(self, least: int) -> int: ...
    def adopt_prepared_quietly(self) -> None: ...
    def recovered(self, recover: m.Recover) -> None: ...
    def excluded(self, recover: m.Recover) -> None: ...
    def fall_behind(self, text: str) -> None: ...


class Recovery:
    """The recovery of one member; `active` from the first death until the view of the survivors is known."""

    def __init__(self, member: Survivor) -> None:
        self._member = member
        self.active = False
        self.claim: tuple[int, ...] = ()
        """Views after which the coordinator wants to continue: the shell claims them and calls `claimed`."""
        self.minority = False
        """Whether the survivors are less than half of the view: where claims cannot be made, they may not continue."""
        self._statuses: dict[int, m.Status] = {}
        self._claim_at: float | None = None
        self._asked = False

    def begin(self) -> None:
        """A member died, perhaps one more: report it."""
        me = self._member
        self.active = True
        self._claim_at, self._asked, self.claim = None, False, ()
        alive = self._alive()
        status = m.Status(
            me.view.number if me.view is not None else 0,
            prepared=me.prepared_number,
            step=me.step,
            round=me.round,
            begun=me.begun,
            dead=sorted(me.dead),
        )
        # All survivors hear it, not the coordinator alone: some of them may still be connected with everybody.
        me.outbox += [(slot, status) for slot in sorted(alive - {me.slot})]
        self._statuses = {slot: known for slot, known in self._statuses.items() if slot in alive}
        self._statuses[me.slot] = status
        self._look()

    def receive(self, sender: int, message: m.Message) -> None:
        if isinstance(message, m.Status):
            self._on_status(sender, message)
        elif isinstance(message, m.Recover):
            self._on_recover(message)

    def tick(self) -> None:
        if self._claim_at is not None and self._member.now >= self._claim_at and not self._asked:
            self._ask()

    def claimed(self, granted: bool) -> None:
        """The shell's answer to `claim`."""
        self.claim = ()
        if not self.active or not self._asked:
            return
        if granted:
            self._decide()
        else:
            self._fall_behind("another part of the members continues")

    def _alive(self) -> set[int]:
        me = self._member
        known = set(me.view.members) if me.view is not None else set()
        return (known | set(me.prepared_members) | {me.slot}) - me.dead

    def _on_status(self, sender: int, status: m.Status) -> None:
        me = self._member
        self._statuses[sender] = status
        if me.slot in status.dead:  # It will not follow this member, nor answer it.
            return
        news = set(status.dead) & self._alive() - {me.slot}
        mine = me.view is not None and set(status.dead) & set(me.view.members)
        if news or (mine and not self.active):
            me.dead |= news
            me.disconnect |= news
            me.connected -= news
            self.begin()
        else:
            self._look()

    def _look(self) -> None:
        """The coordinator goes on once all survivors have reported the same deaths."""
        me = self._member
        if not self.active or self._asked:
            return
        alive = self._alive()
        if min(alive) != me.slot or not alive <= self._statuses.keys():
            return
        base = self._base()
        survivors = len(alive & set(base))
        half = 2 * survivors == len(base) and min(base) not in alive
        self.minority = 2 * survivors < len(base) or half
        self._claim_at = me.now + (MINORITY_S if self.minority else 0.0)
        self.tick()

    def _base(self) -> tuple[int, ...]:
        """Return the members of the newest view that a survivor has adopted."""
        me = self._member
        newest = max(status.view for status in self._statuses.values())
        if me.view is not None and me.view.number == newest:
            return me.view.members
        return tuple(me.prepared_members)

    def _ask(self) -> None:
        self._asked = True
        adopted = max(self._statuses[slot].view for slot in self._alive())
        prepared = max(self._statuses[slot].prepared for slot in self._alive())
        oldest = min(self._statuses[slot].view or adopted for slot in self._alive())
        numbers = {oldest, adopted, prepared if prepared > adopted else adopted}
        self.claim = tuple(sorted(number for number in numbers if number > 0))

    def _decide(self) -> None:
        """Tell all survivors how they go on."""
        me = self._member
        alive = self._alive()
        statuses = {slot: self._statuses[slot] for slot in sorted(alive)}
        newest = max(status.view for status in statuses.values())
        if me.view is None or me.view.number < newest:
            me.adopt_prepared_quietly()
        view = me.view
        assert view is not None
        if not set(view.members) & alive:
            self._fall_behind("no member of the view is left")
            return
        members = tuple(slot for slot in view.members if slot in alive)
        lost = tuple(chunk for chunk, owner in enumerate(view.owners) if owner not in members)
        owners = shared_out(view.owners, members, {})
        furthest = max((status.step, status.round) for slot, status in statuses.items() if slot in members)
        at = {slot: (status.step, status.round) for slot, status in statuses.items() if slot in members}
        number = me.next_number(max(status.prepared for status in statuses.values()))
        recover = m.Recover(
            number,
            base=view.number,
            membership=view.membership,
            members=list(members),
            owners=list(owners),
            lost=list(lost) if me.plan is not None and me.plan.valued else [],
            dead=sorted(me.dead),
            step=furthest[0],
            round=furthest[1],
            holder=min(slot for slot in members if at[slot] == furthest),
            behind=[slot for slot in members if at[slot] != furthest],
        )
        for slot in statuses:
            if slot != me.slot:
                me.outbox.append((slot, recover))
        self._on_recover(recover)

    def _on_recover(self, recover: m.Recover) -> None:
        me = self._member
        current = me.view.number if me.view is not None else 0
        if recover.view <= current or (not self.active and current > recover.base):
            return
        for slot in set(recover.dead) - me.dead - {me.slot}:
            me.dead.add(slot)
            me.disconnect.add(slot)
            me.connected.discard(slot)
        if me.slot not in recover.members:
            self._end()
            me.excluded(recover)
            return
        if current < recover.base:
            me.adopt_prepared_quietly()
        self._end()
        me.recovered(recover)

    def _fall_behind(self, why: str) -> None:
        self._end()
        text = f"{why}; what this member computes does not count any more, so its process should end"
        self._member.fall_behind(text)

    def _end(self) -> None:
        self.active, self._asked, self._claim_at, self.claim = False, False, None, ()
        self._statuses = {}
