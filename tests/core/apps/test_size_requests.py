"""An app may ask for fewer containers, and no other app has less for it."""

from __future__ import annotations

from typing import Any

from dorm.core.sizes import RAISE_S, bounds, requested
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench


def ask(bench: Bench, containers: int, reason: str = "", name: str = "app", who: str = "") -> Any:
    app = bench.app(name)
    event = k.AppResizeRequested(app=app.id, generation=app.generation, containers=containers, reason=reason)
    return bench.add(event, who or bench.placed(name))


def adjust(bench: Bench, name: str = "app") -> None:
    """Play the adjustment that was decided to its end."""
    app = bench.app(name)
    for number, generation in list(app.generations.items()):
        if number < app.generation and generation.released:
            bench.all_exited(name, 143, generation=number, asked=True)
    bench.settle()
    bench.started(name)
    work(bench, name)
    bench.settle()


def work(bench: Bench, name: str = "app") -> None:
    app = bench.app(name)
    bench.add(k.AppProgressed(app=app.id, generation=app.generation, step=app.step + 1))


def size(bench: Bench, name: str = "app") -> int:
    current = bench.app(name).current
    return len(current.containers) if current is not None else 0


def running(**fields: Any) -> Bench:
    bench = Bench(a=4)
    bench.running(n_max=4, **fields)
    work(bench)
    assert size(bench) == 4
    return bench


def test_it_gets_the_requested_size_and_others_get_the_room() -> None:
    bench = running()
    bench.submit("other", n_max=4)
    ask(bench, 1, "the gap grows with workers")
    bench.settle()
    assert size(bench) == 1
    adjust(bench)
    app = bench.app()
    assert app.waiting is not None
    assert (app.waiting.code, app.waiting.text) == ("asked", "it asked for 1: the gap grows with workers")
    assert size(bench, "other") == 3
    adjust(bench)
    assert size(bench) == 1, "it outlives the resize"


def test_a_request_is_limited_by_the_owners_bounds() -> None:
    bench = running(n_min=2)
    ask(bench, 1)
    bench.settle()
    assert size(bench) == 2
    adjust(bench)
    ask(bench, 100)
    assert bounds(bench.app(), bench.now).n_max == 2, "and raising it takes a while"
    bench.wait(RAISE_S)
    assert bounds(bench.app(), bench.now).n_max == 4


def test_a_raise_counts_after_a_while_and_by_itself() -> None:
    bench = running(resume=["work"])
    bench.add(k.PolicyChanged(idle_s=86_400))
    ask(bench, 1)
    bench.settle()
    adjust(bench)
    lowered_at = bench.app().size_request
    assert lowered_at is not None
    bench.wait(1)
    ask(bench, 0)
    bench.settle()
    assert size(bench) == 1
    due = lowered_at.lowered_at + RAISE_S * SECOND
    assert next_deadline(bench.state, bench.now) == due
    bench.now = due
    bench.decide(allocate=True)
    assert size(bench) == 4
    assert requested(bench.app(), bench.now) is None


def test_asking_back_and_forth_changes_nothing_within_that_time() -> None:
    bench = running()
    ask(bench, 2)
    for _ in range(20):
        bench.wait(10)
        ask(bench, 4)
        assert bounds(bench.app(), bench.now).n_max == 2
        ask(bench, 2, "again")
        assert bounds(bench.app(), bench.now).n_max == 2
    bench.wait(RAISE_S - 200 - 1)
    ask(bench, 3)
    bench.wait(1)
    assert bounds(bench.app(), bench.now).n_max == 3, "and asking for the same does not start the time again"


def test_repeats_change_nothing_and_wake_no_reader() -> None:
    bench = running()
    ask(bench, 2, "why")
    bench.settle()
    adjust(bench)
    dirty, ignored = bench.state.dirty_seq, bench.state.counters.ignored
    ask(bench, 2, "why")
    assert bench.state.counters.ignored == ignored + 1
    ask(bench, 2, "another reason")
    assert bench.state.dirty_seq == dirty, "the same size is nothing to decide"
    assert requested(bench.app(), bench.now) == (2, "another reason")


def test_it_is_believed_only_from_a_node_of_its_present_generation() -> None:
    bench = running()
    before = bench.app().size_request
    ask(bench, 1, who="stranger")
    assert bench.app().size_request == before
    app = bench.app()
    bench.add(k.AppResizeRequested(app=app.id, generation=app.generation + 1, containers=1), "a")
    assert bench.app().size_request == before


def test_its_owner_ends_it() -> None:
    bench = running()
    ask(bench, 1)
    bench.add(k.AppUpdated(app="app", weight=2.0))
    assert bench.app().size_request is not None
    bench.add(k.AppUpdated(app="app", n_max=3))
    assert bench.app().size_request is None
    bench.settle()
    assert size(bench) == 3


def test_it_raises_no_share() -> None:
    """An app that asks for more than it has gets the same as before."""
    bench = Bench(a=4)
    bench.running(n_max=4)
    work(bench)
    bench.running("other", n_max=4)
    bench.settle()
    adjust(bench)
    adjust(bench, "other")
    had = size(bench), size(bench, "other")
    assert had == (2, 2)
    ask(bench, 4, "more, please")
    bench.settle()
    assert (size(bench), size(bench, "other")) == had
