"""Measures the outcome of a run from its log: of a simulation, or of the fold of a real log.

    measures = Measures.of(simulation)            before it runs
    measures = Measures(state)                    with a fold: `observe` after each record was folded into this state
    measures.result(end)                          outcome.Run

Nothing is taken from a policy's own figures: counts are read from the state, shares are computed by `dorm.policies.shares`,
and the changes of a decision are counted, so all policies are measured alike.  The cluster's figures are sampled on a grid, as
they are at each of its moments.

A simulation knows how long an adjustment keeps an app from its work (`timings`).  In a real log it ends when all containers
have started, or, for an app that reports its progress, when a report shows that it works (`dorm.core.costs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dorm.core.costs import cost_s
from dorm.core.submissions import app_of_request
from dorm.policies import shares
from events import kinds as k
from events.quantities import SECOND
from replay.simulator.finish_times import contention, fair_containers, fair_rate
from replay.simulator.holdings import Holdings
from replay.simulator.outcome import AppRun, DecisionRun, Run, Sample
from replay.simulator.timings import FREE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dorm.core.folded import Folded
    from dorm.core.state import App, State
    from events.kinds import Event
    from events.log.records import Record
    from replay.simulator.simulation import Simulation
    from replay.simulator.timings import Timings
    from replay.simulator.workload import SimulatedApp

__all__ = ["EVERY_S", "AppRun", "DecisionRun", "Measures", "Run", "Sample"]

EVERY_S = 300.0
"""Default number of seconds between two samples."""
_MOST_SAMPLES = 2000
"""Above this number every other sample is dropped while they are closer than requested: short runs need a finer grid."""
_NEVER = 2**63 - 1
_OF_NODES = [kind for kind in k.EVENTS if kind.KIND.on == "node" and kind.KIND.folded and kind.KIND.rule != "identity"]
_NODE_EVENTS = [kind for kind in _OF_NODES if kind.KIND.stored == "log"]
_NODE_FACTS = [kind for kind in _OF_NODES if kind.KIND.stored == "round"]


class _Book:
    """The account of one app."""

    __slots__ = (
        "adjusting", "adjustments", "app", "count", "ended", "held", "held_ns", "how", "lost_ns", "seen", "since", "started",
        "worked", "works_at",
    )  # fmt: skip

    def __init__(self, app: App, now: int) -> None:
        self.app = app
        self.since = now
        self.count = 0
        """Containers as decided."""
        self.held = 0
        """Containers that no other app can have: before a release also those of the old generation."""
        self.held_ns = self.lost_ns = 0
        self.works_at = _NEVER
        """Time from which it works with its containers, if that is known."""
        self.adjusting = False
        """Whether an adjustment keeps it from working."""
        self.worked = False
        self.adjustments = 0
        self.seen = 0
        """Adjustments of its history whose resumption was examined."""
        self.started = self.ended = 0
        self.how: Literal["", "completed", "failed", "cancelled"] = ""

    def run_to(self, now: int) -> None:
        if now > self.since:
            self.held_ns += self.held * (now - self.since)
            if self.adjusting:
                self.lost_ns += self.held * max(0, min(now, self.works_at) - self.since)
            self.since = now
        if self.works_at <= now:
            self.adjusting = False


class Measures:
    """Observes a fold.  The caller folds `state` in place, and calls `observe` after each record."""

    def __init__(
        self,
        state: State,
        every_s: float = EVERY_S,
        *,
        models: Mapping[str, SimulatedApp] | None = None,
        timings: Timings | None = None,
    ) -> None:
        """`models` are a simulation's models of its apps, by name; without one, an app's work is its container time, with all
        containers equal.  `timings` are the scenario's; None for a real log."""
        self._state = state
        self._most = max(1, int(every_s * SECOND))
        self._every = self._most
        while self._every % 2 == 0 and self._every > SECOND:
            self._every //= 2
        self._models = models or {}
        self._timings = timings
        self._begin = self._now = state.time
        self._next = state.time
        self._holdings = Holdings(state.nodes)
        self._cluster = Holdings(state.nodes, whole=True)
        self._books: dict[str, _Book] = {}
        self._live: dict[str, _Book] = {}
        self._samples: list[Sample] = []
        self._decisions: list[DecisionRun] = []
        self._rejected = 0
        for app in state.live_apps():
            self._adopt(app)

    @classmethod
    def of(cls, simulation: Simulation, every_s: float = EVERY_S) -> Measures:
        """Measure a simulation that is about to run."""
        scenario = simulation.scenario
        models = {simulation.state.apps[app].name: partition.model for app, partition in simulation.partitions.items()}
        models.update((app.spec.name, app) for app in scenario.apps)
        timings = FREE if scenario.tasks else scenario.timings
        measures = cls(simulation.state, every_s, models=models, timings=timings)
        simulation.observe(measures.see)
        return measures

    def see(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        """Follow one record after it was folded."""
        del state  # The state is the one passed to the constructor.
        if not self._begin:
            self._begin = self._next = self._now = record.time
        if record.time > self._now:
            self._now = record.time
            self._sample_before(record.time)
        watch = _WATCH.get(type(event)) if folded not in ("void", "forbidden") else None
        if watch is not None:
            watch(self, event)

    def result(self, end: int | None = None) -> Run:
        """Return the measurements until `end` (UTC ns), by default until the last record."""
        end = max(self._now, end or 0)
        self._sample_before(end + 1)
        for book in self._live.values():
            book.run_to(end)
        books = list(self._books.values())
        crowd = contention([b.app.submitted_at for b in books], [b.ended or end for b in books])
        return Run(
            begin=self._begin,
            end=end,
            every_s=self._every / SECOND,
            kinds=len(self._holdings.kinds),
            apps=tuple(self._app_run(book, float(n)) for book, n in zip(books, crowd, strict=True)),
            samples=tuple(self._samples),
            decisions=tuple(self._decisions),
            rejected=self._rejected,
        )

    # --- the grid -------------------------------------------------------------------------------------------------------

    def _sample_before(self, time: int) -> None:
        """Sample the grid's moments before `time`, at which everything was as the last record left it."""
        while self._next < time and self._begin:
            utilization, loss = self._holdings.figures()
            running = self._holdings.running
            waiting = len(self._holdings) - running
            self._samples.append(Sample(self._next, utilization, loss, running, waiting))
            self._next += self._every
            if len(self._samples) >= _MOST_SAMPLES and self._every < self._most:
                del self._samples[1::2]
                self._every *= 2
                self._next = self._samples[-1].at + self._every

    # --- what a record touches ------------------------------------------------------------------------------------------

    def _adopt(self, app: App) -> None:
        book = self._books[app.id] = self._live[app.id] = _Book(app, self._now)
        current = app.current
        book.count = book.held = len(current.containers) if current else 0
        book.worked = any(generation.started_at for generation in app.generations.values()) or app.adjustments > 0
        first = [generation.started_at for generation in app.generations.values() if generation.started_at]
        book.started = min(first, default=0) if app.adjustments == 0 else app.accepted_at
        book.adjusting = book.worked and not app.settled
        book.works_at = self._now if app.settled else _NEVER
        book.seen = len(app.history)
        self._holdings.put(app, book.count)

    def _round(self, event: k.Round) -> None:
        for fact in event.events:
            watch = _FACTS.get(type(fact))
            if watch is not None:
                watch(self, fact)

    def _accepted(self, fact: k.AppAccepted) -> None:
        app = self._state.apps.get(fact.app)
        if app is not None and app.id not in self._books:
            self._books[app.id] = self._live[app.id] = _Book(app, self._now)
            self._holdings.put(app, 0)

    def _refused(self, fact: k.AppRejected) -> None:
        self._rejected += fact.refused == "submission"

    def _resized(self, fact: k.Resized) -> None:
        running = sum(1 for book in self._live.values() if book.count and not book.app.cancel_requested)
        changed = forced = started = 0
        for change in fact.changes:
            book = self._live.get(change.app)
            generation = book.app.generations.get(change.to_generation) if book else None
            if book is None or generation is None:
                continue
            if not book.count:
                started += bool(change.placement)
            elif self._was_forced(book):
                forced += 1
            else:
                changed += 1
            if not generation.void:
                self._change(book, len(change.placement))
            else:
                self._recount(book)
        self._decisions.append(DecisionRun(self._now, running, changed, _budget(fact.params, running), forced, started))

    def _change(self, book: _Book, count: int) -> None:
        book.run_to(self._now)
        if book.count:
            book.adjustments += 1
            book.adjusting = book.worked
        book.held = max(book.held, count)
        book.works_at = _NEVER
        self._hold(book, count)

    def _hold(self, book: _Book, count: int) -> None:
        book.count = count
        self._holdings.put(book.app, count)

    def _was_forced(self, book: _Book) -> bool:
        """Return whether the app could not stay as it was."""
        app = book.app
        if not app.n_min <= book.count <= app.n_max:
            return True
        before = [g for g in app.generations.values() if g.released and not g.failed and g.number < app.generation]
        nodes = (self._state.nodes.get(name) for generation in before for name in generation.by_node())
        return any(node is None or not node.usable for node in nodes)

    def _released(self, fact: k.GenerationReleased) -> None:
        book = self._live.get(fact.app)
        if book is None:
            return
        book.run_to(self._now)
        book.held = book.count
        if fact.lost_steps and book.adjusting and book.app.steps_per_s > 0 and book.app.history:
            before = book.app.history[-1].containers_before
            book.lost_ns += int(fact.lost_steps / book.app.steps_per_s * SECOND) * before

    def _failed(self, fact: k.GenerationFailed) -> None:
        """Attribute the time until it works again to the failure, not to an adjustment."""
        book = self._live.get(fact.app)
        if book is not None:
            book.run_to(self._now)
            book.held, book.adjusting, book.works_at = 0, False, _NEVER
            self._hold(book, 0)

    def _ended(self, fact: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        book = self._live.pop(fact.app, None)
        if book is None:
            return
        book.run_to(self._now)
        book.ended = self._now
        book.how = _HOW[type(fact)]
        self._holdings.drop(fact.app)

    def _started(self, event: k.ContainerStarted) -> None:
        book = self._live.get(event.app)
        current = book.app.current if book else None
        if book is None or current is None or current.number != event.generation or not book.app.settled:
            return
        if book.works_at <= self._now:
            return
        book.run_to(self._now)
        book.works_at = self._now + int(self._to_work_s(book, resume=current.resume) * SECOND)
        book.worked = True
        book.started = book.started or self._now

    def _exited(self, event: k.ContainerExited) -> None:
        """Reduce a stopped app's holding as its containers exit."""
        book = self._live.get(event.app)
        if book is not None and not book.count and book.held:
            book.run_to(self._now)
            left = (g.running for g in book.app.generations.values() if g.released)
            book.held = min(book.held, sum(left))

    def _note_report(self, event: k.AppProgressed | k.AppCheckpointed) -> None:
        """Compute the pauses of a real log from apps' reports; a simulation knows them."""
        book = self._live.get(event.app)
        history = book.app.history if book is not None and self._timings is None else ()
        if book is None or not history or book.app.adjustments == book.seen:
            return
        latest = history[-1]
        total_s = cost_s(latest)
        if total_s is not None and latest.resumed_at:
            book.seen = book.app.adjustments
            lost_s = latest.lost_steps / latest.steps_per_s if latest.steps_per_s else 0.0
            beyond = total_s - lost_s - (latest.started_at - latest.decided_at) / SECOND
            book.lost_ns += int(max(0.0, beyond) * SECOND) * book.count

    def _nodes(self, event: Any = None) -> None:
        """Take over changed nodes, which may also void plans."""
        self._holdings.nodes_changed()
        self._cluster.nodes_changed()
        for book in self._live.values():
            self._recount(book)

    def _recount(self, book: _Book) -> None:
        current = book.app.current
        count = len(current.containers) if current else 0
        if count != book.count:
            book.run_to(self._now)
            book.held = count
            self._hold(book, count)

    def _updated(self, event: k.AppUpdated) -> None:
        app = app_of_request(self._state, event.app, event.by)
        if app is not None:
            self._holdings.describe(app)

    # --- the end --------------------------------------------------------------------------------------------------------

    def _app_run(self, book: _Book, crowd: float) -> AppRun:
        return AppRun(
            app=book.app.id,
            name=book.app.name,
            submitted=book.app.submitted_at,
            started=book.started,
            ended=book.ended,
            how=book.how,
            adjustments=book.adjustments,
            held_s=book.held_ns / SECOND,
            lost_s=book.lost_ns / SECOND,
            finish_ratio=self._finish_ratio(book, crowd) if book.how == "completed" else None,
        )

    def _finish_ratio(self, book: _Book, crowd: float) -> float | None:
        model = self._models.get(book.app.name)
        n = fair_containers(self._cluster.dominant_unit(book.app), book.app.n_max, crowd)
        if model is not None:
            work, rate = model.work, lambda count: model.speed.rate(self._cluster.packed(book.app, count))
        else:
            work, rate = (book.held_ns - book.lost_ns) / SECOND, float
        speed = fair_rate(rate, n)
        if speed <= 0:
            return None
        isolated_s = work / speed + self._start_s(book)
        return (book.ended - book.app.submitted_at) / SECOND / isolated_s if isolated_s > 0 else None

    def _of(self, book: _Book) -> Timings | None:
        model = self._models.get(book.app.name)
        if self._timings is None or self._timings is FREE or model is None:
            return self._timings
        return model.timings or self._timings

    def _to_work_s(self, book: _Book, *, resume: bool) -> float:
        """Return seconds from all containers started to the first work; 0 in a real log."""
        timings = self._of(book)
        return 0.0 if timings is None else timings.resume_s if resume else timings.boot_s

    def _start_s(self, book: _Book) -> float:
        timings = self._of(book)
        return 0.0 if timings is None else timings.start_s + timings.boot_s


def _budget(params: dict[str, Any], running: int) -> int | None:
    theta2 = params.get("theta2")
    if theta2 is None:
        return None
    return min(shares.change_budget(running, float(theta2)), int(params.get("max_changes", running)))


_HOW: dict[type, Literal["completed", "failed", "cancelled"]] = {
    k.AppCompleted: "completed",
    k.AppFailed: "failed",
    k.AppCancelled: "cancelled",
}
_WATCH: dict[type, Callable[[Measures, Any], None]] = {
    k.Round: Measures._round,
    k.ContainerStarted: Measures._started,
    k.ContainerExited: Measures._exited,
    k.AppProgressed: Measures._note_report,
    k.AppCheckpointed: Measures._note_report,
    k.AppUpdated: Measures._updated,
    **dict.fromkeys(_NODE_EVENTS, Measures._nodes),
}
_FACTS: dict[type, Callable[[Measures, Any], None]] = {
    k.AppAccepted: Measures._accepted,
    k.AppRejected: Measures._refused,
    k.Resized: Measures._resized,
    k.GenerationReleased: Measures._released,
    k.GenerationFailed: Measures._failed,
    k.AppCompleted: Measures._ended,
    k.AppFailed: Measures._ended,
    k.AppCancelled: Measures._ended,
    **dict.fromkeys(_NODE_FACTS, Measures._nodes),
}
