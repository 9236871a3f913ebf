"""A log's apps and their work, and the events of others meanwhile: everything that a fork is made from.

A `History` observes a fold (`history.see(state, record, folded)`, like a witness of `replay.story.explanation`) and keeps a
`Course` for each app: its submission, its stretches of work with their containers, placement and pace, and its end.  It also
keeps what clients, operators and nodes published: facts that a simulation cannot invent, and repeats (`Published`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from dorm.core.state import can_be_kept
from dorm.core.submissions import app_of_request
from events import kinds as k
from events.quantities import SECOND
from replay.simulator.forks.fitting_timings import PhaseWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App, Generation, Node, Pace, State
    from events.log.records import Record
    from events.spec import AppSpec
    from replay.simulator.timings import Timings

_CLIENTS = tuple(
    kind
    for kind in k.EVENTS
    if kind.KIND.writers[0] in ("user", "operator") and kind.KIND.folded and kind is not k.AppSubmitted
)
"""Requests of clients and operators that change a state; a submission is part of its app's course."""
_NOT_ITS_OWN = ("lost", "port")
"""Reasons of exits that the cluster caused."""
_NODES = (k.NodeJoined, k.NodeLeft)


class OnTypes(Protocol):
    """An app's speed by the types of the nodes, too."""

    def rate(self, placement: Sequence[int], types: Iterable[str]) -> float: ...


class Published(msgspec.Struct, frozen=True):
    """An event from outside the master, and when it was published (UTC ns).  It names apps by id."""

    seq: int
    at: int
    event: k.Event
    who: str


@dataclass
class Silence:
    """A node that was lost: its agent came back, restarted, at `until`, or never (0)."""

    node: str
    since: int
    until: int = 0


@dataclass
class Stretch:
    """One generation of an app at work, from when all of its containers had started."""

    generation: int
    counts: tuple[int, ...]
    """Containers on each node, in descending order."""
    begin: int
    end: int = 0
    """Time at which a decision stopped it, or its first container ended (UTC ns); 0 while it works."""
    kept: bool = True
    """Whether its work was kept: yes, unless it ended by itself before its work was done."""
    from_step: int = 0
    """The step that it continued from."""
    pace: Pace | None = None
    pace_s: float = 0.0
    """Seconds over which the pace holds that is all that is known of an adjustment before the history starts."""
    told_rate: float = 0.0
    types: tuple[str, ...] = ()
    """The types of its nodes (the label `type`), sorted; empty if unknown."""

    @property
    def containers(self) -> int:
        return sum(self.counts)

    @property
    def rate(self) -> float:
        """Steps per second; 0 if it reported none."""
        return self.pace.steps_per_s if self.pace else self.told_rate

    @property
    def rated_s(self) -> float:
        """Seconds over which it was seen to work at that rate."""
        return (self.pace.last_at - self.pace.first_at) / SECOND if self.pace else self.pace_s

    def served_s(self, until: int) -> float:
        """Container-seconds until then (UTC ns)."""
        end = min(self.end or until, until)
        return self.containers * max(0, end - self.begin) / SECOND if self.begin else 0.0

    def steps_by(self, at: int, speed: OnTypes | None = None, to_work_s: float = 0.0) -> float:
        """Return the last reported steps plus those done from there until `at` (UTC ns): at its own pace, or at the app's
        `speed` with fewer than two reports; without any report, from `to_work_s` after its start on."""
        pace = self.pace
        if pace is None and (speed is None or not self.begin):
            return 0.0
        rate = self.rate or (speed.rate(self.counts, self.types) if speed is not None else 0.0)
        step, since = (pace.last_step, pace.last_at) if pace else (self.from_step, self.begin + int(to_work_s * SECOND))
        return step + rate * max(0, at - since) / SECOND


class Failed(msgspec.Struct, frozen=True):
    """The first container of a generation that ended by itself before the work was done."""

    at: int
    """UTC ns."""
    generation: int
    exit_code: int


