"""Durations of phases on a log, real or simulated, and the timings with which to simulate them.

    PhaseWatch    follows a fold and records the phases of every release: of first starts and of adjustments
    fit           the observed means, as `Timings`

The first work of a generation is not on the log: an app's first report is of steps that it has already done.  So these are
counted back at the generation's own pace, to where it started to work; the time from its containers' start to there is
`work_s`.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Literal

import msgspec

from events import kinds as k
from events.quantities import SECOND
from replay.simulator.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.records import Record


class Phases(msgspec.Struct, frozen=True):
    """One release of one app; durations in seconds of log time."""

    app: str
    generation: int
    kind: Literal["start", "restart"]
    """`restart` if a decision stopped a running generation for it."""
    containers_before: int
    containers: int
    decided_at: int
    """UTC ns."""
    checkpoint_s: float | None
    """Time from the decision until the app reported a checkpoint; None if it reported none."""
    stop_s: float
    """Time from there, or from the decision, until the last old container had exited; 0 for a start."""
    wait_s: float
    """Time from there until the release."""
    start_s: float | None
    """Time from the release until all containers had started; None if they never had."""
    work_s: float | None
    """Time from there to the first work; None if it never reported any."""
    resumed: bool
    """Whether it continued from a checkpoint."""

    @property
    def pause_s(self) -> float | None:
        """From the decision to the first work; None if it never came to that."""
        if self.start_s is None or self.work_s is None:
            return None
        return (self.checkpoint_s or 0.0) + self.stop_s + self.wait_s + self.start_s + self.work_s


class _Release(msgspec.Struct):
    """The known course of a release so far: log times, 0 for not yet."""

    phases: Phases
    released_at: int
    base_step: int
    started_at: int = 0
    first_at: int = 0
    first_step: int = 0
    last_at: int = 0
    last_step: int = 0


class PhaseWatch:
    """Follows a fold: `state` is the state that records are folded into; call `observe` after each of them."""

    def __init__(self, state: State) -> None:
        self.checkpoint_gaps_s: dict[str, list[float]] = {}
        """Seconds between checkpoints that one generation made by itself, by app."""
        self._state = state
        self._releases: dict[tuple[str, int], _Release] = {}
        """Releases by app and generation, in the order of the log."""
        self._saved: dict[str, tuple[int, int]] = {}
        """Generation and log time of the last checkpoint, by app."""
        self._known: dict[str, tuple[int, int]] = {}
        """Generation that was released last, and its number of containers, by app."""

    @property
    def phases(self) -> list[Phases]:
        """The phases of all releases so far, in order."""
        return [_complete(release) for release in self._releases.values()]

    def see(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        """Follow one record after it was folded."""
        del state, record, folded  # The state is the one passed to the constructor.
        if isinstance(event, k.Round):
            for fact in event.events:
                if isinstance(fact, k.GenerationReleased):
                    self._released(fact)
        elif isinstance(event, k.ContainerStarted):
            self._started(event)
        elif isinstance(event, k.AppProgressed | k.AppCheckpointed):
            self._worked(event)

    def _released(self, fact: k.GenerationReleased) -> None:
        app = self._state.apps.get(fact.app)
        generation = app.generations.get(fact.generation) if app is not None else None
        if generation is None or (fact.app, fact.generation) in self._releases:
            return
        previous, before = self._known.get(fact.app, (0, 0))
        self._known[fact.app] = fact.generation, len(generation.containers)
        restart = generation.adjustment == "restart" and fact.previous > 0
        checkpoint_s = None
        number, saved_at = self._saved.get(fact.app, (0, 0))
        stops_at = generation.decided_at + int(fact.prepare_s * SECOND)
        if restart and number == fact.previous and saved_at >= stops_at:
            checkpoint_s = min((saved_at - stops_at) / SECOND, fact.stop_s)
        phases = Phases(
            app=fact.app,
            generation=fact.generation,
            kind="restart" if restart else "start",
            containers_before=before if previous == fact.previous else 0,
            containers=len(generation.containers),
            decided_at=generation.decided_at,
            checkpoint_s=checkpoint_s,
            stop_s=fact.stop_s - (checkpoint_s or 0.0),
            wait_s=fact.wait_s,
            start_s=None,
            work_s=None,
            resumed=fact.resume,
        )
        base = fact.checkpoint if fact.resume and fact.checkpoint is not None else 0
        self._releases[fact.app, fact.generation] = _Release(phases, self._state.time, base)

    def _started(self, event: k.ContainerStarted) -> None:
        release = self._releases.get((event.app, event.generation))
        app = self._state.apps.get(event.app)
        generation = app.generations.get(event.generation) if app is not None else None
        if release is not None and generation is not None:
            release.started_at = generation.started_at

    def _worked(self, event: k.AppProgressed | k.AppCheckpointed) -> None:
        now, app = self._state.time, self._state.apps.get(event.app)
        is_current = app is not None and app.generation == event.generation
        if isinstance(event, k.AppCheckpointed):
            number, saved_at = self._saved.get(event.app, (0, 0))
            if is_current and number == event.generation:
                self.checkpoint_gaps_s.setdefault(event.app, []).append((now - saved_at) / SECOND)
            self._saved[event.app] = event.generation, now
        release = self._releases.get((event.app, event.generation))
        if release is None:
            return
        if not release.first_at:
            release.first_at, release.first_step = now, event.step
        if is_current and event.step > release.last_step:  # A stopped generation may have stopped before it reported.
            release.last_at, release.last_step = now, event.step


def _complete(release: _Release) -> Phases:
    if not release.started_at:
        return release.phases
    start_s = (release.started_at - release.released_at) / SECOND
    work_s = None
    done, steps = release.first_step - release.base_step, release.last_step - release.first_step
    if release.first_at and (steps > 0 or done <= 0):  # One report gives no pace.
        pace_s = (release.first_at - release.started_at) / SECOND
        took_s = (release.last_at - release.first_at) / SECOND
        before_s = done * took_s / steps if done > 0 else 0.0
        work_s = max(0.0, pace_s - before_s)
    return msgspec.structs.replace(release.phases, start_s=start_s, work_s=work_s)


def fit(phases: Iterable[Phases], *, gaps_s: Iterable[float] = (), default: Timings | None = None) -> Timings:
    """Return the mean of each phase, since means add up to the sum of all pauses.  `gaps_s` are times between checkpoints.

    Phases that were never seen are as in `default`, with one exception: if restarts were seen but no checkpoint in any of
    them, the app cannot save when asked to stop."""
    default = default or Timings()
    seen = list(phases)
    restarts = [phase for phase in seen if phase.kind == "restart"]
    saved = [restart.checkpoint_s for restart in restarts if restart.checkpoint_s is not None]
    every = list(gaps_s)
    booted, resumed = (
        [phase.work_s for phase in seen if phase.work_s is not None and phase.resumed is how] for how in (False, True)
    )

    def mean(values: list[float], otherwise: float) -> float:
        return round(fmean(values), 6) if values else otherwise

    return Timings(
        checkpoint_s=mean(saved, default.checkpoint_s),
        stop_s=mean(
            [restart.stop_s for restart in restarts if restart.checkpoint_s is not None or not saved], default.stop_s
        ),
        start_s=mean([phase.start_s for phase in seen if phase.start_s is not None], default.start_s),
        boot_s=mean(booted, default.boot_s),
        resume_s=mean(resumed, default.resume_s),
        checkpoint_every_s=mean(every, default.checkpoint_every_s),
        can_checkpoint=bool(saved) if restarts else default.can_checkpoint,
    )
