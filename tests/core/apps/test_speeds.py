"""The speed of an app with each of its partitions, measured on the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dorm.core.asking import problem_of
from dorm.core.costs import LATEST_NS, MOST_POINTS, with_point
from dorm.core.state import MeasuredSpeed
from dorm.policies.problem import AppDemand, Measured
from events import kinds as k
from events.quantities import SECOND
from tests.core.apps.test_costs import resize, works
from tests.core.decide.test_live import live_app, shrinking, train
from tests.core.records import Bench, joined


def asked(bench: Bench, name: str = "app") -> AppDemand:
    """What a policy knows of it."""
    app = bench.app(name)
    return next(one for one in problem_of(bench.state, bench.now).apps if one.id == app.id)


def test_each_partition_has_a_speed() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    assert asked(bench).measured == ()
    works(bench, app, steps=80, seconds=40)
    assert asked(bench).measured == (Measured(4, 2.0, 40.0),), "the present one counts while it works"
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=80), "a")
    resize(bench, app, 2)
    assert asked(bench).measured == (Measured(4, 2.0, 40.0),)
    works(bench, app, steps=60, seconds=60, since=80)
    assert asked(bench).measured == (Measured(2, 1.0, 60.0), Measured(4, 2.0, 40.0))


def test_one_report_and_a_step_back_give_no_pace() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=100))
    assert asked(bench).measured == ()
    bench.wait(10)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=40))
    assert asked(bench).measured == ()
    bench.wait(10)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=60))
    assert asked(bench).measured == (Measured(4, 2.0, 10.0),)


def test_live_memberships_are_measured_separately() -> None:
    """Four members make 4 steps a second, then three of them make 3; both are one generation."""
    bench = Bench(a=4)
    app = live_app(bench)
    works(bench, app, steps=160, seconds=40)
    shrinking(bench)
    train(bench, step=160, change="shrink")
    works(bench, app, steps=60, seconds=20, since=160)
    left = len(app.generations[1].containers)
    assert left < 4
    assert {one.containers: one.steps_per_s for one in asked(bench).measured} == {4: 4.0, left: 3.0}


def test_a_similar_app_represents_one_without_measurements() -> None:
    """The same user, image and command; another user's app says nothing."""
    bench = Bench(a=8)
    first = bench.running("first", n_max=2)
    works(bench, first, steps=80, seconds=40)
    bench.running("second", n_max=2)
    bench.running("other", n_max=2, command=["something", "else"])
    bench.running("foreign", n_max=2, user="mallory")
    assert asked(bench, "second").alike == (Measured(2, 2.0, 40.0),)
    assert asked(bench, "first").alike == ()
    assert asked(bench, "other").alike == ()
    assert asked(bench, "foreign").alike == ()


def test_similar_apps_show_how_much_faster_a_type_of_node_is() -> None:
    """Two apps of the same command, each on a node of another type, and a third that has worked nowhere."""
    bench = Bench()
    for name, kind in (("a", "fast"), ("b", "slow"), ("c", "slow")):
        bench.add(joined(name, 2, labels={"type": kind}))
    speeds = {"fast": 3.0, "slow": 1.0}
    for name in ("first", "second", "third"):
        app = bench.running(name, n_max=2, n_min=2)
        kind = bench.state.nodes[bench.placed(name)].type
        works(bench, app, steps=int(60 * speeds[kind]), seconds=60)
    bench.add(joined("d", 3, labels={"type": "slow"}))
    bench.running("new", n_max=2, n_min=2)
    known = {one.type: one.steps_per_s for one in asked(bench, "new").alike_by_type}
    assert known == speeds
    assert asked(bench, "first").alike_by_type == asked(bench, "new").alike_by_type
    bench.running("other", n_max=1, command=["something", "else"])
    assert asked(bench, "other").alike_by_type == ()


def test_declared_speeds_by_type_reach_the_policy() -> None:
    bench = Bench(a=4)
    bench.running("first", n_max=2, speed=[[1, 1.0]], speed_on={"fast": [[1, 3.0], [2, 5.0]]})
    assert asked(bench, "first").speed_on == {"fast": ((1, 3.0), (2, 5.0))}


def test_on_nodes_of_one_type_types_do_not_matter() -> None:
    bench = Bench()
    bench.add(joined("a", 4, labels={"type": "fast"}))
    works(bench, bench.running("first", n_max=2), steps=60, seconds=60)
    bench.running("second", n_max=2)
    assert asked(bench, "second").alike_by_type == ()


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 3), st.integers(1, 2**40), st.integers(SECOND, 2**50)), max_size=60
    )
)
def test_points_stay_few_and_recent(stretches: list[tuple[int, int, int, int]]) -> None:
    points: list[MeasuredSpeed] = []
    for containers, nodes, steps, ns in stretches:
        points = with_point(points, MeasuredSpeed(containers, nodes, "", steps, ns))
        assert any(point.containers == containers and point.nodes == nodes for point in points)
    assert len(points) <= MOST_POINTS
    keys = [(point.containers, point.nodes) for point in points]
    assert keys == sorted(set(keys))
    assert all(0 < point.ns <= LATEST_NS and point.steps > 0 for point in points)
