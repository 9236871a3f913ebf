"""Apps that failed at a size are limited until they have worked."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.sizes import ROOM_S, TRIAL_S, bounds
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined


def size(bench: Bench, name: str = "app") -> int:
    current = bench.app(name).current
    return len(current.containers) if current is not None else 0


def works(bench: Bench, name: str = "app", step: int = 1) -> None:
    app = bench.app(name)
    bench.add(k.AppProgressed(app=app.id, generation=app.generation, step=step))


def stop(bench: Bench, name: str = "app") -> None:
    """What runs of it ends, as it was asked to."""
    for number, generation in list(bench.app(name).generations.items()):
        if generation.released and (number < bench.app(name).generation or generation.failed):
            bench.all_exited(name, 143, generation=number, asked=True)
    bench.settle()


def crash(bench: Bench, name: str = "app", code: int = 1) -> list[Any]:
    """A container fails, the others are stopped, the pause passes, and the app is placed and started again if possible."""
    app = bench.app(name)
    bench.exited(name, min(app.generations[app.generation].containers), code)
    said = bench.decide()
    stop(bench, name)
    if not app.ended:
        bench.wait(max(0, app.retry_at - bench.now) / SECOND)
        bench.settle()
        if app.current is not None and app.current.released:
            bench.started(name)
            bench.settle()
    return said


class TestTrial:
    def test_an_app_that_never_worked_gets_n_min_until_it_works(self) -> None:
        bench = Bench(a=8)
        app = bench.running(n_min=2, n_max=6)
        assert size(bench) == 6
        crash(bench)
        assert size(bench) == 2
        assert app.waiting is not None
        assert app.waiting.code == "held"
        assert app.waiting.text == "held at 2 until it works: 1 generation has failed before they did"
        works(bench)
        bench.settle()
        assert size(bench) == 6

    def test_an_app_without_reports_has_worked_once_it_has_run_for_a_while(self) -> None:
        bench = Bench(a=8)
        bench.add(k.PolicyChanged(idle_s=86_400))
        bench.running(n_min=2, n_max=6)
        crash(bench)
        assert next_deadline(bench.state, bench.now) == bench.now + TRIAL_S * SECOND
        bench.wait(TRIAL_S)
        (said,) = bench.decide(allocate=True)
        assert isinstance(said, k.Resized)
        assert said.trigger == "deadline"
        assert size(bench) == 6

    def test_running_without_progress_is_not_working_under_a_deadline(self) -> None:
        bench = Bench(a=8)
        bench.running(n_min=2, n_max=6, deadlines={"progress": "5m"})
        crash(bench)
        bench.wait(TRIAL_S)
        bench.settle()
        assert size(bench) == 2

    def test_an_app_that_worked_may_fail_once(self) -> None:
        bench = Bench(a=8)
        bench.running(n_min=2, n_max=6)
        works(bench)
        crash(bench)
        assert size(bench) == 6
        crash(bench)
        assert size(bench) == 6, "the generation after a good one"
        crash(bench)
        assert size(bench) == 2

    def test_a_lost_node_does_not_count_against_the_app(self) -> None:
        bench = Bench(a=8)
        app = bench.running(n_min=2, n_max=6)
        bench.exited(slot=0, code=None, reason="lost")
        bench.settle()
        stop(bench)
        bench.wait(10)
        bench.settle()
        assert (app.failed_trials, size(bench)) == (0, 6)

    def test_an_update_by_the_owner_lifts_the_limit(self) -> None:
        bench = Bench(a=8)
        bench.running(n_min=2, n_max=6)
        crash(bench)
        bench.add(k.AppUpdated(app="app", n_max=5))
        bench.settle()
        assert size(bench) == 5


class TestFallback:
    def grown(self, **fields: Any) -> Bench:
        """It worked with 4, and has 6 since another node came."""
        bench = Bench(a=4)
        bench.running(n_min=1, n_max=6, **fields)
        works(bench)
        bench.add(joined("b", 2))
        bench.settle()
        stop(bench)
        bench.started()
        bench.settle()
        assert (size(bench), bench.app().generation) == (6, 2)
        return bench

    def test_a_larger_generation_that_does_not_work_is_taken_back(self) -> None:
        bench = self.grown()
        crash(bench)
        app = bench.app()
        assert size(bench) == 4
        assert app.waiting is not None
        assert app.waiting.code == "held"
        assert app.waiting.text == "held at most 4: generation 2 with 6 containers did not start to work"

    def test_a_larger_size_is_tried_again_after_stable_running(self) -> None:
        bench = self.grown(retries={"reset": "30m"}, resume=["work"])
        crash(bench)
        bench.wait(20 * 60)
        bench.settle()
        assert size(bench) == 4
        due = next_deadline(bench.state, bench.now)
        assert due == bench.now + 10 * 60 * SECOND
        bench.wait(10 * 60)
        bench.settle()
        assert size(bench) == 6
        stop(bench)
        assert bench.app().held_most is None

    def test_an_update_by_the_owner_lifts_the_limit(self) -> None:
        bench = self.grown()
        crash(bench)
        bench.add(k.AppUpdated(app="app", weight=2.0))
        bench.settle()
        assert size(bench) == 6

    def test_a_size_that_worked_is_not_a_failed_adjustment(self) -> None:
        bench = self.grown()
        works(bench)
        crash(bench)
        assert size(bench) == 6

    def test_a_hanging_app_is_reverted_too(self) -> None:
        bench = self.grown(deadlines={"progress": "5m"})
        bench.wait(1000)
        (said,) = bench.decide()
        assert isinstance(said, k.GenerationFailed)
        assert said.failure == "stalled"
        stop(bench)
        bench.wait(5)
        bench.settle()
        assert size(bench) == 4

    def shrunk(self, **fields: Any) -> Bench:
        """It worked with 4, has 2 since a node is drained, and that is too few."""
        bench = Bench(a=2, b=2)
        bench.running(n_min=1, n_max=4, **fields)
        works(bench)
        bench.add(k.NodeDrainRequested(node="b"))
        bench.settle()
        stop(bench)
        bench.started()
        bench.settle()
        assert size(bench) == 2
        crash(bench)
        return bench

    def test_an_app_that_shrank_waits_for_its_former_containers_with_that_reason(self) -> None:
        bench = self.shrunk()
        app = bench.app()
        assert (size(bench), app.phase) == (0, "waiting")
        assert app.waiting is not None
        assert app.waiting.text.endswith("(held at least 4: generation 2 with 2 containers did not start to work)")
        bench.add(joined("c", 2))
        bench.settle()
        assert size(bench) == 4

    def test_the_wait_for_former_containers_is_limited(self) -> None:
        bench = self.shrunk(retries={"reset": "10m"})
        due = next_deadline(bench.state, bench.now)
        assert due is not None
        for _ in range(100):
            if size(bench):
                break
            due = next_deadline(bench.state, bench.now)
            assert due is not None
            bench.now = max(bench.now, due)
            bench.settle()
        assert size(bench) == 2
        assert bench.app().held_least is None

    @pytest.mark.parametrize(("n_min", "n_max"), [(1, 3), (5, 6)])
    def test_the_owner_s_bounds_are_the_outer_ones(self, n_min: int, n_max: int) -> None:
        bench = self.grown()
        crash(bench)
        app = bench.app()
        app.n_min, app.n_max = n_min, n_max
        found = bounds(app, bench.now)
        assert n_min <= found.n_min <= found.n_max <= n_max

    def test_gangs_stay_whole(self) -> None:
        bench = Bench(a=4)
        bench.running(n_min=2, n_max=6, gang=2)
        works(bench)
        bench.add(joined("b", 2))
        bench.settle()
        stop(bench)
        bench.started()
        bench.settle()
        crash(bench)
        assert size(bench) == 4


class TestCrashLoop:
    def loop(self) -> Bench:
        """An app that has failed twice and waits, next to one that has the whole cluster."""
        bench = Bench(a=4)
        # Its pauses are long enough for others to get its room meanwhile.
        bench.running("loop", n_min=1, n_max=4, retries={"backoff": "10m", "longest": "10m"})
        crash(bench, "loop")
        bench.exited("loop", 0, 1)
        bench.settle()
        bench.running("good", n_min=1, n_max=4)
        bench.wait(600)
        bench.settle()
        assert (size(bench, "good"), size(bench, "loop")) == (4, 0)
        return bench

    def test_no_app_is_resized_for_it_for_a_while(self) -> None:
        bench = self.loop()
        waiting = bench.app("loop").waiting
        assert waiting is not None
        assert waiting.code == "resources"
        assert waiting.text.endswith("nobody is resized for it before it has waited for 30 min)")
        bench.wait(ROOM_S)
        bench.settle()
        assert (size(bench, "good"), size(bench, "loop")) == (3, 1)

    def test_an_app_in_a_crash_loop_gets_free_room_at_once(self) -> None:
        bench = self.loop()
        bench.add(joined("b", 1))
        bench.settle()
        assert size(bench, "loop") == 1
