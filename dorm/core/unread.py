"""Records that this build cannot read: of a kind that it does not know, or with a body that is not one.

The fold is total, so they are counted and passed over.  Two things hold of them all the same:

    fence      a record on the rounds' subject moves the sequence that the log compares with the next round's expected
               one, by any author and with any content; a master that did not follow could never write again
    answered   a submission, or another request that the master answers, may be unreadable as well: its sender is told
               why, by the id of the message, instead of waiting forever
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.folded import UNKNOWN, UNREADABLE, Effect
from dorm.core.submissions import queue_refused
from events import kinds as k
from events import subjects
from events.codec import submission_of

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.records import Record


def unreadable(state: State, event: k.Unreadable, record: Record) -> Effect:
    state.counters.unreadable += 1
    _move_fence(state, record)
    if submission_of(event):
        queue_refused(state, event, record, event.reason, "submission.unreadable")
    return UNREADABLE


def unknown(state: State, event: k.Unknown, record: Record) -> Effect:
    state.counters.unknown += 1
    _move_fence(state, record)
    return UNKNOWN


def _move_fence(state: State, record: Record) -> None:
    """Every record on the rounds' subject, readable or not, moves the sequence that the log compares with the next round's
    expected one."""
    if subjects.kind_of(record.subject) == k.Round.__name__:
        state.round_seq = state.seq
