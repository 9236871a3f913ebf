"""No record stops a reader that folds the log: every field of every kind of event at its extremes, in MessagePack and in JSON.

The fields and their types are read off the classes, so a new field is tried as soon as it is there.
"""

from __future__ import annotations

import contextlib
import json
import math
from hashlib import sha256
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from msgspec import inspect as mi

from agents.desired import Desired
from dorm.core.decide.next_round import decide
from dorm.core.decide.timing import next_deadline
from dorm.core.fold.evolve import evolve
from dorm.core.snapshot import copy, load, pack
from dorm.core.state import State, digest
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.records import Record
from events.quantities import SECOND
from tests.core.records import CLUSTER, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS: tuple[type[k.Event], ...] = get_args(k.MasterFact)
KINDS: tuple[type[k.Event], ...] = (*get_args(k.Published), *FACTS)
INTEGERS = (-(2**63), -(2**62), -1, 0, 2**31, 2**53, 2**53 + 1, 2**60, 2**62, 2**63 - 1, 2**64 - 1, 10**40)
FLOATS = (math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324)
TEXTS = ("", "\x00\x1b[2J", "x" * 2000, "ß" * 300_000)
ODD: tuple[Any, ...] = (None, True, b"\xff", [], {}, [[[]]], {"": {"": math.nan}}, *INTEGERS, *FLOATS, *TEXTS)
LAST = 60
"""Seconds after the poison at which the master looks again."""


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
    agents = [Desired("n1"), Desired("n2")]
    for agent in agents:
        for record in bench.records:
            agent.fold(record)
    bench.agents = tuple(msgspec.msgpack.encode(agent) for agent in agents)
    return bench


def _documents(bench: Bench, cls: type[k.Event]) -> dict[str, Any]:
    """An event of this kind that the fold would act on."""
    app = bench.app("run")
    known = {
        "app": app.id, "generation": app.generation, "slot": 0, "node": bench.placed("run"), "submission": "someone.later",
        "from_generation": app.generation, "to_generation": app.generation + 1, "epoch": bench.state.epoch,
        "basis": bench.state.seq, "ports": [20000, 20999], "port": 20100, "master_port": 20101, "capacity": {"cpu": 4000},
        "address": "a", "step": 12, "policy": "static", "adjustment": "restart", "every": 1,
        "name": "ant", "command": ["work"], "demand": {"cpu": 1},
    }  # fmt: skip
    return {"kind": cls.__name__, **_plain(cls, known)}


def _plain(cls: type[Any], known: dict[str, Any]) -> dict[str, Any]:
    made = {}
    for field in mi.type_info(cls).fields:  # type: ignore[attr-defined]  # it is a StructType
        if field.required or field.name in known:
            made[field.encode_name] = known[field.name] if field.name in known else _any(field.type, known)
    return made


def _any(info: mi.Type, known: dict[str, Any]) -> Any:
    match info:
        case mi.Metadata(type=inner):
            return _any(inner, known)
        case mi.UnionType(types=types):
            return _any(types[0], known)
        case mi.StructType(cls=cls):
            return _plain(cls, known)
        case mi.ListType(item_type=item):
            return [_any(item, known)] if isinstance(item, mi.StructType) else []
        case mi.DictType(value_type=value):
            return {known["app"]: _any(value, known)}
        case mi.LiteralType(values=values):
            return values[0]
        case mi.BoolType():
            return False
        case mi.StrType():
            return "text"
        case mi.IntType(ge=low) | mi.FloatType(ge=low):
            return low or 0
    return None


def _poisoned(cls: type[Any], document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document with each of its fields, one at a time, at each of its extremes."""
    for field in mi.type_info(cls).fields:  # type: ignore[attr-defined]
        if field.name != "events":
            for value in _extremes(field.type, document.get(field.encode_name)):
                yield {**document, field.encode_name: value}


def _extremes(info: mi.Type, plain: Any) -> Iterator[Any]:
    match info:
        case mi.Metadata(type=inner):
            yield from _extremes(inner, plain)
        case mi.UnionType(types=types):
            for one in types:
                yield from _extremes(one, plain)
        case mi.IntType(ge=low, le=high):
            yield from INTEGERS
            yield from (bound for bound in (low, high) if bound is not None)
        case mi.FloatType(ge=low, le=high):
            yield from (*FLOATS, 10**40)
            yield from (bound for bound in (low, high) if bound is not None)
        case mi.StrType():
            yield from TEXTS
        case mi.AnyType():
            yield from ODD
            yield from ({"name": "ant", "command": ["a"], "demand": {"cpu": 1}, "n_max": odd} for odd in ODD)
        case mi.LiteralType():
            yield "no such word"
        case mi.ListType(item_type=item):
            yield from ([one] for one in _extremes(item, plain[0] if plain else None))
        case mi.TupleType(item_types=items):
            for index, item in enumerate(items):
                whole = list(plain or (1 for _ in items))
                for one in _extremes(item, whole[index]):
                    yield [*whole[:index], one, *whole[index + 1 :]]
        case mi.DictType(key_type=key, value_type=value):
            yield from ({name: 1} for name in _extremes(key, None))
            label, held = next(iter((plain or {}).items()), ("cpu", None))
            yield from ({label: one} for one in _extremes(value, held))
        case mi.StructType(cls=cls) if isinstance(plain, dict):
            yield from _poisoned(cls, plain)


def _bodies(document: dict[str, Any]) -> Iterator[bytes]:
    with contextlib.suppress(OverflowError, ValueError):  # An integer that MessagePack can't hold.
        yield msgspec.msgpack.encode(document)
    with contextlib.suppress(TypeError):  # Bytes.
        yield json.dumps(document).encode()


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_no_field_at_its_extremes_stops_anybody(cluster: Cluster, cls: type[k.Event]) -> None:
    document = _documents(cluster, cls)
    subject = subjects.rounds(CLUSTER)
    if cls not in FACTS and cls is not k.Round:
        subject = subjects.fact(CLUSTER, cls.__name__, cluster.placed("run"))
    tried = 0
    for poison in (document, *_poisoned(cls, document)):
        if cls is k.Round:
            wrapped = {**poison, "events": [{"kind": "MasterElected", "epoch": poison["epoch"]}]}
        elif cls in FACTS:
            wrapped = {
                "kind": "Round", "epoch": cluster.state.epoch, "basis": cluster.state.seq, "allocated": False,
                "events": [poison],
            }  # fmt: skip
        else:
            wrapped = poison
        for body in _bodies(wrapped):
            _survives(cluster, subject, body)
            tried += 1
    assert tried > 10


def _survives(cluster: Cluster, subject: str, body: bytes) -> None:
    """Master and agents fold it and go on, and what they say then is readable and counts."""
    state = msgspec.msgpack.decode(copy(cluster.state).encoded, type=State)
    agents = cluster.new_agents()
    log = [Record(state.seq + 1, cluster.now + SECOND, subject, body)]
    event, _ = evolve(state, log[0])
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
        assert agent.epoch == epoch
        msgspec.msgpack.encode(agent)
    cluster.survived.add(became)


@pytest.mark.parametrize("kind", [cls.__name__ for cls in get_args(k.Published)] + ["NoSuchKind", "round"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"{",
        b"[1]",
        b"null",
        b"\x81\xa4kind\xa5Round",
        b'{"events": [{}]}',
        b'{"events": 7}',
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=repr,
)
def test_what_no_event_is_stops_nobody(cluster: Cluster, kind: str, body: bytes) -> None:
    who = "master" if kind == "round" else cluster.placed("run")
    _survives(cluster, f"dorm.{CLUSTER}.{kind}.{who}", body)
