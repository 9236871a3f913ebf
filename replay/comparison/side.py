"""One side of a comparison: an app as a fold shows it, from its submission on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.costs import cost_s
from dorm.core.gates import reason_of
from dorm.core.query.views import adjustment
from events import kinds as k
from events.quantities import SECOND
from replay.story.chapters import AppTotals
from replay.usage.ledger import Ledger, Wanted
from replay.usage.usage import HOUR, unit_of

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.state import App, State
    from events.log.records import Record
    from replay.story.app import AppTeller

MOST_POINTS = 512
"""Points of a curve; when there are more, every other one is dropped."""


class Point(msgspec.Struct, frozen=True):
    """One report of progress."""

    at_s: float
    """Seconds since the app was accepted."""
    step: int
    loss: float | None
    containers: int


class Speed(msgspec.Struct, frozen=True):
    """How fast it worked with one partition."""

    containers: int
    nodes: int
    type: str
    steps_per_s: float


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One app.  Times are log times (UTC ns), lengths seconds; None: unknown, or it did not happen."""

    name: str
    id: str
    user: str
    phase: str
    why: str
    """Why it ended, or waits."""
    submitted_at: int
    accepted_at: int
    ended_at: int | None
    life_s: float
    """From its acceptance to its end, or to the moment of the comparison."""
    totals: AppTotals
    n_min: int
    n_max: int
    weight: float
    demand: dict[str, int]
    container_hours: float
    given: dict[str, float]
    """By the resource's unit, such as `core-hours`."""
    lost_container_hours: float
    """Pauses of adjustments, and work that was repeated because of them."""
    steps_per_s: float | None
    """Over all the time in which its containers ran."""
    loss: float | None
    adjust_s: float | None
    """The mean cost of an adjustment."""
    speeds: list[Speed]
    curve: list[Point]
    resizes: list[dict[str, Any]]
    """The latest adjustments with their phases (`dorm.core.query.views.adjustment`)."""


class Watched:
    """Follows a fold for one app, by name or id, together with the teller of its story."""

    def __init__(self, teller: AppTeller) -> None:
        self.teller = teller
        self.app: App | None = None
        self._curve: list[Point] = []
        self._every = 1
        self._seen = 0
        self._ledger: Ledger | None = None

    def begin(self, state: State) -> None:
        """Start from a state."""
        self._ledger = Ledger(state, by=("app",), wanted=Wanted(apps=frozenset([self.teller.wanted])))
        self.teller.begin(state)
        self._adopt(state)

    def see(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        """Follow one record after it was folded."""
        assert self._ledger is not None
        self._ledger.see(state, record, event, folded)
        self.teller.see(state, record, event, folded)
        if isinstance(event, k.AppProgressed):
            if self.app is not None and event.app == self.app.id and folded == "applied":
                self._point(state, event)
        elif isinstance(event, k.Round):
            self._adopt(state)

    def _adopt(self, state: State) -> None:
        found = state.apps.get(self.teller.id)
        if found is not None and found is not self.app:
            if self.app is None or self.app.id != found.id:
                self._curve, self._every, self._seen = [], 1, 0
            self.app = found

    def _point(self, state: State, event: k.AppProgressed) -> None:
        assert self.app is not None
        self._seen += 1
        if self._seen % self._every:
            return
        current = self.app.current
        size = len(current.containers) if current is not None else 0
        self._curve.append(Point((state.time - self.app.accepted_at) / SECOND, event.step, event.loss, size))
        if len(self._curve) > MOST_POINTS:
            self._curve, self._every = self._curve[1::2], 2 * self._every

    def side(self, state: State) -> Side | None:
        """Return the app as it is in the last state; None if it was never accepted."""
        app, totals, ledger = self.app, self.teller.totals(state), self._ledger
        if app is None or totals is None or ledger is None:
            return None
        ledger.close(state.time)
        sums = {
            resource: one
            for period in ledger.periods
            for (key, resource), one in period.sums.items()
            if key[1] == app.id
        }
        first = next(iter(sums.items()), None)
        lost = (first[1].paused + first[1].redone) / app.demand[first[0]] / HOUR if first is not None else 0.0
        costs = [cost for one in app.history if (cost := cost_s(one)) is not None]
        return Side(
            name=app.name,
            id=app.id,
            user=app.tenant,
            phase=app.phase,
            why=app.end_reason
            if app.ended
            else reason.text
            if (reason := reason_of(app, state.time)) is not None
            else "",
            submitted_at=app.submitted_at,
            accepted_at=app.accepted_at,
            ended_at=app.ended_at or None,
            life_s=((app.ended_at or state.time) - app.accepted_at) / SECOND,
            totals=totals,
            n_min=app.n_min,
            n_max=app.n_max,
            weight=app.weight,
            demand=app.demand,
            container_hours=first[1].container / HOUR if first is not None else 0.0,
            given={unit_of(resource)[0]: one.given / unit_of(resource)[1] for resource, one in sorted(sums.items())},
            lost_container_hours=lost,
            steps_per_s=totals.step / totals.ran_s if totals.step and totals.ran_s else None,
            loss=app.loss,
            adjust_s=sum(costs) / len(costs) if costs else None,
            speeds=[
                Speed(one.containers, one.nodes, one.type, one.steps * SECOND / one.ns) for one in app.speeds if one.ns
            ],
            curve=self._curve,
            resizes=[adjustment(app, index) for index in range(len(app.history))],
        )
