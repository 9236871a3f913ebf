"""Histories of a virtual cluster under attack: counters and spans of any log, live apps included, agree with each other and
do not depend on where their reader began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm.metrics.cluster_metrics import cluster_metrics, exposition
from events import kinds as k
from replay.traces import Span, Tracer
from tests.core.virtual.world import World
from tests.metrics.test_tally import counted
from tests.replay.made_log import all_facts
from tests.tries import LONG

if TYPE_CHECKING:
    from events.log.records import Record


@pytest.mark.usefixtures("only_policies_of_ours")
def test_counters_and_spans_of_any_history() -> None:
    live = starts = 0
    for seed in range(60) if LONG else (3, 25, 29, 41, 46):
        world = World(seed, steps=400, live=1.0 if seed > 20 else 0.3, outages=0.3)
        world.run()
        records = world.log
        state, tally = counted(records)
        assert counted(records, restarts=[len(records) // 3, len(records) // 2])[1] == tally, seed
        assert exposition(cluster_metrics(state, tally, state.time))

        spans, middle = _spans(records)
        assert len({one.span for one in spans}) == len(spans), seed
        assert all(one.begin <= one.end for one in spans)
        names = [one.name for one in spans]
        committed = all_facts(records, k.MembershipCommitted)
        assert names.count("live") == tally.adjustments["live"] == len(committed), seed
        assert names.count("app") == sum(tally.ended.values()), seed
        assert names.count("wait") >= sum(tally.waits.counts), seed
        started = sum(one.name == "start" and not one.error for one in spans)
        assert started >= tally.adjustments["start"] + tally.adjustments["restart"], seed
        assert {one.span for one in middle} <= {one.span for one in spans}, seed
        live, starts = live + tally.adjustments["live"], starts + started
    assert live > 2
    assert starts > 10


def _spans(records: list[Record]) -> tuple[list[Span], list[Span]]:
    """Those of the whole log, and those of a reader that began in its middle."""
    whole: list[Span] = []
    rest: list[Span] = []
    state, tracer, later = State(), Tracer("c", whole.append), Tracer("c", rest.append)
    for number, record in enumerate(records):
        folded = evolve(state, record)
        tracer.see(state, record, folded)
        if number > len(records) // 2:
            later.see(state, record, folded)
        elif number == len(records) // 2:
            later.begin(msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State))
    return whole, rest
