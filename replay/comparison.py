"""Two apps side by side, of one log or of two: their requests, their course, their cost.

    found = await compare(log, "resnet-a", "resnet-b")
    found = await compare(log, "resnet", "resnet", other=yesterdays)

`compare` reads the log, or both logs, and returns the `Comparison` of two `Side`s.  `Watched` makes a side: an observer of a
fold that keeps the course of one app, from its submission on, in bounded memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.costs import cost_s
from dorm.core.gates import reason_of
from dorm.core.query.views import adjustment
from dorm.core.state import State
from events import kinds as k
from events.quantities import SECOND
from replay.moments import AtSequence
from replay.story.app_teller import AppTeller
from replay.story.chapters import AppTotals
from replay.story.story import StoryError, base_of, together
from replay.travel import fold_on, state_at
from replay.usage import HOUR, unit_of
from replay.usage_ledger import Ledger, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment


# --- side -------------------------------------------------------------------------------------------------------------

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
    """Reason why it ended, or waits."""
    submitted_at: int
    accepted_at: int
    ended_at: int | None
    life_s: float
    """Time from its acceptance to its end, or to the moment of the comparison."""
    totals: AppTotals
    n_min: int
    n_max: int
    weight: float
    demand: dict[str, int]
    container_hours: float
    given: dict[str, float]
    """Amounts by the resource's unit, such as `core-hours`."""
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

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        assert self._ledger is not None
        self._ledger.see(state, record, folded)
        self.teller.see(state, record, folded)
        if isinstance(event, k.AppProgressed):
            if self.app is not None and event.app == self.app.id and folded.outcome == "applied":
                self._point(state, event)
        elif isinstance(event, k.Round):
            self._adopt(state)

    def _adopt(self, state: State) -> None:
        app = state.apps.get(self.teller.id)
        if app is not None and app is not self.app:
            if self.app is None or self.app.id != app.id:
                self._curve, self._every, self._seen = [], 1, 0
            self.app = app

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
            resource: total
            for period in ledger.periods
            for (key, resource), total in period.sums.items()
            if key[1] == app.id
        }
        first = next(iter(sums.items()), None)
        lost = (first[1].paused + first[1].redone) / app.demand[first[0]] / HOUR if first is not None else 0.0
        costs = [cost for adjustment in app.history if (cost := cost_s(adjustment)) is not None]
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
            given={
                unit_of(resource)[0]: total.given / unit_of(resource)[1] for resource, total in sorted(sums.items())
            },
            lost_container_hours=lost,
            steps_per_s=totals.step / totals.ran_s if totals.step and totals.ran_s else None,
            loss=app.loss,
            adjust_s=sum(costs) / len(costs) if costs else None,
            speeds=[
                Speed(speed.containers, speed.nodes, speed.type, speed.steps * SECOND / speed.ns)
                for speed in app.speeds
                if speed.ns
            ],
            curve=self._curve,
            resizes=[adjustment(app, index) for index in range(len(app.history))],
        )


# --- comparison -------------------------------------------------------------------------------------------------------

__all__ = ["Comparison", "Differs", "FieldOfSeveral", "Side", "compare", "differing", "sides"]


class Differs(msgspec.Struct, frozen=True):
    """A field of the two specs with different values; None if a spec does not have it."""

    field: str
    """Such as `demand.cpu`."""
    a: Any
    b: Any


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dorm compare -o json`."""

    a: Side
    b: Side
    spec: list[Differs]
    """Differences by field."""


async def compare(
    log: ReadableLog,
    a: str,
    b: str,
    moment: Moment | None = None,
    *,
    other: ReadableLog | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two apps (names or ids) as they are at a moment, by default at the log's end; `other` is the log of `b`, which
    is read to its end.

    Raises StoryError if there is no such app, and as `replay.travel.state_at`.
    """
    if other is None:
        first, second = await sides(log, (a, b), moment, progress)
    else:
        (first,) = await sides(log, (a,), moment, progress)
        (second,) = await sides(other, (b,), None, progress)
    return Comparison(a=first[0], b=second[0], spec=differences(first[1], second[1]))


async def sides(
    log: ReadableLog, names: Sequence[str], moment: Moment | None = None, progress: Progress | None = None
) -> list[tuple[Side, dict[str, Any]]]:
    """Return apps (names or ids) at a moment, by default at the log's end, each with its spec.  One fold follows them, from
    the submission of the first one on if they are in the state, else from the log's start.

    Raises StoryError if there is no such app, and as `replay.travel.state_at`."""

    async def at(seq: int) -> State:
        return await state_at(log, AtSequence(seq), progress=progress) if seq else State()

    final = await state_at(log, moment, progress=progress)
    apps, start = [final.find_app(name) for name in names], await log.start()
    known = [app.seq for app in apps if app is not None]
    state = await base_of(log, min(known), start, at) if len(known) == len(names) else await at(start)
    watched = [Watched(AppTeller(name)) for name in names]
    for observer in watched:
        observer.begin(state)
    await fold_on(log, state, final.seq, progress=progress, seen=together(watched))
    both = []
    for name, observer in zip(names, watched, strict=True):
        side = observer.side(state)
        if side is None or observer.app is None:
            text = f"there was no app {name!r} up to sequence {state.seq}; `dorm ps --all` and `dorm state` list apps"
            raise StoryError(text, code="app.not_found")
        both.append((side, msgspec.to_builtins(observer.app.spec)))
    return both


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[Differs]:
    """Return the fields that differ between two specs, without the name."""
    left, right = flat(a), flat(b)
    names = sorted({*left, *right} - {"name"})
    return [Differs(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)]


class FieldOfSeveral(msgspec.Struct, frozen=True):
    """A field that is not the same in all specs."""

    field: str
    """Such as `demand.cpu`."""
    values: list[Any]
    """Values by app; None if a spec does not have it."""


def differing(specs: Sequence[dict[str, Any]]) -> list[FieldOfSeveral]:
    """Return the fields that are not the same in all specs, without the name."""
    plain = [flat(spec) for spec in specs]
    fields = sorted({name for plain_side in plain for name in plain_side} - {"name"})
    rows = [FieldOfSeveral(name, [plain_side.get(name) for plain_side in plain]) for name in fields]
    return [row for row in rows if any(value != row.values[0] for value in row.values)]


def flat(document: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return a document's values by their paths, such as `demand.cpu`."""
    values: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            values |= flat(value, f"{before}{name}.")
        else:
            values[f"{before}{name}"] = value
    return values
