"""Logs written by hand: records of clients, agents and nodes, and the rounds of a master, at any basis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dorm.core.evolve import evolve
from dorm.core.next_round import decide
from dorm.core.state import SCHEMA, State
from dorm.core.timing import conclude
from events import subjects
from events.codec import decode, encode
from events.kinds import (
    AppProgressed,
    AppSubmitted,
    ContainerExited,
    ContainerStarted,
    Event,
    MasterElected,
    NodeJoined,
    Round,
)
from events.log.memory import MemoryLog
from events.log.records import Record
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Fact = TypeVar("Fact", bound=Event)
CLUSTER = "story"
START = 1_700_000_000 * SECOND


class Story:
    """A log in the making.  Each record is a tenth of a second after the one before."""

    def __init__(self, nodes: int = 2) -> None:
        self.records: list[Record] = []
        self.state = State()
        self.epoch = 0
        self.elect()
        for index in range(nodes):
            self.join(f"n{index}")

    @property
    def now(self) -> int:
        return START + len(self.records) * SECOND // 10

    def say(self, event: Event, who: str = "someone") -> None:
        """A fact of a client, an operator or an agent."""
        event = msgspec.structs.replace(event, id=f"{who}.{len(self.records)}", at=self.now, by=who)
        self.store(subjects.fact(CLUSTER, type(event).__name__, who), encode(event), event.id)

    def store(self, subject: str, body: bytes, msg_id: str = "") -> None:
        self.records.append(Record(len(self.records) + 1, self.now, subject, body, msg_id))
        evolve(self.state, self.records[-1])

    def join(self, node: str) -> None:
        index = int(node[1:])
        ports = (20_000 + 100 * index, 20_099 + 100 * index)
        self.say(NodeJoined(node=node, address="10.0.0.1", capacity={"cpu": 3000}, ports=ports), node)

    def submit(self, name: str, **spec: Any) -> None:
        self.say(AppSubmitted(spec={"name": name, "command": ["work"], "demand": {"cpu": 1}, "n_max": 4, **spec}))

    def elect(self) -> None:
        self.epoch += 1
        self.round([MasterElected(epoch=self.epoch)])

    def decide(self, *, allocate: bool = False, meanwhile: Callable[[], None] | None = None) -> bool:
        """One round, if there is anything to say.  What comes `meanwhile` lies between its basis and itself."""
        at, basis = self.now, self.state.seq
        decision = decide(self.state, at, allocate=allocate)
        if decision.facts:
            if meanwhile:
                meanwhile()
            self.round(decision.facts, basis=basis, at=at, allocated=decision.allocated)
        return bool(decision.facts)

    def conclude(self, heard: Mapping[str, int]) -> None:
        self.round(conclude(self.state, heard, self.now))

    def round(
        self,
        facts: Sequence[Any],
        *,
        basis: int | None = None,
        at: int | None = None,
        allocated: bool = False,
        epoch: int | None = None,
    ) -> None:
        basis = self.state.seq if basis is None else basis
        epoch = self.epoch if epoch is None else epoch
        event = Round(
            id=f"m{epoch}.{epoch}.{basis}",
            at=at or self.now,
            by=f"m{epoch}",
            epoch=epoch,
            basis=basis,
            allocated=allocated,
            events=list(facts),
            core=SCHEMA,
        )
        self.store(subjects.rounds(CLUSTER), encode(event), event.id)

    def settle(self) -> None:
        """All that follows by itself: answers, decisions, releases, starts, and the ends of what was asked to stop."""
        while self.decide() or self.decide(allocate=True) or self._agents():
            pass

    def _agents(self) -> bool:
        events: list[Event] = []
        for app in self.state.apps.values():
            for generation in app.generations.values():
                stop = generation.number != app.generation or generation.failed or app.ended
                for c in generation.containers.values() if generation.released else ():
                    at: dict[str, Any] = {
                        "app": app.id,
                        "generation": generation.number,
                        "slot": c.slot,
                        "node": c.node,
                        # A message of anybody may have given the node to another machine.
                        "identity": node.identity if (node := self.state.nodes.get(c.node)) is not None else "",
                    }
                    if c.state != "exited" and stop:
                        events.append(ContainerExited(**at, exit_code=143, asked=True))
                    elif c.state == "desired":
                        events.append(ContainerStarted(**at))
        for event in events:
            self.say(event, event.node)  # type: ignore[attr-defined]  # both kinds have a node
        return bool(events)

    def work(self) -> None:
        """Every app that runs says so, which ends the time for which it is left alone after a resize."""
        for app in list(self.state.live_apps()):
            if app.settled and app.current is not None:
                node = app.current.containers[min(app.current.containers)].node
                self.say(AppProgressed(app=app.id, generation=app.generation, step=app.step + 1), node)

    def exit(self, name: str, code: int) -> None:
        """Every container of an app ends by itself."""
        app = self.state.apps[self.state.names[name]]
        generation = app.generations[app.generation]
        for c in list(generation.containers.values()):
            event = ContainerExited(
                app=app.id, generation=generation.number, slot=c.slot, node=c.node, exit_code=code, reason="exit"
            )
            self.say(event, c.node)


def two_apps() -> Story:
    """A log with every kind of round: two apps contend, one is refused, a node is lost, another master takes over."""
    story = Story()
    story.submit("one")
    story.settle()
    story.work()
    story.submit("two", weight=2)
    story.submit("bad", n_min=9, n_max=2)
    story.decide(meanwhile=lambda: story.submit("three", n_max=1))
    story.decide(allocate=False)
    story.decide(allocate=True, meanwhile=lambda: story.join("n2"))
    story.settle()
    story.work()
    story.settle()
    story.elect()
    story.exit("one", 1)
    story.settle()
    story.conclude({"n1": story.now - 60 * SECOND})
    story.settle()
    story.conclude({"n1": story.now})
    story.exit("two", 0)
    story.settle()
    return story


def changed(records: Sequence[Record], seq: int, change: Callable[[Any], Event]) -> list[Record]:
    """The records with one event changed."""
    record = records[seq - 1]
    event = change(decode(record))
    return [*records[: seq - 1], msgspec.structs.replace(record, body=encode(event)), *records[seq:]]


def changed_fact(records: Sequence[Record], seq: int, kind: type, change: Callable[[Any], Any]) -> list[Record]:
    """The records with the first fact of a kind changed in one round."""

    def change_round(event: Round) -> Round:
        index = next(index for index, fact in enumerate(event.events) if type(fact) is kind)
        facts = [*event.events[:index], change(event.events[index]), *event.events[index + 1 :]]
        return msgspec.structs.replace(event, events=facts)

    return changed(records, seq, change_round)


def renumbered(records: Iterable[Record]) -> list[Record]:
    """As an attacker would leave them who knows that sequences are checked."""
    return [msgspec.structs.replace(record, seq=seq) for seq, record in enumerate(records, 1)]


def rounds_with(records: Sequence[Record], kind: type) -> list[int]:
    """Sequences of rounds that hold a fact of this kind."""
    return [
        record.seq
        for record in records
        if isinstance(event := decode(record), Round) and any(type(fact) is kind for fact in event.events)
    ]


def all_facts(records: Iterable[Record], kind: type[Fact]) -> list[Fact]:
    """All facts of a kind in rounds."""
    rounds = (event for record in records if isinstance(event := decode(record), Round))
    return [fact for event in rounds for fact in event.events if isinstance(fact, kind)]


def log_of(records: Iterable[Record]) -> MemoryLog:
    """A log of these records, whatever their sequences are."""
    log = MemoryLog(time.time_ns)
    log.records = list(records)
    return log
