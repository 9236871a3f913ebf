"""Log time: the time that decisions go by, which continues between records.

The server's clock gives each record its time, and deadlines count from those times. They are compared with the time
of the last record plus the time since, by the master's monotonic clock. A master whose wall clock is wrong, or is
set, therefore decides nothing too early or too late.

The server's clock may be set as well.  If it was set back, the fold keeps log time going (`dorm.core.log_clock`).  If a
record is later than the master's own clock allows, the server's clock leapt, or this machine slept: the master keeps its own
time until a round has stated it, from which the fold knows by how much.  A master that leads writes such a round at once.
"""

from __future__ import annotations

from dorm.core.log_clock import LEAP


class LogTime:
    """Log time in UTC nanoseconds; `at` is the caller's monotonic clock, also in nanoseconds."""

    def __init__(self) -> None:
        self._time = 0
        self._at = 0
        self._lived = False
        self.leapt = False
        """Whether the log's time is ahead of this one, and no round has said so."""

    def caught_up(self) -> None:
        """Every record so far is folded: from now on, time passes between records as it does here."""
        self._lived = True

    def folded(self, time: int, at: int, *, stated: bool = False) -> None:
        """The log has reached this time.  `stated`: by a round that says what time it is by its master."""
        own = self._own(at)
        if stated or not self._lived or not self._time:
            self.leapt = False
        elif time > own + LEAP:
            self.leapt = True
        self._time, self._at = own if self.leapt else max(time, own), at

    def now(self, time: int, at: int) -> int:
        """Return the current log time.  It never goes back, and is never before the log's own unless that leapt."""
        return self._own(at) if self.leapt else max(time, self._own(at))

    def _own(self, at: int) -> int:
        return self._time + (at - self._at) if self._time else 0
