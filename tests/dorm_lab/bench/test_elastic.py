"""The bench of live resizing: how pauses are computed, that lost samples are seen, and small runs of the real parts."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import psutil
import pytest

from dorm.bench import BenchError
from dorm_lab.bench.elastic import elastic, sharing, steps
from dorm_lab.bench.elastic.convergence import Trained, convergence
from dorm_lab.bench.elastic.elastic import Results, Wanted, bench_elastic, check, claims, figures_of
from dorm_lab.bench.elastic.group import MEASURES, Group
from dorm_lab.bench.elastic.pauses import Pause, script
from dorm_lab.bench.elastic.plot import plot_targets
from dorm_lab.bench.elastic.schedules import Tally, disturb, tally
from dorm_lab.bench.elastic.sharing import Amounts, Resize, Shared
from dorm_lab.bench.elastic.steps import Done
from tests.bench.test_report import checked
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.soak


def made(first: int, at: list[float]) -> list[Done]:
    """Steps that ended then."""
    return [Done(first + index, when, 0.0, 0.0) for index, when in enumerate(at)]


def test_a_live_pause_lasts_until_the_last_member_has_completed_the_first_step() -> None:
    old = made(0, [1.0, 2.0, 3.0, 4.5])
    newcomer = made(3, [4.75, 5.75])
    records = {(1, 0): old, (1, 1): old[:3], (1, 2): newcomer, (2, 0): made(3, [99.0])}
    assert steps.live_pause(records, 1, first=3) == pytest.approx(0.75)
    with raises(BenchError, "bench.nothing_measured"):
        steps.live_pause(records, 1, first=9)


def test_a_death_is_the_longest_wait_of_a_survivor_near_it() -> None:
    # A step completes after the death, since what it needed was sent before; the next one has to wait.
    records = {(1, 0): made(0, [1, 2, 3, 4, 9, 10, 11, 40]), (1, 1): made(0, [1, 2, 3])}
    assert steps.death_pause(records, 1, died_at=3.5, dead=[1]) == pytest.approx(4.0)


def test_a_restart_lasts_until_a_step_that_is_new() -> None:
    before = made(0, [1.0, 2.0, 3.0])
    after = [*made(1, [10.0, 11.0]), *made(3, [12.0, 13.0])]  # Steps 1 and 2 are made again.
    assert steps.restart_pause({(1, 0): before, (2, 0): after}, 1) == pytest.approx(12.0 - 3.0 - 1.0)
    # Of another system nothing but new steps is known.
    other = {(1, 7): before, (1, 8): after}
    assert steps.longest_pause(other, since=3.5) == pytest.approx(12.0 - 3.0 - 1.0)


def test_a_sample_that_the_model_lacks_or_holds_twice_is_counted() -> None:
    group = Group(5, epochs=3)
    happened = disturb(group)
    group.run()
    whole = tally(group, happened)
    assert (whole.finished, whole.used, whole.lost, whole.repeated, whole.wrong_epochs) == (True, 3 * 97, 0, 0, 0)
    (script, *_) = (one for one in group.scripts.values() if one.ended == "finished")
    script.model = np.array(script.model)
    script.model[MEASURES] -= group.rounds
    script.model[MEASURES + 1] += 2 * group.rounds
    assert tally(group, happened)[3:5] == (1, 2)


def test_figures_have_goals_and_the_form_of_all_benches() -> None:
    found = Results()
    found.pauses = [Pause("numpy", "live", 2, cause, 0.01) for cause in ("grow", "shrink", "death")]
    found.pauses += [Pause("numpy", "live", 4, "frozen", 1.6), Pause("numpy", "restart", 2, "grow", 0.5)]
    found.pauses += [Pause("torchrun", "", 2, "grow", 7.0)]
    found.shared = Shared([1.002, 1.006], [0.998, 1.001], 0.009, [Resize("live", "grow", 0.02, 0.3, 0.7, 0.6, 0.3)])
    found.tallies = [Tally(Counter(kill=1), True, 10, 0, 0, 3, 0)]
    figures = figures_of(found)
    assert figures["numpy_restart_over_live_ratio"].value == 50
    assert figures["numpy_live_pause_2_death_p99_s"].value == 0.01
    assert figures["sharing_step_error_ratio"].value == pytest.approx(0.002)
    assert figures["sharing_step_noise_ratio"].value == pytest.approx(0.002)
    assert figures["sharing_overhead_at_rest_ratio"].value == pytest.approx(0.007)
    assert figures["sharing_overhead_live_per_minute_ratio"].value == pytest.approx(0.007 + (0.6 + 0.1) / 60, rel=1e-3)
    goals = {name: one.goal for name, one in figures.items() if isinstance(one.goal, str)}
    assert goals["numpy_live_pause_p50_s"] == goals["numpy_live_pause_p99_s"] == "<= 0.05"
    assert {name for name, goal in goals.items() if goal == "<= 0"} == {
        "samples_lost", "samples_repeated", "epochs_wrong_in_schedules"
    }  # fmt: skip
    assert "torchrun_pause_2_grow_p50_s" in figures


def test_the_claim_is_reproduced_only_if_all_runs_agree() -> None:
    uni, micro = (Trained("cocoa", "digits", plan, rounds, 1.0, []) for plan, rounds in (("uni_1", 8), ("micro_1", 80)))
    assert claims([uni, micro]) == "reproduced (cocoa on digits, workers: 1: x10.0)"
    other = [Trained("local", "digits", plan, 5, 1.0, []) for plan in ("uni_2", "micro_2")]
    assert claims([uni, micro, *other]).startswith("in 1 of 2 cases (")
    assert claims([uni]) == "not measured"


@pytest.mark.parametrize(
    ("wanted", "code"), [(Wanted(parts=("all",)), "usage.unknown"), (Wanted(sizes=(3,)), "usage.value")]
)
def test_invalid_measurements_are_refused(wanted: Wanted, code: str) -> None:
    with raises(BenchError, code):
        check(wanted)


def workers_left() -> list[int]:
    own = psutil.Process().children(recursive=True)
    return [process.pid for process in own if script("training.py") in process.cmdline()]


@pytest.mark.slow
def test_pauses_of_real_workers() -> None:
    wanted = Wanted(parts=("pauses", "peers", "schedules"), sizes=(2,), cycles=1, schedules=2, torch=False)
    done = bench_elastic(wanted, progress=lambda _: None)
    document = checked(msgspec.json.encode(done.report))
    figures = document["figures"]
    for how in ("live", "restart"):
        assert {f"numpy_{how}_pause_2_{cause}_p50_s" for cause in ("grow", "shrink", "death")} <= figures.keys()
    assert figures["epochs_proven"]["value"] > 0
    assert [figures[name]["value"] for name in ("epochs_wrong", "samples_lost", "samples_repeated")] == [0, 0, 0]
    assert document["settings"]["not_measured"].keys() == {"torch", "torchrun", "torchft"}
    assert not done.interrupted
    assert workers_left() == []


@pytest.mark.slow
def test_an_interruption_keeps_measurements_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def then_interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def one_tally(_: int) -> list[Tally]:
        return [Tally(Counter(), True, 97, 0, 0, 0, 0)]

    monkeypatch.setattr(elastic, "tallies", one_tally)
    monkeypatch.setattr("dorm_lab.bench.elastic.pauses.steps.live_pause", then_interrupted)
    wanted = Wanted(parts=("schedules", "pauses"), sizes=(2,), cycles=1, torch=False)
    done = bench_elastic(wanted, progress=lambda _: None)
    assert done.interrupted
    assert done.report.figures["samples_used"].value == 97
    assert not any("pause" in name for name in done.report.figures)
    assert workers_left() == []


@pytest.mark.slow
def test_runs_to_a_target_with_and_without_resizes(tmp_path: Path) -> None:
    runs = list(convergence(["digits"], ["uni_1", "shrunk"], tmp_path, lambda _: None, solvers=["cocoa"]))
    assert [one.plan for one in runs] == ["uni_1", "shrunk"]
    assert runs[0].rounds == 8  # It follows from the data alone.
    assert runs[1].rounds > 4  # It was resized after the second and the fourth.
    for one in runs:
        assert one.curve[-1][1] <= 1e-3 < one.curve[-2][1]
        assert one.seconds > 0
    plot_targets(runs, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nats
@pytest.mark.slow
def test_resizes_through_the_control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORM_HOME", str(tmp_path))
    read = sharing._cpu_of_a_step

    def reads_for_long(log: Path, since: float) -> float | None:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        return read(log, since)

    monkeypatch.setattr(sharing, "_cpu_of_a_step", reads_for_long)
    wanted = Amounts(rounds=2, turns=2, live=2, restarts=1, rest_s=2.0, settles_s=0.0)
    done = bench_elastic(Wanted(parts=("shared",), shared=wanted), progress=lambda _: None)
    figures = checked(msgspec.json.encode(done.report))["figures"]
    assert done.results.shared is not None
    assert [(one.how, one.cause) for one in done.results.shared.resizes] == [
        ("live", "shrink"), ("live", "grow"), ("restart", "shrink")
    ]  # fmt: skip
    assert figures["cluster_live_boot_p50_s"]["value"] > 0
    # The bench's own work is not the control plane's: in turns it alone takes more than half a core.
    assert 0 < figures["sharing_control_plane_cores_mean"]["value"] < 0.3
    assert list(tmp_path.iterdir()) == []
    assert workers_left() == []


def test_a_process_was_born_when_it_was_started() -> None:
    """To a hundredth of a second, which is how the kernel counts; psutil's times may be off by one."""
    for _ in range(3):
        before = time.monotonic()
        process = subprocess.Popen(["sleep", "60"])
        after = time.monotonic()
        try:
            assert before - 0.021 <= sharing.started_at(process.pid) <= after + 0.011
        finally:
            process.kill()
            process.wait()
