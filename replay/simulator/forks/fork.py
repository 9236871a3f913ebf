"""A real log continued in the simulator from one of its moments: as it was, or with something changed.

A fork starts with the state of that moment and models of its live apps (`fitting`).  Later facts on the log that no master
decided are repeated at their times: submissions, with their own ids; requests of clients and operators; nodes that joined,
left or crashed.  The rest is simulated.  Changes are published at the fork, as clients, operators and agents would publish
them.

    make(history, state)                  as it was
    make(history, state, changes=…)       with assumptions, as `dorm plan` takes them
    play(fork, every_s)                   runs it and measures the outcome
    simulation_of(fork)                   for callers that observe the run themselves

Raises PlanError (`dorm.core.query.plans`) for impossible assumptions, and SimulationError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.core.admission import app_id, name_of
from dorm.core.policy_in_force import announced
from dorm.core.query.assumed import Assumed, PlanError
from dorm.core.query.plans import assumed_events, copy_of
from events import kinds as k
from events.quantities import SECOND
from events.spec import AppSpec, SpecError, as_shipped, check_spec
from replay.simulator.contenders import BY_TASKS
from replay.simulator.forks.fitting import Fitted, Fitting
from replay.simulator.forks.history import Course
from replay.simulator.measures import Measures
from replay.simulator.scenario import DecisionTime, Outage, Running, Scenario, Tasks
from replay.simulator.simulation import Simulation
from replay.simulator.speed import Linear
from replay.simulator.workload import SimulatedApp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.kinds import PolicyPlugin
    from events.log.records import Record
    from replay.simulator.forks.fitting import Bound
    from replay.simulator.forks.history import History, Silence
    from replay.simulator.measures import Run
    from replay.simulator.simulation import Seen

MOST_REPORTS = 500_000
"""About how many progress reports of all apps a run has at most, unless the caller sets another bound."""
LEAST_REPORT_S = 60.0
"""Seconds between an app's reports if no app on the log reports progress."""
_LONGEST_NAME = 48
_REFUSED = AppSpec(name="refused", command=["refused"], demand={"cpu": 1})


@dataclass(frozen=True)
class Fork:
    """Everything that a run of the fork depends on."""

    state: State
    scenario: Scenario
    running: dict[str, Running]
    published: tuple[tuple[float, k.Event, str], ...]
    """Events of others, with the seconds from the fork and the publisher."""
    fitted: dict[str, Fitted]
    """Fitted apps by id: those that live at the fork or come later."""
    assumptions: tuple[str, ...] = ()
    """The changes, in words."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Apps that need another name here, since an app of their name still runs, by their ids here to the log's own."""


def make(
    history: History,
    state: State,
    *,
    now: int = 0,
    until_s: float | None = None,
    changes: Assumed | None = None,
    fitting: Fitting | None = None,
    known: History | None = None,
    work: Bound = "likely",
    reports: int = MOST_REPORTS,
) -> Fork:
    """Make a fork at `state`, of a history that reaches at least that far; `now` (UTC ns) is the fork's time if that is later
    than the state's last record.  If `known` is given, models of live apps use only its data.  `work` chooses the
    unknown work of apps, and `reports` bounds the progress reports of a run."""
    at = max(state.time or history.begin, now)
    making = _Making(history, state, at, fitting or Fitting(history), known, work)
    return making.fork(until_s, changes or Assumed(), reports)


def id_of_new(spec: AppSpec, index: int = 0) -> str:
    """Return the id that the app of `Assumed.specs[index]` has in a fork."""
    return app_id(spec.name, _submission_of_new(index))


def _submission_of_new(index: int) -> str:
    return f"whatif-{index}"


ROUNDING = SECOND // 1000
"""Paces are fitted numbers, so an app that ended with the log may end some microseconds earlier or later in a simulation."""


class Played(NamedTuple):
    run: Run
    window: Run
    """The same run, as it was at the window's end."""


