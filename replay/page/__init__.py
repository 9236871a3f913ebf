"""The dashboard's content, computed from a folded state and its fold: pure, bounded, the same for the same log.

view       one moment: the cluster's figures, nodes with their containers, apps, the last decision with its reasons
changes    an observer of a fold: what differs from one view to the next, and the records between them
colors     the color of each app
timeline   a span of time: partitions as spans, decisions, failures, the cluster's figures
forked     a what-if fork of a log, beside what happened
stories    what happened to single apps and nodes, for a recording
recording  a part of a log with all of these, for a page without a server

`dorm serve` answers with these over HTTP, and an offline page holds the same answers.  The page that draws them is `dorm.web`;
the files beside these modules are the pages of reports.  Imports the core, `replay.timeline`, `replay.story` and
`replay.simulator`.

Start with `view`.
"""
