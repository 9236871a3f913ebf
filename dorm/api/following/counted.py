"""What has happened on the log since this process began to follow it, for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.metrics.cluster import cluster_metrics
from dorm.metrics.tally import Tally

if TYPE_CHECKING:
    from prometheus_client import Metric

    from dorm.api.following.follower import Follower
    from dorm.core.state import State


class Counted:
    """A tally next to the fold. It belongs to the state's thread."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._tally: Tally | None = None
        follower.on_ready.append(self._begin)

    def _begin(self, state: State) -> None:
        self._tally = Tally.begin(state)
        self._follower.observers.append(self._tally.see)

    def metrics(self, state: State, now: int) -> list[Metric]:
        """Return the cluster's metrics at `now` (UTC ns)."""
        return list(cluster_metrics(state, self._tally, now)) if self._tally is not None else []
