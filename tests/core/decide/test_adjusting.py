"""Apps in the middle of an adjustment are not decided again."""

from __future__ import annotations

from dorm.core.asking import problem_of
from events import kinds as k
from tests.core.records import Bench, joined


def test_no_app_is_moved_during_an_adjustment() -> None:
    bench = Bench(n1=4)
    bench.add(k.PolicyChanged(policy="dorm-exact", params={"theta2": 1.0}))
    bench.running("app", n_max=4)
    bench.submit("new", n_max=4)
    bench.settle()
    bench.add(joined("n2", 4))
    bench.wait(60)
    assert bench.app().generation == 2
    assert [app.pinned for app in problem_of(bench.state, bench.now).apps] == [True, True]
    facts = bench.decided(allocate=True)
    assert not any(fact.changes for fact in facts if isinstance(fact, k.Resized))
