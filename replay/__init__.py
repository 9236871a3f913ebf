"""The log's past: the state at any moment, audits of decisions, stories, pictures, exports, simulation.

    travel/     the state at any moment, what differs between two, and a cursor that walks through a log
    audit/      whether a log is whole, and gives the same state and the same decisions again
    story/      why an app has what it has, and what happened to it
    timeline/   a log as a picture
    export/     a log, or a part of it, copied into a file
    simulator/  a cluster in virtual time

    moments     which point of a log is meant: a sequence, a time, so long before its end
    reading     a log read through once, with damage as a result
    words       moments, spans and counts in words
    frames      snapshots for an archive;  whole_file: a file that appears complete or not at all

Everything here works on any `events.log.interface.EventLog`, a live cluster's or an exported file.  The end is fixed when
reading starts; later records are left for the next time.  States come from `evolve`, always from what was recorded, and
`decide` only compares.  Work runs batch by batch in a thread, so the loop stays free, and memory is bounded by the state and
a few batches.

An audit folds the log twice.  A round at sequence s was decided on the state at its basis b < s, which is gone when s is read.
The first pass, the survey, only folds and notes (s, b, at, kind of question) of each round.  Each basis is at or after the
previous round, so in the second pass at most one question is open at a time: the fold stops at b, answers it, continues, and
compares at s.  After a round no question is open, so the survey can cut there.  Each slice, with the state before it, is
checked on its own, by other processes while the survey continues, and must end in the survey's state.  The log is read
once; the first divergence is that of the first slice which has one.

    ReplayError
    ├── MomentError    a moment that cannot be read, or that this log does not reach
    ├── ExplainError   no such app at that moment
    ├── StoryError     no such app or node on this log
    ├── AuditError     a process of an audit ended, or a part of a log has no state to start from
    ├── SealError      the expected seal or key cannot be read
    ├── SearchError    a stepper's filter that cannot be read
    ├── TimelineError  nothing to draw, or no library to draw it with
    └── ExportError    a file that cannot be written, or exists already

Errors of the log itself (`events.log.interface.LogError`) pass through, except damage, which is an audit's result.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Told now and then how many records of how many are done."""


class ReplayError(Exception):
    """Root of what this package raises; every message is one line for people."""
