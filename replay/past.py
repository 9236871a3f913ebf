"""Past apps of any age: how each ended, from the log alone.

    found = await gather(log, since=parse("-30d"))
    best = in_order(select(found.apps, conditions=[parse_condition("loss<0.1")]), "loss")

One fold gathers them, and keeps each app as one row; selecting and ordering rows is pure.  Imports `replay.travel`, the
core and `events`.
"""

from __future__ import annotations

import operator
import re
from fnmatch import fnmatchcase
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.progress import shown
from dorm.core.query.views import adjustment
from dorm.core.state import State
from events import kinds as k
from events.quantities import CPU, SECOND, short
from events.spec.groups import Setting, as_text, number
from replay import ReplayError
from replay.moments import AtSequence, AtTime, BeforeEnd, time_at
from replay.travel import fold_on, state_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment


# --- one fold ---------------------------------------------------------------------------------------------------------

HOUR = 3600.0
_SWEEP = 256
"""Number of further apps after which those that have left the state become rows."""


class PastApp(msgspec.Struct, frozen=True, kw_only=True):
    """One app.  Times are log times (UTC ns), lengths seconds; None: unknown, or it did not happen."""

    name: str
    id: str
    user: str
    sweep: str
    """The sweep that it belonged to, "" for none."""
    parameters: dict[str, Setting]
    """Parameters of its sweep."""
    labels: dict[str, str]
    state: str
    """`completed`, `failed`, `cancelled`; or `live` if it had not ended."""
    why: str
    """Reason why it ended."""
    submitted_at: int
    ended_at: int | None
    life_s: float
    """Time from its submission to its end."""
    n_max: int
    step: int
    loss: float | None
    loss_is: str
    samples_per_s: float | None
    adjustments: int
    failures: int
    lost_steps: int
    paused_s: float
    """Sum of the pauses of its latest 50 adjustments together."""
    container_hours: float
    """Hours for which its containers ran, all together."""
    core_hours: float
    """The same times the cores of a container."""


class Gathered(msgspec.Struct, frozen=True):
    """The result of a fold."""

    apps: list[PastApp]
    """Apps in the order of their submissions."""
    state: State
    """State at the end of the span."""
    since: int
    """Log time (UTC ns) at which the span starts; 0 for the log's start."""


async def gather(
    log: ReadableLog,
    since: Moment | None = None,
    until: Moment | None = None,
    *,
    wanted: Callable[[App], bool] = lambda app: True,
    progress: Progress | None = None,
) -> Gathered:
    """Return the apps that had not ended at `since` (default: the log's start) and were accepted before `until` (default: its
    end), as they were at `until`.

    Raises MomentError if the log does not reach the span, and as `replay.travel.state_at`.
    """
    start = await log.start()
    state = await state_at(log, since if since is not None else AtSequence(start))
    begin = state.time if since is not None else 0
    watched = _Watched(wanted)
    for app in state.apps.values():
        if not app.ended or since is None:
            watched.add(app)
    last, latest = await _end(log, until)
    await fold_on(log, state, last, latest, progress=progress, seen=watched.see)
    return Gathered(watched.rows(state), state, begin)


def ended_since(state: State, time: int, *, wanted: Callable[[App], bool] = lambda app: True) -> list[PastApp] | None:
    """Return what `gather` finds from a log time on (UTC ns) up to this state, from the state alone; None if the state may
    have dropped apps that ended since, so that only the log has them."""
    kept_s = min([state.settings.retention_s, *state.settings.tenant_retention_s.values()])
    if time + int(kept_s * SECOND) < state.time:
        return None
    apps = (app for app in state.apps.values() if (not app.ended or app.ended_at > time) and wanted(app))
    return [row_of(app, state.time) for app in sorted(apps, key=lambda app: (app.seq, app.id))]


async def _end(log: ReadableLog, until: Moment | None) -> tuple[int, int | None]:
    """Return the last sequence, and the latest log time, to fold."""
    end = await log.end()
    if isinstance(until, AtSequence):
        return min(end, until.seq), None
    if isinstance(until, AtTime):
        return end, until.time
    return end, await time_at(log, until, end) if isinstance(until, BeforeEnd) else None


