"""A virtual cluster in one process: the log is a list, masters run the real core, nodes run the real reconcile.

One seed is one history.  `World(seed).run()` plays faults at random, then lets everything recover and waits until every
app has ended.  Any broken promise raises AssertionError with the seed in it.

What it holds true as it goes: the invariants after each record; in the engines, no two generations of an app at once and
no node beyond what it has; no container started twice.  In the end: nothing is stuck, all submissions are answered, all
room is free again, and the log folds to the same digest however it is cut.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

import dorm.core.evolve as evolving
import dorm.core.next_round as deciding
from agents.runtime.interface import Key
from dorm.core.invariants import violations
from dorm.core.state import State, digest
from events import kinds as k
from events.codec import decode, encode
from events.log.records import Record
from events.quantities import SECOND
from tests.core.nonsense import nonsense
from tests.core.records import CLUSTER, START, subject_of
from tests.core.virtual import people
from tests.core.virtual.live import LiveApps
from tests.core.virtual.master import VirtualMaster
from tests.core.virtual.node import VirtualNode
from tests.policies import any_policy


class Broken(AssertionError):
    """A promise was broken; the message begins with the seed."""


def _content(state: State) -> bytes:
    counting = {"seq": 0, "time": 0, "counters": None, "dirty_seq": 0, "dirty_at": 0}
    return msgspec.msgpack.encode({**msgspec.to_builtins(state, str_keys=True), **counting})


class World:
    """One history."""

    def __init__(
        self,
        seed: int,
        *,
        steps: int = 200,
        policies: tuple[str, ...] = (any_policy.NAME, any_policy.NAME, "static"),
        outages: float = 0.0,
        agents_rejoin: bool = True,
        live: float = 0.0,
    ) -> None:
        """`live`: the part of the apps that declare live resizing; if it is 1.0, they run for long and may grow far."""
        any_policy.register()
        self.seed, self.steps, self.policies = seed, steps, policies
        self.outages = outages
        """How often a node is cut off for about a lease, beyond the usual."""
        self.agents_rejoin = agents_rejoin
        """Whether an agent that was cut off for longer than the lease joins again before it starts anything."""
        self.chance = random.Random(seed)
        self.faults = self.chance.choice([0.3, 1.0, 1.0] if live < 1.0 else [0.1, 0.3, 1.0])
        self.now = START
        self.log: list[Record] = []
        self.ids: dict[str, int] = {}
        self.whole = State()
        """The fold of all of the log."""
        self.heard: dict[str, int] = {}
        self.released_from: dict[tuple[str, int], int] = {}
        """Basis of each release, by app and generation."""
        self.master = VirtualMaster(self)
        self.paused: list[VirtualMaster] = []
        self.finished: set[Key] = set()
        """Containers that ended by themselves with code 0."""
        self.live = LiveApps(self, live)
        self.slipping = False
        self.last_tick = 0
        """Basis of the last tick that changed nothing; 0 when a decision has left something since."""
        self.nodes = [
            VirtualNode(
                self,
                name,
                self.chance.choice([1000, 2000, 3000, 4000]) * (3 if live == 1.0 else 1),
                (20000, 20000 + self.chance.choice([9, 30, 999])),
            )
            for name in "xyz"[: self.chance.randint(1, 3)]
        ]

    # --- the log --------------------------------------------------------------------------------------------------------

    def hold(self, promise: bool, otherwise: object) -> None:
        if not promise:
            raise Broken(f"seed {self.seed}, record {len(self.log)}: {otherwise}")

    def append(self, subject: str, body: bytes, msg_id: str = "", expected_last: int | None = None) -> int | None:
        """Sequence, or None if another record on the subject was first."""
        if msg_id and msg_id in self.ids:
            return self.ids[msg_id]
        if expected_last is not None:
            last = max((record.seq for record in self.log if record.subject == subject), default=0)
            if last != expected_last:
                return None
        late = self.chance.choice([0] * 9 + [2 * SECOND])  # a server's clock may go back
        record = Record(len(self.log) + 1, self.now - late, subject, body, msg_id)
        self.log.append(record)
        if msg_id:
            self.ids[msg_id] = record.seq
        self.check_completions(record)
        self.check_deadlines(record)
        dirty, void = self.whole.dirty_seq, self.whole.counters.void_rounds
        event = evolving.evolve(self.whole, record).event
        self.hold(not violations(self.whole), violations(self.whole))
        if isinstance(event, k.Round) and void == self.whole.counters.void_rounds:
            self.check_ticks_end(event, dirty)
        if isinstance(event, k.Round):
            for fact in event.events:
                self.hold(not isinstance(fact, k.PolicyFailed), fact)
                if isinstance(fact, k.GenerationReleased | k.MembersReleased):
                    self.released_from.setdefault((fact.app, fact.generation), event.basis)
        return record.seq

    def check_ticks_end(self, event: k.Round, dirty: int) -> None:
        """After a tick that changed nothing there is none before something has happened, or a decision has left something."""
        ticks = any(isinstance(fact, k.IdleTicked) for fact in event.events)
        changes = any(isinstance(fact, k.Resized) and fact.changes for fact in event.events)
        self.hold(not ticks or not self.last_tick or dirty > self.last_tick, "a tick without a new cause")
        if ticks and not changes:
            self.last_tick = event.basis
        elif any(isinstance(fact, k.Resized) for fact in event.events) and self.whole.rebalance_from:
            self.last_tick = 0

    def publish(self, event: k.Event, who: str, msg_id: str = "") -> int:
        seq = self.append(subject_of(event, who), encode(event), msg_id)
        assert seq is not None
        return seq

    # --- the truth ------------------------------------------------------------------------------------------------------

    def check_truth(self) -> None:
        """Promise 2, as the engines see it."""
        generations: dict[str, set[int]] = {}
        for node in self.nodes:
            running = [toy for toy in node.engine.values() if toy.state == "running"]
            for toy in running:
                generations.setdefault(toy.key.app, set()).add(toy.key.generation)
            used = sum(toy.demand["cpu"] for toy in running)
            # A node that joined again with less may still hold what was released before the master knew.
            since = min((self.released_from.get(toy.key[:2], 0) for toy in running), default=0)
            before = [cpu for seq, cpu in node.capacities if seq <= since][-1:]
            most = max(before + [cpu for seq, cpu in node.capacities if seq > since], default=0)
            self.hold(used <= most, f"{node.name} runs {used} of {most}: {[toy.key for toy in running]}")
        for app, found in generations.items():
            self.hold(len(found) == 1, f"{app} runs in generations {sorted(found)} at once")

    def check_completions(self, record: Record) -> None:
        """What is said to be done has ended by itself with code 0 in every slot."""
        event = decode(record)
        if not isinstance(event, k.Round) or event.epoch < self.whole.epoch:
            return
        for fact in event.events:
            app = self.whole.apps.get(getattr(fact, "app", ""))
            if isinstance(fact, k.AppCompleted) and app is not None:
                keys = {Key(app.id, fact.generation, slot) for slot in app.generations[fact.generation].containers}
                self.hold(keys <= self.finished, f"{app.id} is said to be done, but only {self.finished & keys} are")

    def check_deadlines(self, record: Record) -> None:
        """Unknown is not failed: nothing misses a deadline while a node of it can't be heard, or after it was stopped."""
        event = decode(record)
        for fact in event.events if isinstance(event, k.Round) and event.epoch >= self.whole.epoch else ():
            if not isinstance(fact, k.GenerationFailed | k.AppFailed) or fact.failure not in ("start", "stalled"):
                continue
            app = self.whole.apps[fact.app]
            self.hold(app.generation == fact.generation, f"{fact} of a generation that is being stopped")
            left = [c for c in app.generations[fact.generation].containers.values() if c.state != "exited"]
            unheard = [c.node for c in left if self.unheard_since(c.node) < event.at - 15 * SECOND]
            self.hold(not unheard, f"{fact} while {unheard} can't be heard")

    def unheard_since(self, node: str) -> int:
        return self.heard.get(node, self.now)

    def repeat(self, record: Record) -> None:
        """The same facts once more change nothing but what counts records."""
        before = _content(self.whole)
        self.append(record.subject, record.body)
        # What has neither a natural key nor an id of its own is named by its place in the log: another fact, then.
        event, again = decode(record), decode(self.log[-1])
        same = isinstance(event, k.ContainerStarted | k.ContainerExited) or (
            isinstance(event, k.AppSubmitted) and event.id == again.id
        )
        self.hold(not same or _content(self.whole) == before, f"a repeat of {decode(record)} changed the state")

    # --- what happens ---------------------------------------------------------------------------------------------------

    def run(self) -> World:
        if self.chance.random() < 0.9:
            settings = k.PolicyChanged(
                policy=self.chance.choice(self.policies), heartbeat_s=1, node_grace_s=5, node_lease_s=30
            )
            self.publish(settings, "operator")
        for node in self.nodes:
            node.start()
        for _ in range(self.steps):
            self.step()
            self.check_truth()
        self.recover()
        self.check_end()
        return self

    def step(self) -> None:
        chance = self.chance
        ways = (
            (14, self.agent_step),
            (8, self.master_step),
            (3, self.engines_tick),
            *([(2, self.live.step)] if self.live.share else []),
            (3, self.time_passes),
            (2, self.client_step),
            (0.8 * self.faults, self.fault),
            (0.5, self.operator_step),
            (0.4 * self.faults, self.nonsense),
            (self.outages, lambda: self.outage(chance.choice(self.nodes))),
        )
        chance.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()

    def something_slips_in(self) -> None:
        """Between a decision's basis and its round, others write."""
        if self.slipping or self.chance.random() < 0.5:
            return
        self.slipping = True
        for _ in range(self.chance.randint(1, 4)):
            ways = [self.agent_step, self.agent_step, self.engines_tick, self.client_step, self.operator_step]
            way = self.chance.choice([*ways, self.live.step] if self.live.share else ways)
            way()
            if self.chance.random() < 0.1 * self.faults:
                self.chance.choice([self.fault, self.nonsense])()
        self.slipping = False

    def agent_step(self) -> None:
        chance = self.chance
        node = chance.choice(self.nodes)
        if chance.random() < 0.8:
            node.beat()
        node.fold(chance.choice([1, 3, 1000, 1000]), part=chance.random() < 0.7)
        if chance.random() < 0.8:
            node.act(chance.choice([1, 2, 100]))
        if chance.random() < 0.7:
            node.flush(chance.choice([1, 2, 100]))

    def master_step(self) -> None:
        chance = self.chance
        master = chance.choice(self.paused) if self.paused and chance.random() < 0.2 else self.master
        if chance.random() < 0.02 * self.faults:
            self.paused = [*self.paused[-1:], self.master]
            self.master = master = VirtualMaster(self)
        master.fold(chance.choice([0, 1, 5, 1000, 1000]))
        if master.dead:
            self.paused = [one for one in self.paused if one is not master]
            if master is self.master:
                self.master = VirtualMaster(self)
            return
        if chance.random() < 0.3:
            master.conclude()
        master.decide()

    def engines_tick(self) -> None:
        for node in self.nodes:
            node.tick()

    def time_passes(self) -> None:
        self.pass_time(self.chance.choice([1, 10, 100, 1000, 1000, 3000]))
        if self.chance.random() < 0.05:
            for _ in range(self.chance.choice([3, 12, 20])):
                self.pass_time(3000)

    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds * 1_000_000
        for node in self.nodes:
            # A process that is paused for a moment is not a lost one, but an agent's own clock always runs.
            if node.agent_up and (not node.connected or self.chance.random() < 0.9):
                node.beat()
            node.fence()
        for node in self.nodes:
            if node.machine_up and not node.agent_up and not self.left(node) and self.chance.random() < 0.15:
                node.start()
                node.beat()

    def left(self, node: VirtualNode) -> bool:
        known = self.whole.nodes.get(node.name)
        return known is not None and known.condition == "left"

    def client_step(self) -> None:
        people.client_step(self)

    def operator_step(self) -> None:
        people.operator_step(self)

    def fault(self) -> None:
        chance = self.chance
        node = chance.choice(self.nodes)
        match chance.choice(
            ["agent", "agent", "machine", "cut", "outage", "heal", "leave", "return", "return", "remove"]
        ):
            case "agent":
                node.agent_up, node.outbox = False, []
                if self.left(node):
                    return
                if chance.random() < 0.7:
                    node.start()
            case "machine":
                node.crash()
            case "cut":
                node.connected = False
            case "heal":
                node.connected = True
            case "outage" if not self.slipping:
                self.outage(node)
            case "leave":
                node.ask_to_leave()
            case "return" if not node.agent_up:
                node.machine_up = True
                node.cpu = chance.choice([node.cpu, node.cpu, 1000, 4000])
                node.start()
            case "remove":
                ended = [key for key, toy in sorted(node.engine.items()) if toy.state != "running"]
                if ended:
                    gone = chance.choice(ended)
                    del node.engine[gone]
                    node.launched.discard(gone)

    def outage(self, node: VirtualNode) -> None:
        """Cut off for about as long as its lease, while the others continue; then it receives all that it missed, bit by
        bit."""
        node.connected = False
        for _ in range(4):
            self.master_step()
        for _ in range(self.chance.choice([3, 12, 18, 25])):
            self.pass_time(3000)
            self.chance.choice([self.agent_step, self.master_step, self.master.conclude])()
        node.connected = True
        for _ in range(self.chance.randint(0, 10)):
            node.beat()
            node.fold(self.chance.choice([1, 1, 2, 5]), part=self.chance.random() < 0.2)
            node.act(100)
            self.chance.choice([self.agent_step, self.master_step])()

    def nonsense(self) -> None:
        """What strangers and broken programs write."""
        chance = self.chance
        app = chance.choice([*self.whole.apps, "nobody"])
        subject, body = chance.choice(nonsense(chance.choice(self.nodes).name, app))
        self.append(f"dorm.{CLUSTER}.{subject}", body)

    # --- the end --------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Faults stop; everything that was asked for has to come to its end in bounded time."""
        self.faults, self.paused, self.slipping = 0.0, [], True
        self.publish(k.PolicyChanged(policy="static", params={"count": 1}, node_lease_s=30), "operator")
        for number, node in enumerate(self.nodes):
            node.leaving = False
            if number == 0 or self.chance.random() < 0.6:
                self.publish(k.NodeDrainRequested(node=node.name, drain=False), "operator")
                node.connected = True
                if not node.agent_up or node.cpu < 4000:
                    node.cpu, node.machine_up = 4000, True
                    node.start()
            elif node.machine_up and not node.agent_up and not self.left(node):
                node.start()
            node.stuck.clear()
            for toy in node.engine.values():
                toy.life, toy.outcome, toy.hangs = min(toy.life, 3), 0, False
        if self.chance.random() < 0.5:
            self.master = VirtualMaster(self)
        for count in range(400):
            if not self.cycle():
                return
            if count == 200:
                self.give_up_the_impossible()
        self.hold(False, f"still not at rest: {self.limbo()}")

    def give_up_the_impossible(self) -> None:
        """What was accepted before any node had joined may never fit, or only on a node that stays drained, and waits with
        that reason for its owner."""
        for app in list(self.whole.live_apps()):
            if app.waiting and app.waiting.code in ("no_nodes", "drained"):
                self.publish(k.AppCancelRequested(app=app.id), "ann")

    def cycle(self) -> bool:
        """One second in which everybody does all there is to do; False once nothing is left."""
        self.now += SECOND
        acted = False
        for node in self.nodes:
            node.beat()
            node.fold(len(self.log))
            acted = node.act(1000) or acted
            node.flush(1000)
            node.tick()
        self.live.step()
        if self.master.dead:
            self.master = VirtualMaster(self)
        self.master.fold(len(self.log))
        self.master.conclude()
        for count in range(100):
            if not self.master.decide(slip=False):
                break
            self.hold(count < 99, f"the master never comes to rest: {decode(self.log[-1])}")
        self.hold(self.master.idle(), "asked once more, the master has something else to say")
        self.check_truth()
        return bool(self.whole.names or self.whole.submissions or acted or any(node.engine_busy for node in self.nodes))

    def limbo(self) -> list[Any]:
        return [(app.id, app.phase, app.waiting, app.generations) for app in self.whole.live_apps()] + [
            (node.name, [toy for toy in node.engine.values() if toy.state == "running"]) for node in self.nodes
        ]

    def check_end(self) -> None:
        free = deciding._surely_free(self.whole, self.whole.nodes).room
        for node in self.nodes:
            known = self.whole.nodes.get(node.name)
            if known is not None and node.agent_up and node.connected:
                self.hold(
                    free[known.id] == known.capacity, f"nothing runs, and {known.id} has only {free[known.id]} free"
                )
        again, resumed = State(), State()
        cut = self.chance.randint(0, len(self.log))
        for record in self.log:
            evolving.evolve(again, record)
            evolving.evolve(resumed, record)
            if record.seq == cut:
                resumed = msgspec.msgpack.decode(msgspec.msgpack.encode(resumed), type=State)
        self.hold(digest(again) == digest(self.whole) == digest(resumed), "the same log folds to different states")
