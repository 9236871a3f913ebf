"""What an event is about, against a filter that has the whole log before it and asks the fold."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.bench.demo_log import demo_log
from dorm.core.admission import app_id, name_of
from dorm.core.evolve import evolve
from dorm.core.query.concerns import KINDS, Concerns, known_kind
from dorm.core.state import State
from events import kinds as k
from events import subjects
from events.codec import decode
from events.positions import Logged, logged
from tests.core.golden_log import recorded
from tests.core.records import Bench, record_of
from tests.core.suspect_node import BAD, suspect
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DrawFn

    from events.log.records import Record

AGENTS = {
    "NodeJoined",
    "NodeReported",
    "NodeLeft",
    "ContainerStarted",
    "ContainerExited",
    "AppCheckpointed",
    "AppProgressed",
}
CLIENTS = {cls.__name__ for cls in get_args(k.Published)} - AGENTS - {"Round"}


def of_two_users() -> list[Record]:
    """Apps of ann and of bob share a name one after the other; requests by name and by id, refusals, a move."""
    bench = Bench(n1=4, n2=4)
    for user, other in (("ann", "bob"), ("bob", "ann")):
        bench.add(k.AppSubmitted(id=f"{user}.1", by=user, spec={**_spec("same"), "user": user}), user)
        bench.add(k.AppSubmitted(id=f"{other}.{user}", by=other, spec={**_spec(f"{other}s"), "user": other}), other)
        bench.settle()
        bench.started("same")
        bench.settle()
        bench.add(k.AppUpdated(id=f"{other}.u{user}", app="same", n_max=2), other)
        bench.add(k.AppUpdated(id=f"{user}.v", app="same", n_min=3, n_max=2), user)
        bench.add(k.AppUpdated(id=f"{user}.w", app="none", n_max=2), user)
        bench.add(k.AppSubmitted(id=f"{user}.bad", by=user, spec={"name": "\x00", "user": other}), user)
        bench.raw(f"dorm.test.AppSubmitted.{user}", b"\xc1")
        bench.raw(f"dorm.test.AppSubmitted.{user}", b'{"spec": 5}')
        bench.raw(f"dorm.test.ContainerStarted.{user}", b'{"app": "x", "generation": 1, "slot": 0, "node": "n1"}')
        bench.settle()
        bench.add(k.NodeDrainRequested(node="n1", by=user), user)
        bench.settle()
        bench.all_exited("same", 143, asked=True)
        bench.settle()
        bench.add(k.AppCancelRequested(app="same", by=user), user)
        bench.settle()
        bench.all_exited("same", 143, asked=True)
        bench.settle()
        bench.add(k.NodeDrainRequested(node="n1", drain=False, by=user), user)
        bench.conclude(n2=20, n1=1)
        bench.settle()
    return bench.records


def trusted_again() -> Bench:
    bench = suspect()
    bench.add(k.NodeTrustRequested(node=BAD, by="ops"), "ops")
    return bench


def _spec(name: str) -> dict[str, Any]:
    return {"name": name, "command": ["work"], "demand": {"cpu": 1}, "n_max": 4}


MADE: dict[str, Callable[[], list[Record]]] = {
    "users": of_two_users,
    "golden": lambda: recorded()[0],
    "demo": lambda: demo_log()[:400],
    "suspect": lambda: trusted_again().records,
}
LOGS = tuple(MADE)


@lru_cache
def log(name: str) -> list[Record]:
    return MADE[name]()


class Naive:
    """Which events pass, by the definitions: the fold is asked whose an app is and where it lies."""

    def __init__(self, records: list[Record]) -> None:
        self.found: list[tuple[Logged, set[str], set[str], set[str]]] = []
        """Each event with the apps, users and nodes that it concerns."""
        self.apps: dict[str, tuple[str, str]] = {}
        """Name and user by id, of what was submitted so far."""
        self.said_by: dict[str, set[str]] = {}
        self.lies: dict[str, set[str]] = {}
        self.ever: dict[str, str] = {}
        """The same of the whole log."""
        events = [one for record in records for one in logged(record)]
        for one in events:
            if isinstance(one.event, k.AppSubmitted) and self._submitted(one.event)[0]:
                app, name, _ = self._submitted(one.event)
                self.ever[app] = name
        for one in events:
            self.found.append((one, self._apps(one), self._users(one), self._nodes(one)))

    def _submitted(self, event: k.AppSubmitted) -> tuple[str, str, str]:
        name = name_of(event.spec)
        user = event.spec.get("user") if isinstance(event.spec, dict) else None
        owner = user if isinstance(user, str) and user != "anonymous" else event.by
        return (app_id(name, event.id) if name else ""), name, owner

    def _apps(self, one: Logged) -> set[str]:
        event: Any = one.event
        if isinstance(event, k.AppSubmitted):
            app, name, user = self._submitted(event)
            if app:
                self.apps[app] = (name, user)
            return {app, name} - {""}
        if isinstance(event, k.Resized):
            named = {change.app for change in event.changes} | set(event.reasons) | set(event.shortage)
        elif isinstance(event, k.NodeSuspected):
            named = set(event.apps)
        else:
            named = {getattr(event, "app", "")} - {""}
        asked_by_name = isinstance(event, k.AppUpdated | k.AppCancelRequested | k.AppRejected)
        if asked_by_name:
            named |= {app for app, name in self.ever.items() if name in named}
        return named | {self.ever[app] for app in named if app in self.ever}

    def _users(self, one: Logged) -> set[str]:
        event: Any = one.event
        who = subjects.who_of(one.subject) if subjects.kind_of(one.subject) in CLIENTS else ""
        users = {who}
        if isinstance(event, k.AppSubmitted):
            users.add(self._submitted(event)[2])
        if who:
            self.said_by.setdefault(event.id, set()).update(users)
        if isinstance(event, k.AppRejected):
            users |= self.said_by.get(event.submission, set())
        named = self._apps(one)
        users |= {
            user for app, (_, user) in self.apps.items() if app in named and not isinstance(event, k.AppSubmitted)
        }
        return users - {""}

    def _nodes(self, one: Logged) -> set[str]:
        event: Any = one.event
        if subjects.kind_of(one.subject) in AGENTS:
            return {subjects.who_of(one.subject)}
        nodes = {getattr(event, "node", "")} | set(getattr(event, "lease_ended", []))
        if isinstance(event, k.Resized):
            for change in event.changes:
                before = self.lies.get(change.app, set())
                self.lies[change.app] = {placed.node for placed in change.placement}
                nodes |= before | self.lies[change.app]
        elif one.round is not None:
            nodes |= self.lies.get(getattr(event, "app", ""), set())
            if isinstance(event, k.AppCompleted | k.AppFailed | k.AppCancelled):
                self.lies.pop(event.app, None)
        return nodes - {""}

    def passing(self, **wanted: tuple[str, ...]) -> list[Logged]:
        kinds, apps, users, nodes = (set(wanted.get(name, ())) for name in ("kinds", "apps", "users", "nodes"))
        return [
            one
            for one, its_apps, its_users, its_nodes in self.found
            if (not kinds or type(one.event).__name__ in kinds)
            and (not apps or apps & its_apps)
            and (not users or users & its_users)
            and (not nodes or nodes & its_nodes)
        ]


@lru_cache
def naive(name: str) -> Naive:
    return Naive(log(name))


@st.composite
def cases(draw: DrawFn) -> tuple[str, dict[str, tuple[str, ...]], int]:
    """A log, a filter of what is in it, and where to begin."""
    name = draw(st.sampled_from(LOGS))
    found = naive(name).found
    there = {
        "kinds": sorted({type(one.event).__name__ for one, *_ in found}),
        "apps": sorted({app for _, apps, *_ in found for app in apps}),
        "users": sorted({user for _, _, users, _ in found for user in users}),
        "nodes": sorted({node for *_, nodes in found for node in nodes}),
    }
    wanted = {
        key: tuple(
            draw(
                st.lists(st.sampled_from([*values, "Unknown" if key == "kinds" else "nobody"]), min_size=1, max_size=2)
            )
        )
        for key, values in there.items()
        if draw(st.booleans())
    }
    return name, wanted, draw(st.integers(0, len(log(name))))


@settings(max_examples=tries(8, 1200), deadline=None)
@given(cases())
def test_the_filter_agrees_with_a_naive_one(case: tuple[str, dict[str, tuple[str, ...]], int]) -> None:
    name, wanted, _ = case
    concerns = Concerns(**wanted)
    assert [one for record in log(name) for one in logged(record) if concerns.wants(one)] == naive(name).passing(
        **wanted
    )


@settings(max_examples=tries(8, 1200), deadline=None)
@given(cases())
def test_from_the_middle_and_from_the_subjects_that_matter_it_passes_the_same(
    case: tuple[str, dict[str, tuple[str, ...]], int],
) -> None:
    name, wanted, start = case
    concerns = Concerns(**wanted)
    cluster = subjects.cluster_of(log(name)[0].subject)
    known, read = concerns.knowledge(cluster), concerns.subjects(cluster)
    for record in log(name)[:start]:
        if any(subjects.matches(pattern, record.subject) for pattern in known):
            for one in logged(record):
                concerns.wants(one)
    passed = [
        one
        for record in log(name)[start:]
        if not read or any(subjects.matches(pattern, record.subject) for pattern in read)
        for one in logged(record)
        if concerns.wants(one)
    ]
    assert passed == [one for one in naive(name).passing(**wanted) if one.position.seq > start]


@settings(max_examples=tries(4, 600), deadline=None)
@given(cases())
def test_a_state_replaces_the_records_before_it(case: tuple[str, dict[str, tuple[str, ...]], int]) -> None:
    name, wanted, start = case
    state = State()
    for record in log(name)[:start]:
        evolve(state, record)
    concerns = Concerns(**wanted)
    concerns.know(state)
    passed = [one for record in log(name)[start:] for one in logged(record) if concerns.wants(one)]
    assert passed == [one for one in naive(name).passing(**wanted) if one.position.seq > start]


def test_the_kinds_of_the_log_are_known() -> None:
    there = {type(decode(record)).__name__ for name in LOGS for record in log(name)} - {"Round"}
    there |= {type(one.event).__name__ for name in LOGS for record in log(name) for one in logged(record)}
    assert all(known_kind(kind) for kind in there)
    assert {"Unreadable", "Unknown", "Resized", "AppSubmitted"} <= there
    assert not known_kind("Round")
    assert set(KINDS) >= {cls.__name__ for cls in get_args(k.MasterFact)}


@pytest.mark.parametrize("app", ["abcdef", "-abcdef", "x-abcde1", "x-ABCDEF"])
def test_text_like_an_id_contains_no_name(app: str) -> None:
    ended = k.Round(epoch=1, basis=0, allocated=False, events=[k.AppCompleted(app=app, generation=1)])
    for name in ("x", app):
        one = next(logged(record_of(1, ended)))
        assert Concerns(apps=[name]).wants(one) == (name == app)
