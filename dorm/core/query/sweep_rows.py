"""Sweeps in a state: the apps of one group, what became of each, and which of them did best."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from dorm.core.gates import limit_of, reason_of
from dorm.core.progress import shown
from dorm.core.query.views import sizes
from events.quantities import SECOND
from events.spec.groups import Setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dorm.core.progress import Reported
    from dorm.core.state import App, State

METRICS = {"loss": 1, "step": -1, "samples_per_s": -1, "container_s": 1}
"""Metrics by which apps of a sweep are compared, with 1 if less is better."""


class SweepRow(msgspec.Struct, frozen=True):
    """A sweep in one line."""

    name: str
    user: str
    count: int
    """Number of apps that it is to have."""
    submitted: int
    parallel: int
    """Number of them that may have a place at once; 0 for no limit."""
    phases: dict[str, int]
    """Numbers of its apps by phase."""
    containers: int
    age_s: float
    waits: str = ""
    """Reason why the first of its waiting apps waits, while none has a place."""


class SweptRow(msgspec.Struct, frozen=True):
    """One app of a sweep."""

    index: int
    name: str
    id: str
    phase: str
    parameters: dict[str, Setting]
    containers: int
    step: int
    loss: float | None
    loss_is: str
    samples_per_s: float | None
    container_s: float
    """Running time of all its containers together, in seconds."""
    adjustments: int
    failures: int
    note: str
    """Reason why it waits, or how it ended."""


def sweeps(state: State) -> dict[tuple[str, str], list[App]]:
    """Return the apps of each sweep by tenant and name, in the order of their indexes; if several had one name, those of
    the latest."""
    by_group: dict[tuple[str, str], list[App]] = {}
    for app in sorted(state.apps.values(), key=lambda app: (app.seq, app.id)):
        group = app.spec.group
        if group is not None:
            by_group.setdefault((app.tenant, group.name), []).append(app)
    return {key: _latest(apps) for key, apps in by_group.items()}


def _latest(apps: list[App]) -> list[App]:
    """Return the apps of the latest run; of several with one index, the latest."""
    run = _run(apps[-1])
    by_index = {app.spec.group.index: app for app in apps if app.spec.group is not None and _run(app) == run}
    return [by_index[index] for index in sorted(by_index)]


def _run(app: App) -> str:
    return app.spec.group.run if app.spec.group is not None else ""


def sweep_row(apps: Sequence[App], now: int) -> SweepRow:
    """Return a sweep's line.  `now` in UTC ns."""
    group = apps[0].spec.group
    assert group is not None
    phases: dict[str, int] = {}
    for app in apps:
        phases[app.phase] = phases.get(app.phase, 0) + 1
    ends = [app.ended_at for app in apps]
    end = max(ends) if all(ends) and len(apps) == group.count else now
    return SweepRow(
        name=group.name,
        user=apps[0].user,
        count=group.count,
        submitted=len(apps),
        parallel=limit_of(apps[-1]),
        phases=dict(sorted(phases.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER)))),
        containers=sum(sum(sizes(app).values()) for app in apps),
        age_s=round(max(0, end - min(app.submitted_at for app in apps)) / SECOND, 3),
        waits=_waits(apps, now),
    )


def _waits(apps: Sequence[App], now: int) -> str:
    live = [app for app in apps if not app.ended]
    if any(app.phase != "waiting" for app in live):
        return ""
    return next((reason.text for app in live if (reason := reason_of(app, now)) is not None), "")


_PHASES = (
    "running", "adjusting", "starting", "stopping", "ending", "retrying", "waiting", "completed", "failed", "cancelled",
)  # fmt: skip
_ORDER = {name: number for number, name in enumerate(_PHASES)}


def swept_rows(apps: Iterable[App], now: int, newest: Mapping[str, Reported] | None = None) -> list[SweptRow]:
    """Return a row for each app.  `now` in UTC ns; `newest` is what apps reported in addition to the log."""
    return [_row(app, now, newest) for app in apps]


def _row(app: App, now: int, newest: Mapping[str, Reported] | None) -> SweptRow:
    group = app.spec.group
    assert group is not None
    last = shown(app, newest)
    return SweptRow(
        index=group.index,
        name=app.name,
        id=app.id,
        phase=app.phase,
        parameters=group.parameters,
        containers=sum(sizes(app).values()),
        step=last.step,
        loss=last.loss,
        loss_is=last.loss_is,
        samples_per_s=last.samples_per_s,
        container_s=round(app.served_until(app.ended_at or now) / SECOND, 3),
        adjustments=app.adjustments,
        failures=app.failures,
        note=app.end_reason if app.ended else (reason.text if (reason := reason_of(app, now)) is not None else ""),
    )


def best_first(rows: Iterable[SweptRow], metric: str) -> list[SweptRow]:
    """Return the rows by a metric of `METRICS`, the best first; those that have none come last, in the order that they had."""
    sign = METRICS[metric]

    def key(row: SweptRow) -> tuple[bool, float]:
        value = getattr(row, metric)
        none = value is None or not isfinite(value) or (metric == "loss" and row.loss_is != "")
        none = none or (metric in ("step", "container_s") and not value)
        return none, 0.0 if none else sign * float(value)

    return sorted(rows, key=key)
