"""A kill ends an app and informs the agents, once, whatever the app was doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from events import kinds as k
from tests.agents.folding import desired_of
from tests.core.records import Bench

if TYPE_CHECKING:
    from agents.desired import Desired


def kill(bench: Bench, reason: str = "") -> None:
    bench.add(k.AppCancelRequested(app=bench.app().id, reason=reason, kill=True))


def orders(bench: Bench) -> list[str]:
    return [type(fact).__name__ for fact in bench.decide() if isinstance(fact, k.AppCancelled | k.AppKilled)]


def agent_of(bench: Bench) -> Desired:
    return desired_of(bench.records, "a")


def test_an_app_that_runs_is_cancelled_and_killed() -> None:
    bench = Bench(a=4)
    bench.running(n_max=2, grace="1h")
    assert not agent_of(bench).apps[bench.app().id].killed
    kill(bench, "it ignores us")
    assert orders(bench) == ["AppCancelled", "AppKilled"]
    assert (bench.app().ended, bench.app().end_reason) == ("cancelled", "it ignores us")
    assert orders(bench) == []
    assert agent_of(bench).apps[bench.app().id].killed


def test_a_cancelled_app_that_still_stops_is_killed() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1, grace="1h")
    bench.add(k.AppCancelRequested(app=bench.app().id))
    assert orders(bench) == ["AppCancelled"]
    kill(bench)
    kill(bench)
    assert orders(bench) == ["AppKilled"]
    assert orders(bench) == []


@pytest.mark.parametrize("both_first", [True, False])
def test_cancel_and_kill_before_the_master_answers_are_one_end(both_first: bool) -> None:
    bench = Bench(a=4)
    bench.running(n_max=1)
    for with_kill in (both_first, not both_first):
        bench.add(k.AppCancelRequested(app=bench.app().id, kill=with_kill))
    assert orders(bench) == ["AppCancelled", "AppKilled"]


def test_stopped_containers_are_not_killed() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1)
    bench.all_exited()
    bench.settle()
    assert bench.app().ended == "completed"
    kill(bench)
    assert orders(bench) == []
    assert bench.app().kill == ""


def test_a_waiting_app_is_cancelled() -> None:
    bench = Bench(a=1)
    bench.submit(n_min=1, n_max=1, cpu=1)
    bench.settle()
    bench.submit("second", n_min=1, n_max=1, cpu=1)
    bench.settle()
    bench.add(k.AppCancelRequested(app="second", kill=True))
    bench.decide()
    assert bench.app("second").ended == "cancelled"


def test_an_order_about_an_unknown_app_changes_nothing() -> None:
    bench = Bench(a=4)
    bench.running(n_max=1)
    bench.say(k.AppKilled(app="nobody", generation=1))
    assert not bench.app().ended
    assert bench.state.counters.ignored == 1
    assert list(agent_of(bench).apps) == [bench.app().id]
