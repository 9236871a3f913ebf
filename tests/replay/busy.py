"""A long log of a busy cluster, made quickly: the core answers, releases and fails apps; luck decides in a policy's place.

Apps come, grow and shrink, fail and end; nodes are lost, heard again and drained; most records tell of progress, as on any
log.  The same arguments give the same log.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.evolve import evolve
from dorm.core.next_round import decide
from dorm.core.state import SCHEMA, State
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log.records import Record
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import App, Generation

CLUSTER = "busy"
START = 1_763_712_000 * SECOND
_WORDS = ("resnet", "bert", "gpt", "unet", "wave", "yolo", "mlp", "gan", "t5", "vit")


def busy_log(events: int, *, apps: int = 40, nodes: int = 12, seed: int = 1, tick_s: float = 4.0) -> list[Record]:
    """So many records."""
    busy = Busy(Random(seed), apps, nodes, tick_s)
    while len(busy.records) < events:
        busy.tick()
    return busy.records[:events]


class Busy:
    def __init__(self, chance: Random, apps: int, nodes: int, tick_s: float) -> None:
        self.chance = chance
        self.state = State()
        self.records: list[Record] = []
        self.now = START
        self._tick = int(tick_s * SECOND)
        self._apps = apps
        self._count = 0
        self._ports = 20_000
        self._steps: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self.round([k.MasterElected(epoch=1, build="busy")])
        for index in range(nodes):
            self.say(
                k.NodeJoined(
                    node=f"gpu-{index + 1:02}",
                    address=f"10.0.0.{index + 1}",
                    capacity={"cpu": 16_000, "memory": 64 * 2**30, "gpu": 4},
                    ports=(20_000, 60_000),
                ),
                f"gpu-{index + 1:02}",
            )

    def say(self, event: k.Event, who: str = "ann") -> None:
        self.now += 3_000_000
        event = msgspec.structs.replace(event, id=f"{who}.{len(self.records)}", at=self.now, by=who)
        self._store(subjects.fact(CLUSTER, type(event).__name__, who), event)

    def round(self, facts: list[Any]) -> None:
        self.now += 5_000_000
        event = k.Round(
            id=f"m.{len(self.records)}", at=self.now, by="m", epoch=1, basis=self.state.seq, allocated=False,
            events=facts, core=SCHEMA,
        )  # fmt: skip
        self._store(subjects.rounds(CLUSTER), event)

    def _store(self, subject: str, event: k.Event) -> None:
        self.records.append(Record(len(self.records) + 1, self.now, subject, encode(event), event.id))
        evolve(self.state, self.records[-1])

    # --- one tick -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now += self._tick
        chance = self.chance
        live = list(self.state.live_apps())
        if len(live) < self._apps and chance.random() < 0.3:
            self._submit()
        if chance.random() < 0.01:
            self._trouble_with_a_node()
        self._end_of_trouble()
        for app in live:
            if app.settled and app.current is not None:
                self._work(app, app.current)
        self._follow()
        if chance.random() < 0.12 and self._resize():
            self._follow()

    def _submit(self) -> None:
        chance = self.chance
        self._count += 1
        n_min = chance.choice([1, 1, 2])
        spec = {
            "name": f"{chance.choice(_WORDS)}-{self._count}",
            "user": chance.choice(["ann", "bob", "eve"]),
            "command": ["work"],
            "demand": {"cpu": chance.choice([1, 2, 4]), "memory": "4GiB", "gpu": chance.choice([0, 1, 1])},
            "n_min": n_min,
            "n_max": n_min * chance.choice([2, 4, 8]),
            "retries": {"limit": 3, "backoff": "20s"},
        }
        self.say(k.AppSubmitted(spec=spec))

    def _work(self, app: App, generation: Generation) -> None:
        chance = self.chance
        step = self._steps[app.id] = self._steps.get(app.id, 0) + len(generation.containers)
        first = min(generation.containers)
        about: dict[str, Any] = {"app": app.id, "generation": generation.number}
        node = generation.containers[first].node
        self.say(k.AppProgressed(**about, step=step, loss=2.3 / (1 + step / 100)), node)
        if chance.random() < 0.1:
            self.say(k.AppCheckpointed(**about, step=step), node)
        if chance.random() < 0.004:
            container = generation.containers[chance.choice(sorted(generation.containers))]
            code, reason = chance.choice([(1, "exit"), (137, "out_of_memory")])
            self._exit(app, generation, container.slot, code, reason=reason, message="Traceback: <b>no</b> & more")
        elif step > 1500 and chance.random() < 0.02:
            for slot in generation.containers:
                self._exit(app, generation, slot, 0)

    def _exit(self, app: App, generation: Generation, slot: int, code: int, **fields: Any) -> None:
        node = generation.containers[slot].node
        self.say(
            k.ContainerExited(app=app.id, generation=generation.number, slot=slot, node=node, exit_code=code, **fields),
            node,
        )

    def _trouble_with_a_node(self) -> None:
        name = self.chance.choice(sorted(self.state.nodes))
        node = self.state.nodes[name]
        if not node.usable or len(self._lost) > 2:
            return
        if self.chance.random() < 0.5:
            self.say(k.NodeDrainRequested(node=name, reason="new kernel"), "operator")
        else:
            self.round([k.NodeLost(node=name, last_heard=self.now - 15 * SECOND)])
        self._lost[name] = self.now + int(self.chance.choice([60, 400]) * SECOND)

    def _end_of_trouble(self) -> None:
        for name in [name for name, until in self._lost.items() if until < self.now]:
            del self._lost[name]
            if self.state.nodes[name].condition == "lost":
                if self.chance.random() < 0.5:
                    self.round([k.NodeLeaseEnded(node=name, last_heard=self.now - 300 * SECOND)])
                self.round([k.NodeRecovered(node=name)])
            else:
                self.say(k.NodeDrainRequested(node=name, drain=False), "operator")

    def _follow(self) -> None:
        """All that follows by itself."""
        for _ in range(20):
            facts = decide(self.state, self.now, allocate=False).facts
            if facts:
                self.round(facts)
            if not self._agents() and not facts:
                return

    def _agents(self) -> bool:
        events: list[Any] = []
        for app in self.state.apps.values():
            for generation in app.generations.values():
                stop = generation.number != app.generation or generation.failed or bool(app.ended)
                for c in generation.containers.values() if generation.released and not generation.ended else ():
                    at: dict[str, Any] = {
                        "app": app.id,
                        "generation": generation.number,
                        "slot": c.slot,
                        "node": c.node,
                    }
                    if self.state.nodes[c.node].condition == "lost":
                        continue
                    if c.state != "exited" and stop:
                        events.append(k.ContainerExited(**at, exit_code=143, asked=True))
                    elif c.state == "desired":
                        events.append(k.ContainerStarted(**at))
        for event in events:
            self.now += self.chance.randrange(40_000_000, 400_000_000)
            self.say(event, event.node)
        return bool(events)

    # --- decisions ------------------------------------------------------------------------------------------------------

    def _resize(self) -> bool:
        """Those that wait get their least, and up to three others a count of their luck, as far as there is room."""
        live = [app for app in self.state.live_apps() if app.retry_at <= self.now and not app.cancel_requested]
        free = {n.id: dict(n.capacity) for n in self.state.nodes.values() if n.usable}
        for app in self.state.live_apps():
            for node, count in app.current.by_node().items() if app.current else ():
                _take(free, node, app.demand, count)
        lucky = [app for app in live if app.settled and self.chance.random() < 0.06][:3]
        homeless = [
            app
            for app in live
            if app.current is not None and app.settled and any(n not in free for n in app.current.by_node())
        ]
        changes, reasons = [], {}
        for app in {a.id: a for a in [a for a in live if a.current is None] + homeless + lucky}.values():
            for node, count in app.current.by_node().items() if app.current else ():
                _take(free, node, app.demand, -count)
            wanted = self.chance.randint(app.n_min, app.n_max)
            nodes = _places(free, app.demand, wanted)
            if len(nodes) < app.n_min:
                nodes = []
                reasons[app.id] = k.Waiting(code="resources", text=f"no room for {app.n_min} containers")
            elif len(nodes) < app.n_max:
                reasons[app.id] = k.Waiting(code="fairness", text="it has its share")
            for node in nodes:
                _take(free, node, app.demand, 1)
            if nodes or app.current is not None:
                changes.append(self._change(app, nodes))
        if changes:
            self.round([self._resized(changes, reasons)])
        return bool(changes)

    def _change(self, app: App, nodes: list[str]) -> k.Resize:
        placement = []
        for slot, node in enumerate(nodes):
            self._ports = 20_000 + (self._ports + 1) % 40_000
            placement.append(k.Placed(slot=slot, node=node, address="10.0.0.1", port=self._ports))
        running = any(generation.released and not generation.ended for generation in app.generations.values())
        how: Any = "stop" if not nodes else "restart" if running else "start"
        return k.Resize(
            app=app.id, from_generation=app.generation, to_generation=app.generation + 1, placement=placement,
            adjustment=how,
        )  # fmt: skip

    def _resized(self, changes: list[k.Resize], reasons: dict[str, k.Waiting]) -> k.Resized:
        return k.Resized(
            policy="dorm", policy_version=2, params={}, solver="by luck", changes=changes, reasons=reasons,
            utilization=2.1, fairness_loss=round(self.chance.uniform(0.1, 0.5), 3), fairness_budget=0.6, excess=0.0,
            overhead=len(changes), overhead_budget=4, status="near", bound=2.4, digest="", change_cost=0.01,
        )  # fmt: skip


def _take(free: dict[str, dict[str, int]], node: str, demand: dict[str, int], count: int) -> None:
    for name, amount in demand.items() if node in free else ():
        free[node][name] -= amount * count


def _places(free: dict[str, dict[str, int]], demand: dict[str, int], wanted: int) -> list[str]:
    """Nodes for at most this many containers, the emptiest first."""
    found: list[str] = []
    for node in sorted(free, key=lambda name: (-free[name]["cpu"], name)):
        room = min(free[node].get(name, 0) // amount for name, amount in demand.items() if amount)
        found += [node] * max(0, min(room, wanted - len(found)))
    return found
