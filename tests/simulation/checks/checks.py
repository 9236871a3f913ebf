"""The promises, checked at every relevant event: containers against the log, and the log against containers.

    1  an acknowledged submission is never lost, is answered, and never becomes two apps
    2  no two generations of an app at once on any machine, no overfull machine, no port twice, no container twice
    3  one writer of rounds for each epoch, increasing epochs, no round of a master that was succeeded
    4  one log, one state: in the end, all folds agree, and every decision can be repeated byte for byte
    5  containers are stopped only for a reason on the log, or because the lease has ended
    6  records of strangers do no harm: all of the above still holds

And about facts: those of agents and masters about containers are true, each end is reported once, and only work after the last
checkpoint is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from agents.runtime.interface import Key
from events import kinds as k
from events.codec import decode
from tests.simulation.attack.clocks import Times
from tests.simulation.attack.crowds import Spoken, needless_wait
from tests.simulation.attack.gates import Shut
from tests.simulation.attack.operators import decided_while_paused
from tests.simulation.checks.overdue import Overdue, named, wanted
from tests.simulation.machines.apps import LOST_PEER, PLAN

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.records import Record
    from tests.simulation.attack.neighbors import Neighbors
    from tests.simulation.machines.machine import Container, Machine
    from tests.simulation.world.world import World

STRANGER = "stranger"
"""The prefix of ids of records by neither masters nor agents nor clients."""
_KEPT_S = 15.0
"""How long after its end a fault may explain that a node was not heard: timeouts and delayed messages."""


class Checks:
    """The witness of one history."""

    def __init__(self, world: World, masters: set[str]) -> None:
        self.world = world
        self.machines: dict[str, Machine] = {}
        self.retired: set[str] = set()
        """Machines without an agent, by place: nobody removes there what was created."""
        self.neighbors: Neighbors | None = None
        self.masters = masters
        """Names that rounds of real masters are written by; all others are strangers."""
        self.over = False
        """Nothing counts any more: the world is being cleared away."""
        self.launched: dict[Key, Container] = {}
        self.disturbed: dict[str, float] = {}
        """Until when each host, or "" for the server, was hit by a fault."""
        self.lost_by_nature: set[str] = set()
        """Apps of which a container was removed, or lost what it had written: they may have lost a checkpoint's word."""
        self._running: dict[str, Counter[int]] = defaultdict(Counter)
        self._used: Counter[str] = Counter()
        self._ports: dict[tuple[str, int], Key] = {}
        self._failed: dict[str, set[int]] = defaultdict(set)
        """Generations of which a container ended badly, or could not be made, by app."""
        self._saved: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self._fresh: set[str] = set()
        """Apps whose next generation starts without a checkpoint, as their owner asked."""
        self._saved_most: dict[str, int] = defaultdict(int)
        self._released: dict[tuple[str, int], int | None] = {}
        """The checkpoint that was known when it was released."""
        self._told: Counter[Key] = Counter()
        self._concluded: set[Key] = set()
        self._placed: dict[str, set[Key]] = defaultdict(set)
        """What was released to each node."""
        self._never: set[Key] = set()
        """Counted as ended before they were launched."""
        self._epochs: dict[int, str] = {}
        self._void = 0
        self._submissions: dict[str, str] = {}
        self.answered: set[str] = set()
        self._heard: dict[str, float] = {}
        """When something of each node was last stored, heartbeat or not."""
        self._gone: set[Key] = set()
        """Removed by hand. If that was before anyone knew of its start, the agent may start it again."""
        self._started: set[Key] = set()
        """Said to have started."""
        self._overdue = Overdue(self)
        self._ids: set[str] = set()
        self._ids_of: dict[str, str] = {}
        """Under which id each plan was submitted."""
        self._plans: dict[str, str] = {}
        self._refused: set[str] = set()
        self._spoken = Spoken()
        self._shut = Shut()
        self.times = Times([])

    @property
    def whole(self) -> State:
        return self.world.whole

    def hold(self, promise: bool, otherwise: str) -> None:
        if not promise and not self.over:
            self.world.fail(otherwise)

    # --- what containers do --------------------------------------------------------------------------------------------

    def started(self, container: Container) -> None:
        key, machine = container.key, container.machine
        self.world.trace(
            "container starts",
            key=tuple(key),
            node=machine.name,
            step=container.program.step if container.program else 0,
        )
        again = key in self.launched and not (key in self._gone and key not in self._started)
        self.hold(not again, f"{named(key)} is started a second time")
        self.launched[key] = container
        self.times.started(container, self.world.now)
        self.hold(key[:2] in self._released, f"{named(key)} is started and was never released")
        self.hold(self._told[key] == 0, f"{named(key)} is started after its end was told")
        self.hold(key not in self._never, f"{named(key)} is started after the log has counted it as ended")
        running = self._running[key.app]
        running[key.generation] += 1
        at_once = sorted(number for number, count in running.items() if count)
        self.hold(len(at_once) == 1, f"generations {at_once} of {key.app} run at once")
        self._used[machine.place] += container.spec.resources["cpu"]
        used = self._used[machine.place]
        self.hold(used <= machine.cpu, f"{machine.place} runs {used} milli-cores and has {machine.cpu}")
        for port in container.ports:
            other = self._ports.setdefault((machine.place, port), key)
            self.hold(other == key, f"port {port} of {machine.place} belongs to {named(other)} and {named(key)}")
        self._check_folder(container)
        self._check_begin(container)

    def _check_folder(self, container: Container) -> None:
        """Check that it works in the folder of its release, if the folder is the one that its agent found when it began: what
        is mounted while an agent looks and starts is random."""
        key, machine = container.key, container.machine
        app = self.whole.apps.get(key.app)
        generation = app.generations.get(key.generation) if app is not None else None
        begun = min((process.began for process in machine.host.processes), default=0.0)
        if generation is None or not generation.folder or machine.mounted_at > begun:
            return
        found = machine.marker
        self.hold(
            found == generation.folder,
            f"{named(key)} is started in the folder of checkpoints {found}, and was released for {generation.folder}",
        )

    def _check_begin(self, container: Container) -> None:
        """Check that it continues from the saved step.  A reported checkpoint is in the folder, and unless something kept an
        agent from reading a container's last lines, a saved checkpoint was reported."""
        key, begun = container.key, container.program.begun if container.program else 0
        told = self._released.get(key[:2])
        self.hold(told is None or begun >= told, f"{named(key)} begins at step {begun}; step {told} was saved and told")
        if key.app not in self.lost_by_nature:
            saved = max((step for number, step in self._saved[key.app] if number < key.generation), default=0)
            self.hold(begun >= saved, f"{named(key)} begins at step {begun}, though step {saved} was saved")

    def ended(self, container: Container) -> None:
        key, machine = container.key, container.machine
        self.world.trace("container ends", key=tuple(key), code=container.exit_code, finished=container.finished)
        self._running[key.app][key.generation] -= 1
        self._used[machine.place] -= container.spec.resources["cpu"]
        for port in container.ports:
            if self._ports.get((machine.place, port)) == key:
                del self._ports[machine.place, port]
        if not container.finished and not container.asked and not container.lease_ended:
            self._failed[key.app].add(key.generation)
            self.fails(container)

    def fails(self, container: Container) -> None:
        """Its peers lose it: it has ended badly, or is about to."""
        for other in self.launched.values():
            peer = other.key[:2] == container.key[:2] and other is not container and other.state == "running"
            if peer and other.program is not None:
                other.program.peer_died()

    def could_not_start(self, key: Key) -> None:
        """The engine refused it, or its port was taken."""
        self._failed[key.app].add(key.generation)

    def saved(self, key: Key, step: int) -> None:
        """The program wrote a checkpoint."""
        self._saved[key.app].add((key.generation, step))
        self._saved_most[key.app] = max(self._saved_most[key.app], step)

    def lost_words(self, key: Key) -> None:
        self.lost_by_nature.add(key.app)
        self._gone.add(key)

    def folder_gone(self, key: Key) -> None:
        """The place of a checkpoint that is saved at that time, and whether it is reported, are random; reported checkpoints
        exist anyway.  The same applies to the last lines of an ended container until its agent has reported them: the agent
        believes them only if it finds the shared folder."""
        if key in self.launched and not self._told[key]:
            self.lost_by_nature.add(key.app)

    def removed(self, container: Container) -> None:
        """Its agent removed it: its report is on the log."""
        key = container.key
        told = self._told[key] or key in self._concluded or self.launched.get(key) is not container
        self.hold(bool(told), f"{named(key)} is removed, and nobody told of its end")

    def asked(self, container: Container) -> None:
        """Promise 5: only containers that the log no longer wants are stopped, or all when the lease has ended."""
        key, machine = container.key, container.machine
        self.world.trace("container is asked to stop", key=tuple(key))
        over = machine.lease_until is not None and self.world.now >= machine.lease_until
        self.hold(over or not wanted(self.whole, key), f"{named(key)} is stopped, which the log wants to run")

    def look(self) -> None:
        """Check all containers at intervals."""
        self._overdue.look()

    def heard(self, node: str) -> None:
        """A heartbeat was stored."""
        self._heard[node] = self.world.now

    def extended(self, machine: Machine, seconds: float) -> None:
        """The lease counts from when a stored heartbeat was sent, so never from later than when it was stored.  One of no
        seconds extends nothing."""
        if seconds <= 0:
            return
        node = self.whole.nodes.get(machine.name)
        lease = max(self.whole.settings.node_lease_s, node.lease_s if node else 0.0)
        last = self._heard.get(machine.name, 0.0)
        self.hold(
            self.world.now + seconds <= last + lease + 1e-6,
            f"{machine.name} has its lease extended by {seconds} s; the last that is stored of it is from {last:.3f} s",
        )

    def lease_over(self, machine: Machine) -> None:
        """The guard is about to kill: correct only if something kept the agent from extending the lease."""
        since = max(self.disturbed.get(machine.name, 0.0), self.disturbed.get("", 0.0))
        self.world.trace("the lease is over", node=machine.name)
        lease = min((node.lease_s for node in self.whole.nodes.values()), default=self.whole.settings.node_lease_s)
        lease = min(lease, self.whole.settings.node_lease_s)
        self.hold(
            self.world.now - since < lease + _KEPT_S,
            f"the lease of {machine.name} ended, though nothing has been wrong with it since {since:.1f} s",
        )

    # --- what the log says ---------------------------------------------------------------------------------------------

    def record(self, record: Record) -> None:
        event = decode(record)
        void, self._void = self._void, self.whole.counters.void_rounds
        if isinstance(event, _OF_AGENTS) and not record.msg_id.startswith(STRANGER):
            self.hold(event.id not in self._ids, f"{event.id} is told twice")
            self._ids.add(event.id)
            if isinstance(event, k.AppCheckpointed | k.AppProgressed):
                too_much = self._spoken.too_much(event, self.world.now)
                self.hold(not too_much, too_much)
        match event:
            case k.Round():
                self._round(event, void=self._void > void)
            case k.ContainerExited():
                self._exited(event, record)
            case k.ContainerStarted() if event.node in self.machines:
                key = Key(event.app, event.generation, event.slot)
                self._started.add(key)
                said_by_agent = not record.msg_id.startswith(STRANGER)
                self.hold(
                    key in self.launched or not said_by_agent, f"{named(key)} is said to have started, and never did"
                )
            case k.AppCheckpointed() if not record.msg_id.startswith(STRANGER):
                said = (event.generation, event.step)
                self.hold(said in self._saved[event.app], f"{event.app} is said to have saved {said}, and never did")
            case k.AppSubmitted() if isinstance(event.spec, dict) and PLAN in event.spec.get("env", {}):
                plan = event.spec["env"][PLAN]
                known = self._ids_of.setdefault(plan, event.id)
                self.hold(known == event.id, f"one submission is on the log as {known} and {event.id}")
            case k.NodeLeft():
                self._conclude(event.node)
            case k.PolicyChanged():
                self._settings()
            case k.NodeJoined() if event.node in self.machines:
                self.heard(event.node)
                if self.neighbors is not None:
                    self.neighbors.joined()
            case _:
                pass
        self._shut.folded(self.whole)
        self.hold(not (wrong := self.times.folded(self.whole, self.world.now)), wrong)

    def _settings(self) -> None:
        """Check any settings: a node is lost before its lease ends, and not because of a single late heartbeat."""
        settings = self.whole.settings
        beat, grace, lease = settings.heartbeat_s, settings.node_grace_s, settings.node_lease_s
        self.hold(
            lease > grace > 2 * beat, f"the lease is {lease} s, the grace time {grace} s, a heartbeat each {beat} s"
        )

    def _exited(self, event: k.ContainerExited, record: Record) -> None:
        key = Key(event.app, event.generation, event.slot)
        if record.msg_id.startswith(STRANGER):
            return
        self._told[key] += 1
        self.hold(self._told[key] == 1, f"the end of {named(key)} is told {self._told[key]} times")
        container = self.launched.get(key)
        if container is None:
            return
        self.hold(container.state != "running", f"{named(key)} is said to have ended, and runs")
        if event.exit_code == 0 and not event.asked:
            self.hold(container.finished, f"{named(key)} is said to be done, and was stopped before")
        self.hold(event.reason != "lost" or key in self._gone, f"{named(key)} is said to be gone, and is there")
        if event.exit_code is not None:
            self.hold(event.exit_code == container.exit_code, f"{named(key)} ended with {container.exit_code}: {event}")

    def _round(self, event: k.Round, *, void: bool) -> None:
        if event.by not in self.masters:
            return
        self.hold(not void, f"a round of {event.by}, epoch {event.epoch}, is on the log and void")
        writer = self._epochs.setdefault(event.epoch, event.by)
        self.hold(writer == event.by, f"epoch {event.epoch} is written by {writer} and {event.by}")
        self.hold(event.epoch == max(self._epochs), f"epoch {event.epoch} goes on after {max(self._epochs)}")
        elected = (self.whole.leader, self.whole.epoch) == (event.by, event.epoch)
        self.hold(elected, f"{event.by} writes a round of epoch {event.epoch}, and the log has no election of it")
        self.hold(not (wrong := self._shut.wrong(self.whole, event)), wrong)
        for fact in event.events:
            if isinstance(fact, k.Resized):
                self.hold(not (wrong := decided_while_paused(self.whole, event)), wrong)
            self._fact(fact)

    def _fact(self, fact: Any) -> None:
        self.hold(not (wrong := self.times.wrong(fact, self.world.now)), wrong)
        self.hold(not isinstance(fact, k.PolicyFailed), f"a policy of ours failed: {fact}")
        match fact:
            case k.AppAccepted():
                self.answered.add(fact.submission)
                app = self._submissions.setdefault(fact.submission, fact.app)
                self.hold(app == fact.app, f"submission {fact.submission} became {app} and {fact.app}")
                plan = fact.spec.env.get(PLAN, fact.app)
                self.hold(self._plans.setdefault(plan, app) == app, f"{app} was submitted once, and runs again")
            case k.AppRejected() if fact.refused == "submission":
                self.answered.add(fact.submission)
                accepted = self._submissions.get(fact.submission)
                self.hold(accepted is None, f"{fact.submission} was accepted as {accepted} and refused: {fact.reason}")
            case k.MasterElected():
                self._elected()
            case k.GenerationReleased():
                self._release(fact)
            case k.MembersReleased():
                for placed in fact.members:
                    if placed.slot in fact.newcomers:
                        self._placed[placed.node].add(Key(fact.app, fact.generation, placed.slot))
            case k.Resized():
                if self.neighbors is not None:
                    self.neighbors.resized(fact)
                needless = needless_wait(self.whole, fact)
                self.hold(not needless, needless)
            case k.AppCompleted():
                self._completed(fact)
            case k.AppRestarted() if fact.fresh:
                self._fresh.add(fact.app)
            case k.MembersLost():
                self._check_cause(fact)
            case k.GenerationFailed() | k.AppFailed():
                self._check_failed(fact)
                self._check_cause(fact)
                if self.neighbors is not None and isinstance(fact, k.GenerationFailed):
                    self.neighbors.failed(fact)
            case k.NodeLeaseEnded() if fact.node in self.machines:
                node = self.whole.nodes.get(fact.node)
                running = [
                    named(container.key)
                    for machine in self.machines.values()
                    if machine.name == fact.node
                    for container in machine.running()
                ]
                if node is not None and node.lease_ended:
                    self.hold(not running, f"the lease of {fact.node} is said to have ended, and there run {running}")
                    self._conclude(fact.node)
            case k.NodeLost() if fact.node in self.machines:
                self._lost(fact.node)
            case _:
                pass

    def _elected(self) -> None:
        """Check that a master that can renew its lease is not succeeded."""
        last = max(self.disturbed.values(), default=0.0)
        self.hold(
            len(self._epochs) == 1 or self.world.now - last < _KEPT_S,
            f"another master leads, and nothing has been wrong since {last:.1f} s",
        )

    def _release(self, fact: k.GenerationReleased) -> None:
        earlier = sorted(number for number, count in self._running[fact.app].items() if count)
        self.hold(
            all(number == fact.generation for number in earlier),
            f"generation {fact.generation} of {fact.app} is released while {earlier} run",
        )
        app = self.whole.apps.get(fact.app)
        self._released.setdefault((fact.app, fact.generation), fact.checkpoint if app else None)
        if fact.app in self._fresh:
            self._fresh.discard(fact.app)
            self._saved.pop(fact.app, None)
        generation = app.generations.get(fact.generation) if app else None
        for container in generation.containers.values() if generation else ():
            self._placed[container.node].add(Key(fact.app, fact.generation, container.slot))

    def _completed(self, fact: k.AppCompleted) -> None:
        """The state may have dropped the generation already, so launched containers count, too."""
        app = self.whole.apps.get(fact.app)
        generation = app.generations.get(fact.generation) if app else None
        # Members of a live app that left, or were lost, need not finish.
        live = app is not None and app.spec.elastic == "live"
        keys = {key for key in self.launched if key[:2] == (fact.app, fact.generation) and not live}
        keys |= {Key(fact.app, fact.generation, slot) for slot in (generation.containers if generation else ())}
        for key in sorted(keys):
            done = key in self.launched and self.launched[key].finished
            self.hold(
                done, f"{fact.app} is said to be done, and slot {key.slot} of generation {fact.generation} is not"
            )

    def _check_failed(self, fact: k.GenerationFailed | k.AppFailed) -> None:
        """Check that a failed generation really has an ended container: unreachable is not failed."""
        app = self.whole.apps.get(fact.app)
        generation = app.generations.get(fact.generation) if app else None
        if generation is None or not app:
            return
        if app.spec.elastic == "live" and fact.failure == "stalled":
            return  # Its peers report a member that hangs.
        keys = [Key(fact.app, fact.generation, slot) for slot in generation.containers]
        well = [key for key in keys if key in self.launched and self.launched[key].state == "running"]
        self.hold(len(well) < len(keys), f"generation {fact.generation} of {fact.app} is said to have failed, and runs")
        if isinstance(fact, k.AppFailed) or fact.counted:
            bad = self._failed[fact.app]
            self.hold(
                fact.generation in bad,
                f"generation {fact.generation} of {fact.app} is said to have failed by itself: {fact.reason}",
            )

    def _check_cause(self, fact: k.GenerationFailed | k.AppFailed | k.MembersLost) -> None:
        """Check that nothing follows from the ends and reports of containers that lost a peer while that peer is about to end.
        If another has failed by itself as well, or hangs, either may be the reason."""
        app = self.whole.apps.get(fact.app)
        live = app is not None and app.spec.elastic == "live"
        if fact.failure != "exit" and not (live and fact.failure == "stalled"):
            return
        about = [one for one in self.launched.values() if one.key[:2] == (fact.app, fact.generation)]
        failing = [named(one.key) for one in about if one.state == "running" and one.program and one.program.fails]
        other = any(
            one.program.hangs if one.state == "running" and one.program else not one.finished and one.said != LOST_PEER
            for one in about
        )
        self.hold(not failing or other, f"{fact.app} has failed ({fact.reason}), and {failing} is about to end")

    def _lost(self, node: str) -> None:
        """Check that only a node that was hit itself is lost: an outage of the server or of a master says nothing about
        nodes."""
        last = self.disturbed.get(node, 0.0)
        self.hold(
            self.world.now - last < self.whole.settings.node_grace_s + _KEPT_S,
            f"{node} is said to be lost, and nothing has been wrong with it since {last:.1f} s",
        )

    def _conclude(self, node: str) -> None:
        """From here on, the log counts all containers on this node as ended, so their ends and last checkpoints need not be
        reported."""
        left = {key for key, one in self.launched.items() if one.machine.name == node and not self._told[key]}
        self._concluded |= left
        self.lost_by_nature |= {key.app for key in left}
        known = self.whole.nodes.get(node)
        if known is not None and (known.lease_ended or known.condition == "left"):
            self._never |= self._placed[node] - self.launched.keys()

    # --- the end -------------------------------------------------------------------------------------------------------

    def at_rest(self) -> bool:
        """Return whether nothing runs, is requested or remains to be reported."""
        return (
            not self.whole.names
            and not self.whole.submissions
            and not any(machine.running() for machine in self.machines.values())
            and not self._untold()
            and all(one.event_id in self.answered for one in self.world.acknowledged)
            and all(node.condition == "up" for node in self.whole.nodes.values())
        )

    def _untold(self) -> list[Key]:
        return [key for key in self.launched if not self._told[key] and key not in self._concluded]

    def limbo(self) -> str:
        """Return what keeps the history from coming to rest."""
        said = [
            f"{app.id} is {app.phase}: {app.waiting} {app.generations.get(app.generation)}"
            for app in self.whole.live_apps()
        ]
        said += [f"no answer to {list(self.whole.submissions)}"] if self.whole.submissions else []
        said += [f"{named(one.key)} runs on {name}" for name, m in self.machines.items() for one in m.running()]
        said += [f"nobody told of the end of {named(key)}" for key in self._untold()]
        said += [
            f"{one.msg_id} was acknowledged and not answered"
            for one in self.world.acknowledged
            if one.event_id not in self.answered
        ]
        said += [f"{node.id} is {node.condition}" for node in self.whole.nodes.values() if node.condition != "up"]
        return "; ".join(said)


_OF_AGENTS = (k.ContainerStarted, k.ContainerExited, k.AppCheckpointed, k.AppProgressed, k.NodeJoined)
