"""What survivors do after a death.

Each reports its position to all others, and from then on takes no step.  When the lowest member of the view, the coordinator,
has heard from all that it believes alive, it claims the right to continue after this view; only one of two halves that cannot
hear each other gets it.  Then it decides how they continue: in which view, from which step, and which member sends the last
result to those that have not received it.

All participants of a switch take part in its recovery, because one of the newcomers may have adopted the next view.  A
report counts if its sender is in the coordinator's view, or in none, and knows of all deaths.  A report is also a request: if
the sender is behind, the others answer with what it has missed, and it reports again; a newcomer that knows of no switch
answers with its own report.  So no member waits for a report or a decision that does not come.
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
"""Seconds that the smaller part of a view waits before it claims, so that the larger part comes first.  A half that lost the
leader waits too, unless the connections were ended from the other side: of two workers, the leader most likely died."""


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
        self._early: dict[int, m.Status] = {}
        """Reports of newcomers that have prepared for a view of which this member has not heard yet."""
        self._claim_at: float | None = None
        self._claiming = False
        self._needed: set[int] = set()
        self._decided: m.Recover | None = None
        """The last decision that this member has followed, for those that missed it."""
        self._granted: set[int] = set()
        """Views that this member has claimed with success: it must not claim its own again after another death."""
        self._in_flight: set[int] = set()

    def begin(self) -> None:
        """A member died, perhaps another one: report it."""
        known = self._known
        known.recovering = True
        # A peer that was lost before the death: until now, that was no death, but it cannot report.
        known.dead |= known.gone & known.taking_part
        self._claim_at, self._claiming = None, False
        status = self._report()
        # Send it to all survivors, not only to the coordinator: some of them may still be connected with all.
        known.outbox += [(slot, status) for slot in status.awaited if slot != known.slot]
        self._statuses = {slot: earlier for slot, earlier in self._statuses.items() if slot not in known.dead}
        self._statuses[known.slot] = status
        self._look()

    def end(self) -> None:
        """The view of the survivors is known, or another came first."""
        self._known.recovering = False
        self._in_flight -= set(self.claim)  # The shell has not seen these.
        self._claiming, self._claim_at, self.claim, self._early = False, None, (), {}
        # A peer may have reported about the view that this member is about to adopt.
        number = self._known.view.number if self._known.view is not None else 0
        self._statuses = {slot: status for slot, status in self._statuses.items() if status.view > number}

    def needs(self, slot: int) -> bool:
        """Whether this member waits for a peer's report, or for the last result, which the peer was to pass on."""
        known, decided = self._known, self._decided
        if known.recovering:
            return slot in known.taking_part
        if known.waiting != "sum" or known.view is None or decided is None or decided.view != known.view.number:
            return False
        missed = (known.step, known.round) < (decided.step, decided.round)
        return missed and slot == decided.holder and known.slot in decided.behind

    def receive(self, sender: int, message: m.Message) -> None:
        if isinstance(message, m.Status):
            self._on_status(sender, message)
        elif isinstance(message, m.Recover):
            self._on_recover(message)

    def tick(self) -> None:
        if self._claim_at is not None and self._known.now >= self._claim_at and not self._claiming:
            self._ask()

    def on_prepared(self) -> None:
        """This member has heard of the next view, and so of the newcomers that take part in it: their reports count now."""
        early, self._early = self._early, {}
        for sender, status in sorted(early.items()):
            if status.prepared == self._known.prepared_number and sender in self._known.taking_part:
                self._on_status(sender, status)

    def on_cancel(self) -> None:
        """The newcomers of the prepared view no longer take part: a member does not wait for them, and a newcomer has nothing
        to recover."""
        if self._known.view is None:
            self.end()
        else:
            self._look()

    def claimed(self, views: Iterable[int], granted: bool) -> None:
        """The shell's answer to `claim`, by the views that it claimed."""
        self._in_flight -= set(views)
        if granted:
            self._granted |= set(views)
        if not self._known.recovering or not self._claiming:
            return
        if self._needed <= self._granted:
            self._decide()
        elif not granted:
            self._fall_behind("another part of the members continues")

    def _report(self) -> m.Status:
        known = self._known
        return m.Status(
            known.view.number if known.view is not None else 0,
            prepared=known.prepared_number,
            step=known.step,
            round=known.round,
            begun=known.begun,
            dead=sorted(known.dead),
            awaited=sorted(known.taking_part),
        )

    def _on_status(self, sender: int, status: m.Status) -> None:
        known = self._known
        known.highest = max(known.highest, status.view, status.prepared)
        if known.slot in status.dead:  # It will not follow this member, nor answer it.
            return
        if self._is_behind(sender, status):
            if known.view is not None and status.view == 0 and status.prepared > known.view.number:
                self._early[sender] = status  # It does not report again, so it is this member that is late.
            self._bring_up(sender, status)
            return
        if known.view is not None and known.slot not in known.view.members:
            return  # It has left.
        news = set(status.dead) - known.dead - {known.slot}
        concerned = known.view is not None and set(status.dead) & set(known.view.members)
        awaited = known.view is None and known.slot in status.awaited
        self._statuses[sender] = status
        if news & known.taking_part or (news and (known.recovering or awaited)) or (concerned and not known.recovering):
            known.mark_dead(news)
            if known.taking_part - {known.slot}:
                self.begin()
        self._look()
        if awaited and not (known.recovering and sender in known.taking_part):
            known.send(sender, self._report())

    def _is_behind(self, sender: int, status: m.Status) -> bool:
        """Whether the report is about a view that this member has left behind.  A newcomer that it waits for is not."""
        view = self._known.view
        if view is None or status.view >= view.number:
            return False
        return sender in view.members or sender not in self._known.taking_part

    def _bring_up(self, sender: int, status: m.Status) -> None:
        """Send what the sender has missed."""
        known = self._known
        assert known.view is not None
        if status.prepared in known.switched:
            known.send(sender, m.Go(status.prepared, step=known.changed_at))
        elif self._decided is not None and self._decided.view > status.view:
            known.send(sender, self._decided)

    def _look(self) -> None:
        """The coordinator continues once all survivors have reported."""
        known, view = self._known, self._known.view
        if not known.recovering or self._claiming:
            return
        alive = known.taking_part
        if view is None:
            if alive <= self._statuses.keys() and not any(self._statuses[slot].view for slot in alive):
                self._end_newcomer()
            return
        if min(alive & set(view.members)) != known.slot or not all(self._counts(slot) for slot in alive):
            return
        if self._left_alone(alive):
            self._fall_behind("the others may have gone on in a view without this member")
            return
        survivors = len(alive & set(view.members))
        half = 2 * survivors == len(view.members) and min(view.members) not in alive
        self.minority = 2 * survivors < len(view.members) or half
        # Both halves are equal, so if the other one has hung up, this one need not let it go first.
        waits = self.minority and not (half and known.dead & set(view.members) <= known.hung_up)
        self._claim_at = known.now + (MINORITY_S if waits else 0.0)
        self.tick()

    def _counts(self, slot: int) -> bool:
        """Whether a survivor's report is about this recovery."""
        known, status = self._known, self._statuses.get(slot)
        assert known.view is not None
        if status is None or status.view != (known.view.number if slot in known.view.members else 0):
            return False
        return known.dead & known.involved <= set(status.dead)

    def _end_newcomer(self) -> None:
        """Newcomers are left alone."""
        if self._known.prepared is None:
            self.end()
        else:
            self._fall_behind("no member of the view is left")

    def _left_alone(self, alive: set[int]) -> bool:
        """Whether all survivors are leavers that were ready for the prepared view.  Its members do not miss them, so no claim
        of theirs would show that they have continued."""
        prepared = self._known.prepared
        if prepared is None or self._known.driver in alive or alive & set(prepared.members):
            return False
        return all(self._statuses[slot].prepared == prepared.view for slot in alive)

    def _ask(self) -> None:
        """Claim this view, and the one that may have been adopted since: those that adopted it would claim that."""
        known = self._known
        assert known.view is not None
        self._claiming = True
        prepared = max(self._statuses[slot].prepared for slot in known.taking_part)
        self._needed = {known.view.number, max(known.view.number, prepared)}
        missing = self._needed - self._granted - self._in_flight
        self._in_flight |= missing
        self.claim = tuple(sorted(missing | set(self.claim)))
        if self._needed <= self._granted:
            self._decide()

    def _decide(self) -> None:
        """Inform all survivors how they continue."""
        known, view = self._known, self._known.view
        assert view is not None
        members = tuple(slot for slot in view.members if slot in known.taking_part)
        lost = tuple(chunk for chunk, owner in enumerate(view.owners) if owner not in members)
        at = {slot: (self._statuses[slot].step, self._statuses[slot].round) for slot in members}
        furthest = max(at.values())
        recover = m.Recover(
            known.next_number(max(status.prepared for status in self._statuses.values())),
            base=view.number,
            membership=view.membership,
            members=list(members),
            owners=list(shared_out(view.owners, members, {})),
            lost=list(lost) if known.plan is not None and known.plan.valued else [],
            dead=sorted(known.dead),
            step=furthest[0],
            round=furthest[1],
            holder=min(slot for slot in members if at[slot] == furthest),
            behind=[slot for slot in members if at[slot] != furthest],
        )
        for slot in sorted(self._statuses.keys() - known.dead - {known.slot}):  # A newcomer may have reported unasked.
            known.send(slot, recover)
        self._on_recover(recover)

    def _on_recover(self, recover: m.Recover) -> None:
        known = self._known
        current = known.view.number if known.view is not None else 0
        if recover.view <= current or (not known.recovering and current > recover.base):
            return
        if known.view is None and known.prepared_number > recover.view:
            return  # The survivors have begun to lead this newcomer since then.
        known.mark_dead(set(recover.dead) - {known.slot})
        if known.slot not in recover.members:
            self.end()
            self._exclude(recover)
            return
        self.end()
        self._decided = recover
        self._recovered(recover)

    def _exclude(self, recover: m.Recover) -> None:
        """The survivors continue without this member: it was about to leave, or counts as dead."""
        if self._known.slot in recover.dead:
            text = "the others took this member for dead and continue without it; its process should end"
            self._known.fall_behind(text)
        elif self._known.view is not None:
            self._known.reply(v.Left())
        else:  # A newcomer: the survivors lead it into a later view.
            self._switching.forget_prepared()

    def _fall_behind(self, why: str) -> None:
        self.end()
        text = f"{why}; what this member computes does not count any more, so its process should end"
        self._known.fall_behind(text)
