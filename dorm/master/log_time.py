"""Log time: the time that decisions go by, which continues between records.

The server's clock gives each record its time, and deadlines count from those times. They are compared with the time
of the last record plus the time since, by the master's monotonic clock. A master whose wall clock is wrong, or is
set, therefore decides nothing too early or too late.
"""

from __future__ import annotations


class LogTime:
    """Log time in UTC nanoseconds; `at` is the caller's monotonic clock, also in nanoseconds."""

    def __init__(self) -> None:
        self._time = 0
        self._at = 0

    def folded(self, time: int, at: int) -> None:
        """The log has reached this time.  If the log's clock was set back, its time stands still and this one continues."""
        self._time, self._at = self.now(time, at), at

    def now(self, time: int, at: int) -> int:
        """Return the current log time: never before the log's own, and never going back."""
        return max(time, self._time + (at - self._at) if self._time else 0)
