"""What changed between two states: all that people see of them, and nothing if nothing did."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dorm.core.evolve import evolve
from dorm.core.query.views import app_rows, node_rows
from dorm.core.state import State
from events import kinds as k
from replay.diff import Diff, Thing, diff, headline, of_app, of_cluster, of_node, of_settings, only
from tests.core.records import Bench, joined
from tests.core.virtual.world import World
from tests.tries import tries

if TYPE_CHECKING:
    from events.log.records import Record


@cache
def history(seed: int) -> list[Record]:
    return World(seed, steps=150).run().log


def folded(records: list[Record], seq: int) -> State:
    state = State()
    for record in records[:seq]:
        evolve(state, record)
    return state


def rows(things: list[Any], *ignored: str) -> dict[str, dict[str, Any]]:
    """By id or name, what `dorm ps` or `dorm nodes` shows."""
    return {
        getattr(row, "id", row.name): {
            name: getattr(row, name) for name in row.__struct_fields__ if name not in ignored
        }
        for row in things
    }


@settings(max_examples=tries(8, 60), deadline=None)
@given(seed=st.integers(0, 3), one=st.floats(0, 1), other=st.floats(0, 1))
@example(seed=3, one=0.8125, other=0.78125)  # Another container of an app that ends has ended.
def test_a_diff_contains_exactly_the_visible_changes(seed: int, one: float, other: float) -> None:
    records = history(seed)
    before, after = (folded(records, round(part * len(records))) for part in (one, other))
    found = diff(before, after)
    for things, old, new in (
        (found.apps, rows(app_rows(before, 0), "age_s"), rows(app_rows(after, 0), "age_s")),
        (found.nodes, rows(node_rows(before)), rows(node_rows(after))),
    ):
        told = {thing.id: thing for thing in things}
        assert {name for name in {*old, *new} if old.get(name) != new.get(name)} <= set(told)
        assert {name for name, thing in told.items() if thing.how == "came"} == set(new) - set(old)
        assert {name for name, thing in told.items() if thing.how == "gone"} == set(old) - set(new)
        for thing in things:
            assert all(change.before != change.after for change in thing.changes if thing.how == "changed")
    assert found.same is not any((found.apps, found.nodes, found.settings, found.cluster))
    assert turned(diff(after, before)) == turned(turned(found))
    for text in (headline(found), *map(of_app, found.apps), *map(of_node, found.nodes)):
        assert text
        assert "\n" not in text


def turned(found: Diff) -> Diff:
    """The same, read backwards."""

    def changes(all_of_them: Any) -> Any:
        return sorted((type(one)(one.field, one.after, one.before) for one in all_of_them), key=lambda one: one.field)

    def things(all_of_them: list[Thing]) -> list[Thing]:
        other: Any = {"came": "gone", "gone": "came", "changed": "changed"}
        return [Thing(one.name, one.id, other[one.how], changes(one.changes)) for one in all_of_them]

    return Diff(
        before=found.after,
        after=found.before,
        apps=things(found.apps),
        nodes=things(found.nodes),
        settings=changes(found.settings),
        cluster=changes(found.cluster),
    )


def test_a_state_is_what_it_is() -> None:
    state = folded(history(0), 60)
    found = diff(state, copy.deepcopy(state))
    assert found.same
    assert headline(found).endswith(": 0 records in 0.0 s")


def test_in_words() -> None:
    bench = Bench(a=4)
    bench.add(k.PolicyChanged(policy="static", params={"count": 2}))
    bench.running("first")
    bench.submit("done")
    bench.settle()
    before = copy.deepcopy(bench.state)
    bench.wait(90)
    bench.add(joined("b", 8, labels={"zone": "x"}))
    bench.add(joined("a", 6))
    bench.add(k.PolicyChanged(set_params={"count": 3}, idle_s=5))
    bench.add(k.AppProgressed(app=bench.app("first").id, generation=1, step=40, loss=0.5), "a")
    bench.add(k.AppCancelRequested(app="first", reason="enough"))
    bench.settle()
    bench.all_exited("first", 143, asked=True)
    bench.submit("late", n_max=2)
    bench.settle()
    found = diff(before, bench.state)
    assert not found.same
    assert headline(found) == (
        f"sequence {before.seq} (2023-11-14 22:13:20 UTC) -> sequence {bench.state.seq} (2023-11-14 22:14:50 UTC): "
        f"{bench.state.seq - before.seq} records in 90 s"
    )
    apps = {thing.name: of_app(thing) for thing in found.apps}
    assert apps["first"] == (
        "running -> cancelled; why: enough; 2 containers (a 2) -> no containers; asked to be cancelled; "
        "step 0 -> 40; loss none -> 0.5"
    )
    assert apps["late"].startswith("came: starting, of someone, 2 containers (")
    nodes = {thing.name: of_node(thing) for thing in found.nodes}
    assert nodes["a"] == "has 4 cores -> 6 cores"
    assert nodes["b"] == "came: up, at addr-b, with 8 cores"
    assert of_settings(found.settings) == ["count: 2 -> 3", "idle_s: 30 -> 5"]
    assert any(text.startswith("decisions: ") for text in map(of_cluster, found.cluster))
    assert [thing.name for thing in only(found, "b").nodes] == ["b"]
    assert [thing.name for thing in only(found, bench.app("late").id).apps] == ["late"]
    assert only(found, "nobody").same
