"""The colors of apps: as few patterns as possible, and the same for everyone who looks, whenever they look."""

from __future__ import annotations

from dorm.core.evolve import evolve
from dorm.core.state import State
from replay.page.changes import Changes
from replay.page.colors import COLORS, PATTERNS, colors_of
from replay.page.view import view
from tests.core.records import Bench
from tests.replay.busy import busy_log


def test_live_apps_have_plain_colors_before_any_has_a_pattern() -> None:
    bench = Bench(n1=100)
    for number in range(COLORS * PATTERNS):
        bench.submit(f"app-{number}", n_max=1)
        bench.settle()
        styles = [app.color for app in view(bench.state).apps]
        assert len(set(styles)) == len(styles)
        assert max(styles) < COLORS * (number // COLORS + 1)


def test_an_app_that_has_ended_leaves_its_color_to_later_ones_and_keeps_it() -> None:
    bench = Bench(n1=100)
    for number in range(COLORS):
        bench.running(f"app-{number}", n_max=1)
    before = {app.id: app.color for app in view(bench.state).apps}
    bench.all_exited("app-3")
    bench.settle()
    bench.wait(1)
    bench.running("later", n_max=1)
    after = {app.id: app.color for app in view(bench.state).apps}
    assert after[bench.app("later").id] == before[bench.app("app-3").id] < COLORS
    assert before.items() <= after.items()


def test_no_color_changes_and_who_follows_sees_those_of_who_comes_later() -> None:
    state, seen = State(), dict[str, int]()
    records = busy_log(700, apps=30, nodes=5)
    changes = Changes(state)
    for record in records:
        changes.see(state, record, evolve(state, record))
        if record.seq % 50:
            continue
        changes.take(state)
        shown = {app.id: app.color for app in changes.view().apps}
        assert shown == {app.id: app.color for app in view(state).apps}
        assert all(seen.setdefault(app, color) == color for app, color in shown.items())
    assert colors_of(state.apps.values()).items() >= shown.items()