class _Watched:
    """Observes a fold.  The fold changes apps in place, so an app that has left the state is as it was then."""

    def __init__(self, wanted: Callable[[App], bool]) -> None:
        self._wanted = wanted
        self._apps: dict[str, App] = {}
        self._rows: list[tuple[int, str, PastApp]] = []
        self._until_sweep = _SWEEP

    def add(self, app: App) -> None:
        if self._wanted(app):
            self._apps[app.id] = app
            self._until_sweep -= 1

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        del record
        if not isinstance(event, k.Round) or folded.outcome != "applied":
            return
        for fact in event.events:
            if isinstance(fact, k.AppAccepted) and fact.app not in self._apps and fact.app in state.apps:
                self.add(state.apps[fact.app])
        if self._until_sweep <= 0:
            self._until_sweep = _SWEEP
            for app_id in [app_id for app_id in self._apps if app_id not in state.apps]:
                self._keep(self._apps.pop(app_id), state.time)

    def _keep(self, app: App, now: int) -> None:
        self._rows.append((app.seq, app.id, row_of(app, now)))

    def rows(self, state: State) -> list[PastApp]:
        for app in self._apps.values():
            self._keep(app, state.time)
        return [row for _, _, row in sorted(self._rows, key=lambda numbered: numbered[:2])]


def row_of(app: App, now: int) -> PastApp:
    """Return an app as it is in a state at `now` (UTC ns)."""
    group = app.spec.group
    end, last = app.ended_at or now, shown(app)
    hours = app.served_until(end) / SECOND / HOUR
    pauses = [adjustment(app, index)["total_s"] or 0.0 for index in range(len(app.history))]
    return PastApp(
        name=app.name,
        id=app.id,
        user=app.tenant,
        sweep=group.name if group is not None else "",
        parameters=group.parameters if group is not None else {},
        labels=app.spec.labels,
        state=app.ended or "live",
        why=app.end_reason,
        submitted_at=app.submitted_at,
        ended_at=app.ended_at or None,
        life_s=max(0, end - app.submitted_at) / SECOND,
        n_max=app.n_max,
        step=last.step,
        loss=last.loss,
        loss_is=last.loss_is,
        samples_per_s=last.samples_per_s,
        adjustments=app.adjustments,
        failures=app.failures,
        lost_steps=app.lost_steps,
        paused_s=round(sum(pauses), 3),
        container_hours=round(hours, 6),
        core_hours=round(hours * app.demand.get(CPU, 0) / 1000, 6),
    )


# --- rows -------------------------------------------------------------------------------------------------------------

STATES = ("completed", "failed", "cancelled", "live")
METRICS = (
    "loss", "step", "samples_per_s", "life_s", "paused_s", "core_hours", "container_hours", "adjustments", "failures",
    "lost_steps", "n_max",
)  # fmt: skip
"""Metrics for conditions and orders, in addition to the parameters of sweeps."""
ORDERS = ("ended", "submitted", "name", "user", "state", *METRICS)
CONDITION = r"\s*([A-Za-z_][A-Za-z0-9_]{0,62})\s*(<=|>=|!=|==|=|<|>)\s*(\S.{0,200}?)\s*"
"""Form of a condition."""
_CONDITION = re.compile(CONDITION)
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip


class SelectError(ReplayError):
    """A condition or an order that cannot be parsed."""

    code = "history.malformed"


class Condition(msgspec.Struct, frozen=True):
    """Such as `loss < 0.1`."""

    name: str
    """One of `METRICS`, else a parameter of a sweep."""
    compare: str
    value: float | str
    written: str
    """The value as it was typed."""

    def holds(self, row: PastApp) -> bool:
        """Return whether it holds for an app; it does for none that has no such value."""
        value = _value(row, self.name)
        if value is None:
            return False
        figure = number(value) if isinstance(value, bool | int | float | str) else None
        if self.compare in ("=", "==", "!="):
            same = as_text(value) == self.written or (figure is not None and figure == self.value)
            return same != (self.compare == "!=")
        return figure is not None and _COMPARED[self.compare](figure, self.value)


