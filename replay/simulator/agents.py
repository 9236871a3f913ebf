"""The agents of a simulated cluster and the apps under them: how they react to the master's facts.

Simulated agents are fast and correct; how live ones handle their own crashes is tested elsewhere.  A node may crash with
everything that runs there; the peers of lost containers then stand still until the master decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.invariants import may_run
from dorm.core.offers import abilities_of_new
from events import kinds as k
from events.quantities import SECOND
from replay.simulator.live import LiveMembers
from replay.simulator.partitions import NEVER, Partition
from replay.simulator.timings import FREE

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import App, Generation, State
    from replay.simulator.agenda import Agenda
    from replay.simulator.master import VirtualMaster
    from replay.simulator.scenario import Running, Scenario
    from replay.simulator.workload import SimulatedApp, SimulatedNode

    Append = Callable[[k.Event, str], None]

ASKED, DONE = 143, 0
"""Exit codes: after SIGTERM, and after the work is done."""
_PORTS = (20_000, 32_767)


class VirtualAgents:
    """All agents of the cluster.  `append` stores a fact and folds it into `state`; `react` gets every folded fact."""

    def __init__(self, agenda: Agenda, state: State, scenario: Scenario, append: Append, master: VirtualMaster) -> None:
        self.partitions: dict[str, Partition] = {}
        """Partitions by app, as long as the app lives or has containers left."""
        self._agenda = agenda
        self._state = state
        self._scenario = scenario
        self._append = append
        self._master = master
        self._live = LiveMembers(agenda, append, is_up=self._is_up, exited=self._left, work=self._work)
        self._types = {node.id: node.labels.get("type", "") for node in state.nodes.values()}
        self._types |= {node.name: node.labels.get("type", "") for node in scenario.nodes}
        self._up = {node.id: node.condition == "up" for node in state.nodes.values()}
        self._outages: dict[str, int] = {}
        """Number of a node's present outages, which may overlap."""

    def react(self, fact: Any) -> None:
        reaction = _REACTIONS.get(type(fact))
        if reaction is not None:
            reaction(self, fact)

    def admit(self, app: str, model: SimulatedApp) -> Partition:
        """Add a new app, which has no containers yet."""
        tasks = self._scenario.tasks
        partition = self.partitions[app] = Partition(
            app=app,
            model=model,
            timings=FREE if tasks else model.timings or self._scenario.timings,
            efficiency=tasks.efficiency if tasks else 1.0,
            types=self._types,
            live=model.spec.elastic == "live",
        )
        return partition

    # --- reactions to the master ----------------------------------------------------------------------------------------

    def _resized(self, fact: k.Resized) -> None:
        for change in fact.changes:
            self._change(change)
        for app, size in fact.batches.items():
            partition = self.partitions.get(app)
            if partition is not None:
                self._set_batch(partition, size)

    def _set_batch(self, partition: Partition, size: int) -> None:
        """A working app continues with the new batch size at once."""
        works, now = partition.doing == "working", self._agenda.now
        if works:
            partition.rest(now, "working")
        partition.batch = size
        if works:
            self._work_on(partition, partition.began)

    def _change(self, change: k.Resize) -> None:
        partition = self.partitions.get(change.app)
        if partition is None or change.to_generation <= partition.generation:
            return  # A live adjustment keeps the generation, and begins with its release.
        partition.generation = change.to_generation
        partition.placement = {placed.slot: placed.node for placed in change.placement}
        if change.prepare_s:
            self._agenda.at(self._agenda.now, lambda: self._prepared(change))
        self._stop(partition, self._agenda.now)

    def _prepared(self, change: k.Resize) -> None:
        """Report that containers are prepared: it costs the app no time, so here it takes none."""
        for name in sorted({placed.node for placed in change.placement}):
            node = self._state.nodes.get(name)
            if node is not None and self._is_up(name):
                self._append(
                    k.ContainersPrepared(
                        app=change.app,
                        generation=change.to_generation,
                        node=name,
                        created=sum(placed.node == name for placed in change.placement),
                        identity=node.identity,
                    ),
                    name,
                )

    def _released(self, fact: k.GenerationReleased) -> None:
        partition = self.partitions.get(fact.app)
        if partition is None or partition.generation != fact.generation:
            return
        partition.runs = dict(partition.placement)
        partition.runs_generation = fact.generation
        partition.started, partition.membership, partition.joining = set(), 1, {}
        if not fact.resume:
            partition.saved = 0.0
        partition.fall_back()
        partition.turn_to("starting")
        self._after(partition, partition.timings.start_s, self._start)

    def _members(self, fact: k.MembersReleased | k.MembersLost) -> None:
        partition = self.partitions.get(fact.app)
        if partition is not None:
            self._live.released(partition, fact)

    def _live_failed(self, fact: k.LiveResizeFailed) -> None:
        self._change(fact.restart)

    def _failed(self, fact: k.GenerationFailed) -> None:
        partition = self.partitions.get(fact.app)
        if partition is not None and partition.runs_generation == fact.generation and partition.runs:
            self._leave_after(partition, partition.timings.stop_s)

    def _ended(self, fact: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        partition = self.partitions.get(fact.app)
        if partition is None:
            return
        partition.ended = True
        partition.give_up_joining()
        if not partition.runs:
            del self.partitions[fact.app]
        elif not partition.stopping:
            self._leave_after(partition, partition.timings.stop_s)

    def _killed(self, fact: k.AppKilled) -> None:
        partition = self.partitions.get(fact.app)
        if partition is not None and partition.runs:
            self._leave_after(partition, 0.0)

    def _lease_ended(self, fact: k.NodeLeaseEnded | k.NodeLeft) -> None:
        """Forget the node's containers: they have surely ended, and are never reported again."""
        if isinstance(fact, k.NodeLeft):
            self._up[fact.node] = False
        for partition in list(self.partitions.values()):
            partition.joining = {slot: node for slot, node in partition.joining.items() if node != fact.node}
            if fact.node in partition.runs.values():
                self._stand_still(partition)
                self._forget(partition, [slot for slot, node in partition.runs.items() if node == fact.node])

    def _joined(self, fact: k.NodeJoined) -> None:
        self._up[fact.node] = True
        self._types[fact.node] = fact.labels.get("type", "")

    # --- the life of an app ---------------------------------------------------------------------------------------------

    def _at(self, partition: Partition, time: int, act: Callable[[Partition], None]) -> None:
        """Run `act` at that time, unless the app does something else before."""
        turn = partition.turn

        def if_still() -> None:
            if partition.turn == turn:
                act(partition)

        self._agenda.at(time, if_still)

    def _after(self, partition: Partition, seconds: float, act: Callable[[Partition], None]) -> None:
        self._at(partition, self._agenda.now + int(seconds * SECOND), act)

    def _is_up(self, node: str) -> bool:
        return self._up.get(node, False)

    def _start(self, partition: Partition) -> None:
        now = self._agenda.now
        for slot, node in sorted(partition.runs.items()):
            if slot not in partition.started and self._is_up(node):
                partition.started.add(slot)
                self._append(
                    k.ContainerStarted(
                        app=partition.app, generation=partition.runs_generation, slot=slot, node=node, started_at=now
                    ),
                    node,
                )
        if len(partition.started) == len(partition.placement):
            partition.turn_to("booting")
            timings = partition.timings
            self._after(partition, timings.resume_s if partition.saved else timings.boot_s, self._work)

    def _work(self, partition: Partition) -> None:
        self._work_on(partition, self._agenda.now)

    def _work_on(self, partition: Partition, began: int) -> None:
        """Work since `began` (UTC ns), where the intervals of reports and checkpoints start."""
        partition.began = began
        partition.work(self._agenda.now)
        done_at = partition.done_at()
        if done_at is None:
            return
        self._at(partition, done_at, self._break if partition.failure_ahead else self._finish)
        self._every(partition, self._scenario.progress_s, began, self._report_progress)
        if partition.timings.can_checkpoint:
            self._every(partition, partition.timings.checkpoint_every_s, began, self._save)

    def _finish(self, partition: Partition) -> None:
        partition.rest(self._agenda.now, "")
        partition.done = partition.model.work
        self._exit(partition, DONE, stop_requested=False)

    def _break(self, partition: Partition) -> None:
        """Let the first container fail; the others have lost their peer."""
        failure = partition.model.fails_at[partition.failures]
        partition.failures += 1
        first = min(partition.runs)
        node = partition.runs[first]
        self._stand_still(partition)
        self._forget(partition, [first])
        self._report_exited(partition, first, node, failure.exit_code, stop_requested=False)

    def _every(self, partition: Partition, seconds: float, began: int, act: Callable[[Partition], None]) -> None:
        """Run `act` repeatedly while the app works on."""
        if seconds <= 0:
            return
        interval = max(1, int(seconds * SECOND))

        def again(partition: Partition) -> None:
            act(partition)
            self._at(partition, self._agenda.now + interval, again)

        intervals = max(1, -((began - self._agenda.now) // interval))
        self._at(partition, began + intervals * interval, again)

    def _report_progress(self, partition: Partition) -> None:
        self._append(
            k.AppProgressed(
                app=partition.app,
                generation=partition.runs_generation,
                step=partition.step_by(self._agenda.now),
                samples_per_s=round(partition.rate_by(self._agenda.now) * partition.model.steps_per_unit, 6),
                noise=partition.noise_by(self._agenda.now),
            ),
            partition.runs[min(partition.runs)],
        )

    def _save(self, partition: Partition) -> None:
        now = self._agenda.now
        partition.saved = partition.done_by(now)
        self._append(
            k.AppCheckpointed(app=partition.app, generation=partition.runs_generation, step=partition.step_by(now)),
            partition.runs[min(partition.runs)],
        )

    def _stop(self, partition: Partition, since: int) -> None:
        """Stop an earlier generation, as decided at `since` (UTC ns): save, then exit."""
        partition.give_up_joining()
        if not partition.runs or partition.stopping:
            return
        timings = partition.timings
        stops_at = since + int(timings.stop_s * SECOND)
        if partition.doing == "working" and timings.can_checkpoint:
            partition.rest(self._agenda.now, "saving")
            saved_at = since + int(timings.checkpoint_s * SECOND)

            def save(partition: Partition) -> None:
                self._save(partition)
                self._leave_after(partition, timings.stop_s)

            self._at(partition, saved_at, save)
            return
        partition.rest(self._agenda.now, "leaving")
        self._at(partition, stops_at, self._leave)

    def _leave_after(self, partition: Partition, seconds: float) -> None:
        partition.give_up_joining()
        partition.rest(self._agenda.now, "leaving")
        self._after(partition, seconds, self._leave)

    def _leave(self, partition: Partition) -> None:
        self._exit(partition, ASKED, stop_requested=True)

    def _exit(self, partition: Partition, exit_code: int, *, stop_requested: bool) -> None:
        """Exit all containers on nodes that are up."""
        gone = {slot: node for slot, node in sorted(partition.runs.items()) if self._is_up(node)}
        self._forget(partition, list(gone))
        for slot, node in gone.items():
            self._report_exited(partition, slot, node, exit_code, stop_requested=stop_requested)

    def _left(self, partition: Partition, slot: int, node: str) -> None:
        """Report that a member of a live app has left by itself."""
        self._report_exited(partition, slot, node, DONE, stop_requested=False)

    def _report_exited(
        self, partition: Partition, slot: int, node: str, exit_code: int, *, stop_requested: bool
    ) -> None:
        self._append(
            k.ContainerExited(
                app=partition.app,
                generation=partition.runs_generation,
                slot=slot,
                node=node,
                exit_code=exit_code,
                asked=stop_requested,
                exited_at=self._agenda.now,
            ),
            node,
        )

    def _forget(self, partition: Partition, slots: list[int]) -> None:
        for slot in slots:
            del partition.runs[slot]
        if partition.runs:
            return
        if partition.doing != "":
            partition.turn_to("")
        if partition.ended:
            self.partitions.pop(partition.app, None)

    def _stand_still(self, partition: Partition) -> None:
        """Lose a part of the app, with its unsaved work, unless the rest of a live app may go on.  Starting and leaving
        containers continue as before."""
        if partition.doing in ("booting", "working", "agreeing"):
            partition.rest(self._agenda.now, "standing")
            if not partition.live:
                partition.fall_back()
        elif partition.doing == "saving":
            self._leave_after(partition, partition.timings.stop_s)
            partition.fall_back()

    # --- nodes ----------------------------------------------------------------------------------------------------------

    def join(self, node: SimulatedNode) -> None:
        """Join a node: a new one, or one whose agent is back, with its earlier identity."""
        known = self._state.nodes.get(node.name)
        offers = known.offers if known is not None and isinstance(known.offers, k.NodeOffers) else None
        self._append(
            k.NodeJoined(
                node=node.name,
                address=known.address if known else node.name,
                capacity=node.capacity,
                ports=known.ports if known else _PORTS,
                labels=node.labels,
                runtime=known.runtime if known else "simulated",
                abilities=known.able if known else abilities_of_new(self._state),
                offers=offers,
            ),
            node.name,
        )

    def crash(self, node: str, since: int) -> None:
        """Crash a node with everything that runs there; it has been silent since `since` (UTC ns)."""
        self._outages[node] = self._outages.get(node, 0) + 1
        if self._outages[node] > 1:
            return
        self._up[node] = False
        self._master.silence(node, since)
        for partition in self.partitions.values():
            if node in partition.runs.values():
                self._stand_still(partition)

    def recover(self, node: SimulatedNode) -> None:
        """Bring a node's agent back; it reports the containers that it no longer finds."""
        self._outages[node.name] -= 1
        if self._outages[node.name]:
            return
        self.join(node)
        self._master.mark_heard(node.name)
        for partition in list(self.partitions.values()):
            lost = sorted(slot for slot, where in partition.runs.items() if where == node.name)
            self._forget(partition, lost)
            gone = sorted(slot for slot, where in partition.joining.items() if where == node.name)
            partition.joining = {slot: where for slot, where in partition.joining.items() if slot not in gone}
            lost += gone
            for slot in lost:
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

    # --- forks ----------------------------------------------------------------------------------------------------------

    def adopt(self, app: App, known: Running) -> None:
        """Adopt an app in the middle of its phase.  The state holds when the phase began and the timings how long it takes, so
        it ends when it would have ended."""
        partition = self.admit(app.id, known.model)
        partition.saved = known.done if known.saved is None else known.saved
        partition.done, partition.failures = known.done, known.failures
        partition.generation, partition.ended, partition.batch = app.generation, bool(app.ended), app.batch
        latest = app.generations.get(app.generation)
        partition.placement = {slot: c.node for slot, c in latest.containers.items()} if latest else {}
        running = [generation for _, generation in sorted(app.generations.items()) if may_run(generation)]
        if not running:
            partition.fall_back()
            if partition.ended:
                del self.partitions[app.id]
            return
        ran = running[-1]
        left = {slot: c for slot, c in sorted(ran.containers.items()) if c.state != "exited"}
        partition.runs = {slot: c.node for slot, c in left.items()}
        partition.runs_generation = ran.number
        partition.started = {slot for slot, c in left.items() if c.state == "running"}
        self._continue(partition, app, ran)
        self._live.adopt(partition, ran)

    def _continue(self, partition: Partition, app: App, ran: Generation) -> None:
        timings, now = partition.timings, self._agenda.now
        exited = [c for c in ran.containers.values() if c.state == "exited"]
        boot_s = timings.resume_s if partition.saved else timings.boot_s
        works_at = ran.started_at + int(boot_s * SECOND) if ran.started_at else NEVER
        if app.ended or ran.failed:
            partition.doing = "leaving"
            since = app.ended_at if app.ended else now
            self._at(partition, since + int(timings.stop_s * SECOND), self._leave)
        elif ran.number != app.generation:
            decided_at = app.generations[app.generation].decided_at
            self._continue_stopping(partition, decided_at, worked=works_at <= decided_at and not exited)
        elif any(c.exit_code == 0 and not c.asked for c in exited):
            partition.doing = "working"
            self._at(partition, now, self._finish)
        elif ran.started_at and (exited or not all(map(self._is_up, partition.runs.values()))):
            partition.doing = "standing"
            partition.fall_back()
        elif ran.started_at:
            partition.doing = "booting"
            self._at(partition, works_at, lambda partition: self._work_on(partition, works_at))
        else:
            partition.doing = "starting"
            self._at(partition, ran.released_at + int(timings.start_s * SECOND), self._start)

    def _continue_stopping(self, partition: Partition, since: int, *, worked: bool) -> None:
        timings = partition.timings
        if partition.done > partition.saved and worked and timings.can_checkpoint:
            partition.doing = "working"
            self._stop(partition, since)
            return
        partition.doing = "leaving"
        takes_s = timings.stop_s + (timings.checkpoint_s if worked and timings.can_checkpoint else 0.0)
        self._at(partition, since + int(takes_s * SECOND), self._leave)


_REACTIONS: dict[type, Callable[[VirtualAgents, Any], None]] = {
    k.Resized: VirtualAgents._resized,
    k.GenerationReleased: VirtualAgents._released,
    k.MembersReleased: VirtualAgents._members,
    k.MembersLost: VirtualAgents._members,
    k.LiveResizeFailed: VirtualAgents._live_failed,
    k.GenerationFailed: VirtualAgents._failed,
    k.AppCompleted: VirtualAgents._ended,
    k.AppFailed: VirtualAgents._ended,
    k.AppCancelled: VirtualAgents._ended,
    k.AppKilled: VirtualAgents._killed,
    k.NodeLeaseEnded: VirtualAgents._lease_ended,
    k.NodeLeft: VirtualAgents._lease_ended,
    k.NodeJoined: VirtualAgents._joined,
}
