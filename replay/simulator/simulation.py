"""One run: simulated clients, agents and apps around the real core, writing an ordinary log.

    Simulation(scenario).run()                     from an empty log, until nothing is left to happen
    Simulation(scenario, state=…, running=…)       a fork: from the state of another log, with models of its live apps

Agents here are quick and right; what the live ones do about crashes of their own is tested where they live.  A node may crash
with all that runs there: the peers of what was lost stand still until the master says what becomes of them.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import app_id
from dorm.core.evolve import evolve
from dorm.core.state import State
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log import Record
from replay.simulator import SimulationError
from replay.simulator.agenda import Agenda
from replay.simulator.master import VirtualMaster
from replay.simulator.partitions import SECOND, Partition
from replay.simulator.scenario import BEGIN
from replay.simulator.timings import FREE
from replay.simulator.workload import SimulatedApp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from replay.simulator.scenario import Outage, Scenario
    from replay.simulator.workload import SimulatedNode

    Observer = Callable[[Record, k.Event], None]
    """Called after each record was folded, with what it held."""

_PORTS = (20_000, 32_767)
_TELLS_NOTHING_DUE = (k.AppProgressed, k.AppCheckpointed, k.ContainerStarted)
"""Facts after which a master has nothing to say, unless they stir the allocation."""


class Running(msgspec.Struct, frozen=True):
    """What a fork knows of a live app beyond the state: its model, and how much of its work is done."""

    model: SimulatedApp
    done: float
    """Units of work that are done and saved."""


class Simulation:
    """A cluster in virtual time.  `state` is the fold of all that was written."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        state: State | None = None,
        running: Mapping[str, Running] | None = None,
        name: str = "simulator",
    ) -> None:
        self.scenario = scenario
        self.state = copy.deepcopy(state) if state is not None else State()
        self.agenda = Agenda(self.state.time or BEGIN)
        self.begin = self.agenda.now
        self.partitions: dict[str, Partition] = {}
        """By app."""
        self._name = name
        self._observers: list[Observer] = []
        self._to_come: dict[str, SimulatedApp] = {}
        """By the id of the app that they will be."""
        self._up = {node.id: node.condition == "up" for node in self.state.nodes.values()}
        self._master = VirtualMaster(self.agenda, self.state, self._append, scenario.decision_time, name)
        self._fresh = state is None
        self._unfinished = 0
        """Apps that have not ended, those to come included."""
        for app, known in sorted((running or {}).items()):
            self._adopt(app, known)

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)

    def publish_at(self, at_s: float, event: k.Event, who: str) -> None:
        """Somebody (a client, an operator) will say this, `at_s` seconds from the begin."""
        self.agenda.at(self._moment(at_s), lambda: self._append(event, who))

    def run(self) -> State:
        """Until nothing is left to happen, or `until_s`.  Gives the last state.  Raises SimulationError."""
        self._begin()
        until = None if self.scenario.until_s is None else self._moment(self.scenario.until_s)
        while self.agenda:
            due = self.agenda.next_at
            if until is not None and due is not None and due > until:
                break
            if not self._unfinished and until is None:
                break
            self.agenda.step()
        return self.state

    # --- the begin ------------------------------------------------------------------------------------------------------

    def _moment(self, at_s: float) -> int:
        return self.begin + int(at_s * SECOND)

    def _begin(self) -> None:
        scenario = self.scenario
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
                self._join(node)
        self._master.elect()
        known = {node.name: node for node in scenario.nodes}
        for outage in scenario.outages:
            if outage.node not in known:
                raise SimulationError(f"an outage of {outage.node}, which is no node of the scenario")
            self._plan_outage(outage, known[outage.node])
        for index, app in enumerate(scenario.apps):
            self._unfinished += 1
            self.agenda.at(self._moment(app.at_s), lambda index=index, app=app: self._submit(index, app))  # type: ignore[misc]

    def _submit(self, index: int, app: SimulatedApp) -> None:
        submission = f"{self._name}-{index}"
        self._to_come[app_id(app.spec.name, submission)] = app
        spec = msgspec.to_builtins(app.spec, str_keys=True)
        self._append(k.AppSubmitted(id=submission, by=app.spec.user, spec=spec), "client")
        if app.cancel_at_s is not None:
            name = app_id(app.spec.name, submission)
            self.agenda.at(
                self._moment(app.cancel_at_s),
                lambda: self._append(k.AppCancelRequested(app=name, reason="given up"), "client"),
            )

    def _adopt(self, app_name: str, known: Running) -> None:
        """A live app of the state that this run continues."""
        app = self.state.apps[app_name]
        self._unfinished += 1
        partition = self._partition(app_name, known.model)
        partition.done = partition.saved = known.done
        partition.generation = app.generation
        for number, generation in sorted(app.generations.items()):
            if number == app.generation:
                partition.placement = {slot: c.node for slot, c in generation.containers.items()}
            left = {slot: c for slot, c in generation.containers.items() if c.state != "exited"}
            if not generation.released or not left:
                continue
            partition.runs = {slot: c.node for slot, c in left.items()}
            partition.runs_generation = number
            partition.started = {slot for slot, c in left.items() if c.state == "running"}
        if not partition.runs:
            return
        if partition.runs_generation != partition.generation:
            self._stop(partition)
        elif len(partition.started) == len(partition.placement):
            self._work(partition)
        else:
            self._plan(partition, partition.timings.start_s, self._start)

    # --- the log --------------------------------------------------------------------------------------------------------

    def _append(self, event: k.Event, who: str) -> None:
        """Store it, fold it, and let everybody react."""
        body = encode(event)
        if isinstance(event, k.Round):
            subject = subjects.rounds(self.scenario.cluster)
        else:
            subject = subjects.fact(self.scenario.cluster, type(event).__name__, who)
        record = Record(self.state.seq + 1, self.agenda.now, subject, body, event.id)
        stirred = self.state.stirred_seq
        folded = evolve(self.state, record)
        for observer in self._observers:
            observer(record, folded)
        if isinstance(folded, k.Round):
            for fact in folded.events:
                reaction = _REACTIONS.get(type(fact))
                if reaction is not None:
                    reaction(self, fact)
        if self.state.stirred_seq != stirred or not isinstance(event, _TELLS_NOTHING_DUE):
            self._master.note(stirred)

    # --- what follows from the master's facts ---------------------------------------------------------------------------

    def _partition(self, app: str, model: SimulatedApp) -> Partition:
        tasks = self.scenario.tasks
        partition = self.partitions[app] = Partition(
            app=app,
            model=model,
            timings=FREE if tasks else model.timings or self.scenario.timings,
            efficiency=tasks.efficiency if tasks else 1.0,
        )
        return partition

    def _accepted(self, fact: k.AppAccepted) -> None:
        self._partition(fact.app, self._to_come.pop(fact.app))

    def _rejected(self, fact: k.AppRejected) -> None:
        if self._to_come.pop(fact.app, None) is not None:
            self._unfinished -= 1

    def _resized(self, fact: k.Resized) -> None:
        for change in fact.changes:
            partition = self.partitions.get(change.app)
            if partition is None or change.to_generation <= partition.generation:
                continue
            partition.generation = change.to_generation
            partition.placement = {placed.slot: placed.node for placed in change.placement}
            self._stop(partition)

    def _released(self, fact: k.GenerationReleased) -> None:
        partition = self.partitions[fact.app]
        if partition.generation != fact.generation:
            return
        partition.stopping = False
        partition.runs = dict(partition.placement)
        partition.runs_generation = fact.generation
        partition.started = set()
        if not fact.resume:
            partition.saved = 0.0
        partition.fall_back()
        self._plan(partition, partition.timings.start_s, self._start)

    def _failed(self, fact: k.GenerationFailed) -> None:
        partition = self.partitions[fact.app]
        if partition.runs_generation == fact.generation:
            partition.rest(self.agenda.now)
            self._plan(partition, partition.timings.stop_s, self._exit)

    def _ended(self, fact: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        partition = self.partitions.pop(fact.app, None)
        if partition is None or partition.ended:
            return
        partition.ended = True
        self._unfinished -= 1
        partition.rest(self.agenda.now)
        if partition.runs:
            self._plan(partition, partition.timings.stop_s, self._exit)

    # --- agents and apps ------------------------------------------------------------------------------------------------

    def _plan(self, partition: Partition, after_s: float, act: Callable[[Partition], None]) -> None:
        """`act` in so many seconds, unless the app does something else until then."""
        partition.turn += 1
        turn = partition.turn

        def if_still() -> None:
            if partition.turn == turn:
                act(partition)

        self.agenda.at(self.agenda.now + int(after_s * SECOND), if_still)

    def _stop(self, partition: Partition) -> None:
        """What runs belongs to an earlier generation: save, then exit."""
        if not partition.runs or partition.stopping:
            return
        worked = partition.since > 0
        partition.rest(self.agenda.now)
        partition.stopping = True
        whole = len(partition.started) == len(partition.runs) and all(
            self._up[node] for node in partition.runs.values()
        )
        if worked and whole and partition.timings.can_checkpoint:
            self._plan(partition, partition.timings.checkpoint_s, self._checkpoint)
        else:
            self._plan(partition, partition.timings.stop_s, self._exit)

    def _checkpoint(self, partition: Partition) -> None:
        partition.saved = partition.done
        self._append(
            k.AppCheckpointed(app=partition.app, generation=partition.runs_generation, step=partition.step),
            partition.runs[min(partition.runs)],
        )
        self._plan(partition, partition.timings.stop_s, self._exit)

    def _exit(self, partition: Partition) -> None:
        """All of it that can still say so has stopped, as it was asked to."""
        self._leave(partition, exit_code=143, asked=True)

    def _leave(self, partition: Partition, *, exit_code: int, asked: bool) -> None:
        generation, runs = partition.runs_generation, partition.runs
        gone = [slot for slot, node in runs.items() if self._up[node]]
        partition.runs = {slot: node for slot, node in runs.items() if slot not in set(gone)}
        for slot in sorted(gone):
            self._append(
                k.ContainerExited(
                    app=partition.app,
                    generation=generation,
                    slot=slot,
                    node=runs[slot],
                    exit_code=exit_code,
                    asked=asked,
                    exited_at=self.agenda.now,
                ),
                runs[slot],
            )

    def _start(self, partition: Partition) -> None:
        for slot, node in sorted(partition.runs.items()):
            if slot not in partition.started and self._up[node]:
                partition.started.add(slot)
                self._append(
                    k.ContainerStarted(
                        app=partition.app,
                        generation=partition.runs_generation,
                        slot=slot,
                        node=node,
                        started_at=self.agenda.now,
                    ),
                    node,
                )
        if len(partition.started) == len(partition.placement):
            timings = partition.timings
            self._plan(partition, timings.resume_s if partition.saved else timings.boot_s, self._work)

    def _work(self, partition: Partition) -> None:
        partition.work(self.agenda.now)
        done_at = partition.done_at()
        if done_at is None:
            return
        turn = partition.turn

        def finish() -> None:
            if partition.turn == turn:
                partition.rest(self.agenda.now)
                self._leave(partition, exit_code=0, asked=False)

        self.agenda.at(done_at, finish)
        self._tell_later(partition, turn)

    def _tell_later(self, partition: Partition, turn: int) -> None:
        if self.scenario.progress_s <= 0:
            return

        def tell() -> None:
            if partition.turn != turn:
                return
            partition.count(self.agenda.now)
            self._append(
                k.AppProgressed(
                    app=partition.app,
                    generation=partition.runs_generation,
                    step=partition.step,
                    samples_per_s=round(partition.rate * partition.model.steps_per_unit, 6),
                ),
                partition.runs[min(partition.runs)],
            )
            self._tell_later(partition, turn)

        self.agenda.at(self.agenda.now + int(self.scenario.progress_s * SECOND), tell)

    # --- nodes ----------------------------------------------------------------------------------------------------------

    def _join(self, node: SimulatedNode) -> None:
        self._up[node.name] = True
        self._append(
            k.NodeJoined(
                node=node.name,
                address=node.name,
                capacity=node.capacity,
                ports=_PORTS,
                labels=node.labels,
                runtime="simulated",
            ),
            node.name,
        )

    def _plan_outage(self, outage: Outage, node: SimulatedNode) -> None:
        self.agenda.at(self._moment(outage.at_s), lambda: self._crash(outage.node))
        self.agenda.at(self._moment(outage.at_s + outage.for_s), lambda: self._recover(node))

    def _crash(self, node: str) -> None:
        self._up[node] = False
        self._master.silence(node)
        for partition in self.partitions.values():
            if node in partition.runs.values():
                partition.rest(self.agenda.now)
                partition.fall_back()
                if partition.stopping:
                    self._plan(partition, partition.timings.stop_s, self._exit)

    def _recover(self, node: SimulatedNode) -> None:
        """Its agent is back and tells what it does not find any more."""
        self._join(node)
        self._master.hear(node.name)
        for partition in list(self.partitions.values()):
            for slot in sorted(slot for slot, where in partition.runs.items() if where == node.name):
                del partition.runs[slot]
                self._append(
                    k.ContainerExited(
                        app=partition.app,
                        generation=partition.runs_generation,
                        slot=slot,
                        node=node.name,
                        reason="lost",
                        message="the node had crashed",
                    ),
                    node.name,
                )


_REACTIONS: dict[type, Callable[[Simulation, Any], None]] = {
    k.AppAccepted: Simulation._accepted,
    k.AppRejected: Simulation._rejected,
    k.Resized: Simulation._resized,
    k.GenerationReleased: Simulation._released,
    k.GenerationFailed: Simulation._failed,
    k.AppCompleted: Simulation._ended,
    k.AppFailed: Simulation._ended,
    k.AppCancelled: Simulation._ended,
}
