"""Requests that wait for the master's answer: submissions, and updates that were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.fold.folded import Folded, ignored
from dorm.core.state import Submission, can_be_kept
from events import subjects

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.records import Record


def queue(state: State, submission: Submission, record: Record) -> Folded:
    """Queue a submission for an answer.  Senders choose ids, so a repeated id must not displace the first
    submission."""
    if submission.id in state.submissions:
        return ignored(state)
    if not can_be_kept(submission.spec):
        submission.spec, submission.refused = None, "the spec holds a number that no spec has"
        submission.refused_code = "spec.number.too_large"
    submission.who = subjects.who_of(record.subject)
    state.submissions[submission.id] = submission
    return "applied"


def queue_refused(
    state: State, event: Event, record: Record, why: str, code: str, *, app: str = "", spec: Any = None
) -> Folded:
    """Queue a refused request, so that its sender gets an answer. `app`: the app of a refused update."""
    refused = Submission(
        id=event.id,
        seq=state.seq,
        at=state.time,
        by=event.by,
        spec=spec,
        size=0,
        refused=why,
        refused_code=code,
        app=app,
    )
    return queue(state, refused, record)
