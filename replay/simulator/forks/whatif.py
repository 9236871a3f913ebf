"""What if: a log forked at one of its moments and continued twice, as it was and with something changed.

    found = await whatif(log, moment, Assumed(settings={"theta2": 0.3}))
    found = await whatif(log, moment, changes, watching=lambda fork, changed: observer)   # sees each record of a run

The log is read once to learn how its apps work (`history`, `fitting`); if the fork has a future on it, the same pass measures
what really happened.  If not, the backtest starts at an earlier moment: the submission of the median app, with that
moment's knowledge of live apps.

    WhatIfError   a moment from which the log cannot be continued
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dorm.core.query.plans import copy_of
from dorm.core.state import State
from events.log.interface import time_of
from events.quantities import SECOND
from replay.moments import AtSequence, AtTime, MomentError
from replay.simulator import SimulationError
from replay.simulator.forks import fork as forks
from replay.simulator.forks.backtest import Backtest, adjustments, common, compare, fairness_loss, utilization
from replay.simulator.forks.fitting import Basis, Fitting
from replay.simulator.forks.fork import Played
from replay.simulator.forks.fork_log import ForkLog
from replay.simulator.forks.history import History
from replay.simulator.measures import Measures
from replay.simulator.outcome import mean
from replay.travel.travel import fold_on, state_at
from replay.whole_file import whole_file_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dorm.core.folded import Folded
    from dorm.core.query.assumed import Assumed
    from events.kinds import Event
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment
    from replay.simulator.forks.fitting import Fitted
    from replay.simulator.forks.fork import Fork
    from replay.simulator.outcome import Run
    from replay.simulator.simulation import Seen

HORIZON_S = 86_400.0
"""Default number of seconds to simulate for a fork without a future on the log."""
LEAST_S = 600.0
_SAMPLES = 2000
"""Samples of a run; its figures are means over them."""
_LOOK_EVERY = 100
"""Records between two checks of whether the caller still wants the run."""


class WhatIfError(SimulationError):
    """A moment from which no log can be continued; one line for people."""

    code = "whatif.failed"


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one app.  Seconds; None for events that did not happen by the end."""

    how: str
    """`completed`, `failed` or `cancelled`; '' if it has not ended."""
    ended_at: int | None
    """UTC ns."""
    completion_s: float | None
    """Time from its submission to its end, whatever that was."""
    wait_s: float | None
    """Time from its submission until it first ran; None if that was before the fork."""
    adjustments: int
    """Number of adjustments from the fork on."""


class WhatIfApp(msgspec.Struct, frozen=True, kw_only=True):
    """An app that lives at the fork or comes later, and the basis of its model."""

    app: str
    name: str
    submitted_at: int
    work: float
    """Total work of the app: steps, or container-seconds if it reports none."""
    work_from: Basis
    speed_from: Basis
    timings_from: Basis
    guess: bool
    """Whether its times are guesses, since its work or its speed is one."""
    really: Outcome | None
    """None if it is not on the log after the fork."""
    unchanged: Outcome | None
    changed: Outcome | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of all apps, over the same time in each of the three runs; None if nothing was measured."""

    completed: int
    """Number of apps that completed by the end of that time."""
    mean_completion_s: float | None
    """Over the apps that complete in all three."""
    mean_wait_s: float | None
    """Over the apps that first ran after the fork in all three."""
    utilization: float | None
    fairness_loss: float | None
    adjustments: int
    """Number of times that running apps were changed."""
    adjustment_time_share: float | None
    """The part of container-seconds held that adjustments lost."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dorm whatif -o json`.  Times are UTC ns."""

    seq: int
    """The sequence at which the log is forked."""
    at: int
    end: int
    """Log time of the log's last record."""
    horizon_s: float
    """Length of the simulations, from the fork."""
    window_s: float
    """The time from the fork over which figures are compared: to the log's end, or until nothing more happens."""
    utilization_max: int
    assumed: list[str]
    """The changes, in words."""
    assumptions: list[str]
    backtest: Backtest | None
    """None if no app ended on the log after a moment at which it could be forked."""
    really: Figures | None
    """None if the log ends at the fork."""
    unchanged: Figures
    changed: Figures | None
    """None if nothing is changed."""
    completion_difference_s: float | None
    """Mean completion of the changed run less the mean of the unchanged one; None if either has none."""
    within_error: bool | None
    """Whether that is at most the backtest's mean error of an app's completion, so neither run is shown to be better; None if
    either is unknown."""
    apps: list[WhatIfApp]