@dataclass
class Course:
    """One app, as the log shows it."""

    app: str
    spec: AppSpec
    user: str
    submission: str
    submitted_at: int
    """UTC ns."""
    stretches: list[Stretch] = field(default_factory=list)
    ended: str = ""
    ended_at: int = 0
    reports_progress: bool = False
    """Whether it reported its progress."""
    step: int = 0
    """The furthest step that it reported."""
    saved: int = 0
    """The step of its latest checkpoint."""
    failures: list[Failed] = field(default_factory=list)
    before_s: float = 0.0
    """Container-seconds that it had got before the history starts."""

    @property
    def current(self) -> Stretch | None:
        """The stretch that works now."""
        return self.stretches[-1] if self.stretches and not self.stretches[-1].end else None

    def kept_s(self, until: int) -> float:
        """Container-seconds of work until then (UTC ns), without work that had to be done again."""
        stretches = [stretch for stretch in self.stretches if stretch.begin <= until]
        return self.before_s + sum(
            stretch.served_s(until) for stretch in stretches if stretch.kept or stretch.end > until
        )

    def work_s(self, failed: Failed) -> float:
        """Container-seconds that it had done when it failed: the work that it had kept, and the work lost then."""
        lost = [
            stretch.served_s(failed.at)
            for stretch in self.stretches
            if stretch.generation == failed.generation and not stretch.kept
        ]
        return self.kept_s(failed.at) + sum(lost)

    def steps_at(self, failed: Failed, speed: OnTypes) -> float:
        """Steps that it had done when it failed."""
        of_it = [stretch for stretch in self.stretches if stretch.generation == failed.generation and stretch.pace]
        return of_it[-1].steps_by(failed.at, speed) if of_it else 0.0

    @property
    def reports_its_end(self) -> bool:
        """Whether its last stretch has a reported pace; without one, its work until its end is not known but worked out."""
        return bool(self.stretches) and self.stretches[-1].rate > 0

    def steps_at_end(self, speed: OnTypes | None = None, timings: Timings | None = None, until: int = 0) -> float:
        """Return all steps of an app that has ended, or works until then (UTC ns): the reported ones, and at its pace those
        until its first exit."""
        last = self.stretches[-1] if self.stretches else None
        if last is None:
            return float(self.step)
        to_work_s = 0.0 if timings is None else timings.resume_s if last.from_step else timings.boot_s
        return max(float(self.step), last.steps_by(last.end or until, speed, to_work_s))


