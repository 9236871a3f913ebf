"""Selects rows, and orders them."""

from __future__ import annotations

import operator
import re
from fnmatch import fnmatchcase
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from events.quantities import short
from events.spec.groups import as_text, number
from replay import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from replay.past.gathering import PastApp

STATES = ("completed", "failed", "cancelled", "live")
METRICS = (
    "loss", "step", "samples_per_s", "life_s", "paused_s", "core_hours", "container_hours", "adjustments", "failures",
    "lost_steps", "n_max",
)  # fmt: skip
"""Metrics for conditions and orders, in addition to the parameters of sweeps."""
ORDERS = ("ended", "submitted", "name", "user", "state", *METRICS)
_CONDITION = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]{0,62})\s*(<=|>=|!=|==|=|<|>)\s*(\S.{0,200}?)\s*")
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
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise SelectError(
            f"{short(text)} is not a condition; write a metric, a comparison and a value, such as loss<0.1 or step>=1000",
            code="history.metric.malformed",
        )
    name, compare, written = found.groups()
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
) -> list[PastApp]:
    """Return the rows that match: any of the names (of the app, its sweep, or its id, with `*` and `?`), any of the users, any
    of the states (default: all that ended), and all conditions."""
    return [
        row
        for row in rows
        if (not names or any(named(row.name, row.id, row.sweep, name) for name in names))
        and (not users or row.user in users)
        and (row.state in states if states else row.state != "live")
        and all(condition.holds(row) for condition in conditions)
    ]


def named(name: str, id: str, sweep: str, wanted: str) -> bool:
    """Return whether a name or pattern matches an app."""
    return any(fnmatchcase(one, wanted) for one in (name, id, sweep) if one)


def in_order(rows: Iterable[PastApp], order: str) -> list[PastApp]:
    """Return the rows by one of `ORDERS` or by a parameter, in ascending order; with `-` before it, in descending order.  Rows
    without the value come last.  Raises SelectError."""
    name, down = order.removeprefix("-"), order.startswith("-")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name):
        text = f"{short(order)} is not an order; the orders are {', '.join(ORDERS)}, and parameters of sweeps"
        raise SelectError(text, code="history.order.malformed")
    field = {"ended": "ended_at", "submitted": "submitted_at"}.get(name, name)
    rows = list(rows)
    having = [(value, row) for row in rows if (value := _value(row, field)) is not None]
    ids = {id(row) for _, row in having}
    # Parameters keep the text that was typed; texts such as 0.10 are sorted as numbers.  Names and users are no numbers.
    found = [
        (None if isinstance(value, str) and hasattr(row, field) else number(value), value, row) for value, row in having
    ]
    numbers = [(figure, row) for figure, _, row in found if figure is not None]
    texts = [(value, row) for figure, value, row in found if figure is None]
    ordered = [row for _, row in sorted(numbers, key=lambda one: one[0], reverse=down)]
    ordered += [row for _, row in sorted(texts, key=lambda one: one[0], reverse=down)]
    return ordered + [row for row in rows if id(row) not in ids]


def _value(row: PastApp, name: str) -> Any:
    """Return a metric or parameter of an app; None if it has none."""
    if name not in row.__struct_fields__:
        return row.parameters.get(name)
    value = getattr(row, name)
    return None if isinstance(value, float) and not isfinite(value) else value