def parse_condition(text: str) -> Condition:
    """Parse `loss<0.1` or `optimizer=adam`.  Raises SelectError."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SelectError(
            f"{short(text)} is not a condition; write a metric, a comparison and a value, such as loss<0.1 or step>=1000",
            code="history.metric.malformed",
        )
    name, compare, written = match.groups()
    value: float | str = written
    try:
        value = float(written)
    except ValueError:
        if name in METRICS or compare not in ("=", "==", "!="):
            text = f"{short(text)}: {short(written)} is not a number"
            raise SelectError(text, code="history.metric.no_number") from None
    return Condition(name, compare, value, written)


def select(
    rows: Iterable[PastApp],
    *,
    names: Sequence[str] = (),
    users: Sequence[str] = (),
    states: Sequence[str] = (),
    conditions: Sequence[Condition] = (),
    text: str = "",
) -> list[PastApp]:
    """Return the rows that match: any of the names (of the app, its sweep, or its id, with `*` and `?`), any of the users, any
    of the states (default: all that ended), all conditions, and the text (`has_text`)."""
    text = text.casefold()
    return [
        row
        for row in rows
        if (not names or any(named(row.name, row.id, row.sweep, name) for name in names))
        and (not users or row.user in users)
        and (row.state in states if states else row.state != "live")
        and all(condition.holds(row) for condition in conditions)
        and (not text or has_text(row, text))
    ]


def has_text(row: PastApp, text: str) -> bool:
    """Return whether the app's name, id, user, sweep, end or a label, as `key=value`, has a text, which is in lower case."""
    labels = (f"{key}={value}" for key, value in row.labels.items())
    return any(text in part.casefold() for part in (row.name, row.id, row.user, row.sweep, row.why, *labels))


def named(name: str, id: str, sweep: str, wanted: str) -> bool:
    """Return whether a name or pattern matches an app."""
    return any(fnmatchcase(candidate, wanted) for candidate in (name, id, sweep) if candidate)


ORDER = r"^-?[A-Za-z_][A-Za-z0-9_]{0,62}$"
"""Form of an order: one of `ORDERS` or a parameter."""


def in_order(rows: Iterable[PastApp], order: str) -> list[PastApp]:
    """Return the rows by one of `ORDERS` or by a parameter, in ascending order; with `-` before it, in descending order.  Rows
    without the value come last.  Raises SelectError."""
    name, down = order.removeprefix("-"), order.startswith("-")
    if not re.fullmatch(ORDER, order):
        text = f"{short(order)} is not an order; the orders are {', '.join(ORDERS)}, and parameters of sweeps"
        raise SelectError(text, code="history.order.malformed")
    field = {"ended": "ended_at", "submitted": "submitted_at"}.get(name, name)
    rows = list(rows)
    having = [(value, row) for row in rows if (value := _value(row, field)) is not None]
    ids = {id(row) for _, row in having}
    # Parameters keep the text that was typed; texts such as 0.10 are sorted as numbers.  Names and users are no numbers.
    keyed = [
        (None if isinstance(value, str) and hasattr(row, field) else number(value), value, row) for value, row in having
    ]
    numbers = [(figure, row) for figure, _, row in keyed if figure is not None]
    texts = [(value, row) for figure, value, row in keyed if figure is None]
    ordered = [row for _, row in sorted(numbers, key=lambda entry: entry[0], reverse=down)]
    ordered += [row for _, row in sorted(texts, key=lambda entry: entry[0], reverse=down)]
    return ordered + [row for row in rows if id(row) not in ids]


def _value(row: PastApp, name: str) -> Any:
    """Return a metric or parameter of an app; None if it has none."""
    if name not in row.__struct_fields__:
        return row.parameters.get(name)
    value = getattr(row, name)
    return None if isinstance(value, float) and not isfinite(value) else value


# --- past -------------------------------------------------------------------------------------------------------------

__all__ = [
    "Condition", "Gathered", "PastApp", "SelectError", "ended_since", "gather", "in_order", "parse_condition", "select",
]  # fmt: skip
