"""Measures how far a simulation of what happened is from what happened: the error reported with every what-if.

A backtest continues the log from the same moment, unchanged, and compares that with the rest of the log: when apps ended and
first ran, how much of the cluster was used, how fairly, and how often apps were adjusted.  There are two kinds, by the
knowledge of the models.  With `hindsight`, the fork has a future on the log, and the models know how much work the apps
of that time turned out to have, so the error is the simulator's alone.  Without it (a fork at the log's end, tested at
an earlier moment) they have the knowledge of that moment, so the error is a forecast's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events.quantities import SECOND
from replay.simulator.outcome import mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.simulator.outcome import AppRun, Run


FAR_OFF = 0.5
"""Mean error of completion, as a fraction of the time it took, from which on a simulation is of little use."""

_LITTLE_S = 1.0
"""A smaller error means nothing, however short the remaining work is: rounds and starts take as long."""


class Pair(msgspec.Struct, frozen=True):
    """One figure, real and simulated; None if nothing was measured."""

    really: float | None
    simulated: float | None


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the unchanged simulation."""

    seq: int
    """The sequence of the fork."""
    at: int
    """The log time there (UTC ns)."""
    window_s: float
    """Seconds from there to the log's end."""
    hindsight: bool
    apps: int
    """Apps whose ends are compared: those that ended by themselves in the window, and `early` ones."""
    late: int
    """Number of them that had not ended in the simulation when it was cut off: their errors are larger than counted."""
    early: int
    """Number of them that ended only in the simulation and really still ran when the log ended.  They count with the smallest
    error that they can have: without them, the worst models would have the smallest error."""
    completion_error_s: float | None
    """Mean absolute error of their ends; None without any."""
    completion_error: float | None
    """The same as a fraction of the time from the fork, or their submission, to their real end, or the log's."""
    waits: int
    """Apps that first ran in the window."""
    wait_error_s: float | None
    """Mean absolute error of their first start."""
    utilization: Pair
    fairness_loss: Pair
    adjustments: Pair

    @property
    def far_off(self) -> bool:
        """Whether the simulation of what happened is so far off that no other should be relied on."""
        error, error_s = self.completion_error, self.completion_error_s
        return error is not None and error_s is not None and error >= FAR_OFF and error_s > _LITTLE_S


def compare(really: Run, simulated: Run, *, seq: int, hindsight: bool) -> Backtest:
    """Compare two runs that start at the same moment; the window is the real one's.  The simulated one may run for longer."""
    there = {app.app: app for app in simulated.apps}
    ended = [app for app in really.apps if _by_itself(app) and app.ended > really.begin]
    early = [app for app in really.apps if not app.ended and _ended_by(there.get(app.app), really.end)]
    errors = [
        abs(_moment(there.get(app.app), "ended", simulated.end) - (app.ended or really.end)) for app in ended + early
    ]
    spans = [(app.ended or really.end) - max(app.submitted, really.begin) for app in ended + early]
    began = [app for app in really.apps if app.started > really.begin]
    waits = [abs(_moment(there.get(app.app), "started", simulated.end) - app.started) for app in began]
    window_s = (really.end - really.begin) / SECOND
    return Backtest(
        seq=seq,
        at=really.begin,
        window_s=window_s,
        hindsight=hindsight,
        apps=len(errors),
        late=sum(1 for app in ended if not (counterpart := there.get(app.app)) or not counterpart.ended),
        early=len(early),
        completion_error_s=_seconds(mean(errors)),
        completion_error=sum(errors) / sum(spans) if sum(spans) > 0 else None,
        waits=len(began),
        wait_error_s=_seconds(mean(waits)),
        utilization=Pair(utilization(really, window_s), utilization(simulated, window_s)),
        fairness_loss=Pair(fairness_loss(really, window_s), fairness_loss(simulated, window_s)),
        adjustments=Pair(adjustments(really, window_s), adjustments(simulated, window_s)),
    )


def _by_itself(app: AppRun) -> bool:
    return app.how in ("completed", "failed")


def _ended_by(app: AppRun | None, end: int) -> bool:
    return app is not None and _by_itself(app) and app.ended < end


def _moment(app: AppRun | None, which: str, otherwise: int) -> int:
    return (getattr(app, which) if app is not None else 0) or otherwise


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / SECOND


def utilization(run: Run, window_s: float) -> float | None:
    """Return the mean utilization over this many seconds from the run's start."""
    return mean(sample.utilization for sample in run.during(0.0, window_s))


def fairness_loss(run: Run, window_s: float) -> float | None:
    return mean(sample.fairness_loss for sample in run.during(0.0, window_s))


def adjustments(run: Run, window_s: float) -> int:
    """Return how many times running apps were changed, in this many seconds from the run's start."""
    until = run.begin + int(window_s * SECOND)
    return sum(decision.changed + decision.forced for decision in run.decisions if decision.at <= until)


def in_words(backtest: Backtest | None) -> str:
    """Describe the error in one line, to be shown next to a result."""
    if backtest is None:
        return "none possible: no app ended after a moment at which the log could be forked"
    parts = []
    if backtest.completion_error is not None and backtest.completion_error_s is not None:
        of = [_counted(backtest.apps)]
        if backtest.late:
            of.append(f"{backtest.late} of them had not ended in the simulation")
        if backtest.early:
            of.append(f"{backtest.early} of them ended only in the simulation, so the error is larger")
        error_s = _length(backtest.completion_error_s)
        parts.append(f"completion ±{_percent(backtest.completion_error)} (±{error_s}, {', '.join(of)})")
    if backtest.wait_error_s is not None:
        parts.append(f"start ±{_length(backtest.wait_error_s)} ({_counted(backtest.waits)})")
    for name, pair in (("utilization", backtest.utilization), ("fairness loss", backtest.fairness_loss)):
        if pair.really is not None and pair.simulated is not None:
            parts.append(f"{name} {pair.simulated:.3g} (really {pair.really:.3g})")
    parts.append(f"adjustments {backtest.adjustments.simulated:g} (really {backtest.adjustments.really:g})")
    return "; ".join(parts)


def _counted(apps: int) -> str:
    return f"{apps} app{'' if apps == 1 else 's'}"


def _length(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.001 else "0 s"


def _percent(part: float) -> str:
    if part < 1e-5:
        return "0 %"
    return f"{part:.0%}".replace("%", " %") if part >= 0.1 else f"{part * 100:.2g} %"


def common(runs: Iterable[Run | None]) -> set[str]:
    """Return the ids of the apps that completed in all of these runs."""
    completed = [{app.app for app in run.apps if app.how == "completed"} for run in runs if run is not None]
    return set.intersection(*completed) if completed else set()
