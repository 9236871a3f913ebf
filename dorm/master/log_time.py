"""What time it is, as far as decisions are concerned: log time, as it goes on between records.

The server's clock gives each record its time, and deadlines are counted from those; so what is compared with them is the time
of the last record plus what has passed since by the master's monotonic clock.  A master whose wall clock is wrong, or is set,
decides nothing too early and nothing too late.
"""

from __future__ import annotations


class LogTime:
    """UTC nanoseconds; `at` is the caller's monotonic clock, in nanoseconds too."""

    def __init__(self) -> None:
        self._time = 0
        self._at = 0

    def folded(self, time: int, at: int) -> None:
        """The log has come to this time.  Where its clock was set back it stands still, and this goes on."""
        self._time, self._at = self.now(time, at), at

    def now(self, time: int, at: int) -> int:
        """Never before the log's own time, and never going back."""
        return max(time, self._time + (at - self._at) if self._time else 0)
