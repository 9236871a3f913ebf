"""A log's past: the state at any moment, audits of decisions, stories, timelines, exports, simulation.

    travel      the state at any moment;  diff: the difference between two states
    stepper     a cursor that steps through a log, forward and back
    audit/      verifies that a log is whole, and that it gives the same state and the same decisions again
    usage       what was given, used and lost over a span of time;  usage_ledger: adds it up
    comparison  two apps side by side
    past        apps of the past, each as one row
    incident    one folder about what happened, for a ticket
    story/      why an app has what it has, and what happened to it
    timeline/   a log as a picture
    export/     copies a log, or a part of it, into a file
    tenants/    the log as one tenant may read it
    traces      apps as traces of OpenTelemetry
    simulator/  a cluster in virtual time
    shadow      what another policy would do, decision by decision
    bisect      when an outcome became inevitable
    page/       the dashboard's data: a moment, the changes after it, a span of time

    moments     names a state of the past: a sequence, a time, or a time before the log's end
    reading     reads a log once; damage is a result, not an error
    words       moments, spans and counts in words;  gist: an event in one line
    frames      snapshots for an archive;  whole_file: a file that is written completely or not at all

A program or a notebook imports `replay.travel.state_at`, `replay.audit.verify`, `replay.story.tell` and
`replay.timeline.timeline`, and may rely on the `__all__` of packages.  This module itself imports none of them.

Everything here works on any `events.log.interface.ReadableLog`: a live cluster's log or an exported file.  The end is fixed
when reading starts; later records are ignored.  States come from `evolve`, always from the records, and `decide` only
compares.  Work runs in a thread, batch by batch, so the loop stays free; memory is bounded by the state and a few
batches.

An audit folds the log twice.  A round at sequence s was decided on the state at its basis b < s, which is gone when s is read.
The first pass, the survey, only folds, and notes (s, b, at, kind of question) of each round.  Each basis is at or after the
previous round, so in the second pass at most one question is open at a time: the fold stops at b, answers the question,
continues, and compares at s.  No question is open after a round, so the survey can cut there.  Other processes check the
slices while the survey continues: each starts from the state before it and must end in the survey's state.  The log is read
once; the first divergence is the one of the first slice with any.

    ReplayError
    ├── MomentError    a moment that cannot be parsed, or that is outside this log
    ├── ExplainError   no such app at that moment
    ├── StoryError     no such app or node on this log
    ├── AuditError     a process of an audit ended, or a part of a log has no state to start from
    ├── SealError      the expected seal or key cannot be parsed
    ├── OutcomeError   an outcome that cannot be parsed;  BisectError: one that this log cannot answer
    ├── SearchError    a stepper's filter that cannot be parsed
    ├── SelectError    a condition on apps of the past that cannot be parsed
    ├── UsageError     an empty span of time, or an unknown name
    ├── IncidentError  a span of time without records
    ├── TimelineError  nothing to draw, or no library to draw it with
    └── ExportError    a file that cannot be written, or already exists

Errors of the log itself (`events.log.records.LogError`) pass through, except damage, which is an audit's result.

Replay takes the nearest snapshot before a moment and folds on from there. An audit decides every round again from its
basis: the same facts must come out, byte for byte; a decision that this build cannot repeat counts as not checked,
never as correct. The docstring of `replay` describes the two passes. Anonymized exports and forks are logs that the
same tools read.

The HTTP API (`dorm serve`) folds the log itself and asks the master for nothing, so any number of such processes can
run. Answers follow from state and request alone. Requests to the cluster go through `dorm.client`. Readers of a stream
with the same filter share one encoding of each record; one that does not keep up is disconnected and resumes by
position.

Metrics, webhooks and traces also follow from the log: masters and agents do not know of them, and they cannot delay
either. Metrics come from a state and a `Tally`, an observer that is kept with its sequence. Each webhook has a durable
consumer on the log's server and its own worker.

The simulator runs the real `evolve` and `decide` in virtual time and writes an ordinary log, the same bytes for the
same scenario. What-if, backtests, `dorm replay bisect` and forecasts fork a real log; `forks.recorded` repeats a log
under its own timings, and every round must come out byte for byte. `replay.shadow` asks another policy after each
decision of the master.
"""

from __future__ import annotations

from collections.abc import Callable

from events.errors import DormError

__all__ = ["Progress", "ReplayError"]

Progress = Callable[[int, int], None]
"""Function that is called regularly with the number of records done and the total."""


class ReplayError(DormError):
    """Root of the exceptions of this package; every message is one line for people."""

    code = "replay.failed"
