"""Reading the log backwards in time: state at any moment, the audit of decisions, export to a file.

    moments     which point of a log is meant: a sequence, a time, so long before its end
    travel      the state at a moment: the nearest snapshot before it, and a short fold
    diff        what changed from one state to another; diff_words says it
    audit       `verify`: is this log whole, and does it give the same state and the same decisions again?
    survey      an audit's first pass, which cuts the log into slices; slices: its second pass, over each of them
    workers     slices checked by several processes (worker: one of them)
    questions   what a round asks of an audit, and the answer from the state at its basis
    explain     why an app has what it has: the state, and the decision that made it so
    words       an explanation as a paragraph
    story       what happened to an app or a node, in order: `chapters`, each with what led to it, told by `story_app` and
                `story_node` in `story_words`; who took whose room, and what stirs decisions, from `surroundings`; where
                an app's time went, from `spent`
    stepper     a cursor that walks through a log forward and back, with the state before and after; what was read and folded
                is kept in `pages`, what it steps over is a `search`
    watch       invariants after every record
    seals       is the log what its masters sealed, and where not?
    reading     a log read through once, damage being a result
    differences two facts compared, field by field
    export      a log, or a part of it (selection), copied into a file that is there whole or not at all (whole_file): an
                archive with snapshots (frames), or rows for analysis (tables)
    anonymize   a log with other names in it, which replays as the original: names are collected and numbered in order
                (pseudonyms), and replaced field by field (disguise)
    timeline    what held from when to when, for a picture: made by `timeline_fold` within `timeline_bounds`, drawn as a page
                (`timeline_html` and `page/`), as PNG (`timeline_png`) or for Perfetto (`timeline_trace`)

Everything here works on any `events.log.interface.EventLog`, a live cluster's and an exported file's alike: the end is
fixed when reading begins, what comes later is left for the next time.  Everything rests on the core: `evolve` gives
states, always from what was recorded; `decide` is asked only to compare.  Work goes batch by batch in a thread, so the
loop stays free, and memory is bounded by the state and a few batches.

An audit folds the log twice.  A round at sequence s was decided on the state at its basis b < s, so when s is read that
state is gone.  The survey only folds, and notes (s, b, at, kind of question) of each round; each basis is at or after the
round before it, so in the second pass at most one question is open at a time: the fold stops at b, answers it, goes on,
and at s compares.  After a round no question is open, so there the survey can cut: each slice, with the state before it, is
checked on its own, by other processes while the survey goes on, and has to end in the state that the survey had, or the
audit itself has changed it.  The log is read once; the first divergence is that of the first slice which has one.

    ReplayError
    ├── MomentError    a moment that can't be read, or that this log doesn't reach
    ├── ExplainError   no such app at that moment
    ├── StoryError     there never was such an app or node
    ├── AuditError     a process of an audit ended, or a part of a log has no state to begin with
    ├── SealError      what is expected of a log can't be read
    ├── SearchError    a filter of a stepper that can't be read
    ├── TimelineError  nothing to draw, or nothing to draw it with
    └── ExportError    a file that can't be written, or is there already

What the log's own reader raises (`events.log.interface.LogError`) passes through, but for damage, which is an audit's result.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Told now and then how many records of how many are done."""


class ReplayError(Exception):
    """Root of what this package raises; every message is one line for people."""
