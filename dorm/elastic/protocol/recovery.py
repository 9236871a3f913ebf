"""What survivors do after a death.

Each reports to all others where it is, and from then on takes no step.  When the lowest survivor, the coordinator, has
heard from all members that it takes to be alive, it claims the right to continue after this view; of two halves that cannot
hear each other only one gets it.  Then it decides how they continue: in which view, from which step, and who sends the last
result to those that have not received it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.elastic.ownership import shared_out
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dorm.elastic.protocol.known import Known
    from dorm.elastic.protocol.switching import Switching

__all__ = ["MINORITY_S", "Recovery"]

MINORITY_S = 1.0
"""Seconds that the smaller part of a view waits before it claims, so that the larger part comes first."""


class Recovery:
    """The recovery of one member, from the first death until the view of the survivors is known."""

    def __init__(self, known: Known, switching: Switching, recovered: Callable[[m.Recover], None]) -> None:
        self._known = known
        self._switching = switching
        self._recovered = recovered
        """Called with the view of the survivors, to continue in it."""
        self.claim: tuple[int, ...] = ()
        """Views after which the coordinator wants to continue: the shell claims them and calls `claimed`."""
        self.minority = False
        """Whether the survivors are less than half of the view: where claims cannot be made, they may not continue."""
        self._statuses: dict[int, m.Status] = {}
        self._claim_at: float | None = None
        self._asked = False
        self._needed: set[int] = set()
        self._granted: set[int] = set()
        """Views that this member has claimed with success: it must not claim its own again after another death."""
        self._in_flight: set[int] = set()

    def begin(self) -> None:
        """A member died, perhaps one more: report it."""
        known = self._known
        known.recovering = True
        # A newcomer that was lost before the death: until now that was no death, but it cannot report.
        known.dead |= known.gone & set(known.prepared_members)
        self._claim_at, self._asked = None, False
        alive = self._alive()
        status = m.Status(
            known.view.number if known.view is not None else 0,
            prepared=known.prepared_number,
            step=known.step,
            round=known.round,
            begun=known.begun,
            dead=sorted(known.dead),
        )
        # All survivors hear it, not the coordinator alone: some of them may still be connected with everybody.
        known.outbox += [(slot, status) for slot in sorted(alive - {known.slot})]
        self._statuses = {slot: told for slot, told in self._statuses.items() if slot in alive}
        self._statuses[known.slot] = status
        self._look()

    def receive(self, sender: int, message: m.Message) -> None:
        if isinstance(message, m.Status):
            self._on_status(sender, message)
        elif isinstance(message, m.Recover):
            self._on_recover(message)

    def tick(self) -> None:
        if self._claim_at is not None and self._known.now >= self._claim_at and not self._asked:
            self._ask()

    def on_cancel(self) -> None:
        """The newcomers of the prepared view take no part any more: a member does not wait for them, a newcomer has nothing
        to recover."""
        if self._known.view is None:
            self._end()
        else:
            self._look()

    def claimed(self, views: Iterable[int], granted: bool) -> None:
        """The shell's answer to `claim`, by the views that it claimed."""
        self._in_flight -= set(views)
        if granted:
            self._granted |= set(views)
        if not self._known.recovering or not self._asked:
            return
        if self._needed <= self._granted:
            self._decide()
        elif not granted:
            self._fall_behind("another part of the members continues")

    def _alive(self) -> set[int]:
        known = self._known
        members = set(known.view.members) if known.view is not None else set()
        return (members | set(known.prepared_members) | {known.slot}) - known.dead

    def _on_status(self, sender: int, status: m.Status) -> None:
        known = self._known
        self._statuses[sender] = status
        if known.slot in status.dead:  # It will not follow this member, nor answer it.
            return
        news = set(status.dead) & self._alive() - {known.slot}
        mine = known.view is not None and set(status.dead) & set(known.view.members)
        if news or (mine and not known.recovering):
            known.dead |= news
            known.disconnect |= news
            known.connected -= news
            self.begin()
        else:
            self._look()
        if known.recovering and known.view is None and sender not in self._alive():
            # A member that leaves with the prepared view, which does not name it, waits for this newcomer's report.
            known.send(sender, self._statuses[known.slot])

    def _look(self) -> None:
        """The coordinator goes on once all survivors have reported the same deaths."""
        known = self._known
        if not known.recovering or self._asked:
            return
        alive = self._alive()
        if min(alive) != known.slot or not alive <= self._statuses.keys():
            return
        if not any(self._statuses[slot].view for slot in alive):  # Newcomers alone, who never received the state.
            if known.prepared is None:
                self._end()
            else:
                self._fall_behind("no member of the view is left")
            return
        base = self._base(alive)
        if not base:
            self._fall_behind("no member of the view is left")
            return
        survivors = len(alive & set(base))
        half = 2 * survivors == len(base) and min(base) not in alive
        self.minority = 2 * survivors < len(base) or half
        self._claim_at = known.now + (MINORITY_S if self.minority else 0.0)
        self.tick()

    def _base(self, alive: set[int]) -> tuple[int, ...]:
        """Return the members of the newest view that a survivor has adopted."""
        known = self._known
        newest = max(self._statuses[slot].view for slot in alive)
        if known.view is not None and known.view.number == newest:
            return known.view.members
        return tuple(known.prepared_members)

    def _ask(self) -> None:
        self._asked = True
        adopted = max(self._statuses[slot].view for slot in self._alive())
        prepared = max(self._statuses[slot].prepared for slot in self._alive())
        oldest = min(self._statuses[slot].view or adopted for slot in self._alive())
        numbers = {oldest, adopted, prepared if prepared > adopted else adopted}
        self._needed = {number for number in numbers if number > 0}
        missing = self._needed - self._granted - self._in_flight
        self._in_flight |= missing
        self.claim = tuple(sorted(missing | set(self.claim)))
        if self._needed <= self._granted:
            self._decide()

    def _decide(self) -> None:
        """Tell all survivors how they go on."""
        known = self._known
        alive = self._alive()
        statuses = {slot: self._statuses[slot] for slot in sorted(alive)}
        newest = max(status.view for status in statuses.values())
        if known.view is None or known.view.number < newest:
            self._switching.adopt_during_recovery()
        view = known.view
        assert view is not None
        if not set(view.members) & alive:
            self._fall_behind("no member of the view is left")
            return
        members = tuple(slot for slot in view.members if slot in alive)
        lost = tuple(chunk for chunk, owner in enumerate(view.owners) if owner not in members)
        owners = shared_out(view.owners, members, {})
        furthest = max((status.step, status.round) for slot, status in statuses.items() if slot in members)
        at = {slot: (status.step, status.round) for slot, status in statuses.items() if slot in members}
        number = known.next_number(max(status.prepared for status in statuses.values()))
        recover = m.Recover(
            number,
            base=view.number,
            membership=view.membership,
            members=list(members),
            owners=list(owners),
            lost=list(lost) if known.plan is not None and known.plan.valued else [],
            dead=sorted(known.dead),
            step=furthest[0],
            round=furthest[1],
            holder=min(slot for slot in members if at[slot] == furthest),
            behind=[slot for slot in members if at[slot] != furthest],
        )
        for slot in statuses:
            if slot != known.slot:
                known.send(slot, recover)
        self._on_recover(recover)

    def _on_recover(self, recover: m.Recover) -> None:
        known = self._known
        current = known.view.number if known.view is not None else 0
        if recover.view <= current or (not known.recovering and current > recover.base):
            return
        for slot in set(recover.dead) - known.dead - {known.slot}:
            known.dead.add(slot)
            known.disconnect.add(slot)
            known.connected.discard(slot)
        if known.slot not in recover.members:
            self._end()
            self._exclude(recover)
            return
        if current < recover.base:
            self._switching.adopt_during_recovery()
        self._end()
        self._recovered(recover)

    def _exclude(self, recover: m.Recover) -> None:
        """The survivors go on without this member: it was to leave, or they take it for dead."""
        if self._known.slot in recover.dead:
            text = "the others took this member for dead and continue without it; its process should end"
            self._known.fall_behind(text)
        elif self._known.view is not None:
            self._known.reply(v.Left())
        else:  # A newcomer: the survivors lead it into a later view.
            self._switching.forget_prepared()

    def _fall_behind(self, why: str) -> None:
        self._end()
        text = f"{why}; what this member computes does not count any more, so its process should end"
        self._known.fall_behind(text)

    def _end(self) -> None:
        self._known.recovering = False
        self._in_flight -= set(self.claim)  # The shell has not seen these.
        self._asked, self._claim_at, self.claim = False, None, ()
        self._statuses = {}
