"""When the log has been quiet for long enough that the allocation is computed.

Records come in bursts (all containers of a generation start within a moment), and each may change the allocation: so it waits
until the log has said nothing that concerns it for `quiet_ms`, and on a busy log never longer than `quiet_limit_ms`.  The
clock is the caller's and monotonic: the event loop's in the master, virtual in a simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import MILLISECOND

if TYPE_CHECKING:
    from dorm.core.state import Settings


class Quiet:
    """Follows what stirs the allocation; all times are nanoseconds of the caller's clock."""

    def __init__(self) -> None:
        self._since: int | None = None
        """When the first stir came that no allocation has seen."""
        self._last = 0

    def stir(self, at: int) -> None:
        """Something came that could change the allocation."""
        self._last = at
        if self._since is None:
            self._since = at

    def settle(self) -> None:
        """An allocation has seen all that came."""
        self._since = None

    def ends(self, settings: Settings) -> int | None:
        """When the allocation is due, None where nothing stirs."""
        if self._since is None:
            return None
        limit = max(settings.quiet_limit_ms, settings.quiet_ms)
        return min(self._last + settings.quiet_ms * MILLISECOND, self._since + limit * MILLISECOND)
