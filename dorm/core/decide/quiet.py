"""Debouncing: when the log has been quiet for long enough to compute the allocation.

Records come in bursts (all containers of a generation start within a moment), and each may change the allocation: so the
allocation waits until no relevant record has come for `quiet_ms`, and on a busy log never longer than `quiet_limit_ms`.  The
clock is the caller's and monotonic: the event loop's in the master, virtual in a simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import MILLISECOND

if TYPE_CHECKING:
    from dorm.core.state import Settings


class Quiet:
    """Tracks records that may change the allocation; all times are nanoseconds of the caller's clock."""

    def __init__(self) -> None:
        self._since: int | None = None
        """When the first record came that no allocation has seen."""
        self._last = 0

    def mark_dirty(self, at: int) -> None:
        """Note a record that could change the allocation."""
        self._last = at
        if self._since is None:
            self._since = at

    def settle(self) -> None:
        """Note that an allocation has seen all records so far."""
        self._since = None

    def ends(self, settings: Settings) -> int | None:
        """Return when the allocation is due, None if no record requires one."""
        if self._since is None:
            return None
        limit = max(settings.quiet_limit_ms, settings.quiet_ms)
        return min(self._last + settings.quiet_ms * MILLISECOND, self._since + limit * MILLISECOND)
