"""Every change, applied to the view before, gives the view at its position."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.progress import Reported
from dorm.core.state import State
from events import subjects
from events.kinds import AppProgressed, AppSubmitted
from events.positions import logged
from replay.page import changes as page_changes
from replay.page.changes import Change, Changes
from replay.page.view import View, decision_in, view
from tests.replay.busy import busy_log
from tests.replay.made_log import Story

if TYPE_CHECKING:
    from events.log.records import Record
    from events.positions import Logged

_SHARES = ("share", "fair_share", "dominant")


class Page:
    """What a page makes of a view and the changes after it."""

    def __init__(self, first: View) -> None:
        self.cluster: Any = msgspec.to_builtins(first.cluster)
        self.apps = {app.id: msgspec.to_builtins(app) for app in first.apps}
        self.nodes = {node.id: named(node, first) for node in first.nodes}
        self.work = {one.app: one for one in first.work}
        self.decision = first.decision.position if first.decision else None

    def take(self, change: Change) -> None:
        self.cluster = msgspec.to_builtins(change.cluster) if change.cluster is not None else self.cluster
        self.apps |= {app.id: msgspec.to_builtins(app) for app in change.apps}
        self.nodes |= {node.id: msgspec.to_builtins(node) for node in change.nodes}
        self.work |= {one.app: one for one in change.work}
        for gone in change.gone_apps:
            del self.apps[gone]
            self.work.pop(gone, None)
        for gone in change.gone_nodes:
            del self.nodes[gone]
        self.decision = change.decision.position if change.decision else self.decision


def named(node: Any, seen: View) -> dict[str, Any]:
    """A node's entry, with the ids of apps in place of their indexes."""
    plain: dict[str, Any] = msgspec.to_builtins(node)
    plain["containers"] = [[seen.apps[held[0]].id, *held[1:]] for held in plain["containers"]]
    return plain


def without_shares(apps: dict[str, Any]) -> dict[str, Any]:
    return {name: {key: value for key, value in app.items() if key not in _SHARES} for name, app in apps.items()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is looked at with every change, as far as a test does not say otherwise."""
    monkeypatch.setattr(page_changes, "WORK_EVERY_S", 0)


def follow(records: list[Record], seed: int) -> None:
    chance = Random(seed)
    state = State()
    observer = Changes(state)
    page = Page(observer.view())
    decided: Logged | None = None
    told: list[str] = []
    for record in records:
        folded = evolve(state, record)
        observer.see(state, record, folded)
        if state.figures.seq == record.seq:
            decided = decision_in(record)
        if chance.random() < 0.3 or record is records[-1]:
            change = observer.take(state)
            assert change is not None
            assert change.position == str(record.seq)
            page.take(msgspec.json.decode(msgspec.json.encode(change), type=Change))
            told += [one.position for one in change.records]
            expected = Page(view(state, decided))
            assert without_shares(page.apps) == without_shares(expected.apps)
            assert page.nodes == expected.nodes
            assert page.work == expected.work
            assert (page.cluster, page.decision) == (expected.cluster, expected.decision)
            again = Page(observer.view())
            assert (page.apps, page.nodes, page.cluster) == (again.apps, again.nodes, again.cluster)
            assert page.work == again.work
    assert told == [str(one.position) for record in records for one in logged(record)]
    assert observer.take(state) is None


def test_changes_lead_from_view_to_view(records: list[Record]) -> None:
    follow(records, seed=1)


def test_changes_lead_from_view_to_view_on_a_busy_cluster() -> None:
    follow(busy_log(1200, apps=10, nodes=6), seed=2)


def test_shares_follow_a_decision(written: list[Record]) -> None:
    state = State()
    observer = Changes(state)
    compared = 0
    for record in written:
        folded = evolve(state, record)
        observer.see(state, record, folded)
        observer.take(state)
        if state.figures.seq == record.seq:
            compared += 1
            assert observer.view().apps == view(state, decision_in(record)).apps
    assert compared


def test_a_flood_is_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_changes, "MOST_RECORDS", 200)
    story = Story()
    state = State()
    for record in story.records:
        evolve(state, record)
    observer = Changes(state)
    first = len(story.records)
    for number in range(500):
        story.say(AppSubmitted(spec={"name": f"a{number}", "note": "x" * 5000}))
    for record in story.records[first:]:
        observer.see(state, record, evolve(state, record))
    change = observer.take(state)
    assert change is not None
    assert (len(change.records), change.more_records) == (200, 300)
    assert change.records[-1].position == change.position == str(story.records[-1].seq)
    assert len(msgspec.json.encode(change)) < 200_000


def test_many_reports_change_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps that report all the time are looked at every two seconds of log time, a number of them at once, and none is
    forgotten."""
    monkeypatch.setattr(page_changes, "WORK_EVERY_S", 2)
    monkeypatch.setattr(page_changes, "MOST_WORK", 3)
    records = busy_log(1500, apps=10, nodes=6)
    state = State()
    observer = Changes(state)
    page = Page(observer.view())
    looked: list[int] = []
    for record in records:
        observer.see(state, record, evolve(state, record))
        change = observer.take(state)
        assert change is not None
        page.take(change)
        fresh = {app.id for app in change.apps}
        repeated = [one for one in change.work if one.app not in fresh]
        assert len(repeated) <= 3
        looked += [state.time] if repeated else []
    assert looked
    assert all(later - earlier >= 2_000_000_000 for earlier, later in pairwise(looked))
    for _ in range(8):
        state.time += 2_000_000_000
        observer._folded = True
        page.take(observer.take(state))  # type: ignore[arg-type]  # something was folded
    assert page.work == {one.app: one for one in view(state).work}


def test_reports_beside_the_log_are_in_the_next_change(monkeypatch: pytest.MonkeyPatch) -> None:
    records = busy_log(700, apps=9, nodes=5)
    state = State()
    for record in records:
        evolve(state, record)
    app = next(app for app in state.live_apps() if app.current and app.current.running)
    assert app.current is not None
    node = next(iter(app.current.containers.values())).node
    event = AppProgressed(app=app.id, generation=app.generation, step=app.step + 500, loss=0.125)
    newest = {app.id: Reported(state.time + 5, subjects.token(node), event)}
    told: dict[str, Reported] = {}
    observer = Changes(state, None, lambda: told)
    observer.view()
    told.update(newest)
    observer._folded = True
    change = observer.take(state)
    assert change is not None
    assert [(one.app, one.step, one.loss) for one in change.work] == [(app.id, app.step + 500, 0.125)]
