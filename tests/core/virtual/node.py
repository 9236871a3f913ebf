"""A node of the virtual cluster: a toy engine, and an agent around the real `Desired` and the real `reconcile`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import agents.reconcile as reconciling
from agents.desired import Desired, own_subjects
from agents.runtime.interface import Key, Seen
from dorm.core.parts.deriving import part_of
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import CLUSTER

if TYPE_CHECKING:
    from agents.reconcile import Announced
    from agents.runtime.interface import State as EngineState
    from tests.core.virtual.world import World


@dataclass
class Toy:
    """One container of the toy engine, which is the truth of what runs."""

    key: Key
    demand: dict[str, int]
    state: EngineState
    life: int
    """Ticks until it ends by itself."""
    outcome: int | None
    """Exit code of that end; None for out of memory."""
    stubborn: int = 0
    """Ticks for which it ignores SIGTERM."""
    gets_killed: bool = False
    hangs: bool = False
    """It neither works nor ends until it is stopped."""
    killed: bool = False
    stopping: bool = False
    exited_at: int = 0
    exit_code: int | None = None
    out_of_memory: bool = False
    file: tuple[int, tuple[int, ...]] = (0, ())
    """Of a live app: the membership announced to it last, and its slots."""

    def end(self, code: int | None, now: int, *, out_of_memory: bool = False) -> None:
        self.state, self.exit_code, self.exited_at, self.out_of_memory = "exited", code, now, out_of_memory

    def seen(self) -> Seen:
        return Seen(
            key=self.key,
            state=self.state,
            spec_hash="",
            exited_at=self.exited_at,
            exit_code=self.exit_code,
            out_of_memory=self.out_of_memory,
        )


@dataclass
class VirtualNode:
    """The machine survives its agent, the ledger and the engine's list survive the machine's crash."""

    world: World
    name: str
    cpu: int
    ports: tuple[int, int]
    engine: dict[Key, Toy] = field(default_factory=dict)
    launched: set[Key] = field(default_factory=set)
    stuck: set[Key] = field(default_factory=set)
    """What can't be made: an image that is on its way for ever."""
    asked: set[Key] = field(default_factory=set)
    capacities: list[tuple[int, int]] = field(default_factory=list)
    """(sequence of the NodeJoined, milli-cores), over all its lives."""
    machine_up: bool = True
    agent_up: bool = False
    connected: bool = True
    leaving: bool = False
    desired: Desired = field(default_factory=lambda: Desired(""))
    position: int = 0
    join_seq: int = 0
    """Nothing is acted on before this has been read back; 0: it has to join first."""
    joined_at: int = 0
    lease_until: int = 0
    """Kept by the machine, not by the agent's process: what runs here when it is over is killed.  0: nothing was said yet."""
    outbox: list[k.Event] = field(default_factory=list)
    announced: dict[Key, Announced] = field(default_factory=dict)
    """What this agent's process has written."""
    lines: list[k.Event] = field(default_factory=list)
    """What members of live apps wrote into their files, and no agent has read yet."""
    life: int = 0

    # --- the agent's process --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A fresh agent process: all it knows is the log, the engine and the ledger."""
        self.agent_up, self.leaving, self.life = True, False, self.life + 1
        self.desired, self.position, self.outbox, self.announced = Desired(self.name), 0, [], {}
        self.join_seq = 0

    def join(self) -> None:
        event = k.NodeJoined(node=self.name, address=f"addr-{self.name}", capacity={"cpu": self.cpu}, ports=self.ports)
        self.join_seq = self.world.publish(event, self.name, f"{self.name}.joined.{self.life}.{self.world.now}")
        self.joined_at = self.world.now
        self.capacities.append((self.join_seq, self.cpu))

    @property
    def ready(self) -> bool:
        return self.agent_up and 0 < self.join_seq <= self.position and self.desired.fresh

    def fold(self, most: int, *, part: bool = True) -> None:
        """Read some of the node's own facts, and its part if that comes: the two come independently of each other."""
        if not (self.agent_up and self.connected):
            return
        was_ready, own = self.ready, own_subjects(CLUSTER, self.name)
        for record in self.world.log[self.position : self.position + most]:
            self.position = record.seq
            if record.subject in own:
                self.desired.fold(record)
        if part:
            self.desired.install(part_of(self.world.whole, CLUSTER, self.name))
        if not was_ready:
            self.extend_lease(self.joined_at)

    def beat(self) -> None:
        """A heartbeat that is stored extends the lease; an agent whose lease has expired joins again."""
        if not self.agent_up:
            return
        if self.world.now > self.lease_until and self.world.agents_rejoin:
            self.join_seq = 0
        if self.connected:
            if self.join_seq == 0:
                self.join()
            self.world.heard[self.name] = self.world.now
            self.extend_lease(self.world.now)

    def extend_lease(self, sent_at: int) -> None:
        """Not before it has read which lease was in force when it joined."""
        if self.ready:
            self.lease_until = sent_at + int(self.desired.lease_s * SECOND)

    def act(self, most: int) -> bool:
        """List, compare, and do (some of) what follows.  False if nothing was to be done."""
        if not self.ready:
            return False
        actions = reconciling.reconcile(
            self.desired, [self.engine[key].seen() for key in sorted(self.engine)], self.world.now, self.announced
        )
        for action in actions[:most]:
            self._do(action)
        if not actions and self.leaving:
            self._leave()
        return bool(actions)

    def _do(self, action: reconciling.Action) -> None:
        match action:
            case reconciling.Launch(key):
                self._launch(key)
            case reconciling.Halt(key):
                self.asked.add(key)
                self.engine[key].stopping = True
            case reconciling.Announce(key, news):
                self.tell(self.engine[key])
                assert self.engine[key].file[0] == news.membership
                self.announced[key] = news
            case reconciling.ReportStarted(seen):
                self._report_started(seen.key)
            case reconciling.ReportExited(key, seen):
                self._report_exited(key, seen)
            case reconciling.Discard(key):
                assert self.engine[key].state != "running", f"{key} is removed while it runs"
                del self.engine[key]
                app = self.desired.apps.get(key.app)
                if app is not None and app.ended_at and not any(other.app == key.app for other in self.engine):
                    self.desired.forget(key.app)

    def tell(self, toy: Toy) -> None:
        """Write its membership."""
        app = self.desired.apps[toy.key.app]
        toy.file = app.membership, tuple(sorted(placed.slot for placed in app.members))

    def _launch(self, key: Key) -> None:
        chance = self.world.chance
        toy = self.engine.get(key)
        if toy is None:
            app = self.desired.wanted()[key]
            if chance.random() < self.world.faults * 0.05:
                return self._exited(key, reason=chance.choice(["port", "image", "command"]))
            if key in self.stuck or chance.random() < self.world.faults * 0.03:
                self.stuck.add(key)
                return None
            toy = new_toy(self.world, key, app.spec.resources())
            self.engine[key] = toy
            if chance.random() < self.world.faults * 0.05:
                return None  # it crashed between making and starting
        assert key not in self.launched, f"{key} is started a second time"
        self.launched.add(key)
        if self.desired.apps[key.app].live:
            self.tell(toy)
        toy.state = "running"
        self.world.check_truth()
        if chance.random() < 0.5:
            self._report_started(key)
        return None

    def _report_started(self, key: Key) -> None:
        self.desired.started.add(key)
        app, generation, slot = key
        self.outbox.append(k.ContainerStarted(app=app, generation=generation, slot=slot, node=self.name))

    def _report_exited(self, key: Key, seen: Seen | None) -> None:
        if seen is None:
            return self._exited(key, reason="lost")
        killed = self.engine[key].killed
        reason: k.ExitReason = "out_of_memory" if seen.out_of_memory else "exit"
        return self._exited(key, reason=reason, code=seen.exit_code, killed=killed)

    def _exited(self, key: Key, *, reason: k.ExitReason, code: int | None = None, killed: bool = False) -> None:
        self.desired.exited.add(key)
        app, generation, slot = key
        self.outbox.append(
            k.ContainerExited(
                app=app,
                generation=generation,
                slot=slot,
                node=self.name,
                exit_code=code,
                asked=key in self.asked,
                killed=killed,
                reason=reason,
            )
        )

    def flush(self, most: int) -> None:
        """Store some of the waiting reports."""
        if self.agent_up:
            self.outbox, self.lines = self.outbox + self.lines, []
        while self.outbox and self.agent_up and self.connected and most:
            event, most = self.outbox.pop(0), most - 1
            assert isinstance(
                event,
                k.ContainerStarted | k.ContainerExited | k.AppCheckpointed | k.AppProgressed | k.MembershipChanged,
            )
            slot = getattr(event, "slot", "")
            msg_id = f"{self.name}.{event.app}.{event.generation}.{slot}.{type(event).__name__}"
            if isinstance(event, k.AppCheckpointed | k.AppProgressed):
                msg_id += f".{event.step}.{self.world.now}"
            if isinstance(event, k.MembershipChanged):
                msg_id = f"{self.name}.{event.id}"
            self.world.publish(event, self.name, msg_id)

    @property
    def engine_busy(self) -> bool:
        return any(toy.state == "running" for toy in self.engine.values())

    def ask_to_leave(self) -> None:
        if self.ready and self.connected:
            self.leaving = True
            event = k.NodeDrainRequested(node=self.name, until_rejoin=True)
            self.world.publish(event, self.name, f"{self.name}.leaving.{self.life}.{self.world.now}")

    def _leave(self) -> None:
        idle = not self.desired.wanted() and not any(toy.state == "running" for toy in self.engine.values())
        if idle and not self.outbox and self.connected:
            self.agent_up = False
            self.world.publish(k.NodeLeft(node=self.name), self.name, f"{self.name}.left.{self.life}.{self.world.now}")

    # --- the machine ----------------------------------------------------------------------------------------------------

    def fence(self) -> None:
        """Cut off for longer than the lease, with an agent or without."""
        if self.world.now > self.lease_until:
            self.kill()

    def kill(self) -> None:
        for toy in self.engine.values():
            if toy.state == "running":
                toy.end(137, self.world.now)

    def crash(self) -> None:
        """The whole machine, with all that runs on it."""
        self.kill()
        self.machine_up = self.agent_up = False
        self.outbox = []

    def tick(self) -> None:
        """The engine's time advances."""
        for toy in self.engine.values():
            if toy.state != "running":
                continue
            if toy.stopping:
                toy.stubborn -= 1
                toy.killed = toy.stubborn < 0 and toy.gets_killed
                if toy.stubborn < 0:
                    toy.end(137 if toy.killed else self.world.chance.choice([0, 0, 143]), self.world.now)
                continue
            if toy.hangs:
                continue
            toy.life -= 1
            if toy.life < 0:
                if toy.outcome == 0:
                    self.world.finished.add(toy.key)
                toy.end(toy.outcome, self.world.now, out_of_memory=toy.outcome is None)
            elif self.agent_up and self.world.chance.random() < 0.2:
                step = 100 - toy.life
                said = self.world.chance.choice([k.AppCheckpointed, k.AppProgressed])
                self.outbox.append(said(app=toy.key.app, generation=toy.key.generation, step=step))


def new_toy(world: World, key: Key, demand: dict[str, int]) -> Toy:
    """One whose life and end are luck's."""
    chance = world.chance
    outcome: int | None = 0
    if chance.random() < 0.2 * world.faults:
        outcome = chance.choice([1, 137, 2, None])
    life = chance.choice([0, 3, 20, 100, 100]) if world.faults else 2
    stubborn = chance.choice([0, 0, 1, 5])
    if world.live.share == 1.0:
        life *= 10
    toy = Toy(key, demand, "created", life, outcome, stubborn, gets_killed=stubborn == 5)
    toy.hangs = chance.random() < 0.05 * world.faults
    return toy