class History:
    """Observes a fold.  Its size depends on apps and generations, not on records."""

    def __init__(self, state: State) -> None:
        """`state` is the state that is folded into, at the log's start or at a later moment."""
        self.courses: dict[str, Course] = {}
        """Courses by app, in order of acceptance."""
        self.published: list[Published] = []
        self.silences = [Silence(node.id, state.time) for node in state.nodes.values() if node.condition == "lost"]
        self.begin = self.end = state.time
        """Log times (UTC ns) of the first and the last record seen."""
        self.decisions_s: list[float] = []
        """Durations of decisions, from their moment to their record."""
        self.reports = 0
        """Number of times that apps reported their progress."""
        self.phases = PhaseWatch(state)
        self._nodes = {node.id: _shape(node) for node in state.nodes.values() if node.condition != "left"}
        self.type_of = {node.id: _type(node) for node in state.nodes.values()}
        """The type of each node that was ever there."""
        for app in sorted(state.apps.values(), key=lambda app: (app.seq, app.id)):
            self._begin_with(app)

    @property
    def reported_every_s(self) -> float | None:
        """Mean seconds between progress reports of a working app; None if there were none."""
        seen_s = sum(
            stretch.rated_s for course in self.courses.values() for stretch in course.stretches if stretch.pace
        )
        return seen_s / self.reports if seen_s and self.reports else None

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        self.begin = self.begin or state.time
        self.end = state.time
        if folded.outcome == "forbidden":
            return
        self.phases.see(state, record, folded)
        if isinstance(event, k.AppProgressed | k.AppCheckpointed):
            self._worked(state, event)
        elif isinstance(event, k.Round):
            self._round(state, record, event)
        elif isinstance(event, k.ContainerStarted):
            self._started(state, event)
        elif isinstance(event, k.ContainerExited):
            self._exited(state, event)
        elif isinstance(event, _CLIENTS):
            self._client(state, event)
        elif isinstance(event, _NODES):
            self._node(state, event)

    # --- apps -----------------------------------------------------------------------------------------------------------

    def _begin_with(self, app: App) -> None:
        """Take over a state's data of an app that existed before."""
        course = self.courses[app.id] = Course(app.id, app.spec, app.user, app.submission, app.submitted_at)
        course.ended, course.ended_at, course.step, course.saved = (
            app.ended,
            app.ended_at,
            app.step,
            app.checkpoint or 0,
        )
        course.reports_progress = app.step > 0 or bool(app.steps_per_s)
        course.before_s = app.served_ns / SECOND
        for record in app.history:
            if record.steps_per_s:
                known = Stretch(record.from_generation, (record.containers_before,), 0, record.decided_at)
                known.told_rate, known.pace_s = record.steps_per_s, 1.0
                on = {point.type: None for point in app.speeds if point.containers == record.containers_before}
                known.types = tuple(on) if len(on) == 1 else ()
                course.stretches.append(known)
        current = app.current
        if current is not None and current.started_at and not app.ended:
            self._work(course, current, current.started_at)

    def _work(self, course: Course, generation: Generation, at: int) -> None:
        counts = tuple(sorted(generation.by_node().values(), reverse=True))
        begins_with = course.saved if generation.resume else 0
        begun = Stretch(generation.number, counts, at, from_step=begins_with, pace=generation.pace)
        begun.types = tuple(sorted({self.type_of.get(node, "") for node in generation.by_node()}))
        course.stretches.append(begun)

    def _started(self, state: State, event: k.ContainerStarted) -> None:
        app, course = state.apps.get(event.app), self.courses.get(event.app)
        generation = app.generations.get(event.generation) if app is not None else None
        if course is None or generation is None or generation.number != event.generation:
            return
        known = course.stretches and course.stretches[-1].generation >= event.generation
        if not known and generation.started_at == state.time and generation.running == len(generation.containers):
            self._work(course, generation, state.time)

    def _exited(self, state: State, event: k.ContainerExited) -> None:
        course = self.courses.get(event.app)
        current = course.current if course is not None else None
        if course is None:
            return
        if current is not None and current.generation == event.generation:
            current.end, current.kept = state.time, event.asked or event.exit_code == 0
        own = event.reason not in _NOT_ITS_OWN and not event.asked and event.exit_code != 0
        if own and all(known.generation != event.generation for known in course.failures):
            course.failures.append(Failed(state.time, event.generation, event.exit_code or 1))

    def _worked(self, state: State, event: k.AppProgressed | k.AppCheckpointed) -> None:
        app, course = state.apps.get(event.app), self.courses.get(event.app)
        if app is None or course is None:
            return
        self.reports += isinstance(event, k.AppProgressed)
        course.reports_progress, course.step, course.saved = True, max(course.step, event.step), app.checkpoint or 0
        generation = app.generations.get(event.generation)
        last = course.stretches[-1] if course.stretches else None
        if generation is not None and generation.pace is not None and last and last.generation == event.generation:
            last.pace = generation.pace

    # --- the master -----------------------------------------------------------------------------------------------------

    def _round(self, state: State, record: Record, event: k.Round) -> None:
        if event.allocated and event.at:
            self.decisions_s.append(max(0, record.time - event.at) / SECOND)
        for fact in event.events:
            if isinstance(fact, k.AppAccepted):
                self._accepted(state, fact)
            elif isinstance(fact, k.Resized):
                for change in fact.changes:
                    self._close(state, change.app)
            elif isinstance(fact, k.GenerationFailed):
                self._close(state, fact.app, kept=False)
            elif isinstance(fact, k.AppCompleted | k.AppFailed | k.AppCancelled):
                self._ended(state, fact)
            elif isinstance(fact, k.NodeLost):
                self.silences.append(Silence(fact.node, fact.last_heard))
            elif isinstance(fact, k.NodeRecovered):
                # Its containers kept running, so its apps noticed nothing.
                self.silences = [silence for silence in self.silences if silence.node != fact.node or silence.until]

    def _accepted(self, state: State, fact: k.AppAccepted) -> None:
        app = state.apps.get(fact.app)
        if app is not None and fact.app not in self.courses:
            self.courses[fact.app] = Course(fact.app, fact.spec, app.user, fact.submission, app.submitted_at)

    def _close(self, state: State, app: str, *, kept: bool = True) -> None:
        current = self.courses[app].current if app in self.courses else None
        if current is not None:
            current.end, current.kept = state.time, kept

    def _ended(self, state: State, fact: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        course = self.courses.get(fact.app)
        if course is None or course.ended:
            return
        self._close(state, fact.app)
        course.ended = type(fact).__name__.removeprefix("App").lower()
        course.ended_at = state.time

    # --- others ---------------------------------------------------------------------------------------------------------

    def _client(self, state: State, event: k.Event) -> None:
        if isinstance(
            event, k.AppUpdated | k.AppCancelRequested | k.AppEditRequested | k.AppRestartRequested | k.OfGates
        ):
            app = app_of_request(state, event.app, event.by)
            if app is None:
                return
            event = msgspec.structs.replace(event, app=app.id)
        if can_be_kept(event):
            self.published.append(Published(state.seq, state.time, event, event.by or "operator"))

    def _node(self, state: State, event: k.NodeJoined | k.NodeLeft) -> None:
        known = state.nodes.get(event.node)
        if known is not None and known.identity != event.identity:
            return  # From another machine of that name: it changes nothing.
        for silence in self.silences:
            if silence.node == event.node and not silence.until:
                silence.until = state.time
                return
        node = state.nodes.get(event.node)
        if node is not None:
            self.type_of[event.node] = _type(node)
        shape = _shape(node) if node is not None and isinstance(event, k.NodeJoined) else None
        if shape == self._nodes.get(event.node):
            return  # Only a restart of the agent: its containers keep running.
        if shape is None:
            del self._nodes[event.node]
        else:
            self._nodes[event.node] = shape
        self.published.append(Published(state.seq, state.time, event, event.node))


def _type(node: Node) -> str:
    return node.labels.get("type", "")


def _shape(node: Node) -> tuple[dict[str, int], dict[str, str]]:
    return node.capacity, node.labels