@dataclass
class _Read:
    """One pass over the log."""

    history: History
    fork: State
    measures: Measures | None = None
    """Measures of what happened after the fork; None if nothing did."""


async def whatif(
    log: ReadableLog,
    moment: Moment | None,
    changes: Assumed,
    *,
    now: int = 0,
    horizon_s: float | None = None,
    keep: Path | None = None,
    force: bool = False,
    reading: Progress | None = None,
    playing: Progress | None = None,
    watching: Callable[[Fork, bool], Seen] | None = None,
    reports: int = forks.MOST_REPORTS,
) -> WhatIf:
    """Fork `log` at `moment`, by default at its end, or at `now` (UTC ns) if that is later.  The log of the last simulation is
    kept in the file `keep`.  `reading` gets counts of records, `playing` thousandths of all runs.  `watching` returns an
    observer of a run that is about to start, given its fork and whether that is the changed one (in a thread); the backtest
    is not observed.  `reports` bounds the progress reports of a run.  A caller that is cancelled ends the runs.

    Raises WhatIfError, PlanError for impossible assumptions, ExportError, and as `replay.travel.travel.state_at`."""
    end = await log.end()
    if not end:
        raise WhatIfError("the log is empty, so nothing can be continued", code="log.empty")
    fork = await state_at(log, moment, progress=reading)
    ends_at = await time_of(log, end)
    read = await _read(log, end, fork, ends_at, reading)
    future = read.measures is not None
    after_s = (ends_at - (fork.time or read.history.begin)) / SECOND
    played_s = horizon_s or (max(2 * after_s, LEAST_S) if future else HORIZON_S)
    now = 0 if future else now

    def made() -> tuple[Fork, Fork]:
        # Check the assumptions before anything takes long.
        fitting = Fitting(read.history)
        make = partial(forks.make, read.history, read.fork, now=now, until_s=played_s, fitting=fitting, reports=reports)
        return make(changes=changes), make()

    changed, unchanged = await asyncio.to_thread(made)
    if not changed.fitted:
        text = f"no app runs, waits or comes after sequence {fork.seq}; fork the log earlier (--from), or submit one"
        raise WhatIfError(text, code="whatif.no_apps")
    differs = changes != type(changes)()
    plays = _Plays(1 + differs + (not future), playing)
    every_s = _every_s(played_s)
    window_s = after_s if future else None
    watched: Callable[[Fork, bool], Seen | None] = watching or _unwatched
    seen = await asyncio.to_thread(watched, unchanged, False)
    base = await plays.play(unchanged, every_s, seen, window_s=window_s, keep=None if differs else keep, force=force)
    other = None
    if differs:
        seen = await asyncio.to_thread(watched, changed, True)
        other = await plays.play(changed, every_s, seen, window_s=window_s, keep=keep, force=force)
    really = read.measures.result(ends_at) if read.measures else None
    if really is not None:
        backtest: Backtest | None = compare(really, base.run, seq=fork.seq, hindsight=True)
    else:
        backtest = await _backtest(log, end, ends_at, read.history, plays, reading, reports)
    results = _Results(read, unchanged, changed, really, base, other)
    return await asyncio.to_thread(results.result, backtest, ends_at, played_s)


def _unwatched(_fork: Fork, _changed: bool) -> None:
    return None


def _every_s(played_s: float) -> float:
    return max(1.0, played_s / _SAMPLES)


