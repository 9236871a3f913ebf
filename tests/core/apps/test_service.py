"""An app's service so far, remaining work and declared speed, as policies receive them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.asking import problem_of
from dorm.core.query.views import describe
from events import kinds as k
from tests.core.records import Bench, joined

if TYPE_CHECKING:
    from dorm.policies.problem import AppDemand


def told(bench: Bench) -> AppDemand:
    (app,) = problem_of(bench.state, bench.now).apps
    return app


def test_service_is_counted_from_start_to_exit_over_all_generations() -> None:
    bench = Bench(a=4)
    bench.submit(n_max=4)
    bench.settle()
    bench.wait(30)
    assert told(bench).served_s == 0, "it has not started"
    bench.started(slots=[0, 1])
    bench.wait(5)
    assert told(bench).served_s == 10
    bench.started(slots=[2, 3])
    bench.settle()
    bench.wait(10)
    assert told(bench).served_s == 50
    app = bench.app()
    bench.add(k.AppUpdated(app=app.id, n_max=2))
    bench.settle()
    bench.exited(slot=0, code=143, generation=1, asked=True)
    assert (app.served_ns, told(bench).served_s) == (15 * 10**9, 50)
    bench.wait(3)
    bench.all_exited(code=143, generation=1, asked=True)
    bench.settle()
    bench.wait(100)
    assert told(bench).served_s == 59, "nothing of it runs"
    bench.started()
    bench.settle()
    bench.wait(7)
    assert told(bench).served_s == 59 + 14
    bench.all_exited()
    bench.settle()
    bench.wait(1000)
    assert describe(bench.app(), bench.now)["served_s"] == 73


def test_service_ends_with_a_node() -> None:
    bench = Bench(a=4)
    bench.running(n_max=4)
    bench.wait(10)
    bench.conclude(a=100)
    bench.conclude(a=1000)
    assert bench.app().served_ns == 40 * 10**9
    bench.wait(50)
    assert told(bench).served_s == 40


def test_service_counts_by_type_of_node() -> None:
    """Also of containers that run now, and of a node that has left; nodes without a type are not listed."""
    bench = Bench()
    for name, labels in (("a", {"type": "a100"}), ("b", {}), ("c", {"type": "h100"})):
        bench.add(msgspec.structs.replace(joined(name, 1), labels=labels))
    bench.running(n_max=3)
    bench.wait(10)
    assert (told(bench).served_s, told(bench).served_on) == (30, {"a100": 10, "h100": 10})
    assert bench.app().served_on == {}, "nothing has ended"
    bench.add(k.NodeLeft(node="a"))
    assert bench.app().served_on == {"a100": 10 * 10**9}
    bench.settle()
    bench.all_exited(code=143, generation=1, asked=True)
    bench.wait(100)
    assert (told(bench).served_s, told(bench).served_on) == (30, {"a100": 10, "h100": 10})


def test_an_app_is_as_old_as_its_submission_and_holds_what_was_decided_last() -> None:
    bench = Bench(a=2)
    bench.running("first", n_min=2, n_max=2)
    bench.submit("second", n_min=2, n_max=4)

    def times() -> tuple[float, float | None]:
        _, second = problem_of(bench.state, bench.now).apps
        return second.age_s, second.held_s

    bench.settle()
    bench.wait(7)
    assert times() == (7, None)
    bench.add(joined("b", 4))
    bench.settle()
    bench.wait(30)
    assert times() == (37, 30)
    bench.started("second")
    bench.settle()
    bench.add(k.AppUpdated(app=bench.app("second").id, n_max=2))
    bench.settle()
    bench.wait(3)
    assert times() == (40, 3)


def test_remaining_work_and_speed_as_declared() -> None:
    bench = Bench(a=4)
    app = bench.running(steps=100, speed=[[1, 2.0], [4, 7]])
    bench.add(k.AppProgressed(app=app.id, generation=1, step=30))
    assert (told(bench).remaining_steps, told(bench).speed) == (70.0, ((1, 2.0), (4, 7.0)))
    bench.add(k.AppProgressed(app=app.id, generation=1, step=130))
    assert told(bench).remaining_steps == 0.0
    silent = Bench(a=4)
    silent.running()
    assert (told(silent).remaining_steps, told(silent).speed) == (None, ())
