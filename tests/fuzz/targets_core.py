"""Code that folds records: the master's state and decisions, an agent's desired containers and actions.

An input is a few records, good and bad, out of order and repeated, behind a state of a golden log.  Nothing may raise, the
same records give the same state, and events of clients and agents break no invariant.  Rounds are different: only masters may
write them, so a forged one may say anything, and only has to do no harm beyond nonsense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agents.desired import Desired
from agents.reconcile import reconcile
from agents.runtime.interface import Key, Seen
from dorm.core.evolve import evolve
from dorm.core.invariants import violations
from dorm.core.next_round import decide
from dorm.core.parts.deriving import part_of
from dorm.core.query.views import app_rows, describe, node_rows, summary
from dorm.core.snapshot import restore
from dorm.core.state import SCHEMA, digest
from dorm.core.timing import conclude, next_deadline
from events import subjects
from events.codec import decode, encode
from events.kinds import Round
from events.log.records import Record
from events.quantities import SECOND
from tests.fuzz import samples
from tests.fuzz.edits import msgpack_of
from tests.fuzz.target import Parts, Target, pack_parts, parts_of
from tests.fuzz.targets_events import make_record

if TYPE_CHECKING:
    from dorm.core.snapshot import Copy
    from dorm.core.state import State
    from tests.fuzz.edits import Source


def _inputs(source: Source) -> bytes:
    begin = source.pick(range(len(samples.stops())))
    stop = samples.stops()[begin]
    parts: list[list[bytes]] = []
    for number in range(source.pick((1, 2, 4, 8, 12))):
        near = source.pick(stop.following)  # Out of order, and sometimes repeated.
        if subjects.kind_of(near.subject) == "Round" and isinstance(near.tree, dict) and not source.one_in(3):
            # With a valid basis, because otherwise none of its facts would be folded.
            near = near._replace(tree={**near.tree, "basis": stop.state.seq + number, "epoch": stop.epoch})
            near = near._replace(body=msgpack_of(near.tree))
        kind = source.pick(range(5))
        subject, body = (near.subject, near.body) if kind < 2 else make_record(source, near if kind < 4 else None)
        parts.append([subject.encode(), body])
    if source.one_in(100):
        parts.append([b"allocate", b""])
    return pack_parts(Parts(begin, parts))


def _records(given: Parts, state: State | Copy) -> list[Record]:
    return [
        Record(
            state.seq + number, state.time + number * SECOND, part[0].decode(errors="replace"), part[1], f"f-{number}"
        )
        for number, part in enumerate(given.parts, 1)
        if len(part) == 2 and part[0] != b"allocate"
    ]


def _check_master(data: bytes) -> None:
    given = parts_of(data)
    stop = samples.stops()[given.begin % len(samples.stops())]
    state, twin = restore(stop.state), restore(stop.state)
    forged = False
    records = _records(given, state)
    for seq, record in enumerate(records, state.seq + 1):
        record.seq = seq
        event = evolve(state, record).event
        forged = forged or isinstance(event, Round)
        broken = violations(state)
        assert forged or not broken, broken
    for record in records:
        evolve(twin, record)
    assert digest(state) == digest(twin)
    _decide_on(state, allocate=[b"allocate", b""] in given.parts, forged=forged)


def _decide_on(state: State, *, allocate: bool, forged: bool) -> None:
    """Publish everything that follows, as a master does."""
    now = state.time + SECOND
    next_deadline(state, 0)
    conclude(state, dict.fromkeys(state.nodes, 0), now)
    msgspec.json.encode([app_rows(state, now), node_rows(state), summary(state)])
    for app in state.apps.values():
        msgspec.json.encode(describe(app, now))
    for number in range(6):
        decision = decide(state, now, allocate=allocate)
        if not decision.facts:
            return
        event = Round(
            id=f"fuzz.{number}", at=now, by="master", epoch=state.epoch, basis=state.seq, allocated=decision.allocated,
            events=decision.facts, core=SCHEMA,
        )  # fmt: skip
        record = Record(state.seq + 1, now, subjects.rounds(samples.CLUSTER), encode(event), event.id)
        assert msgspec.to_builtins(decode(record)) == msgspec.to_builtins(event)
        void = state.counters.void_rounds
        evolve(state, record)
        assert state.counters.void_rounds == void, "its own round is void"
        broken = violations(state)
        assert forged or not broken, broken


def _check_agent(data: bytes) -> None:
    given = parts_of(data)
    stop = samples.stops()[given.begin % len(samples.stops())]
    desired = msgspec.msgpack.decode(stop.desired, type=Desired)
    state = restore(stop.state)
    for record in _records(given, stop.state):
        evolve(state, record)
        desired.fold(record)
    desired.install(part_of(state, samples.CLUSTER, desired.node))
    seen = [
        Seen(key=key, state=("created", "running", "exited")[number % 3], spec_hash="", exit_code=0)
        for number, key in enumerate(sorted({*desired.wanted(), *desired.due, Key("nobody-abcdef", 1, 0)}))
    ]
    for listed in ([], seen):
        first = reconcile(desired, listed, stop.state.time)
        assert first == reconcile(desired, listed, stop.state.time)
    for app in list(desired.apps):
        desired.forget(app)


TARGETS = [
    Target("fold", 5, _inputs, _check_master),
    Target("agent", 8, _inputs, _check_agent),
]
