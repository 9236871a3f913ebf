"""Reports of apps beside the log, merged into a state for people."""

from __future__ import annotations

from typing import Any

from dorm.core.progress import newest_of
from dorm.core.query.views import app_rows, describe
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log.records import Record
from events.quantities import SECOND
from replay.diff import Changed, diff
from tests.core.records import Bench


def running() -> Bench:
    bench = Bench(n1=1)
    bench.running("a", n_max=1)
    bench.add(k.AppProgressed(app=bench.app("a").id, generation=1, step=5, loss=0.5, samples_per_s=9.0), "n1")
    return bench


def beside(bench: Bench, node: str = "n1", *, later_s: float = 1, generation: int = 1, **said: object) -> Record:
    event = k.AppProgressed(app=bench.app("a").id, generation=generation, id="x", **said)  # type: ignore[arg-type]
    subject = subjects.progress("lab", node, event.app)
    return Record(1, bench.state.time + int(later_s * SECOND), subject, encode(event))


def test_a_newer_report_is_shown_and_the_state_is_unchanged() -> None:
    bench = running()
    now = bench.state.time + 3 * SECOND
    (row,) = app_rows(bench.state, now)
    assert (row.step, row.loss, row.progress_age_s) == (5, 0.5, 3.0)
    newest = newest_of([beside(bench, step=7, loss_is="nan")])
    (row,) = app_rows(bench.state, now, newest=newest)
    assert (row.step, row.loss, row.loss_is, row.samples_per_s, row.progress_age_s) == (7, None, "nan", 9.0, 2.0)
    assert describe(bench.app("a"), now, bench.state, newest)["step"] == 7
    assert bench.app("a").step == 5


def test_a_difference_shows_the_newest_report_of_either_moment() -> None:
    bench = running()
    newest = newest_of([beside(bench, step=7, loss=0.25)])
    (app,) = diff(bench.state, bench.state, reported=({}, newest)).apps
    assert app.changes == [Changed("step", 5, 7), Changed("loss", 0.5, 0.25)]
    assert diff(bench.state, bench.state, reported=(newest, newest)).same


def test_a_report_that_is_older_or_of_another_generation_or_node_is_not() -> None:
    bench = running()
    now = bench.state.time + 3 * SECOND
    for record in (
        beside(bench, step=7, later_s=-1), beside(bench, step=7, generation=2), beside(bench, "n2", step=7)
    ):  # fmt: skip
        (row,) = app_rows(bench.state, now, newest=newest_of([record]))
        assert (row.step, row.progress_age_s) == (5, 3.0)


def test_a_loss_that_diverges_is_known_until_it_is_finite_again() -> None:
    bench = running()
    app = bench.app("a").id
    bench.add(k.AppProgressed(app=app, generation=1, step=6, loss_is="inf"), "n1")
    (row,) = app_rows(bench.state, bench.state.time)
    assert (row.step, row.loss, row.loss_is) == (6, None, "inf")
    bench.add(k.AppProgressed(app=app, generation=1, step=7), "n1")
    assert app_rows(bench.state, bench.state.time)[0].loss_is == "inf"
    bench.add(k.AppProgressed(app=app, generation=1, step=8, loss=0.25), "n1")
    (row,) = app_rows(bench.state, bench.state.time)
    assert (row.loss, row.loss_is) == (0.25, "")


def test_lines_that_could_not_be_used_are_described_of_the_first_container_that_wrote_them() -> None:
    bench = running()
    app = bench.app("a").id
    said: dict[str, Any] = {
        "app": app, "generation": 1, "slot": 0, "example": "epoch 1", "reason": "this is not a JSON object"
    }  # fmt: skip
    bench.add(k.ProgressLinesSkipped(lines=1, **said), "n1")
    bench.add(k.ProgressLinesSkipped(lines=4, **{**said, "example": "epoch 2"}), "n1")
    bench.add(k.ProgressLinesSkipped(lines=9, **said), "n2")
    assert describe(bench.app("a"), bench.state.time)["skipped_lines"] == {
        "generation": 1, "slot": 0, "lines": 4, "example": "epoch 1", "reason": "this is not a JSON object"
    }  # fmt: skip


def test_step_and_loss_are_of_one_report_whatever_checkpoints_say() -> None:
    bench = running()
    app = bench.app("a").id
    bench.add(k.AppCheckpointed(app=app, generation=1, step=9), "n1")
    (row,) = app_rows(bench.state, bench.state.time)
    assert (row.step, row.loss) == (5, 0.5)
    assert describe(bench.app("a"), bench.state.time)["checkpoint"] == 9
    # A checkpoint that came later does not hide a report that is newer than the log's.
    newest = newest_of([beside(bench, step=8, loss=0.25)])
    bench.wait(2)
    bench.add(k.AppCheckpointed(app=app, generation=1, step=10), "n1")
    (row,) = app_rows(bench.state, bench.state.time, newest=newest)
    assert (row.step, row.loss, row.loss_step) == (8, 0.25, None)
    # A report without a loss leaves the last one, which says its step.
    newest = newest_of([beside(bench, step=11)])
    (row,) = app_rows(bench.state, bench.state.time, newest=newest)
    assert (row.step, row.loss, row.loss_step) == (11, 0.5, 5)
