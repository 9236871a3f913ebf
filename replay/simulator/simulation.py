"""One run: simulated clients, agents and apps around the real core, writing an ordinary log.

    Simulation(scenario).run()                     from an empty log, until nothing more can happen
    Simulation(scenario, state=…, running=…)       a fork: from the state of another log, with models of its live apps

A fork is led by a new master, under the settings of the state; the scenario's policy and times are not used.  Its nodes are
those of the state; nodes of the scenario that the state does not have join at the start.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import app_id, name_of
from dorm.core.evolve import evolve
from dorm.core.invariants import may_run
from dorm.core.policy_in_force import announced
from dorm.core.query.plans import as_holder, copy_of
from dorm.core.state import State
from dorm.policies.registry import built_in
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log.records import Record
from events.quantities import SECOND
from events.spec import document_of
from replay.simulator import SimulationError
from replay.simulator.agenda import Agenda
from replay.simulator.agents import VirtualAgents
from replay.simulator.master import RoundsMaster, VirtualMaster
from replay.simulator.scenario import BEGIN, Running
from replay.simulator.speed import Linear
from replay.simulator.workload import SimulatedApp, SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dorm.core.folded import Folded
    from replay.simulator.partitions import Partition
    from replay.simulator.scenario import Outage, Scenario

    Seen = Callable[[State, Record, k.Event, Folded], None]
    """An `Observer.see`: called after each record was folded."""

_TELLS_NOTHING_DUE = (k.AppProgressed, k.AppCheckpointed, k.ContainerStarted)
"""Facts after which a master has nothing to publish, unless they may change the allocation."""


class Simulation:
    """A cluster in virtual time.  `state` is the fold of everything that was written."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        state: State | None = None,
        running: Mapping[str, Running] | None = None,
        name: str = "",
    ) -> None:
        """`running` holds every app of `state` that has not ended, by id, and the apps of unanswered submissions, by the id
        that they will have.  `state` is not changed.  Raises SimulationError."""
        self.scenario = scenario
        self.state = copy_of(state) if state is not None else State()
        self.state.identities = msgspec.UNSET  # Simulated masters have no keys, and requests no author.
        self.agenda = Agenda(self.state.time or BEGIN)
        self.begin = self.agenda.now
        """UTC ns; all times of the scenario count from here."""
        self.name = name or (f"fork-{state.seq}" if state is not None else "simulator")
        self._fresh = state is None
        self.master = self._make_master()
        self.agents = VirtualAgents(self.agenda, self.state, scenario, self._append, self.master)
        self._observers: list[Seen] = []
        self._unanswered: dict[str, SimulatedApp] = {}
        """Submitted apps, by the id that they will have."""
        self._to_come: dict[int, SimulatedApp] = {}
        """Apps still to be submitted, by their index in the scenario."""
        self._known = {
            node.id: SimulatedNode(node.id, node.capacity, node.labels) for node in self.state.nodes.values()
        } | {node.name: node for node in scenario.nodes}
        _check(scenario, self._known)
        self._adopt(dict(running or {}))

    def _make_master(self) -> VirtualMaster:
        scenario, plugins = self.scenario, self.scenario.plugins
        if self._fresh:
            plugins = (*plugins, *announced(scenario.policy))
        who = (self.agenda, self.state, self._append, scenario.decision_time, self.name)
        if scenario.rounds is not None:
            return RoundsMaster(*who, scenario.rounds, plugins=plugins)
        return VirtualMaster(*who, plugins=plugins)

    @property
    def partitions(self) -> dict[str, Partition]:
        """By app, as long as it lives or has containers left."""
        return self.agents.partitions

    @property
    def unfinished(self) -> list[str]:
        """Names of the apps that have neither ended nor been refused, including those still to come, sorted.  After a run that
        was not cut off: the apps that will never end, since nothing is left to happen."""
        submitted = [name_of(submission.spec) for submission in self.state.submissions.values() if not submission.app]
        return sorted([*self.state.names, *submitted, *(app.spec.name for app in self._to_come.values())])

    def observe(self, observer: Seen) -> None:
        self._observers.append(observer)

    def publish_at(self, at_s: float, event: k.Event, who: str) -> None:
        """Publish an event of a client or an operator `at_s` seconds from the start."""
        self.agenda.at(self._moment(at_s), lambda: self._append(event, who))

    def run(self) -> State:
        """Run until nothing is left to happen, or `until_s`.  Return the last state.  Raises SimulationError."""
        for _ in self.play():
            pass
        return self.state

    def play(self) -> Iterator[int]:
        """The same, act by act: yield the time after each (UTC ns)."""
        self._begin()
        until = None if self.scenario.until_s is None else self._moment(self.scenario.until_s)
        while self.agenda:
            due = self.agenda.next_at
            if until is not None and due is not None and due > until:
                break
            if until is None and not (self.state.names or self.state.submissions or self._to_come or self.partitions):
                break
            self.agenda.step()
            yield self.agenda.now

    def running(self) -> dict[str, Running]:
        """Return the data that a fork of the present state needs, by app."""
        now = self.agenda.now
        alive = {
            name: Running(partition.model, partition.done_by(now), partition.saved, partition.failures)
            for name, partition in self.partitions.items()
            if not partition.ended
        }
        return alive | {name: Running(model) for name, model in self._unanswered.items()}

    # --- the start ------------------------------------------------------------------------------------------------------

    def _moment(self, at_s: float) -> int:
        return self.begin + round(at_s * SECOND)

    def _begin(self) -> None:
        scenario = self.scenario
        if plugs_in := self._fresh and not built_in(scenario.policy):
            self.master.elect()  # Before the settings, which name a policy that it announces.
        if self._fresh:
            self._append(
                k.PolicyChanged(
                    policy=scenario.policy,
                    params=scenario.params,
                    quiet_ms=int(scenario.quiet_s * 1000),
                    quiet_limit_ms=int(scenario.quiet_limit_s * 1000),
                    idle_s=scenario.idle_s,
                    retention_s=scenario.retention_s,
                ),
                "operator",
            )
        for node in scenario.nodes:
            if node.name not in self.state.nodes:
                self.agents.join(node)
        if not plugs_in:
            self.master.elect()
        for outage in scenario.outages:
            self._plan_outage(outage)
        for index, app in enumerate(scenario.apps):
            self._to_come[index] = app
            self.agenda.at(self._moment(app.at_s), lambda index=index: self._submit(index))  # type: ignore[misc]

    def _plan_outage(self, outage: Outage) -> None:
        since = self._moment(outage.at_s)
        if outage.at_s < 0:
            self.agents.crash(outage.node, since)
        else:
            self.agenda.at(since, lambda: self.agents.crash(outage.node, since))
        if outage.for_s is not None:
            node = self._known[outage.node]
            self.agenda.at(self._moment(outage.at_s + outage.for_s), lambda: self.agents.recover(node))

    def _submit(self, index: int) -> None:
        app = self._to_come.pop(index)
        submission = app.submission or f"{self.name}-{index}"
        name = app_id(app.spec.name, submission)
        self._unanswered[name] = app
        spec = document_of(app.spec)
        self._append(k.AppSubmitted(id=submission, by=app.spec.user, spec=spec), "client")
        if app.cancel_at_s is not None:
            self.agenda.at(
                self._moment(app.cancel_at_s),
                lambda: self._append(k.AppCancelRequested(app=name, reason="given up"), "client"),
            )

    def _adopt(self, running: dict[str, Running]) -> None:
        for name, app in sorted(self.state.apps.items()):
            if app.ended and any(may_run(generation) for generation in app.generations.values()):
                self.agents.adopt(app, Running(SimulatedApp(at_s=0.0, spec=app.spec, work=0.0, speed=Linear())))
            elif not app.ended:
                self.agents.adopt(app, _known(running, name))
        for submission in self.state.submissions.values():
            if not submission.app and not submission.refused:
                name = app_id(name_of(submission.spec), submission.id)
                self._unanswered[name] = _known(running, name).model
        for node in sorted(node.id for node in self.state.nodes.values() if node.condition == "lost"):
            if all(outage.node != node or outage.at_s >= 0 for outage in self.scenario.outages):
                self.agents.crash(node, self.begin - int(self.state.settings.node_grace_s * SECOND) - 1)

    # --- the log --------------------------------------------------------------------------------------------------------

    def _append(self, event: k.Event, who: str) -> None:
        if isinstance(event, k.Round):
            subject = subjects.rounds(self.scenario.cluster)
        else:
            subject = subjects.fact(self.scenario.cluster, type(event).__name__, who)
        self._take(subject, encode(as_holder(self.state, event)), event.id)

    def _take(self, subject: str, body: bytes, msg_id: str) -> None:
        """Store a record, fold it, and let observers, agents and the master react."""
        record = Record(self.state.seq + 1, self.agenda.now, subject, body, msg_id)
        dirty = self.state.dirty_seq
        event, folded = evolve(self.state, record)
        for observer in self._observers:
            observer(self.state, record, event, folded)
        if isinstance(event, k.Round):
            for fact in event.events:
                self._react(fact)
        else:
            self._react(event)
        news = not isinstance(event, _TELLS_NOTHING_DUE)
        if news or self.state.dirty_seq != dirty:
            self.master.note(news=news)

    def _react(self, fact: Any) -> None:
        if isinstance(fact, k.AppAccepted):
            model = self._unanswered.pop(fact.app, None)
            if model is None:
                raise _no_model(fact.app)
            self.agents.admit(fact.app, model)
        elif isinstance(fact, k.AppRejected):
            self._unanswered.pop(fact.app, None)
        else:
            self.agents.react(fact)


