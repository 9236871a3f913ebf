"""Counters and histograms of a log: what a `Tally` has counted since some record.

A tally is an `Observer` of a fold.  It is additive and follows from the records alone, so a process that keeps its tally with
the sequence it belongs to, and later folds on from there, has the same counters as one that never stopped.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.costs import first_step_at
from dorm.metrics.families import (
    ADJUSTMENTS,
    ENDS,
    FAILURES,
    FAULTS,
    OTHER,
    OUTCOMES,
    PHASES_OF,
    RETURNS,
    ROTATIONS,
    TRIGGERS,
)
from events import kinds as k
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dorm.core.app import AdjustmentRecord
    from dorm.core.folded import Folded
    from dorm.core.state import App, State
    from events.log.records import Record

PHASE_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
WAIT_BOUNDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0)
TURNAROUND_BOUNDS = (60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)


class Histogram(msgspec.Struct):
    """Observed durations in seconds."""

    bounds: tuple[float, ...]
    """Upper bounds, ascending; the last bucket has none."""
    counts: list[int]
    """Counts by bucket, one more than there are bounds."""
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Histogram:
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, seconds: float) -> None:
        """Durations are differences of log times; one below 0 is impossible and counts as 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, as Prometheus writes them."""
        cumulative: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            cumulative.append((bound, below))
        return cumulative


class LastDecision(msgspec.Struct, frozen=True):
    """Figures of a decision that a state does not keep."""

    fairness_budget: float
    excess: float
    overhead_budget: int


def _zeros(names: Iterable[str]) -> Callable[[], dict[str, int]]:
    return lambda: dict.fromkeys(names, 0)


def _phases() -> dict[str, Histogram]:
    return {f"{kind}.{phase}": Histogram.empty(PHASE_BOUNDS) for kind, phases in PHASES_OF.items() for phase in phases}


class Tally(msgspec.Struct):
    """Counts of the log after `since` and up to `seq`."""

    since: int = 0
    seq: int = 0
    records: dict[str, int] = msgspec.field(default_factory=_zeros(OUTCOMES))
    submissions: int = 0
    accepted: int = 0
    rejected: int = 0
    ended: dict[str, int] = msgspec.field(default_factory=_zeros(ENDS))
    failures: dict[str, int] = msgspec.field(default_factory=_zeros(FAILURES))
    faults: dict[str, int] = msgspec.field(default_factory=_zeros(FAULTS))
    suspected: int = 0
    trusted: dict[str, int] = msgspec.field(default_factory=_zeros(RETURNS))
    decisions: dict[str, int] = msgspec.field(default_factory=_zeros(TRIGGERS))
    changes: dict[str, int] = msgspec.field(default_factory=_zeros(ADJUSTMENTS))
    idle_ticks: int = 0
    policy_failures: int = 0
    elections: int = 0
    nodes_lost: int = 0
    leases_ended: int = 0
    rotations: dict[str, int] = msgspec.field(default_factory=_zeros(ROTATIONS))
    adjustments: dict[str, int] = msgspec.field(default_factory=_zeros(PHASES_OF))
    phases: dict[str, Histogram] = msgspec.field(default_factory=_phases)
    """Histograms by kind and phase, as `restart.stop`."""
    waits: Histogram = msgspec.field(default_factory=lambda: Histogram.empty(WAIT_BOUNDS))
    turnarounds: Histogram = msgspec.field(default_factory=lambda: Histogram.empty(TURNAROUND_BOUNDS))
    lost_steps: int = 0
    lost_work_s: float = 0.0
    killed: int = 0
    last: LastDecision | None = None
    waiting: dict[str, int] = {}
    """Times since which apps have no partition, by app (log time, UTC ns)."""
    starting: dict[str, int] = {}
    """Generations that are released and whose containers have not all started, by app."""
    working: dict[str, int] = {}
    """Generations that have started and have not reported any work yet, by app."""
    lives: dict[str, int] = {}
    """Times at which the last counted live adjustments were decided, by app (log time, UTC ns)."""

    @classmethod
    def begin(cls, state: State) -> Tally:
        """Return a tally that counts from this state on."""
        tally = cls(since=state.seq, seq=state.seq)
        for app in state.apps.values():
            if not app.ended and app.waiting_since:
                tally.waiting[app.id] = app.waiting_since
            if not app.ended and app.history and app.history[-1].live:
                tally.lives[app.id] = app.history[-1].decided_at
        return tally

    def see(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        """Follow one record after it was folded into `state`; a record that is already counted changes nothing."""
        if record.seq <= self.seq:
            return
        self.seq = record.seq
        self.records[folded] += 1
        handler = _OF_RECORDS.get(type(event))
        if handler is not None and folded == "applied":
            handler(self, state, event)

    # --- records --------------------------------------------------------------------------------------------------------

    def _submitted(self, state: State, event: k.AppSubmitted) -> None:
        self.submissions += 1

    def _started(self, state: State, event: k.ContainerStarted) -> None:
        """The last container of a generation completes its start."""
        if self.starting.get(event.app) != event.generation:
            return
        app = state.apps[event.app]
        generation = app.generations[event.generation]
        if not generation.started_at:
            return
        del self.starting[app.id]
        self.working[app.id] = event.generation
        kind = generation.adjustment if generation.adjustment in PHASES_OF else "start"
        self.adjustments[kind] += 1
        record = app.history[-1] if app.history else None
        if kind == "restart" and record is not None and record.to_generation == event.generation:
            self._restarted(record)
        else:
            self._observe(kind, "wait", generation.decided_at, generation.released_at)
        self._observe(kind, "start", generation.released_at, generation.started_at)

    def _restarted(self, record: AdjustmentRecord) -> None:
        stopped = max(record.stopped_at, record.decided_at)
        began = record.prepared_at or record.decided_at
        self._observe("restart", "prepare", record.decided_at, began)
        self._observe("restart", "stop", began, stopped)
        self._observe("restart", "wait", stopped, record.released_at)

    def _worked(self, state: State, event: k.AppProgressed | k.AppCheckpointed) -> None:
        """The first sign of work of a generation."""
        if self.working.get(event.app) != event.generation:
            return
        app = state.apps[event.app]
        generation = app.generations[event.generation]
        del self.working[event.app]
        kind = "restart" if generation.adjustment == "restart" else "start"
        self._observe(kind, "work", generation.started_at, first_step_at(app, event.generation, state.time))

    def _member_changed(self, state: State, event: k.MembershipChanged) -> None:
        app = state.apps.get(event.app)
        record = app.history[-1] if app is not None and app.history else None
        if record is None or not record.live or record.started_at != state.time:
            return  # A first membership, or one after a death: nobody decided it.
        if self.lives.get(event.app) == record.decided_at:
            return  # Another report at the same log time.
        self.lives[event.app] = record.decided_at
        self.adjustments["live"] += 1
        self._observe("live", "wait", record.decided_at, record.released_at)
        for phase in ("warm_up", "barrier", "pause"):
            self.phases[f"live.{phase}"].observe(getattr(record, f"{phase}_s"))

    def _observe(self, kind: str, phase: str, began: int, ended: int) -> None:
        self.phases[f"{kind}.{phase}"].observe((ended - began) / SECOND)

    def _rotated(self, state: State, event: k.LogRotated) -> None:
        self.rotations["done"] += 1

    def _rotation_failed(self, state: State, event: k.RotationFailed) -> None:
        self.rotations["failed"] += not event.in_vain

    # --- rounds ---------------------------------------------------------------------------------------------------------

    def _round(self, state: State, event: k.Round) -> None:
        for fact in event.events:
            handler = _OF_FACTS.get(type(fact))
            if handler is not None:
                handler(self, state, fact)
            if isinstance(fact, k.Resized):
                for change in fact.changes:
                    self._note_wait(state, change.app)
            else:
                self._note_wait(state, getattr(fact, "app", ""))

    def _note_wait(self, state: State, name: str) -> None:
        app = state.apps.get(name)
        if app is not None and not app.ended and app.waiting_since:
            self.waiting[name] = app.waiting_since

    def _accepted(self, state: State, event: k.AppAccepted) -> None:
        self.accepted += 1

    def _rejected(self, state: State, event: k.AppRejected) -> None:
        self.rejected += 1

    def _ended(self, state: State, event: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        app = state.apps.get(event.app)
        if app is None or not app.ended:
            return
        self._forget(app)
        self.ended[app.ended] += 1
        self.turnarounds.observe((app.ended_at - app.submitted_at) / SECOND)
        if isinstance(event, k.AppFailed):
            self._failed(state, event)

    def _failed(self, state: State, event: k.AppFailed | k.GenerationFailed | k.MembersLost) -> None:
        cause = event.failure or "unknown"
        self.failures[cause if cause in self.failures else OTHER] += 1
        self.faults[event.fault or OTHER] += 1
        if isinstance(event, k.GenerationFailed):
            self.starting.pop(event.app, None)
            self.working.pop(event.app, None)

    def _forget(self, app: App) -> None:
        for table in (self.waiting, self.starting, self.working, self.lives):
            table.pop(app.id, None)

    def _released(self, state: State, event: k.GenerationReleased) -> None:
        app = state.apps.get(event.app)
        generation = app.generations.get(event.generation) if app is not None else None
        if app is None or generation is None or generation.released_at != state.time:
            return
        since = self.waiting.pop(app.id, 0)
        if since:
            self.waits.observe((state.time - since) / SECOND)
        self.starting[app.id] = event.generation
        self.working.pop(app.id, None)
        self.killed += event.killed
        self.lost_steps += event.lost_steps
        if event.lost_steps and app.steps_per_s > 0:
            self.lost_work_s += event.lost_steps / app.steps_per_s

    def _resized(self, state: State, event: k.Resized) -> None:
        self.decisions[event.trigger] += 1
        for change in event.changes:
            self.changes[change.adjustment] += 1
        self.last = LastDecision(event.fairness_budget, event.excess, event.overhead_budget)

    def _live_resize_failed(self, state: State, event: k.LiveResizeFailed) -> None:
        self.changes[event.restart.adjustment] += 1

    def _idle_ticked(self, state: State, event: k.IdleTicked) -> None:
        self.idle_ticks += 1

    def _policy_failed(self, state: State, event: k.PolicyFailed) -> None:
        self.policy_failures += 1

    def _elected(self, state: State, event: k.MasterElected) -> None:
        self.elections += 1

    def _node_lost(self, state: State, event: k.NodeLost) -> None:
        self.nodes_lost += 1

    def _node_suspected(self, state: State, event: k.NodeSuspected) -> None:
        self.suspected += 1

    def _node_trusted(self, state: State, event: k.NodeTrusted | k.NodeTrustRequested) -> None:
        self.trusted[event.how if isinstance(event, k.NodeTrusted) else "operator"] += 1

    def _lease_ended(self, state: State, event: k.NodeLeaseEnded) -> None:
        self.leases_ended += 1


_OF_RECORDS: dict[type, Callable[[Tally, State, Any], None]] = {
    k.AppSubmitted: Tally._submitted,
    k.ContainerStarted: Tally._started,
    k.AppProgressed: Tally._worked,
    k.AppCheckpointed: Tally._worked,
    k.MembershipChanged: Tally._member_changed,
    k.NodeTrustRequested: Tally._node_trusted,
    k.LogRotated: Tally._rotated,
    k.RotationFailed: Tally._rotation_failed,
    k.Round: Tally._round,
}
_OF_FACTS: dict[type, Callable[[Tally, State, Any], None]] = {
    k.AppAccepted: Tally._accepted,
    k.AppRejected: Tally._rejected,
    k.AppCompleted: Tally._ended,
    k.AppFailed: Tally._ended,
    k.AppCancelled: Tally._ended,
    k.GenerationFailed: Tally._failed,
    k.MembersLost: Tally._failed,
    k.GenerationReleased: Tally._released,
    k.Resized: Tally._resized,
    k.LiveResizeFailed: Tally._live_resize_failed,
    k.IdleTicked: Tally._idle_ticked,
    k.PolicyFailed: Tally._policy_failed,
    k.MasterElected: Tally._elected,
    k.NodeSuspected: Tally._node_suspected,
    k.NodeTrusted: Tally._node_trusted,
    k.NodeLost: Tally._node_lost,
    k.NodeLeaseEnded: Tally._lease_ended,
}
