"""A view agrees with the state at every moment of a log, and grows only with the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.asking import problem_of
from dorm.core.evolve import evolve
from dorm.core.query.standing import standings
from dorm.core.query.views import node_rows, sizes, summary
from dorm.core.state import State
from events.kinds import Resized
from replay.page.view import ENDED_KEPT_S, View, decision_in, view
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.log.records import Record
    from events.positions import Logged


def views(records: list[Record], every: int = 1) -> Iterator[tuple[State, View]]:
    state = State()
    decided: Logged | None = None
    for record in records:
        evolve(state, record)
        if state.figures.seq == record.seq:
            decided = decision_in(record)
        if record.seq % every == 0:
            yield state, view(state, decided)


def check(state: State, seen: View) -> None:
    assert seen.position == str(state.seq)
    live = {app.id: app for app in state.apps.values() if not app.ended}
    shown = {app.id: app for app in seen.apps}
    assert {app_id: app.phase for app_id, app in shown.items() if app_id in live} == {
        app_id: app.phase for app_id, app in live.items()
    }
    assert {app_id: shown[app_id].containers for app_id in live} == {
        app_id: sum(sizes(app).values()) for app_id, app in live.items()
    }
    for app_id, app in live.items():
        assert shown[app_id].reason == app.waiting
        on = {node.id: held for node in seen.nodes for held in node.containers if seen.apps[int(held.app)].id == app_id}
        assert {
            node: held.count - held.stopping for node, held in on.items() if held.count > held.stopping
        }.keys() <= sizes(app).keys()
        assert all(held.count >= sizes(app).get(node, 0) for node, held in on.items())
        if app.current is None or app.current.change is None:
            running = app.current.running if app.current is not None else 0
            assert sum(held.starting for held in on.values()) == sum(sizes(app).values()) - running
    rows = {row.name: row for row in node_rows(state)}
    for node in seen.nodes:
        assert (node.used, node.state, node.capacity) == (
            rows[node.id].used,
            rows[node.id].condition,
            rows[node.id].capacity,
        )
        assert sum(held.count for held in node.containers) == rows[node.id].containers
    assert {row.name for row in rows.values() if row.condition != "left" or row.containers} == {
        node.id for node in seen.nodes
    }
    total = summary(state)
    assert abs(seen.cluster.utilization - total.utilization) < 1e-5
    assert (seen.cluster.apps, seen.cluster.nodes) == (total.apps, total.nodes)


def test_a_view_is_the_state(records: list[Record]) -> None:
    for state, seen in views(records):
        check(state, seen)


def test_a_view_of_a_busy_cluster_is_the_state() -> None:
    for state, seen in views(busy_log(1500, apps=12, nodes=6), every=29):
        check(state, seen)


def test_shares_agree_with_the_policy(records: list[Record]) -> None:
    *_, (state, seen) = views(records, every=7)
    known = standings(problem_of(state, state.time)).apps
    assert {app.id: (app.share, app.fair_share) for app in seen.apps if app.id in known} == {
        name: (round(one.share, 6), round(one.fair, 6)) for name, one in known.items()
    }


def test_a_decision_has_its_reasons(records: list[Record]) -> None:
    decisions = {}
    for _, seen in views(records):
        if seen.decision is not None:
            decisions[seen.decision.position] = seen.decision
    facts = [one for record in records if (one := decision_in(record)) is not None]
    assert list(decisions) == [str(one.position) for one in facts]
    for one in facts:
        assert isinstance(one.event, Resized)
        found = decisions[str(one.position)]
        assert {reason.app: reason.text for reason in found.reasons} == {
            app: why.text for app, why in one.event.reasons.items()
        }
        assert [change.after for change in found.changes] == [len(change.placement) for change in one.event.changes]
        assert all(change.before == 0 or change.before is None or change.kind != "start" for change in found.changes)


def test_a_view_does_not_grow_with_history() -> None:
    """Apps that ended more than ten minutes of log time ago are not in it."""
    long_ago = 0
    for state, seen in views(busy_log(4000, apps=6, nodes=4, tick_s=20.0), every=200):
        shown = {app.id for app in seen.apps}
        for app in state.apps.values():
            over = app.ended and all(generation.ended for generation in app.generations.values())
            if over and state.time - app.ended_at > ENDED_KEPT_S * 1_000_000_000:
                long_ago += 1
                assert app.id not in shown
    assert long_ago > 5


def test_a_view_survives_a_round_trip_through_json(records: list[Record]) -> None:
    *_, (_, seen) = views(records)
    assert msgspec.json.decode(msgspec.json.encode(seen), type=View) == seen
