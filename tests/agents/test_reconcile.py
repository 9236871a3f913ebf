"""Every row of the table: desired, observed and reported states, and the resulting actions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agents.desired import Desired
from agents.reconcile import (
    Action,
    Announce,
    Announced,
    Discard,
    Halt,
    Launch,
    Prepare,
    ReportExited,
    ReportStarted,
    reconcile,
)
from agents.runtime.interface import Key, Seen
from agents.runtime.interface import State as EngineState
from events.kinds import Placed
from events.parts import AppPart, HeldPart
from events.quantities import SECOND
from events.spec import check_spec
from events.times import Times
from tests.core.records import START, document

KEY = Key("app", 2, 0)
NOW = START


def desired(
    *, wanted: bool, due: bool = True, started: bool = False, exited: bool = False, ended_at: int = 0
) -> Desired:
    placement = [Placed(slot=0, node="a", address="addr", port=20000)]
    app = AppPart(
        check_spec(document()), generation=2, placement=placement, released=True, failed=not wanted, ended_at=ended_at
    )
    return Desired(
        "a",
        times=Times(retention_s=60),
        apps={"app": app},
        due={KEY} if due else set(),
        started={KEY} if started else set(),
        exited={KEY} if exited else set(),
    )


def change(desired: Desired, **fields: Any) -> None:
    """A part comes that says something else of the app."""
    desired.apps["app"] = msgspec.structs.replace(desired.apps["app"], **fields)


def seen(state: EngineState, key: Key = KEY, exited_at: int = 0) -> Seen:
    return Seen(key=key, state=state, spec_hash="", exited_at=exited_at)


@pytest.mark.parametrize(
    ("wish", "state", "expected"),
    [
        (desired(wanted=True), None, Launch(KEY)),
        (desired(wanted=True, started=True), None, ReportExited(KEY, None)),
        (desired(wanted=True, exited=True), None, None),
        (desired(wanted=False), None, ReportExited(KEY, None)),
        (desired(wanted=False, exited=True), None, None),
        (desired(wanted=False, due=False), None, None),
        (desired(wanted=True), "created", Launch(KEY)),
        (desired(wanted=True, exited=True), "created", None),
        (desired(wanted=False), "created", Discard(KEY)),
        (desired(wanted=True), "running", ReportStarted(seen("running"))),
        (desired(wanted=True, started=True), "running", None),
        (desired(wanted=False, started=True), "running", Halt(KEY)),
        (desired(wanted=True, due=False, exited=True), "running", Halt(KEY)),
        (desired(wanted=True, started=True), "exited", ReportExited(KEY, seen("exited"))),
        (desired(wanted=False), "exited", ReportExited(KEY, seen("exited"))),
        (desired(wanted=True, due=False, exited=True), "exited", None),
    ],
)
def test_one_container(wish: Desired, state: EngineState | None, expected: Action | None) -> None:
    found = [seen(state)] if state else []
    for _ in range(2):
        assert reconcile(wish, found, NOW) == ([expected] if expected else [])


class TestDiscarding:
    def test_after_the_retention(self) -> None:
        wish = desired(wanted=False, due=False, exited=True)
        ended = [seen("exited", exited_at=NOW - 61 * SECOND)]
        assert reconcile(wish, ended, NOW) == [Discard(KEY)]
        assert reconcile(wish, ended, NOW - 2 * SECOND) == []
        assert reconcile(wish, ended, NOW - SECOND) == []
        assert reconcile(wish, ended, NOW - SECOND + 1) == [Discard(KEY)]

    def test_an_ended_app_keeps_all_its_containers_for_the_retention(self) -> None:
        wish = desired(wanted=False, due=False, exited=True, ended_at=NOW - 10 * SECOND)
        assert reconcile(wish, [seen("exited", exited_at=NOW - 61 * SECOND)], NOW) == []

    def test_an_app_is_kept_for_its_tenants_retention(self) -> None:
        wish = desired(wanted=False, due=False, exited=True, ended_at=NOW - 100 * SECOND)
        ended = [seen("exited", exited_at=NOW - 100 * SECOND)]
        owner = wish.owner_of("app")
        assert owner is not None
        for retentions, kept in (({}, False), ({"other": 200.0}, False), ({owner: 200.0}, True)):
            wish.retentions = retentions
            assert reconcile(wish, ended, NOW) == ([] if kept else [Discard(KEY)])

    def test_never_before_its_end_is_on_the_log(self) -> None:
        """After a crash of the agent, only the container shows how it ended."""
        told = desired(wanted=False, due=True, exited=True)
        assert reconcile(told, [seen("exited", exited_at=NOW - 10_000 * SECOND)], NOW) == []

    def test_containers_of_an_app_that_the_part_does_not_name_are_kept_as_long(self) -> None:
        """It has gone to other nodes."""
        gone = Key("gone", 1, 0)
        wish = Desired("a", times=Times(retention_s=60))
        assert reconcile(wish, [seen("exited", gone, NOW - 59 * SECOND)], NOW) == []
        assert reconcile(wish, [seen("exited", gone, NOW - 61 * SECOND)], NOW) == [Discard(gone)]
        assert reconcile(wish, [seen("running", gone)], NOW) == [Halt(gone)]


def test_nothing_starts_next_to_unreleased_containers() -> None:
    stranger = Key("stranger", 1, 0)
    assert reconcile(desired(wanted=True), [seen("running", stranger)], NOW) == [Halt(stranger)]


@pytest.mark.parametrize("ghost", [Key("app", 1, 0), Key("other", 1, 0)])
def test_nothing_starts_next_to_containers_that_ended_on_the_log(ghost: Key) -> None:
    """A node that has outlived its lease: the master has given away room and app of what still runs here."""
    wish = desired(wanted=True)
    wish.exited.add(ghost)
    assert reconcile(wish, [seen("running", ghost)], NOW) == [Halt(ghost)]
    assert Launch(KEY) in reconcile(wish, [seen("exited", ghost)], NOW)


def test_a_partition_that_is_being_stopped_holds_no_other_app_back() -> None:
    """The master still counts its room, so released containers fit next to it."""
    wish = desired(wanted=True)
    stopping = Key("other", 1, 0)
    wish.due.add(stopping)
    assert reconcile(wish, [seen("running", stopping)], NOW) == [Launch(KEY), Halt(stopping)]


def test_a_live_app_is_informed_of_each_membership_once() -> None:
    live = desired(wanted=True, started=True)
    change(live, spec=check_spec(document(elastic="live")), membership=3)
    assert reconcile(live, [seen("running")], NOW) == [Announce(KEY, Announced(3))], (
        "a restarted agent announces it again"
    )
    assert reconcile(live, [seen("running")], NOW, {KEY: Announced(2)}) == [Announce(KEY, Announced(3))]
    assert reconcile(live, [seen("running")], NOW, {KEY: Announced(3)}) == []
    assert Announce(KEY, Announced(3)) not in reconcile(live, [seen("exited")], NOW, {KEY: Announced(2)})
    assert reconcile(desired(wanted=True, started=True), [seen("running")], NOW) == [], "others hear of none"


def test_an_app_is_informed_of_each_batch_size_once() -> None:
    app = desired(wanted=True, started=True)
    accepts = {"initial": 64, "least": 32, "most": 512, "per_container": 64}
    change(app, spec=check_spec(document(batch=accepts)))
    assert reconcile(app, [seen("running")], NOW) == [Announce(KEY, Announced(batch=64))]
    change(app, batch=128)
    assert reconcile(app, [seen("running")], NOW, {KEY: Announced(batch=64)}) == [Announce(KEY, Announced(batch=128))]
    assert reconcile(app, [seen("running")], NOW, {KEY: Announced(batch=128)}) == []


class TestPreparing:
    def ahead(self, *, until: int = NOW + 1, waits_for: tuple[str, ...] = ("b",)) -> Desired:
        """Generation 3 replaces generation 2, which runs."""
        wish = desired(wanted=True, started=True)
        change(wish, generation=3, released=False, ahead=True, held=HeldPart(2, until, list(waits_for)))
        return wish

    def test_the_next_generation_is_prepared_once_while_this_one_works_on(self) -> None:
        new = Key("app", 3, 0)
        assert reconcile(self.ahead(), [seen("running")], NOW) == [Prepare(new)]
        assert reconcile(self.ahead(), [seen("running"), seen("created", new)], NOW, None, {new}) == []

    @pytest.mark.parametrize("end", [{"until": NOW}, {"waits_for": ()}])
    def test_then_this_one_stops(self, end: dict[str, Any]) -> None:
        assert reconcile(self.ahead(**end), [seen("running")], NOW, None, {Key("app", 3, 0)}) == [Halt(KEY)]

    def test_containers_that_end_meanwhile_are_reported(self) -> None:
        ended = seen("exited")
        assert reconcile(self.ahead(), [ended], NOW, None, {Key("app", 3, 0)}) == [ReportExited(KEY, ended)]

    def test_preparations_for_an_overtaken_plan_are_discarded(self) -> None:
        wish = self.ahead()
        change(wish, generation=4)
        old = Key("app", 3, 0)
        assert Discard(old) in reconcile(wish, [seen("created", old)], NOW)
