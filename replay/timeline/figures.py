"""The cluster's figures over time: apps that wait, and the part of each resource that is decided and held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.query.views import sizes
from replay.timeline.model import Steps

if TYPE_CHECKING:
    from dorm.core.state import App, State
    from replay.timeline.model import Timeline


class Figures:
    """Kept up to date by app and by change of nodes, as a sum over all of them at each record would be expensive."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[dict[str, int], dict[str, int], dict[str, int], bool]] = {}
        """For each app that counts: demand, containers decided and held by node, and whether it waits."""
        self._decided = _Taken()
        self._held = _Taken()
        self._waits = 0
        self._totals: dict[str, int] = {}
        """Total capacity of usable nodes."""
        self._unusable: dict[str, dict[str, int]] = {}
        """Capacity of each other node."""

    def count(self, state: State) -> None:
        """Count the capacity of the nodes, after one of them changed."""
        self._totals, self._unusable = {}, {}
        for node in state.nodes.values():
            if node.usable:
                _add(self._totals, node.capacity, 1)
            else:
                self._unusable[node.id] = node.capacity

    def take(self, app: App, held: dict[str, int]) -> None:
        """Count an app as it is now; `held` counts its containers that may run, by node."""
        decided = sizes(app)
        waits = not app.ended and app.current is None
        before = self._live.pop(app.id, None)
        if before is not None:
            self._waits -= before[3]
            self._decided.add(before[0], before[1], -1)
            self._held.add(before[0], before[2], -1)
        if decided or held or waits:
            self._live[app.id] = (app.demand, decided, held, waits)
            self._waits += waits
            self._decided.add(app.demand, decided, 1)
            self._held.add(app.demand, held, 1)

    def put(self, picture: Timeline, time: int) -> None:
        """Add the present figures, at log time `time`, to the picture."""
        picture.waiting.put(time, self._waits)
        for taken, by_resource in ((self._decided, picture.decided), (self._held, picture.held)):
            totals = taken.totals(self._totals, self._unusable)
            for name in sorted({*totals, *picture.decided}):
                total = totals.get(name, 0)
                part = round(taken.amounts.get(name, 0) / total, 6) if total else 0.0
                by_resource.setdefault(name, Steps()).put(time, part)


class _Taken:
    """Resources that containers take in total, and how many containers are on each node."""

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def add(self, demand: dict[str, int], by_node: dict[str, int], sign: int) -> None:
        _add(self.amounts, demand, sign * sum(by_node.values()))
        _add(self._counts, by_node, sign)

    def totals(self, usable: dict[str, int], unusable: dict[str, dict[str, int]]) -> dict[str, int]:
        """Return the capacity that these are a part of: a drained or lost node counts as long as its containers do."""
        totals = dict(usable)
        for name, capacity in unusable.items():
            if self._counts.get(name):
                _add(totals, capacity, 1)
        return totals


def _add(amounts: dict[str, int], demand: dict[str, int], count: int) -> None:
    for name, amount in demand.items():
        amounts[name] = amounts.get(name, 0) + amount * count
