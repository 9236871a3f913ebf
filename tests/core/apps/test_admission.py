"""Admission: what is refused, and the messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dorm.core.admission import refusals
from dorm.core.state import Submission
from events import kinds as k
from events.spec import LARGEST_SPEC
from tests.core.records import CLUSTER, START, Bench, checked, document, joined


def answer(bench: Bench, **fields: Any) -> k.Event:
    bench.submit(**fields)
    (said,) = bench.decide()
    assert isinstance(said, k.AppAccepted | k.AppRejected)
    return said


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"colour": "red"}, "colour"),
        ({"n_min": 0}, "n_min"),
        ({"n_min": 6, "n_max": 5}, "n_min: 6 is more than n_max, which is 5"),
        ({"cpu": 5}, "demand.cpu: one container needs 5 cores, and no node has more than 4 cores"),
        ({"demand": {"gpu": 1}}, "demand.gpu: one container needs 1 gpu, and no node has more than 0 gpu"),
        (
            {"n_min": 7, "n_max": 7},
            "n_min: 7 containers of this demand can't run at once; all 2 nodes together, empty, take 6",
        ),
    ],
)
def test_refused_with_a_reason(fields: dict[str, Any], reason: str) -> None:
    said = answer(Bench(a=4, b=2), **fields)
    assert isinstance(said, k.AppRejected)
    assert reason in said.reason


def test_accepted_at_the_edge() -> None:
    assert isinstance(answer(Bench(a=4, b=2), n_min=6, n_max=6), k.AppAccepted)


GANG: dict[str, Any] = {"n_min": 4, "n_max": 4, "gang": 2}


def labelled() -> Bench:
    """Two small nodes in zone a, one of them with a GPU type, and a large one in zone b."""
    bench = Bench()
    bench.add(joined("one", 4, labels={"zone": "a", "gpu_type": "h100"}))
    bench.add(joined("two", 3, labels={"zone": "a"}))
    bench.add(joined("big", 16, labels={"zone": "b", "gpu_type": "a100"}))
    return bench


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"require": "gpu_type == 'b200'"},
            'require: no node\'s labels match gpu_type == "b200"; `dorm nodes -o wide` shows them',
        ),
        (
            {"require": "gpu_typ == 'h100'"},
            'require: no node\'s labels match gpu_typ == "h100" (no node has a label gpu_typ); '
            "`dorm nodes -o wide` shows them",
        ),
        (
            {"require": "zone == 'a'", "cpu": 5},
            'demand.cpu: one container needs 5 cores, and no node that matches zone == "a" has more than 4 cores',
        ),
        (
            {"require": "zone == 'a'", "n_min": 8, "n_max": 8},
            'n_min: 8 containers of this demand can\'t run at once; the nodes that match zone == "a" (2 of 3) '
            "together, empty, take 7",
        ),
        (
            {"cpu": 3, "gang": 8},
            "demand.cpu: one container needs 3 cores and a gang of 8, whole on one node, 24 cores, "
            "and no node has more than 16 cores",
        ),
        (
            {"cpu": 1, "gang": 3, "n_min": 24, "n_max": 24},
            "n_min: 24 containers of this demand, in gangs of 3 that are whole on one node, can't run at once; "
            "all 3 nodes together, empty, take 21",
        ),
        (
            {"cpu": 2, "require": "zone == 'a'", **GANG},
            "n_min: 4 containers of this demand, in gangs of 2 that are whole on one node, can't run at once; "
            'the nodes that match zone == "a" (2 of 3) together, empty, take 2',
        ),
    ],
)
def test_labels_and_gangs_are_looked_at(fields: dict[str, Any], reason: str) -> None:
    said = answer(labelled(), **{"n_max": fields.get("gang", 1) * 8, **fields})
    assert isinstance(said, k.AppRejected)
    assert said.reason == reason


@pytest.mark.parametrize(
    "fields",
    [
        {"require": "zone == 'a'", "n_min": 7, "n_max": 7},
        {"require": "not has gpu_type", "cpu": 3},
        {"gang": 3, "n_min": 21, "n_max": 21},
        {"gang": 16},
    ],
)
def test_labels_and_gangs_at_the_edge(fields: dict[str, Any]) -> None:
    assert isinstance(answer(labelled(), **{"n_max": fields.get("gang", 1), **fields}), k.AppAccepted)


def test_a_long_requirement_is_quoted_in_short() -> None:
    said = answer(labelled(), require=" or ".join(["zone == 'c'"] * 60))
    assert isinstance(said, k.AppRejected)
    assert len(said.reason) < 250


def test_before_any_node_has_joined_labels_do_not_matter() -> None:
    assert isinstance(answer(Bench(), require="zone == 'c'", gang=8, n_max=8), k.AppAccepted)


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"n_min": 3}, "n_min: 3 is not a multiple of gang, which is 2; write 2 or 4"),
        ({"n_max": 5}, "n_max: 5 is not a multiple of gang, which is 2; write 4 or 6"),
        ({"n_min": 6, "n_max": 5}, "n_max: 5 is not a multiple of gang, which is 2; write 4 or 6"),
        (
            {"n_min": 8, "n_max": 8},
            "n_min: 8 containers of this demand, in gangs of 2 that are whole on one node, can't",
        ),
    ],
)
def test_an_update_may_break_no_gang(bounds: dict[str, Any], reason: str) -> None:
    bench = labelled()
    bench.submit(require="zone == 'a'", **GANG)
    bench.decide()
    app = bench.app()
    bench.add(k.AppUpdated(app=app.id, **bounds))
    (said,) = bench.decide()
    assert isinstance(said, k.AppRejected)
    assert said.refused == "update"
    assert said.reason.startswith(reason)
    assert (app.n_min, app.n_max) == (4, 4)


def test_an_update_may_leave_no_role_without_a_container() -> None:
    bench = labelled()
    bench.submit(engine="ps", n_min=3, n_max=4, engine_options={"servers": 2})
    bench.decide()
    app = bench.app()
    bench.add(k.AppUpdated(app=app.id, n_min=2))
    (said,) = bench.decide()
    assert isinstance(said, k.AppRejected)
    assert (said.refused, said.code) == ("update", "spec.n_min.below_roles")
    assert app.n_min == 3


def test_an_update_by_whole_gangs() -> None:
    bench = labelled()
    bench.submit(require="zone == 'a'", **GANG)
    bench.decide()
    bench.add(k.AppUpdated(app=bench.app().id, n_min=6, n_max=10))
    assert (bench.app().n_min, bench.app().n_max) == (6, 10)


def test_before_any_node_has_joined_it_waits() -> None:
    bench = Bench()
    assert isinstance(answer(bench, cpu=64), k.AppAccepted)
    bench.settle()
    assert bench.app().phase == "waiting"
    bench.add(joined("big", 64))
    bench.settle()
    assert bench.app().phase == "starting"


def test_a_live_apps_name_is_taken() -> None:
    bench = Bench(a=4)
    first = answer(bench)
    said = answer(bench)
    assert isinstance(first, k.AppAccepted)
    assert isinstance(said, k.AppRejected)
    assert first.app in said.reason
    assert said.app != first.app


def test_two_apps_of_one_name_in_one_round() -> None:
    bench = Bench(a=4)
    bench.submit()
    bench.submit()
    first, second = bench.decide()
    assert isinstance(first, k.AppAccepted)
    assert isinstance(second, k.AppRejected)
    assert bench.state.submissions == {}


@pytest.mark.parametrize("body", [b"", b"\xc1\xff", b"[1, 2]", b'{"kind": "AppCompleted"}'])
def test_an_unreadable_body_is_answered(body: bytes) -> None:
    bench = Bench(a=4)
    bench.raw(f"dorm.{CLUSTER}.AppSubmitted.ann", body, msg_id="mine")
    (said,) = bench.decide()
    assert isinstance(said, k.AppRejected)
    assert said.submission == "mine"
    assert said.reason


def test_too_large() -> None:
    said = answer(Bench(a=4), env={"A": "x" * (LARGEST_SPEC // 2), "B": "x" * (LARGEST_SPEC // 2)})
    assert isinstance(said, k.AppRejected)
    assert f"at most {LARGEST_SPEC:,}" in said.reason


def test_many_large_submissions_take_several_rounds_in_order() -> None:
    bench = Bench(a=4)
    for number in range(40):
        bench.submit(f"app{number}", env={"A": "x" * 120_000})
    rounds = 0
    while facts := bench.decide():
        assert sum(len(str(fact)) for fact in facts) < 4 * 2**20
        rounds += 1
    assert rounds > 1
    assert [app.name for app in bench.state.live_apps()] == [f"app{number}" for number in range(40)]


def test_the_owner_is_named_in_the_spec_or_the_sender() -> None:
    bench = Bench(a=4)
    bench.add(k.AppSubmitted(spec=document("one")), "ann")
    bench.add(k.AppSubmitted(spec=document("two", user="bob")), "ann")
    bench.decide()
    assert (bench.app("one").user, bench.app("two").user) == ("ann", "bob")


SHIPPED: dict[str, Any] = {"workdir": {"hash": "0" * 64}}


def test_an_app_that_ships_a_folder_needs_agents_that_can_fetch_it() -> None:
    bench = Bench()
    bench.add(joined("old", 16))
    said = answer(bench, **SHIPPED)
    assert isinstance(said, k.AppRejected)
    assert said.code == "spec.workdir.no_node"
    bench.add(joined("new", 2, abilities=["workdir", "of-a-later-release"]))
    bench.submit("shipped", **SHIPPED, n_max=8, require='zone != "b"')
    bench.submit("plain", n_max=20)
    bench.settle()
    apps = {app.name: app for app in bench.state.apps.values()}
    shipped, plain = apps["shipped"].current, apps["plain"].current
    assert shipped is not None
    assert plain is not None
    assert list(shipped.by_node()) == ["new"]
    assert "old" in plain.by_node()


def test_the_path_of_a_folder_is_refused() -> None:
    said = answer(Bench(a=4), workdir=".")
    assert isinstance(said, k.AppRejected)
    assert said.code == "spec.workdir.not_shipped"


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({}, []),
        ({"workdir": "."}, []),
        ({"name": "taken"}, ["spec.name.taken"]),
        ({"cpu": 99, "from": "nobody"}, ["spec.demand.too_large", "spec.from.not_found"]),
        (
            {"name": "taken", "require": "zone == 'x'", "from": "taken", "after": ["nobody"]},
            ["spec.name.taken", "spec.require.no_node", "spec.from.no_checkpoint", "spec.after.unknown"],
        ),
    ],
)
def test_everything_that_would_be_refused_is_known_before(fields: dict[str, Any], codes: list[str]) -> None:
    """The first of it is what the answer would state."""
    bench = labelled()
    bench.add(joined("new", 2, abilities=["workdir"]))
    bench.submit("taken", n_max=1)
    bench.settle()
    spec = checked(**{"name": "app", **fields})
    before = msgspec.msgpack.encode(bench.state)
    found = refusals(bench.state, spec, Submission("id", 0, START, "ann", {}, 0))
    assert [one.code for one in found] == codes
    assert msgspec.msgpack.encode(bench.state) == before
    shipped = {field: value for field, value in fields.items() if field != "workdir"}
    said = answer(bench, **({"name": "app", **shipped}))
    assert (said.code if isinstance(said, k.AppRejected) else "") == (codes[0] if codes else "")