def _known(running: dict[str, Running], name: str) -> Running:
    if name not in running:
        raise _no_model(name)
    return running[name]


def _no_model(app: str) -> SimulationError:
    return SimulationError(f"app {app} has no model of its work; give one", code="simulation.model.missing")


def _check(scenario: Scenario, nodes: Mapping[str, SimulatedNode]) -> None:
    """Reject a scenario that cannot be simulated.  Raises SimulationError."""
    if len({node.name for node in scenario.nodes}) < len(scenario.nodes):
        text = "two nodes of the scenario have the same name; give each its own"
        raise SimulationError(text, code="simulation.node.given_twice")
    for outage in scenario.outages:
        if outage.node not in nodes:
            text = f"outage of {outage.node}: the scenario has no such node"
            raise SimulationError(text, code="simulation.outage.unknown_node")
        if not math.isfinite(outage.at_s) or (outage.for_s is not None and not 0 <= outage.for_s < math.inf):
            text = f"outage of {outage.node}: its start and its length must be finite numbers of seconds"
            raise SimulationError(text, code="simulation.outage.out_of_range")
    for app in scenario.apps:
        if not (math.isfinite(app.at_s) and 0 <= app.work < math.inf):
            text = f"{app.spec.name}: submitted at {app.at_s} s with {app.work} of work; both must be finite numbers"
            raise SimulationError(text, code="simulation.app.out_of_range")