def play(fork: Fork, every_s: float, *, window_s: float | None = None, watching: Sequence[Seen] = ()) -> Played:
    """Run the fork and return its outcome, also as of `window_s` seconds.  An observer may raise, which ends the run; the
    exception propagates.  Raises SimulationError."""
    simulation = simulation_of(fork)
    measures = Measures(simulation.state, every_s)
    window_ends = None if window_s is None else simulation.begin + int(window_s * SECOND) + ROUNDING
    window: Run | None = None

    def look(_state: State, record: Record, _event: k.Event, _folded: Folded) -> None:
        nonlocal window
        if window is None and window_ends is not None and record.time > window_ends:
            window = measures.result(window_ends)

    for observer in (look, measures.see, *watching):  # Look at the window's end before later records.
        simulation.observe(observer)
    simulation.run()
    until_s = fork.scenario.until_s
    end = simulation.begin + int(until_s * SECOND) if until_s is not None else simulation.agenda.now
    if window is None:
        window = measures.result(end if window_ends is None else min(end, window_ends))
    run = measures.result(end)
    return Played(_with_own_names(run, fork.aliases), _with_own_names(window, fork.aliases))


def simulation_of(fork: Fork) -> Simulation:
    """Return the simulation, ready to run, with all later events of others.  Raises SimulationError."""
    simulation = Simulation(fork.scenario, state=fork.state, running=fork.running)
    for at_s, event, who in fork.published:
        simulation.publish_at(at_s, event, who)
    return simulation


def _with_own_names(run: Run, aliases: dict[str, str]) -> Run:
    if not aliases:
        return run
    apps = tuple(msgspec.structs.replace(app, app=aliases.get(app.app, app.app)) for app in run.apps)
    return msgspec.structs.replace(run, apps=apps)


