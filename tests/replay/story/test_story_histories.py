"""Invariants of every story: on histories of a whole virtual cluster, with faults and nonsense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.core.evolve import evolve
from dorm.core.query.views import node_rows, sizes
from dorm.core.state import State
from events import kinds as k
from events.codec import decode
from events.positions import parse
from events.quantities import SECOND
from replay.story.app_teller import AppTeller
from replay.story.node import NodeTeller
from tests.core.virtual.world import World

if TYPE_CHECKING:
    from events.log.records import Record
    from events.positions import Position
    from replay.story.chapters import Chapter


def place(position: Position) -> tuple[int, int]:
    return position.seq, -1 if position.index is None else position.index


def check_chapters(chapters: list[Chapter], events: list[k.Event]) -> None:
    """In order, each cause earlier and on the log, lengths of time not negative, words for people."""

    def there(text: str) -> tuple[int, int]:
        position = parse(text)
        event = events[position.seq - 1]
        assert (position.index is not None) == isinstance(event, k.Round)
        assert not isinstance(event, k.Round) or position.index is None or position.index < len(event.events)
        return place(position)

    before, time = (0, 0), 0
    for chapter in chapters:
        here = there(chapter.position)
        assert here >= before
        assert chapter.time >= time
        before, time = here, chapter.time
        assert all(there(cause.position) < here for cause in chapter.causes), chapter
        assert all(cause.text for cause in chapter.causes)
        assert chapter.text
        assert "  " not in chapter.text
        assert "None" not in chapter.text
        for lengths in (chapter.phases, chapter.totals, chapter.changed, chapter.work):
            for name in lengths.__struct_fields__ if lengths is not None else ():
                value = getattr(lengths, name)
                assert not name.endswith("_s") or value is None or value >= 0, chapter


def play(log: list[Record], names: list[str], nodes: list[str]) -> tuple[State, list[AppTeller], list[NodeTeller]]:
    """Every teller over the whole log; what they say is compared with the state after each record."""
    state = State()
    apps, machines = [AppTeller(name) for name in names], [NodeTeller(name) for name in nodes]
    for record in log:
        folded = evolve(state, record)
        event = folded.event
        for app in apps:
            app.see(state, record, folded)
            found = state.apps.get(app.id)
            assert app.partition == (sizes(found) if found is not None else {}), (event, app.wanted)
        rows = {row.name: row for row in node_rows(state)}
        for machine in machines:
            machine.see(state, record, folded)
            used = machine.used()
            assert {name: amount for name, amount in used.items() if amount} == may_run(state, machine.wanted)
            assert machine.wanted in rows or not machine.known
    return state, apps, machines


def may_run(state: State, node: str) -> dict[str, int]:
    used: dict[str, int] = {}
    for app in state.apps.values():
        for generation in app.generations.values():
            for container in generation.containers.values() if generation.released else ():
                if container.node == node and container.state != "exited":
                    for name, amount in app.demand.items():
                        used[name] = used.get(name, 0) + amount
    return used


@pytest.mark.parametrize("seed", range(100, 108))
def test_every_story_is_true(seed: int) -> None:
    world = World(seed, steps=150, outages=0.3 * (seed % 2)).run()
    events = [decode(record) for record in world.log]
    accepted = [
        fact
        for event in events
        if isinstance(event, k.Round)
        for fact in event.events
        if isinstance(fact, k.AppAccepted)
    ]
    ids = sorted({fact.app for fact in accepted})
    names = sorted({fact.spec.name for fact in accepted})
    nodes = sorted(node.name for node in world.nodes)
    state, apps, machines = play(world.log, [*names, *ids], nodes)
    for app in apps:
        check_chapters(app.story(), events)
        check_life(app)
    # The newest of a name is the one whose story the name gives.
    for name in names:
        newest = [fact.app for fact in accepted if fact.spec.name == name][-1]
        by_name, by_id = (next(one for one in apps if one.wanted == wanted) for wanted in (name, newest))
        assert by_name.id == newest
        told = [chapter for chapter in by_name.story() if "later submission" not in chapter.text]
        assert told == [chapter for chapter in by_id.story() if "later submission" not in chapter.text]
    for machine in machines:
        check_chapters(machine.story(), events)
        totals = machine.totals(state)
        assert min(totals.up_s, totals.lost_s, totals.left_s) >= 0
        assert totals.drained_s <= totals.up_s
        joined = machine.story()[0].time
        assert totals.up_s + totals.lost_s + totals.left_s == pytest.approx((state.time - joined) / SECOND)
        for use in totals.use:
            assert 0 <= use.mean <= use.peak
            assert len(use.course) <= 48
            assert max(use.course) <= use.peak + 1e-4


def check_life(app: AppTeller) -> None:
    """All apps have ended; what one did fills its time from acceptance to end, and its chapters agree with its totals."""
    chapters = [chapter for chapter in app.story() if "later submission" not in chapter.text]
    end = next(chapter for chapter in chapters if chapter.totals is not None)
    accepted = next(chapter for chapter in chapters if chapter.what == "accepted")
    assert end.what in ("completed", "failed", "cancelled")
    assert end.totals is not None
    spent = end.totals.waited_s + end.totals.paused_s + end.totals.ran_s
    assert spent == pytest.approx((end.time - accepted.time) / SECOND)
    told = {chapter.phases.generation: chapter.phases for chapter in chapters if chapter.phases is not None}
    assert sum(phases.lost_steps for phases in told.values()) == end.totals.lost_steps
    assert sum(1 for chapter in chapters if chapter.what == "retried") >= end.totals.failures
    partitions = [chapter.partition for chapter in chapters if chapter.partition is not None]
    assert not partitions or partitions[-1] == {}
