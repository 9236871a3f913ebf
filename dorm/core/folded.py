"""What became of a record in the fold, and who watches it.

applied      it changed the state, or is of a kind that never does
ignored      it repeats something, or concerns nothing that exists, or its sender may not say so; counted
forbidden    its author may not publish it (`dorm.core.authority`); it changes nothing but the note of that,
             with code and reason (`dorm.core.identities.refusal_at`), and the master reports it
refused      it asks for something harmful or impossible; the state keeps the reason (`State.refused`, `Node.refused`)
void         a round of a master that no longer led, or that did not know the previous round, or that no key of the cluster's
             masters signed; counted
unknown      of a kind that this build does not know; counted
unreadable   counted; an unreadable submission is still answered"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.records import Record

Folded = Literal["applied", "ignored", "forbidden", "refused", "void", "unknown", "unreadable"]


class Observer(Protocol):
    """Follows a fold: an explanation, a story, a picture, measures."""

    def see(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        """Follow one record after it was folded into `state`."""


def ignored(state: State) -> Folded:
    """Count a record as ignored."""
    state.counters.ignored += 1
    return "ignored"
