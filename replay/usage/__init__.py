"""Resources that apps were given over a span of time, the part that they used, and the cost of adjustments.

    accounts   what one app holds, and since when
    ledger     an observer of a fold: sums over accounts, by user, app, node and resource, in exact integers
    usage      a span of a log, folded once.  Start here
    tables     CSV and Parquet;  plot: a picture

given      container-time times the app's demand: what its containers kept others from having, from the record that placed them
           to the record that ended them.  The sum over all users is the sum over all nodes, and both are the integral of what
           `dorm nodes` shows as reserved (`dorm.core.query.views.room_held`)
used       CPU time and mean resident memory, as agents measured them and reported them at each container's end
known      the part of `given` with a report of its use; nothing is guessed about the rest
wasted     of each container, what it was known to hold and did not use; never less than nothing
paused     the part of `given` in which an adjustment kept the app from working: from when its containers were asked to stop
           until all new ones had started, and on until its first report, less the time that the reported steps took
redone     work that was repeated because of an adjustment: the steps after the checkpoint, at the pace and size before it
lost       paused and redone

    UsageError   an empty span, or an unknown name
"""

from __future__ import annotations

from replay import ReplayError


class UsageError(ReplayError):
    """A question about usage that has no answer; one line for people."""

    code = "accounting.failed"
