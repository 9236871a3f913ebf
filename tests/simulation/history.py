"""One history: the real masters, agents and clients on a simulated cluster under attack, and its outcome.

    History(7).run()                    plays seed 7; raises Broken if a promise is broken
    History(7, only={3, 17}).run()      with only these faults of its schedule

The attack ends after a while; then everything has to come to rest in bounded time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from agents.config import NodeConfig
from dorm.core.gates import reason_of
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.records import Record
from tests.policies import any_policy
from tests.simulation.attack import gates, misuse, neighbors, operators, replacing
from tests.simulation.attack.attack import Attack
from tests.simulation.attack.clocks import Times
from tests.simulation.attack.faults import HARMLESS, Fault, draw_faults
from tests.simulation.checks import ending
from tests.simulation.checks.checks import STRANGER, Checks
from tests.simulation.clients import Customer
from tests.simulation.machines.apps import PLAN, STRANGERS, AppPlan, Program, draw_app
from tests.simulation.machines.live import Group, LiveProgram
from tests.simulation.machines.machine import Container, Machine
from tests.simulation.machines.runtime import SimHealth, SimRuntime
from tests.simulation.world.shells import AgentProcess, MasterProcess, start_agent, start_master
from tests.simulation.world.world import Broken, World

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from dorm.master.master import Master
    from dorm.rotation.service import RotationService
    from tests.simulation.world.connection import Connection
    from tests.simulation.world.process import Host, Process

E = TypeVar("E", bound=k.Event)

REST_S = 240.0
"""Virtual seconds after the last fault within which everything has to be at rest."""
_LOOK_S = 0.25
HEARTBEAT_S = 1.0
_STORY = 40
"""Lines of a failure's story."""
_SKEWED = {3: 1, 6: 3}
"""How many masters are of a release that writes no parts, by the seed's remainder: the first one, or all."""
_AUDIT_EVERY = 8
"""One seed in this many is audited round by round."""
_PORTS = (20000, 20099)


class Outcome(msgspec.Struct, frozen=True):
    """The result of a history, whether it kept all promises or not."""

    seed: int
    broken: str = ""
    story: list[str] = []
    faults: list[str] = []
    """Kinds that were injected."""
    recoveries: list[float] = []
    """Virtual seconds from the end of a fault until everything that should run ran again."""
    submissions: int = 0
    """Acknowledged submissions."""
    lost: int = 0
    """Those of them without an answer in the end."""
    doubled: int = 0
    records: int = 0
    rounds: int = 0
    virtual_s: float = 0.0
    digest: str = ""


