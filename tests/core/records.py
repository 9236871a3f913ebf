"""Short ways to write a log by hand, and a bench that folds it and runs the core on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.evolve import evolve
from dorm.core.invariants import violations
from dorm.core.next_round import decide
from dorm.core.state import State
from dorm.core.timing import conclude
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log.records import Record
from events.quantities import SECOND
from events.spec import CheckedSpec, check_spec

if TYPE_CHECKING:
    from dorm.core.state import App

CLUSTER = "test"
START = 1_700_000_000 * SECOND
GIB = 2**30


def subject_of(event: k.Event, who: str) -> str:
    return subjects.rounds(CLUSTER) if isinstance(event, k.Round) else subjects.fact(CLUSTER, type(event).__name__, who)


def record_of(seq: int, event: k.Event, *, who: str = "someone", time: int = START) -> Record:
    """`event` as record `seq`; facts of a node come on the node's own subject."""
    return Record(seq, time, subject_of(event, getattr(event, "node", who)), encode(event))


def document(name: str = "app", *, cpu: float = 1, **fields: Any) -> dict[str, Any]:
    """A spec as a client sends it."""
    return {"name": name, "command": ["work"], "demand": {"cpu": cpu}, "n_max": 4, **fields}


def checked(name: str = "app", **fields: Any) -> CheckedSpec:
    return check_spec(document(name, **fields))


def joined(node: str, cpu: float = 4, *, ports: tuple[int, int] = (20000, 20999), **fields: Any) -> k.NodeJoined:
    capacity = {"cpu": int(cpu * 1000), **fields.pop("capacity", {})}
    return k.NodeJoined(**{"node": node, "address": f"addr-{node}", "capacity": capacity, "ports": ports, **fields})


class Bench:
    """A log in a list, its fold, and a master's part played by hand; every record is followed by all invariants."""

    def __init__(self, **nodes: float) -> None:
        """Nodes by name, with their cores."""
        self.state = State()
        self.records: list[Record] = []
        self.now = START
        self.say(k.MasterElected(epoch=1))
        for name, cpu in nodes.items():
            self.add(joined(name, cpu))

    def raw(self, subject: str, body: bytes, msg_id: str = "") -> k.Event:
        """Store and fold any bytes."""
        self.records.append(Record(len(self.records) + 1, self.now, subject, body, msg_id))
        event = evolve(self.state, self.records[-1]).event
        assert violations(self.state) == []
        return event

    def add(self, event: k.Event, who: str = "someone") -> k.Event:
        return self.raw(subject_of(event, getattr(event, "node", who)), encode(event))

    def repeat(self, seq: int) -> k.Event:
        """The same record once more, at the end."""
        old = self.records[seq - 1]
        return self.raw(old.subject, old.body, old.msg_id)

    def say(self, *facts: Any, basis: int | None = None, epoch: int = 1) -> k.Event:
        """A round of the master."""
        basis = self.state.seq if basis is None else basis
        return self.add(
            k.Round(at=self.now, by="master", epoch=epoch, basis=basis, allocated=False, events=list(facts)), "master"
        )

    def decided(self, *, allocate: bool = False) -> list[Any]:
        """What follows now, not yet said."""
        return decide(self.state, self.now, allocate=allocate).facts

    def decide(self, *, allocate: bool = False) -> list[Any]:
        """Say what follows now."""
        facts = self.decided(allocate=allocate)
        if facts:
            self.say(*facts)
        return facts

    def settle(self) -> list[Any]:
        """Say all that follows, the allocation included."""
        said: list[Any] = []
        for _ in range(50):
            facts = self.decide() or self.decide(allocate=True)
            if not facts:
                return said
            said += facts
        raise AssertionError(f"the master never comes to rest: {said[-5:]}")

    def conclude(self, **silent_s: float) -> list[Any]:
        """Facts about nodes that have been silent for so many seconds, said."""
        heard = {node: self.now - int(seconds * SECOND) for node, seconds in silent_s.items()}
        facts = conclude(self.state, heard, self.now)
        if facts:
            self.say(*facts)
        return facts

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    # --- apps -----------------------------------------------------------------------------------------------------------

    def submit(self, name: str = "app", *, id: str = "", **fields: Any) -> k.Event:
        return self.add(k.AppSubmitted(id=id, spec=document(name, **fields)))

    def app(self, name: str = "app") -> App:
        found = self.state.find_app(name)
        assert found is not None
        return found

    def placed(self, name: str = "app") -> str:
        """The node of the first slot of its latest generation."""
        app = self.app(name)
        return app.generations[app.generation].containers[0].node

    def started(self, name: str = "app", *, slots: list[int] | None = None) -> None:
        """Containers of the released generation (by default all) come up."""
        app = self.app(name)
        for slot, container in list(app.generations[app.generation].containers.items()):
            if slots is None or slot in slots:
                self.add(
                    k.ContainerStarted(app=app.id, generation=app.generation, slot=slot, node=container.node),
                    container.node,
                )

    def running(self, name: str = "app", **fields: Any) -> App:
        """An app that was submitted, placed, released and started."""
        self.submit(name, **fields)
        self.settle()
        self.started(name)
        self.settle()
        return self.app(name)

    def exited(
        self, name: str = "app", slot: int = 0, code: int | None = 0, *, generation: int = 0, **how: Any
    ) -> None:
        app = self.app(name)
        generation = generation or app.generation
        self.add(
            k.ContainerExited(
                app=app.id,
                generation=generation,
                slot=slot,
                node=app.generations[generation].containers[slot].node,
                exit_code=code,
                **how,
            )
        )

    def all_exited(self, name: str = "app", code: int = 0, *, generation: int = 0, **how: Any) -> None:
        app = self.app(name)
        number = generation or app.generation
        for slot, container in list(app.generations[number].containers.items()):
            if container.state != "exited":
                self.exited(name, slot, code, generation=number, **how)
