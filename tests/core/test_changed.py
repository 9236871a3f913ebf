"""What the fold reports to have touched covers all that differs in the state, on random histories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.folded import APP, Folded
from dorm.core.state import State
from events import kinds as k
from tests.core import suspect_node
from tests.core.fold.test_revisions import edit
from tests.core.golden_log import recorded
from tests.core.records import Bench, joined
from tests.core.virtual.world import World
from tests.kinds.golden import logs
from tests.replay.tenants.lives import Life
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.app import App
    from dorm.core.state import Node
    from events.log.records import Record

_encode = msgspec.msgpack.Encoder().encode


def of_node(node: Node) -> bytes:
    """Without what only decisions read."""
    return _encode(msgspec.structs.replace(node, failed={}, proven_at=0, port_cursor=0))


def of_app(app: App) -> tuple[bytes, ...]:
    """Without what a decision says of all apps, and that."""
    return _encode(msgspec.structs.replace(app, waiting=None, retry_at=0, room_taken=False)), _encode(
        (app.waiting, app.retry_at, app.room_taken)
    )


def check(records: Iterable[Record]) -> None:
    state = State()
    apps: dict[str, tuple[bytes, ...]] = {}
    nodes: dict[str, bytes] = {}
    for record in records:
        folded = evolve(state, record)
        apps_now = {app.id: of_app(app) for app in state.apps.values()}
        nodes_now = {node.id: of_node(node) for node in state.nodes.values()}
        differ = {name for name in {*apps, *apps_now} if apps.get(name, ()) != apps_now.get(name, ())}
        if folded.reasons:
            differ -= {name for name in differ if apps.get(name, ())[:1] == apps_now.get(name, ())[:1]}
        where = {name for name in {*nodes, *nodes_now} if nodes.get(name) != nodes_now.get(name)}
        if not folded.everything:
            assert differ <= set(folded.apps), (record.seq, folded.event)
            assert where <= set(folded.nodes), (record.seq, folded.event)
        assert folded.touched or not (differ or where), (record.seq, folded.event)
        apps, nodes = apps_now, nodes_now


@pytest.mark.parametrize("seed", range(tries(6, 60)))
def test_random_histories(seed: int) -> None:
    world = World(seed, steps=150, outages=0.3 * (seed % 2), live=0.5 * (seed % 3 == 0))
    world.run()
    check(world.log)


@pytest.mark.parametrize("seed", range(tries(2, 20)))
def test_lives_of_clusters_with_users(seed: int) -> None:
    check(Life(seed).play(50).records)


def test_golden_logs() -> None:
    check(recorded()[0])
    for records in logs(lives=False).values():
        check(records)


def test_most_records_name_all_that_they_change() -> None:
    """Else it would say nothing: in a cluster at work, few records may have changed everything."""
    state, everything = State(), 0
    records = recorded()[0]
    for record in records:
        folded = evolve(state, record)
        everything += folded.everything
        if isinstance(folded.event, k.AppProgressed) and folded.outcome == "applied":
            assert folded.apps == (folded.event.app,)
            assert folded.effect is APP
        if folded.outcome in ("ignored", "void", "unreadable"):
            assert not folded.touched
    assert everything < len(records) / 2


def bench_of_two() -> Bench:
    bench = Bench()
    bench.add(joined("a", 8, abilities=["edits"]))
    return bench


def test_an_edit_touches_what_the_app_waits_for_no_longer() -> None:
    bench = bench_of_two()
    bench.running("prep", n_max=1)
    bench.submit("app", after=["prep"], n_max=1)
    bench.settle()
    assert isinstance(edit(bench, after=[]), k.AppRevised)
    assert bench.app("prep").id in touched_by(bench.records, k.AppRevised).apps
    check(bench.records)


def test_an_edit_of_a_limit_touches_the_whole_group() -> None:
    bench = bench_of_two()
    group = {"name": "lr", "count": 3, "parallel": 1}
    for index in range(3):
        bench.submit(f"lr-{index}", group={**group, "index": index}, n_max=1)
    bench.settle()
    edit(bench, of="lr-0", group={**group, "index": 0, "parallel": 2})
    assert set(touched_by(bench.records, k.AppRevised).apps) == {app.id for app in bench.state.apps.values()}
    check(bench.records)


def test_a_note_touches_the_app_whatever_its_author_calls_it() -> None:
    bench = bench_of_two()
    bench.running("app", n_max=1)
    bench.add(k.AppNoted(app="app", text="the data are in", by="ann"), "ann")
    check(bench.records)


def test_an_app_that_ends_touches_those_that_wait_for_it() -> None:
    bench = bench_of_two()
    bench.running("prep", n_max=1)
    bench.submit("app", after=["prep"], n_max=1)
    bench.settle()
    bench.all_exited("prep")
    bench.settle()
    assert bench.app("app").id in touched_by(bench.records, k.AppCompleted).apps
    check(bench.records)


def test_a_broken_app_touches_the_nodes_that_it_made_suspect() -> None:
    check(suspect_node.suspect().records)


def test_a_dropped_app_is_touched_by_the_round_that_drops_it() -> None:
    bench = bench_of_two()
    bench.running("app", n_max=1)
    bench.all_exited("app")
    bench.settle()
    app = bench.app("app").id
    bench.wait(100_000)
    bench.submit("other", n_max=1)
    bench.settle()
    assert app not in bench.state.apps
    check(bench.records)


def test_a_round_reports_an_effect_for_each_fact() -> None:
    state = State()
    for record in recorded()[0]:
        folded = evolve(state, record)
        if isinstance(folded.event, k.Round) and folded.outcome != "void":
            assert [event for event, _ in folded.steps()] == [*folded.event.events, folded.event]


def touched_by(records: Iterable[Record], kind: type[k.Event]) -> Folded:
    """What the fold reports of the last round with a fact of this kind."""
    state, last = State(), None
    for record in records:
        folded = evolve(state, record)
        if isinstance(folded.event, k.Round) and any(isinstance(fact, kind) for fact in folded.event.events):
            last = folded
    assert last is not None
    return last