class History:
    """All random numbers are drawn here, before anything happens."""

    skewed = True
    """Whether some masters may be of an earlier release."""
    looks = False
    """Whether agents look at their disks and run a health program."""

    def __init__(
        self,
        seed: int,
        *,
        only: Collection[int] | None = None,
        apps: Collection[int] | None = None,
        alter: Callable[[History], None] = lambda _: None,
    ) -> None:
        """`only` and `apps` leave out all other faults and apps.  `alter` may break something, for variants."""
        any_policy.register()
        self.seed = seed
        self.audited = seed % _AUDIT_EVERY == 0
        self.world = World(seed)
        self.cluster = self.world.cluster
        self._alter = alter
        chance = self.world.chance("layout")
        self.span_s = chance.choice([20.0, 40.0, 60.0])
        self.masters = [f"m{number}" for number in range(1, 1 + chance.choice([1, 2, 2, 3]))]
        nodes = [f"n{number}" for number in range(1, 1 + chance.choice([1, 2, 3, 3, 4]))]
        self.cpus = {name: chance.choice([1000, 2000, 3000, 4000]) for name in nodes}
        self.ports = {name: (_PORTS[0], _PORTS[0] + chance.choice([9, 30, 99])) for name in nodes}
        self.users = ["ann", "bob"][: chance.choice([1, 2])]
        self.policies = chance.choice([[any_policy.NAME], [any_policy.NAME, "static"], ["static"], ["dorm"]])
        self.lease_s = chance.choice([6.0, 10.0, 20.0])
        # Longer than a master takes to notice that it is cut off itself (`dorm.master.failure_detector.CUT_OFF_NS`).
        self.grace_s = chance.choice([5.0, 8.0])
        if self.lease_s < self.grace_s + HEARTBEAT_S:
            self.grace_s = 5.0
        self.retention_s = chance.choice([1.0, 5.0, 86_400.0])
        self.master_lease_s = chance.choice([2.0, 2.0, 5.0])
        self._skews = {name: chance.choice([0.0, 0.0, -2.0, 30.0, -3600.0]) for name in (*self.masters, *nodes)}
        every = [draw_app(seed, index, list(self.cpus.values())) for index in range(chance.choice([1, 2, 3, 4, 6]))]
        self.strangers: dict[int, AppPlan] = {}
        """Apps that no client here waits for, by the index of their plans."""
        self.apps: list[AppPlan] = [plan for plan in every if apps is None or plan.index in apps]
        drawn = draw_faults(seed, self.span_s, self.masters, nodes, self.users)
        self.faults: list[Fault] = [fault for fault in drawn if only is None or fault.number in only]
        if any(fault.kind == "crash loop" for fault in self.faults):
            self.span_s += neighbors.LASTS_S
        self.hosts: dict[str, Host] = {}
        self.machines: dict[str, Machine] = {}
        """By place (`tests.simulation.attack.replacing`)."""
        self.place_of: dict[str, str] = {}
        """Which machine is the one that faults of a node's name hit."""
        self.retired: set[str] = set()
        """Places whose agents are not started again."""
        self.down_for: dict[str, float] = {}
        """How long the next process of a host stays away once it has ended."""
        self.checks = Checks(self.world, set())
        self.checks.retired = self.retired
        self.checks.times = Times(self.faults)
        self.neighbors = neighbors.Neighbors(self)
        self.checks.neighbors = self.neighbors
        self.attack = Attack(self)
        self.calm = self.over = False
        self.agents: dict[str, AgentProcess] = {}
        self.beside: Callable[[Master, Connection, Host], RotationService] | None = None
        """What rotates the log beside each master, in a history with rotation."""
        self.leaders: dict[str, MasterProcess] = {}
        """Processes of masters by host, whether or not they lead."""
        self.customers: list[Customer] = []
        self.recoveries: list[float] = []
        self._pending: list[tuple[float, str]] = []
        self._lives = 0
        self._groups: dict[tuple[str, int], Group] = {}
        """Members of live apps, by app and generation."""
        self._met: dict[tuple[str, int], set[int]] = {}
        """Containers that are ready for the first step of apps that begin together, by app and generation."""
        self._words: list[tuple[str, bytes, str]] = []
        """Of strangers and operators, which the server has not been told yet."""

    # --- playing -------------------------------------------------------------------------------------------------------

    def run(self, *, tell: bool = False) -> Outcome:
        """Run it; the outcome has a broken promise.  With `tell`, it also has the whole story; after a failure, it always has
        the end."""
        broken, story = "", list[str]()
        with neighbors.scaled(self), self.world as world:
            try:
                self._begin()
                world.run_for(self.span_s)
                self._come_to_rest()
                story = world.story() if tell else story
            except Broken as error:
                broken = str(error)
                story = world.story(0 if tell else _STORY)
            finally:
                self.over = self.checks.over = True
            return Outcome(
                seed=self.seed,
                broken=broken,
                story=story,
                faults=[fault.kind for fault in self.attack.injected],
                recoveries=self.recoveries,
                submissions=len({one.event_id for one in world.acknowledged}),
                lost=len({one.event_id for one in world.acknowledged} - self.checks.answered) if broken else 0,
                doubled=int("run at once" in broken),
                records=len(world.server.records),
                rounds=world.whole.figures.decisions,
                virtual_s=round(world.now, 1),
                digest=world.digest(),
            )

    def _begin(self) -> None:
        world = self.world
        world.server.on_record.append(self.checks.record)
        self._overhear_reports()
        self._alter(self)
        for name in (*self.masters, *self.machines_of(), *self.users):
            self.hosts[name] = world.host(name, skew_s=self._skews.get(name, 0.0))
        (world.folder / "checkpoints").mkdir()
        self.say(
            k.PolicyChanged(
                policy=self.policies[0],
                heartbeat_s=HEARTBEAT_S,
                node_grace_s=self.grace_s,
                node_lease_s=self.lease_s,
                retention_s=self.retention_s,
                idle_s=15.0,
            )
        )
        if self.skewed and (earlier := _SKEWED.get(self.seed % 8)):
            world.server.without_parts = set(self.masters[:earlier])
        for name in self.masters:
            self._start_master(name)
        chance = world.chance("machines")
        for name, cpu in self.cpus.items():
            machine = Machine(world, self.hosts[name], name, cpu=cpu, program=self._program, witness=self.checks)
            machine.guard_s = chance.choice([0.2, 1.0, 4.0])
            self.machines[name] = self.checks.machines[name] = machine
            self.place_of[name] = name
            self._start_agent(name)
        for number, user in enumerate(self.users):
            plans = [plan for plan in self.apps if plan.index % len(self.users) == number]
            customer = Customer(self, self.hosts[user], user, plans)
            customer.start()
            self.customers.append(customer)
        self.attack.schedule(self.faults)
        world.after(_LOOK_S, self._look)

    def _overhear_reports(self) -> None:
        """Inform the checks when each heartbeat is stored."""
        server = self.world.server
        report = server.report

        def overheard(subject: str, body: bytes, reply: Callable[[Any], None]) -> None:
            if not server.full:
                self.checks.heard(subject.split(".")[3])
            report(subject, body, reply)

        self.world.server.report = overheard  # type: ignore[method-assign]

    def machines_of(self) -> list[str]:
        return list(self.cpus)

    def machines_named(self, node: str) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.name == node]

    @property
    def whole_lease_s(self) -> float:
        """The longest time that containers on any node may outlive their agent, including guards."""
        leases = [self.world.whole.settings.node_lease_s, *(node.lease_s for node in self.world.whole.nodes.values())]
        return max(leases) + 15.0

    def add_machine(self, node: str, *, hit: bool) -> None:
        """Add another machine under this name, with an empty folder; with `hit`, faults hit it from now on."""
        place = f"{node}+{len(self.machines_named(node))}"
        chance = self.world.chance(f"machine {place}")
        self.hosts[place] = host = self.world.host(place, skew_s=chance.choice([0.0, -2.0, 30.0]))
        machine = Machine(self.world, host, node, cpu=self.cpus[node], program=self._program, witness=self.checks)
        machine.guard_s = chance.choice([0.2, 1.0, 4.0])
        self.machines[place] = self.checks.machines[place] = machine
        if hit:
            self.place_of[node] = place
        self._start_agent(place)

    def retire(self, place: str) -> None:
        """Kill its agent permanently; its containers end with its lease."""
        self.retired.add(place)
        self.agents.pop(place, None)
        for process in list(self.hosts[place].processes):
            process.kill()

    def _program(self, container: Container, machine: Machine) -> Program:
        index = int(container.spec.env[PLAN])
        plan = self.strangers.get(index) or next((plan for plan in self.apps if plan.index == index), STRANGERS)
        if plan.live and container.spec.env.get("DORM_MEMBERS"):
            group = self._groups.setdefault(container.key[:2], Group())
            return LiveProgram(container, plan, self.seed, machine.later, group, calm=machine.calm)
        program = Program(container, plan, self.seed, machine.later, calm=machine.calm)
        program.met = self._met.setdefault(container.key[:2], set()) if plan.together else None
        return program

    # --- processes and who starts them again ---------------------------------------------------------------------------

    def _start_master(self, host: str) -> None:
        self._lives += 1
        name = f"{host}-{self._lives}"
        self.checks.masters.add(name)
        process = start_master(self.hosts[host], name, lease_s=self.master_lease_s, beside=self.beside)
        self.leaders[host] = process
        process.on_end(lambda ended: self._ended(ended, host, self._start_master))

    def _start_agent(self, place: str) -> None:
        machine = self.machines[place]
        node, number = machine.name, place.partition("+")[2] or "0"
        config = NodeConfig(
            name=node,
            address=f"10.0.{number}.{node[1:]}",
            capacity={"cpu": self.cpus[node]},
            checkpoints=machine.checkpoints,
            ports=self.ports[node],
            report_interval_s=HEARTBEAT_S,
        )
        chance = self.world.chance(f"runtime of {place}")
        process = start_agent(
            self.hosts[place],
            f"agent {place}",
            config,
            lambda _: SimRuntime(machine, chance),
            machine.folder / "agent",
            port_taken=machine.listens,
            look_at=machine.look_at if self.looks else None,
            health=SimHealth(machine, self.world.chance(f"health of {place}")) if self.looks else None,
        )
        self.agents[place] = process
        process.on_end(lambda ended: self._ended(ended, place, self._start_agent))

    def _ended(self, process: Process, host: str, start: Callable[[str], None]) -> None:
        """Restart a process after a while, as systemd does, if its machine has power."""
        if self.over:
            return
        if process.error is not None:
            ending.check_death(self.world, process)
        pause = 0.2 if self.calm else self.down_for.pop(host, 0.5)
        self.disturb(host, pause)
        boots = self.machines[host].boots if host in self.machines else 0
        self.world.after(pause, self._restart, host, start, boots)

    def _restart(self, host: str, start: Callable[[str], None], boots: int) -> None:
        machine = self.machines.get(host)
        alive = any(process.alive for process in self.hosts[host].processes)
        if host in self.retired:
            return
        if not self.over and not alive and (machine is None or (machine.powered and machine.boots == boots)):
            start(host)

    def boot(self, machine: Machine) -> None:
        """Power is back: start the engine, then the agent."""
        if not machine.powered:
            machine.boot()
            self.down_for.pop(machine.place, None)
            self.world.after(0.3, self._restart, machine.place, self._start_agent, machine.boots)

    # --- strangers and operators, who are not under attack themselves --------------------------------------------------

    def say(self, event: k.Event) -> None:
        """Publish an operator's event as soon as the server accepts it."""
        self._lives += 1
        said = msgspec.structs.replace(event, id=f"operator.{self._lives}", at=self.world.wall(), by="operator")
        subject = subjects.fact(self.cluster, type(event).__name__, "operator")
        self.append(subject, encode(said), said.id)

    def still_to_say(self, kind: type[E]) -> list[E]:
        """Return the operator's events of this kind that are not on the log yet."""
        found = [decode(Record(0, 0, subject, body)) for subject, body, _ in self._words]
        return [event for event in found if isinstance(event, kind)]

    def append(self, subject: str, body: bytes, msg_id: str = "") -> None:
        """Append a stranger's record, marked by its id unless it repeats another record."""
        self._lives += 1
        self._words.append((subject, body, msg_id or f"{STRANGER}.{self._lives}"))
        self._send_words()

    def _send_words(self) -> None:
        """Send the operators' events in order, once the server is available."""
        server = self.world.server
        if not server.up:
            self.world.after(0.5, self._send_words)
            return
        words, self._words = self._words, []
        for subject, body, msg_id in words:
            server.handle(partial(server.append, subject, body, msg_id, None, lambda _: None))

    # --- recovery ------------------------------------------------------------------------------------------------------

    def hit(self, fault: Fault) -> None:
        """Note what a fault disturbs, and until when; recovery is measured from then on."""
        if fault.kind not in HARMLESS:
            self.disturb(fault.target, fault.for_s)
        self._pending.append((self.world.now + fault.for_s, fault.kind))

    def disturb(self, host: str, for_s: float) -> None:
        """Note that this host is disturbed, or something that all need."""
        whom = self.machines[host].name if host in self.machines else ""
        self.checks.disturbed[whom] = max(self.checks.disturbed.get(whom, 0.0), self.world.now + for_s)

    def _look(self) -> None:
        now = self.world.now
        if self._pending and self.well():
            self.recoveries += [round(max(0.0, now - over), 2) for over, _ in self._pending if over <= now]
            self._pending = [entry for entry in self._pending if entry[0] > now]
        self.checks.look()
        self.world.after(_LOOK_S, self._look)

    def well(self) -> bool:
        """Return whether a master leads and everything that should run runs."""
        whole = self.world.whole
        if whole.submissions or not any(_leads(process) for process in self.leaders.values()):
            return False
        for app_id in whole.names.values():
            app = whole.apps[app_id]
            current = app.current
            if app.retry_at or app.cancel_requested or (current is None and reason_of(app, whole.time) is None):
                return False
            for container in current.containers.values() if current else ():
                key = (app_id, app.generation, container.slot)
                known = self.checks.launched.get(key)  # type: ignore[call-overload]
                if known is None or (known.state != "running" and not known.finished):
                    return False
        return True

    # --- the end -------------------------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        self.attack.over = self.calm = True
        world = self.world
        world.trace("FAULTS END")
        world.server.full = False
        replacing.settle_names(self)
        operators.come_to_rest(self)
        gates.come_to_rest(self)
        world.after(0.0, misuse.settle_folders, self)
        for host in self.hosts.values():
            host.heal()
        for process in [process for host in self.hosts.values() for process in host.processes]:
            process.resume()
        for machine in self.machines.values():
            self.boot(machine)
            machine.start_engine()
            machine.be_calm()
        for customer in self.customers:
            customer.hurry()
        self.checks.disturbed[""] = world.now + 10.0
        if self.policies == ["dorm"]:
            self.say(k.PolicyChanged(policy="dorm", node_lease_s=self.lease_s))
        else:
            self.say(k.PolicyChanged(policy="static", params={"count": 1}, node_lease_s=self.lease_s))
        for node in self.machines_of():
            self.say(k.NodeDrainRequested(node=node, drain=False))
        if not world.run_until(self._at_rest, within=REST_S, every=1.0):
            world.fail(f"{REST_S:g} s after the last fault it has not come to rest: {self.checks.limbo()}")
        world.run_for(3.0)
        if not world.run_until(self._all_have_read, within=REST_S):
            world.fail("an agent does not read on, though nothing keeps it from the log")
        ending.check_end(self)
        self.at_end()

    def at_end(self) -> None:
        """Check further invariants once the history has come to rest.  Raises Broken."""

    def _all_have_read(self) -> bool:
        """Return whether agents know the last round, or its effect on them, so that comparisons with them are up to date."""
        return all(
            _joined(process) and ending.has_read(self.world, process.agent.desired) for process in self.agents.values()
        )

    def _at_rest(self) -> bool:
        """Return whether a master leads, all agents have joined, nothing is late, and nothing remains to be done."""
        world = self.world
        return (
            world.server.up
            and all(world.now > host.lag_until for host in self.hosts.values())
            and any(_leads(process) for process in self.leaders.values())
            and all(_joined(process) for process in self.agents.values())
            and all(customer.done for customer in self.customers)
            and self.checks.at_rest()
        )


def _leads(process: Any) -> bool:
    master = getattr(process, "master", None)
    return bool(process.alive and not process.paused and master is not None and master.elected.is_set())


def _joined(process: AgentProcess) -> bool:
    agent = getattr(process, "agent", None)
    return bool(process.alive and agent is not None and agent.joined.is_set())
