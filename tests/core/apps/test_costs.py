"""The cost of adjusting an app, measured on the log: pause and lost work, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.core.asking import problem_of
from dorm.core.costs import LATEST, adjust_s, cost_s, usual_adjust_s
from dorm.core.query.views import adjustment
from dorm.core.sizes import TRIAL_S
from dorm.core.state import HISTORY, AdjustmentRecord
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench

if TYPE_CHECKING:
    from typing import Any

    from dorm.core.state import App


def works(bench: Bench, app: App, *, steps: int, seconds: float, since: int = 0) -> None:
    """It reports the first and the last of these steps."""
    bench.add(k.AppProgressed(app=app.id, generation=app.generation, step=since))
    bench.wait(seconds)
    bench.add(k.AppProgressed(app=app.id, generation=app.generation, step=since + steps))


def resize(bench: Bench, app: App, n_max: int, *, stop_s: float = 0.0, start_s: float = 0.0) -> None:
    """One adjustment, up to when all containers of the new generation have started."""
    bench.wait(TRIAL_S)  # What was resized is left alone until it has worked.
    before = app.generation
    bench.add(k.AppUpdated(app=app.id, n_max=n_max))
    bench.settle()
    assert app.generation == before + 1
    bench.wait(stop_s)
    bench.all_exited(app.id, 143, generation=before, asked=True)
    bench.settle()
    bench.wait(start_s)
    bench.started(app.id)
    bench.settle()


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({}, None),
        ({"started_at": 15 * SECOND}, 5.0),
        ({"started_at": 9 * SECOND}, 0.0),
        ({"started_at": 15 * SECOND, "steps_per_s": 1.0}, None),
        ({"started_at": 15 * SECOND, "resumed_at": 20 * SECOND}, None),
        # It resumed 20 s after the decision, at its fifth step since the beginning, for each of which one container took 1 s.
        ({"resumed_at": 30 * SECOND, "resumed_step": 5}, 15.0),
        ({"resumed_at": 30 * SECOND, "resumed_step": 5, "checkpoint": 3}, 18.0),
        # It says of no step after the checkpoint, so no work is taken off the pause.
        ({"resumed_at": 30 * SECOND, "resumed_step": 3, "checkpoint": 3}, 20.0),
        ({"resumed_at": 30 * SECOND, "resumed_step": 2, "checkpoint": 3}, 20.0),
        ({"resumed_at": 30 * SECOND, "resumed_step": 8, "containers_after": 2}, 16.0),
        ({"resumed_at": 30 * SECOND, "resumed_step": 2, "containers_before": 2}, 16.0),
        ({"resumed_at": 30 * SECOND, "resumed_step": 5, "lost_steps": 4}, 19.0),
    ],
)
def test_the_cost_of_one_adjustment(fields: dict[str, Any], cost: float | None) -> None:
    """Decided 10 s after the log's beginning; the fields above with a step are of an app that made one in each second."""
    paced = {"started_at": 15 * SECOND, "steps_per_s": 1.0} if "resumed_step" in fields else {}
    given: dict[str, Any] = {
        "from_generation": 1, "to_generation": 2, "containers_before": 1, "containers_after": 1,
        "decided_at": 10 * SECOND, "stopped_at": 11 * SECOND, "released_at": 12 * SECOND, **paced, **fields,
    }  # fmt: skip
    assert cost_s(AdjustmentRecord(**given)) == cost


def test_nothing_is_known_before_the_first_adjustment() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    works(bench, app, steps=10, seconds=10)
    assert adjust_s(app) is None
    assert problem_of(bench.state, bench.now).apps[0].adjust_s is None


def test_pause_and_lost_work() -> None:
    """2 steps/s, 20 of them after the checkpoint: 10 s of work; 3 s to stop, 4 s to start, 5 s until the next step, of which
    the step itself took a second with half the containers."""
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    works(bench, app, steps=80, seconds=40)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=60), "a")
    resize(bench, app, 2, stop_s=3, start_s=4)
    assert adjust_s(app) is None, "it has not worked again"
    bench.wait(5)
    bench.add(k.AppProgressed(app=app.id, generation=2, step=61))
    assert adjust_s(app) == 3 + 4 + 5 - 1 + 20 / 2
    assert problem_of(bench.state, bench.now).apps[0].adjust_s == 21.0
    bench.wait(100)
    bench.add(k.AppProgressed(app=app.id, generation=2, step=200))
    assert adjust_s(app) == 21.0, "only the first sign of work ends the pause"


def test_a_checkpoint_is_a_sign_of_work_too() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    works(bench, app, steps=10, seconds=10)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=10), "a")
    resize(bench, app, 2, start_s=2)
    bench.wait(10)
    bench.add(k.AppCheckpointed(app=app.id, generation=2, step=14), "a")
    assert adjust_s(app) == 2 + 10 - 4 / (10 / 10 * 2 / 4)


