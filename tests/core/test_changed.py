"""What the fold reports to have touched covers all that differs in the state, on random histories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.folded import APP
from dorm.core.state import State
from events import kinds as k
from tests.core.golden_log import recorded
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