class _Making:
    def __init__(
        self, history: History, state: State, at: int, fitting: Fitting, known: History | None, work: Bound
    ) -> None:
        self._history = history
        self._known = (known, Fitting(known)) if known is not None else (history, fitting)
        self._fitting = fitting
        self._work = work
        self.state = copy_of(state)
        self.state.time = self.at = at
        self.fitted: dict[str, Fitted] = {}
        self.aliases: dict[str, str] = {}
        self._names = set(state.names)

    def fork(self, until_s: float | None, changes: Assumed, reports: int) -> Fork:
        running = self._live() | self._unanswered()
        arrivals = self._arrivals()
        present, arrivals = self._change_arrivals(changes, arrivals)
        assumptions, events = assumed_events(self.state, self.at, present)
        self._bring_back()
        scenario = self._scenario(until_s, [*self._submitted(changes), *arrivals], changes, reports)
        first = [(0.0, event, who) for event, who in events if not isinstance(event, k.AppSubmitted)]
        return Fork(
            state=self.state,
            scenario=scenario,
            running=running,
            published=(*first, *self._later(changes), *self._lost_later(changes)),
            fitted=self.fitted,
            assumptions=(*assumptions, *self._assumptions),
            aliases=self.aliases,
        )

    # --- apps -----------------------------------------------------------------------------------------------------------

    def _fit(self, course: Course) -> Fitted:
        """Fit an app that has no containers yet."""
        fitted = self.fitted[course.app] = self._fitting.fit(course, self.at).as_if(self._work)
        return fitted

    def _live(self) -> dict[str, Running]:
        running = {}
        for app in self.state.live_apps():
            history, fitting = self._known
            course = history.courses.get(app.id)
            if course is None:
                course = Course(app.id, app.spec, app.user, app.submission, app.submitted_at)
            fitted = self.fitted[app.id] = fitting.fit(course, self.at, app).as_if(self._work)
            running[app.id] = Running(fitted.model, fitted.done, fitted.saved, fitted.failures)
        return running

    def _unanswered(self) -> dict[str, Running]:
        running = {}
        for submission in self.state.submissions.values():
            name = name_of(submission.spec)
            app = app_id(name, submission.id)
            try:
                spec = check_spec(submission.spec)
            except SpecError:
                running[app] = Running(SimulatedApp(at_s=0.0, spec=_REFUSED, work=0.0, speed=Linear()))
                continue
            course = self._history.courses.get(app) or Course(app, spec, spec.user, submission.id, submission.at)
            running[app] = Running(self._fit(course).model)
            self._names.add(name)
        return running

    def _arrivals(self) -> list[SimulatedApp]:
        """Return the apps that the log accepted later.  A name that is taken here, though not on the log, gets a number."""
        unanswered = {submission.id for submission in self.state.submissions.values()}
        later = [
            course
            for course in self._history.courses.values()
            if course.app not in self.state.apps
            and course.submission not in unanswered
            and course.submitted_at >= self.at
        ]
        models = []
        for course in sorted(later, key=lambda course: course.submitted_at):
            model = self._fit(course).model
            name = self._free_name(course.spec.name)
            if name != course.spec.name:
                model = msgspec.structs.replace(model, spec=msgspec.structs.replace(course.spec, name=name))
                self.aliases[app_id(name, course.submission)] = course.app
            models.append(model)
        return models

    def _free_name(self, name: str) -> str:
        number, free = 1, name
        while free in self._names:
            number += 1
            free = f"{name[: _LONGEST_NAME - 8]}-{number}"
        self._names.add(free)
        return free

    # --- what is changed ------------------------------------------------------------------------------------------------

    def _change_arrivals(self, changes: Assumed, arrivals: list[SimulatedApp]) -> tuple[Assumed, list[SimulatedApp]]:
        """Apply changes of apps that come later to their specs; return the others, which are published at the fork."""
        self._assumptions: list[str] = []
        updated, cancelled = [], []
        for change in changes.updated:
            arrival = None if self.state.find_app(change.app) else _named(arrivals, change.app)
            if arrival is None:
                updated.append(change)
            else:
                arrivals = [self._edited(app, change) if app is arrival else app for app in arrivals]
        for name in changes.cancelled:
            arrival = None if self.state.find_app(name) else _named(arrivals, name)
            if arrival is None:
                cancelled.append(name)
            else:
                arrivals = [app for app in arrivals if app is not arrival]
                self._assumptions.append(f"without {arrival.spec.name}")
        present = msgspec.structs.replace(changes, updated=tuple(updated), cancelled=tuple(cancelled))
        return present, arrivals

    def _edited(self, app: SimulatedApp, change: k.AppUpdated) -> SimulatedApp:
        given = {name: getattr(change, name) for name in ("n_min", "n_max", "weight")}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            spec = check_spec({**msgspec.to_builtins(app.spec, str_keys=True), **given})
        except SpecError as error:
            raise PlanError(f"{app.spec.name}: {error}", code=error.code) from None
        before = {name: getattr(app.spec, name) for name in given}
        edits = [f"{name} = {value} (not {before[name]})" for name, value in given.items()]
        self._assumptions.append(f"{app.spec.name} with {' and '.join(edits)}")
        return msgspec.structs.replace(app, spec=spec)

    def _submitted(self, changes: Assumed) -> list[SimulatedApp]:
        models = []
        for index, spec in enumerate(changes.specs):
            submission = _submission_of_new(index)
            course = Course(id_of_new(spec, index), as_shipped(spec), spec.user, submission, self.at)
            models.append(self._fit(course).model)
        return models

    # --- what comes later -----------------------------------------------------------------------------------------------

    def _later(self, changes: Assumed) -> Iterable[tuple[float, k.Event, str]]:
        """Yield later events as they were on the log, unless they would undo a change."""
        updated = {self._id_of(change.app) for change in changes.updated}
        for record in self._history.published:
            event = record.event
            if record.seq <= self.state.seq:
                continue
            if isinstance(event, k.PolicyChanged) and changes.settings:
                continue
            if isinstance(event, k.AppUpdated) and event.app in updated:
                continue
            if isinstance(event, k.NodeJoined | k.NodeDrainRequested) and event.node in (
                *changes.removed,
                *changes.drained,
                *changes.undrained,
            ):
                continue
            yield (record.at - self.at) / SECOND, event, record.who

    def _id_of(self, name: str) -> str:
        app = self.state.find_app(name)
        if app is not None:
            return app.id
        return next((fitted.app for fitted in self.fitted.values() if fitted.model.spec.name == name), name)

    def _bring_back(self) -> None:
        """Restore nodes that are lost at the fork and were heard again without a restart of their agents: their containers
        never stopped, so their apps noticed nothing."""
        silent = {silence.node for silence in self._history.silences}
        for node in self.state.nodes.values():
            if node.condition == "lost" and node.id not in silent:
                node.condition, node.lease_ended = "up", False

    def _silences(self, changes: Assumed) -> Iterable[Silence]:
        """Yield silences that are not over at the fork, of nodes that are still in the cluster."""
        for silence in self._history.silences:
            if not (silence.until and silence.until <= self.at) and silence.node not in changes.removed:
                yield silence

    def _outages(self, changes: Assumed) -> Iterable[Outage]:
        for silence in self._silences(changes):
            if silence.node in self.state.nodes:
                for_s = (silence.until - silence.since) / SECOND if silence.until else None
                yield Outage(silence.node, (silence.since - self.at) / SECOND, for_s)

    def _lost_later(self, changes: Assumed) -> Iterable[tuple[float, k.Event, str]]:
        """Yield outages of nodes that join only after the fork: there they leave and join again."""
        joined = {
            record.event.node: record.event
            for record in self._history.published
            if isinstance(record.event, k.NodeJoined)
        }
        for silence in self._silences(changes):
            node = silence.node
            if node in joined and node not in self.state.nodes:
                yield (silence.since - self.at) / SECOND, k.NodeLeft(node=node), node
                if silence.until:
                    yield (silence.until - self.at) / SECOND, joined[node], node

    def _report_interval_s(self, until_s: float | None, reports: int) -> float:
        """Report as often as on the log, because costs of adjustments are measured from reports, but within a bound."""
        total_s = 0.0
        for fitted in self.fitted.values():
            rate = fitted.model.speed.rate((fitted.model.spec.n_min,))
            left_s = (fitted.model.work - fitted.done) / rate if rate > 0 else 0.0
            total_s += min(left_s, until_s if until_s is not None else left_s)
        return max(self._history.reported_every_s or LEAST_REPORT_S, total_s / reports)

    def _plugins(self, chosen: str) -> Iterable[PolicyPlugin]:
        """Return the announcement of the log's master, and the policy of the change."""
        known = self.state.policy_plugins
        yield from known.values()
        if chosen not in known:
            yield from announced(chosen)

    def _scenario(self, until_s: float | None, apps: list[SimulatedApp], changes: Assumed, reports: int) -> Scenario:
        policy = changes.settings.get("policy", self.state.settings.policy)
        decisions = self._history.decisions_s
        return Scenario(
            apps=tuple(apps),
            nodes=(),
            timings=self._fitting.common,
            tasks=Tasks() if policy in BY_TASKS else None,
            decision_time=DecisionTime(median(decisions), 0.0) if decisions else DecisionTime(),
            outages=tuple(self._outages(changes)),
            progress_s=self._report_interval_s(until_s, reports),
            until_s=until_s,
            cluster="whatif",
            plugins=tuple(self._plugins(policy)),
        )


def _named(apps: Iterable[SimulatedApp], name: str) -> SimulatedApp | None:
    return next((app for app in apps if name in (app.spec.name, app_id(app.spec.name, app.submission))), None)