@pytest.mark.parametrize(("before", "after"), [(4, 3), (2, 1), (1, 4)])
def test_an_app_that_reports_rarely_does_not_seem_more_expensive(before: int, after: int) -> None:
    """The first sign of work comes a minute later, with a minute's steps of that many containers."""
    bench = Bench(a=4)
    app = bench.running(n_max=before)
    works(bench, app, steps=60 * before, seconds=60)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=60 * before), "a")
    resize(bench, app, after, stop_s=1, start_s=2)
    bench.wait(60)
    bench.add(k.AppProgressed(app=app.id, generation=2, step=60 * before + 60 * after))
    assert adjust_s(app) == 3


def test_without_a_pace_the_pause_is_unknown() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=100))
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=100), "a")
    resize(bench, app, 2, start_s=2)
    bench.wait(60)
    bench.add(k.AppProgressed(app=app.id, generation=2, step=130))
    assert adjust_s(app) is None


def test_an_app_runs_once_all_of_it_has_started() -> None:
    """A larger partition works faster than before, so the steps it has done may seem to take longer than it is up."""
    bench = Bench(a=4)
    app = bench.running(n_max=1)
    works(bench, app, steps=10, seconds=10)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=10), "a")
    resize(bench, app, 4, start_s=7)
    bench.wait(1)
    bench.add(k.AppProgressed(app=app.id, generation=2, step=40))
    assert adjust_s(app) == 7


def test_an_app_without_reports_runs_when_it_has_started() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    resize(bench, app, 2, stop_s=1.25, start_s=2)
    assert adjust_s(app) == 3.25
    resize(bench, app, 3, stop_s=1, start_s=1)
    assert adjust_s(app) == round((3.25 + 2) / 2, 3)


def test_the_usual_cost_is_the_median_of_restarts() -> None:
    bench = Bench(a=16)
    assert usual_adjust_s(bench.state) is None
    for name, seconds in (("one", 1), ("two", 2), ("three", 600)):
        app = bench.running(name, n_max=4)
        resize(bench, app, 2, stop_s=0, start_s=seconds)
        assert adjust_s(app) == seconds
    new = bench.running("new", n_max=4)
    assert usual_adjust_s(bench.state) == 2
    demands = {each.id: each for each in problem_of(bench.state, bench.now).apps}
    assert (demands[new.id].adjust_s, demands[new.id].usual_adjust_s) == (None, 2)


def test_only_the_latest_few_count() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4, resume=["work"])
    for number in range(LATEST + 3):
        resize(bench, app, 2 + number % 2, stop_s=100 if number < 3 else 10)
    assert adjust_s(app) == 10
    assert len(app.history) == LATEST + 3 <= HISTORY


def test_the_pace_is_that_from_the_first_to_the_last_report() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    for wait, step in ((0, 100), (1, 101), (0, 150), (0, 120), (5, 150), (5, 180)):
        bench.wait(wait)
        bench.add(k.AppProgressed(app=app.id, generation=1, step=step))
    pace = app.generations[1].pace
    assert pace is not None
    assert pace.steps_per_s == (180 - 120) / 10, "a step back is somebody who counts anew"
    resize(bench, app, 2)
    assert app.steps_per_s == 6.0
    bench.add(k.AppProgressed(app=app.id, generation=2, step=1))
    resize(bench, app, 3)
    assert app.history[-1].steps_per_s == 0.0, "one line says nothing of the pace that this many containers had"
    assert app.steps_per_s == 6.0
    bench.wait(5)
    bench.add(k.AppProgressed(app=app.id, generation=3, step=9))
    assert cost_s(app.history[-1]) is None


@pytest.mark.parametrize("steps", [0, 5])
def test_no_time_gives_no_pace(steps: int) -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    works(bench, app, steps=steps, seconds=0 if steps else 10)
    resize(bench, app, 2, start_s=1)
    assert app.history[-1].steps_per_s == 0
    assert cost_s(app.history[-1]) == 1


def test_progress_of_an_earlier_generation_resumes_nothing() -> None:
    bench = Bench(a=4)
    app = bench.running(n_max=4)
    works(bench, app, steps=10, seconds=10)
    resize(bench, app, 2)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=99))
    assert app.history[-1].resumed_at == 0


def test_the_shown_pause_ends_at_the_first_step_and_counts() -> None:
    """Importing and loading take ten seconds after the containers have started, and the first report comes two steps later."""
    bench = Bench(a=4)
    app = bench.running(n_max=1)
    works(bench, app, steps=10, seconds=10)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=10), "a")
    bench.wait(TRIAL_S)
    bench.add(k.AppUpdated(app=app.id, n_max=2))
    bench.settle()
    bench.all_exited(app.id, 143, generation=1, asked=True)
    bench.settle()
    bench.wait(4)
    bench.started(app.id)
    shown = adjustment(app, -1)
    assert (shown["start_s"], shown["work_s"], shown["total_s"]) == (pytest.approx(4, abs=0.1), None, None)
    bench.wait(10)
    bench.add(k.AppProgressed(app=app.id, generation=2, step=10), "a")
    shown = adjustment(app, -1)
    assert (shown["work_s"], shown["total_s"]) == (pytest.approx(10, abs=0.1), pytest.approx(14, abs=0.2))
    assert cost_s(app.history[-1]) == pytest.approx(shown["total_s"], abs=0.001)