async def _read(log: ReadableLog, end: int, fork: State, ends_at: int, progress: Progress | None) -> _Read:
    """Read the log up to `end`; measure from the fork on."""
    start = await log.start()
    state = await state_at(log, AtSequence(start)) if start else State()
    read = _Read(History(state), fork)
    begins_at = fork.time or await time_of(log, 1)

    def measure(state: State) -> None:
        if state.seq == fork.seq < end and ends_at > begins_at:
            read.measures = Measures(state, _every_s((ends_at - begins_at) / SECOND))

    def seen(state: State, record: Record, event: Event, folded: Folded) -> None:
        read.history.see(state, record, event, folded)
        if read.measures is not None:
            read.measures.see(state, record, event, folded)
        else:
            measure(state)

    measure(state)
    await fold_on(log, state, end, progress=progress, seen=seen)
    return read


async def _backtest(
    log: ReadableLog, end: int, ends_at: int, history: History, plays: _Plays, progress: Progress | None, reports: int
) -> Backtest | None:
    """Test from an earlier moment, with that moment's knowledge of the apps alive then."""
    courses = sorted(history.courses.values(), key=lambda course: course.submitted_at)
    ends = [course.ended_at for course in courses if course.ended in ("completed", "failed")]
    if not ends:
        return None
    at = min(courses[len(courses) // 2].submitted_at, max(ends) - 1)
    try:
        before = await state_at(log, AtTime(at), progress=progress)
    except MomentError:  # Before the start of a part of a log.
        return None
    then = await _read(log, before.seq, before, before.time, progress)
    window_s = (ends_at - before.time) / SECOND
    measures = Measures(before, _every_s(window_s))
    fork = copy_of(before)
    await fold_on(log, before, end, progress=progress, seen=measures.see)
    made = await asyncio.to_thread(
        forks.make, history, fork, until_s=max(2 * window_s, LEAST_S), known=then.history, reports=reports
    )
    simulated = await plays.play(made, _every_s(window_s))
    return compare(measures.result(ends_at), simulated.run, seq=fork.seq, hindsight=False)


class _Unwanted(BaseException):
    """The caller no longer waits for this run; raised and ended within its thread."""


class _Plays:
    """Runs, one after the other, each in a thread that ends when its caller no longer waits."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0

    async def play(
        self,
        fork: Fork,
        every_s: float,
        seen: Seen | None = None,
        *,
        window_s: float | None = None,
        keep: Path | None = None,
        force: bool = False,
    ) -> Played:
        unwanted = threading.Event()
        span = max(1, int((fork.scenario.until_s or 1.0) * SECOND))
        reached = 0

        def watch(_state: State, record: Record, _event: Event, _folded: Folded) -> None:
            nonlocal reached
            if record.seq % _LOOK_EVERY:
                return
            if unwanted.is_set():
                raise _Unwanted
            if self._progress and (now := (record.time - fork.state.time) * 1000 // span) > reached:
                reached = now
                self._progress(self._done * 1000 + min(reached, 1000), self._total * 1000)

        try:
            watching: list[Seen] = [watch]
            if seen is not None:
                watching.append(seen)
            run = await asyncio.to_thread(_play, fork, every_s, window_s, watching, keep, force=force)
        finally:
            unwanted.set()
        self._done += 1
        if self._progress:
            self._progress(self._done * 1000, self._total * 1000)
        return run


def _play(
    fork: Fork, every_s: float, window_s: float | None, watching: list[Seen], keep: Path | None, *, force: bool
) -> Played:
    if keep is None:
        return forks.play(fork, every_s, window_s=window_s, watching=watching)
    with whole_file_now(keep, force=force) as file, ForkLog(file, fork) as kept:
        return forks.play(fork, every_s, window_s=window_s, watching=[*watching, kept.see])


class _Results:
    """The result, for people and programs."""

    def __init__(
        self, read: _Read, unchanged: Fork, changed: Fork, really: Run | None, base: Played, other: Played | None
    ) -> None:
        self._read = read
        self._forks = (unchanged, changed)
        self._really, self._base, self._other = Played(really, really) if really else None, base, other
        plays = (self._really, base, other)
        self._runs = [play.run for play in plays if play is not None]
        self._fork_at = base.run.begin
        self._outcomes = [_outcomes(play.run if play is not None else None) for play in plays]

    def result(self, backtest: Backtest | None, ends_at: int, played_s: float) -> WhatIf:
        unchanged, changed = self._forks
        window_s = (ends_at - self._fork_at) / SECOND if self._really else self._busy_s(played_s)
        fitted = unchanged.fitted | changed.fitted
        base = self._figures(self._base, window_s)
        other = self._figures(self._other, window_s) if self._other else None
        difference_s = _difference(other.mean_completion_s, base.mean_completion_s) if other is not None else None
        return WhatIf(
            seq=self._read.fork.seq,
            at=self._fork_at,
            end=ends_at,
            horizon_s=played_s,
            window_s=window_s,
            utilization_max=self._base.run.kinds,
            assumed=list(changed.assumptions),
            assumptions=self._assumptions(fitted.values()),
            backtest=backtest,
            really=self._figures(self._really, window_s) if self._really else None,
            unchanged=base,
            changed=other,
            completion_difference_s=difference_s,
            within_error=_within(difference_s, backtest),
            apps=[self._app(fit) for name, fit in fitted.items() if any(name in outcome for outcome in self._outcomes)],
        )

    def _busy_s(self, played_s: float) -> float:
        """Seconds until the last app has ended in all runs, or they were cut off."""
        lengths = [
            (max((app.ended or run.end) for app in run.apps) - self._fork_at) / SECOND for run in self._runs if run.apps
        ]
        return min(played_s, max(lengths, default=played_s))

    def _figures(self, played: Played, window_s: float) -> Figures:
        run, window = played
        completed = common(self._runs)
        began = [{app.app for app in run.apps if app.started > self._fork_at} for run in self._runs]
        waited = set.intersection(*began)
        return Figures(
            completed=sum(1 for app in window.apps if app.how == "completed"),
            mean_completion_s=mean(app.completion_s or 0.0 for app in run.apps if app.app in completed),
            mean_wait_s=mean(app.wait_s or 0.0 for app in run.apps if app.app in waited),
            utilization=utilization(run, window_s),
            fairness_loss=fairness_loss(run, window_s),
            adjustments=adjustments(run, window_s),
            adjustment_time_share=window.adjustment_time_share,
        )

    def _app(self, fitted: Fitted) -> WhatIfApp:
        course = self._read.history.courses.get(fitted.app)
        return WhatIfApp(
            app=fitted.app,
            name=course.spec.name if course is not None else fitted.model.spec.name,
            submitted_at=self._fork_at + int(fitted.model.at_s * SECOND),
            work=fitted.model.work,
            work_from=fitted.work_from,
            speed_from=fitted.speed_from,
            timings_from=fitted.timings_from,
            guess=fitted.guessed,
            really=self._outcomes[0].get(fitted.app),
            unchanged=self._outcomes[1].get(fitted.app),
            changed=self._outcomes[2].get(fitted.app),
        )

    def _assumptions(self, fitted: Iterable[Fitted]) -> list[str]:
        names = [fit.model.spec.name for fit in fitted if fit.guessed]
        sentences = []
        if names:
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            sentences.append(f"how long these take is a guess: {', '.join(names[:_MOST_NAMES])}{more}")
        if self._really is None:
            sentences.append("no other app is submitted, and no node fails")
        else:
            sentences.append("submissions, cancellations and changes of nodes are those of the log")
        cut = [app.name for app in (self._other or self._base).run.apps if not app.ended]
        if cut:
            sentences.append(f"{len(cut)} of the apps had not ended at the end of the simulation (--horizon)")
        return sentences


_MOST_NAMES = 10


def _difference(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base


def _within(difference_s: float | None, backtest: Backtest | None) -> bool | None:
    error_s = backtest.completion_error_s if backtest is not None else None
    return None if difference_s is None or error_s is None else abs(difference_s) <= error_s


def _outcomes(run: Run | None) -> dict[str, Outcome]:
    """Return the outcomes by app."""
    return {
        app.app: Outcome(
            how=app.how,
            ended_at=app.ended or None,
            completion_s=(app.ended - app.submitted) / SECOND if app.ended else None,
            wait_s=app.wait_s if run is not None and app.started > run.begin else None,
            adjustments=app.adjustments,
        )
        for app in (run.apps if run is not None else ())
    }
