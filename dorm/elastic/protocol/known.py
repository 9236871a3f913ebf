"""The knowledge of one member, which the parts of its state machine share.

A field is here if more than one part needs it, if the shell reads it, or if the next view resets it.  Data that only one part
needs stays in that part.  The methods keep fields consistent with each other; none of them decides anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dorm.elastic.ledger import EMPTY
from dorm.elastic.protocol import views as v

if TYPE_CHECKING:
    from dorm.elastic.ledger import Entry
    from dorm.elastic.protocol import messages as m

__all__ = ["Known"]

_SWITCHED = 64
"""Switches that a member remembers, for peers that have missed the end of one."""


@dataclass(eq=False, repr=False)
class Known:
    """What one member knows about itself, its peers and the view, and the tasks of its shell."""

    slot: int

    # Between the member and its shell.
    now: float = 0.0
    """Monotonic time in seconds; the shell sets it before each call."""
    outbox: list[tuple[int, m.Message]] = field(default_factory=list)
    """Messages to send, each with the slot of the receiver."""
    facts: list[v.Changed | v.EpochDone] = field(default_factory=list)
    """Facts for the log."""
    answer: v.Answer | None = None
    """The answer to the script's last question; the shell takes it."""
    first_state: m.State | None = None
    """The newest state to warm up with; the shell takes it."""
    disconnect: set[int] = field(default_factory=set)
    """Peers whose connections the shell must close."""

    # Peers.
    connected: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    """Peers that were connected and no longer are."""
    hung_up: set[int] = field(default_factory=set)
    """Those of them whose side ended the connection: most likely, their processes have ended."""
    dead: set[int] = field(default_factory=set)
    ended_before: dict[int, int] = field(default_factory=dict)
    """Peers that ended gracefully, and the step before which each did."""
    warm: dict[int, float] = field(default_factory=dict)
    """Newcomers that have warmed up, and how many seconds that took."""
    job_complete: bool = False
    """Whether a peer has finished the job."""

    # The view, and the one that may follow it.
    plan: v.Plan | None = None
    announced: v.Announced = field(default_factory=v.Announced)
    view: v.View | None = None
    prepared: m.Switch | None = None
    """The next view: announced by its driver, not yet adopted."""
    driver: int = -1
    """The member that leads this one into its next view."""
    switched: deque[int] = field(default_factory=lambda: deque(maxlen=_SWITCHED))
    """Numbers of the last views that this member has adopted by a switch."""
    highest: int = 0
    """The highest number of a view that this member has seen; a new view takes a higher one."""
    changed_at: int = 0
    """The step at which the view last changed."""
    rates: dict[int, float] = field(default_factory=dict)
    """Samples per second of the members that the leader has measured."""
    contributions: dict[int, m.Contribution] = field(default_factory=dict)
    """Parts of the next sum that the leader has gathered."""
    ready: dict[int, int] = field(default_factory=dict)
    """Members that wait at a barrier, and the step before which each does."""
    offered: set[int] = field(default_factory=set)
    """Newcomers that have received a first state."""

    # This member's script.
    founded_at: int | None = None
    """The step with which the job began, or began again from a checkpoint, if this member was there; else None."""
    step: int = 0
    round: int = 0
    """Number of complete sums of this step."""
    begun: bool = False
    """Whether the script is inside the step."""
    waiting: str = ""
    """Name of the event for which the script waits: "", "boundary" or "sum"."""
    used: Entry = EMPTY
    """The ledger of this epoch, up to the last completed step."""
    lost: tuple[int, ...] = ()
    """Chunks whose values died with their owners since the last step; the script learns of them at the next one."""
    barrier: bool = True
    """Whether the script must wait for the leader before its next step."""
    stop: bool = False
    """Whether all scripts stop before their next step."""
    broken: bool = False
    """Whether the step cannot complete, because a member's part of it is missing."""
    recovering: bool = False
    """Whether a member has died and the view of the survivors is not known yet: no step makes progress until it is."""
    behind: v.Behind | None = None
    """Set once the others continue without this member."""
    finished: bool = False

    @property
    def has_trained(self) -> bool:
        """Whether this member has been part of a training view, which a founder's own view is not."""
        return self.view is not None and self.view.membership > 0

    @property
    def prepared_number(self) -> int:
        return self.prepared.view if self.prepared is not None else 0

    @property
    def prepared_members(self) -> list[int]:
        return self.prepared.members if self.prepared is not None else []

    @property
    def involved(self) -> set[int]:
        """All participants of the present view or of the switch to the next one, dead or alive."""
        involved = {self.slot, *(self.view.members if self.view is not None else ())}
        if self.prepared is not None:
            involved.update(self.prepared.members, self.prepared.old_members)
        return involved

    @property
    def taking_part(self) -> set[int]:
        return self.involved - self.dead

    @property
    def may_found(self) -> bool:
        """Whether this member should begin the job if none trains yet."""
        members, founders = self.announced.members, self.announced.founders
        return bool(members) and self.slot == min(members) and (not founders or self.slot in founders)

    def mark_dead(self, slots: set[int]) -> None:
        """Take these for dead, as a peer does: they are not heard any more."""
        self.disconnect |= slots - self.dead
        self.connected -= slots
        self.dead |= slots

    def send(self, slot: int, message: m.Message) -> None:
        self.outbox.append((slot, message))

    def reply(self, answer: v.Answer) -> None:
        """Answer the waiting script.  Once this member is behind, that is the only answer."""
        self.answer, self.waiting = self.behind or answer, ""

    def fall_behind(self, text: str) -> None:
        """The others continue without this member: from now on, this is the answer to every call of the script."""
        self.behind = v.Behind(text)
        self.reply(self.behind)

    def next_number(self, least: int = 0) -> int:
        """Return a number for a view, above `least` and above every number seen so far."""
        self.highest = max(self.highest, least) + 1
        return self.highest

    def install(self, view: v.View) -> None:
        """Make this the present view.  The leader's data from the previous one does not count in this one."""
        self.view = view
        self.highest = max(self.highest, view.number)
        self.contributions, self.ready = {}, {}
        self.offered.clear()
        self.barrier, self.changed_at = False, self.step
        self.rates = {slot: rate for slot, rate in self.rates.items() if slot in view.members}
