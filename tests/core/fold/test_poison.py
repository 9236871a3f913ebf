"""No record stops a reader that folds the log: every pill, in MessagePack and in JSON."""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from typing import get_args

import msgspec
import pytest

from agents.desired import Desired
from dorm.core.evolve import evolve
from dorm.core.next_round import decide
from dorm.core.parts.deriving import part_of
from dorm.core.snapshot import copy, load, pack
from dorm.core.state import State, digest
from dorm.core.timing import next_deadline
from events import kinds as k
from events import parts, subjects
from events.codec import decode, encode
from events.limits import LEAST_MAX_PAYLOAD
from events.log.records import Record
from events.quantities import SECOND
from tests.agents.folding import desired_of
from tests.core.fold.pills import KINDS, NO_EVENTS, bodies_of, document_of, poisoned, subject_of, wrapped
from tests.core.records import CLUSTER, Bench
from tests.tries import step

LARGEST_ROUND = LEAST_MAX_PAYLOAD - 32 * 1024
"""Bytes, with room for headers."""
LAST = 60
"""Seconds after the poison at which the master looks again."""
EACH = step(20)
"""Of the extremes of a field, `make test` tries each twentieth: another one for each field and kind."""


class Cluster(Bench):
    """Also with two agents that have folded its log."""

    agents: tuple[bytes, ...] = ()

    def __init__(self, **nodes: float) -> None:
        super().__init__(**nodes)
        self.survived: set[bytes] = set()
        """Hashes of what records made of the state and the agents: what follows is a function of that alone."""

    def new_agents(self) -> list[Desired]:
        return [msgspec.msgpack.decode(one, type=Desired) for one in self.agents]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """An app that runs, one that waits, one that failed, and a submission without an answer."""
    bench = Cluster(n1=4, n2=4)
    bench.add(k.PolicyChanged(policy="static", params={"count": 2}))
    bench.running("run")
    bench.add(k.AppProgressed(app=bench.app("run").id, generation=1, step=10), bench.placed("run"))
    bench.running("bad")
    bench.exited("bad", 0, 1)
    bench.settle()
    bench.submit("wait", n_min=8, n_max=8)
    bench.decide()
    bench.submit("later", id="someone.later")
    bench.agents = tuple(msgspec.msgpack.encode(desired_of(bench.records, node)) for node in ("n1", "n2"))
    return bench


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_no_field_at_its_extremes_stops_a_reader(cluster: Cluster, cls: type[k.Event]) -> None:
    document = document_of(cluster.state, cls)
    subject = subject_of(CLUSTER, cls, cluster.placed("run"))
    tried = 0
    for poison in (document, *islice(poisoned(cls, document), KINDS.index(cls) % EACH, None, EACH)):
        for body in bodies_of(wrapped(cls, poison, epoch=cluster.state.epoch, basis=cluster.state.seq)):
            _survives(cluster, subject, body)
            tried += 1
    assert tried > 1


def _survives(cluster: Cluster, subject: str, body: bytes) -> None:
    """Master and agents fold it and continue, and their later records are readable and count."""
    state = msgspec.msgpack.decode(copy(cluster.state).encoded, type=State)
    agents = cluster.new_agents()
    log = [Record(state.seq + 1, cluster.now + SECOND, subject, body)]
    event = evolve(state, log[0]).event
    for agent in agents:
        agent.fold(log[0])
    became = sha256(b"".join([copy(state).encoded, *map(msgspec.msgpack.encode, agents)])).digest()
    if became in cluster.survived:
        return
    epoch = state.epoch + 1
    now = cluster.now + LAST * SECOND
    for number in range(3):
        facts = decide(state, now, allocate=True).facts if number else [k.MasterElected(epoch=epoch)]
        void = state.counters.void_rounds
        said = k.Round(id="m.1", at=now, by="m", epoch=epoch, basis=state.seq, allocated=False, events=facts, core=1)
        log.append(Record(state.seq + 1, now, subjects.rounds(CLUSTER), encode(said)))
        assert decode(log[-1]) == said, f"after {event} nobody can read what the master says"
        assert len(log[-1].body) <= LARGEST_ROUND, f"after {event} no server takes what the master says"
        evolve(state, log[-1])
        assert state.counters.void_rounds == void, f"after {event} what the master says is void"
    assert state.leader == "m"
    next_deadline(state, 0)
    info, packed = pack(copy(state), build="b")
    loaded = load(info, packed, build="b")
    assert loaded is not None
    assert digest(loaded) == digest(state)
    for agent in agents:
        for record in log[1:]:
            agent.fold(record)
        assert agent.install(parts.unpacked(parts.packed(parts.document_of(part_of(state, CLUSTER, agent.node))))[0])
        assert agent.epoch == epoch
        msgspec.msgpack.encode(agent)
    cluster.survived.add(became)


@pytest.mark.parametrize("body", NO_EVENTS, ids=lambda body: repr(body[:20]))
def test_a_record_that_is_not_an_event_stops_no_reader(cluster: Cluster, body: bytes) -> None:
    for kind in (*(cls.__name__ for cls in get_args(k.Published)), "NoSuchKind", "round"):
        who = "master" if kind == "round" else cluster.placed("run")
        _survives(cluster, f"dorm.{CLUSTER}.{kind}.{who}", body)
