"""The evaluation, whole but small: a few apps of the paper's workload, and traces made by hand in the real ones' form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from dorm.bench import BenchError
from dorm.bench.report import Report, this_machine
from dorm_lab.bench.evaluation import paper as evaluation_paper
from dorm_lab.bench.evaluation.crash_loop import costs, crash_loop
from dorm_lab.bench.evaluation.evaluation import evaluate, plan, run_plan
from dorm_lab.bench.evaluation.figures import figures_of
from dorm_lab.bench.evaluation.kept import Kept
from dorm_lab.bench.evaluation.parts import EVENTS, HEADLINE, SPEED, TUNED, Part
from dorm_lab.bench.evaluation.plan import Plan
from dorm_lab.bench.evaluation.text import blocks
from dorm_lab.bench.evaluation.traces import busiest_week
from dorm_lab.compare import plots, report
from dorm_lab.compare.comparison import Comparison
from dorm_lab.compare.runs import run
from dorm_lab.workloads.by_name import load
from events.quantities import SECOND
from replay.simulator.contenders import STATIC_COUNTS
from replay.simulator.outcome import AppRun, Run, Sample
from replay.simulator.timings import LIVE
from tests.dorm_lab.workloads import profile_tables
from tests.errors import raises

SAMPLES = Path(__file__).parents[1] / "workloads" / "samples"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the real one is, with little in it."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "philly_2017").mkdir()
    rows = [
        f"2017-10-{1 + day:02} 0{hour}:00:00,{600 * (1 + hour)},{2**hour},0,vc"
        for day in range(9)
        for hour in (0, 1, 2)
    ]
    (folder / "philly_2017" / "philly.csv").write_text(
        "\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows])
    )
    shutil.copytree(SAMPLES / "openb", folder / "alibaba_openb_2023")
    profile_tables.write(folder / "pollux_profiles" / "net")
    jobs = folder / "pollux_workloads" / "workloads"
    jobs.mkdir(parents=True)
    lines = [f"net-{index},{60 * index},net,{1 + index % 4},64" for index in range(4)]
    (jobs / "workload-6.csv").write_text("\n".join(["name,time,application,num_replicas,batch_size", *lines]))
    return folder


def few(part: Part, *labels: str) -> Part:
    """Without most of its contenders."""
    usual = {TUNED: ("pollux", SPEED), EVENTS: (SPEED, f"{SPEED}, live")}
    wanted = labels or usual.get(part.key, (HEADLINE, "static", "tiresias"))
    return msgspec.structs.replace(part, jobs=tuple(job for job in part.jobs if job.label in wanted))


def test_dorm_speed_knows_speeds_on_cluster_traces_and_decides_at_events_in_its_own_part(traces: Path) -> None:
    philly, alibaba, *pollux, events = plan(quick=True, traces=traces).traces
    for part in (philly, alibaba):
        jobs = {job.label: job.scenario for job in part.jobs}
        assert jobs[SPEED].policy == "dorm-speed"
        assert all(app.spec.steps and app.spec.speed for app in jobs[SPEED].apps)
        assert not any(app.spec.steps for app in jobs[HEADLINE].apps)
    assert all(job.scenario.rounds is not None for part in pollux for job in part.jobs)
    assert [(job.label, job.scenario.rounds, job.scenario.timings == LIVE) for job in events.jobs] == [
        (SPEED, None, False),
        (f"{SPEED}, live", None, True),
    ]


@pytest.mark.soak
def test_the_part_with_decisions_at_events_measures_what_live_resizing_is_worth(traces: Path, tmp_path: Path) -> None:
    others = ("variations", "philly", "alibaba", "pollux", "pollux_tuned", "restart_cost", "elastic_apps")
    whole = plan(quick=True, traces=traces, without=others)
    assert [part.key for part in whole.traces] == [EVENTS]
    done = evaluate(msgspec.structs.replace(whole, paper=few(whole.paper), crash_loop=None), tmp_path, workers=1)
    assert done.figures["events_live_gain"].goal == ">= 0.15"
    assert done.figures["events_live_gain"].value > 0
    assert "decisions at events" in (tmp_path / "report.md").read_text()


@pytest.mark.soak
@pytest.mark.slow
def test_a_small_evaluation_writes_its_folder(traces: Path, tmp_path: Path) -> None:
    whole = plan(quick=True, traces=traces)
    assert [part.key for part in whole.traces] == ["philly", "alibaba", "pollux", "pollux_tuned", EVENTS]
    sweeps = tuple(msgspec.structs.replace(one, part=few(one.part, SPEED, "tiresias")) for one in whole.sweeps)
    traced = tuple(few(part) for part in whole.traces)
    wanted = Plan(few(whole.paper), whole.variations[:1], traced, sweeps=sweeps)
    told: list[tuple[int, int]] = []
    done = evaluate(wanted, tmp_path / "to", workers=1, progress=lambda ended, of: told.append((ended, of)))
    assert json.loads((tmp_path / "to" / "evaluation.json").read_text())["figures"].keys() == done.figures.keys()
    assert {"utilization_ratio_max", "speedup_mean", "adjustment_time_share", "workload6_mean_completion_s"} <= set(
        done.figures
    )
    assert done.figures["over_budget_count"].value == 0
    assert told[-1][0] == told[-1][1]
    text = (tmp_path / "to" / "report.md").read_text()
    for name in [line.partition("](")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]:
        assert (tmp_path / "to" / name).stat().st_size < 100_000
    assert "## Philly, a busy week" in text
    assert "Compared with published results for workload 6" in text
    assert "Completion against the cost of a restart" in text
    assert "Not run" not in text
    assert not (tmp_path / "to" / "runs").exists()
    assert "Plotly.newPlot" in (tmp_path / "to" / "report.html").read_text()


def test_parts_can_be_left_out_and_the_report_lists_them(traces: Path, tmp_path: Path) -> None:
    whole = plan(quick=True, traces=traces, without=("elastic_apps", "variations", "philly", "themis"))
    assert [part.key for part in whole.traces] == ["alibaba", "pollux", "pollux_tuned", EVENTS]
    assert {"sia, fixed", "gavel"} <= {job.label for job in whole.traces[1].jobs}
    assert "themis" not in {job.label for job in whole.traces[1].jobs}
    assert [sweep.part.key for sweep in whole.sweeps] == ["restart_cost"]
    wanted = msgspec.structs.replace(
        whole, paper=few(whole.paper, HEADLINE, "static"), traces=(), sweeps=(), crash_loop=None
    )
    evaluate(wanted, tmp_path, workers=1)
    text = (tmp_path / "report.md").read_text()
    assert "Left out (`--without`): variations; philly; elastic_apps; themis." in text
    assert "Sensitivity to the assumptions" not in text


def test_an_interrupted_evaluation_continues_where_it_was(tmp_path: Path) -> None:
    whole = evaluation_paper.whole(2, 2)
    wanted = Plan(few(whole, "static", "app-level"), ())
    size = sum(len(job.scenario.apps) for job in wanted.paper.jobs)
    kept = Kept(tmp_path, wanted.digest)

    class Interrupted(Exception):
        pass

    def stop(ended: int, of: int) -> None:
        if ended >= size // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_plan(wanted, workers=1, progress=stop, kept=kept)
    left = sorted((tmp_path / "runs").iterdir())
    assert len(left) == 2
    left[0].write_bytes(b"torn")
    told: list[int] = []
    compared = run_plan(wanted, workers=1, progress=lambda ended, of: told.append(ended), kept=kept)
    assert told[0] >= size // 4
    assert told[-1] == size
    again = run_plan(wanted, workers=1)
    for label, runs in again["paper"].runs.items():
        assert [msgspec.structs.replace(one, decided_s=()) for one in compared["paper"].runs[label]] == [
            msgspec.structs.replace(one, decided_s=()) for one in runs
        ]
    assert Kept(tmp_path, "other").get(wanted.paper, 0) is None
    kept.drop()
    assert not (tmp_path / "runs").exists()


def made(utilization: float, loss: float, completion: float, lost: float) -> Run:
    apps = tuple(
        AppRun(
            f"a{i}",
            f"a{i}",
            1,
            2,
            1 + int(completion * SECOND),
            "completed",
            1,
            100.0,
            lost,
            finish_ratio=completion / 500,
        )
        for i in range(3)
    )
    samples = tuple(Sample(1 + hour * 3600 * SECOND, utilization, loss, 1, 0) for hour in range(3))
    return Run(1, 1 + 3 * 3600 * SECOND, 3600.0, 3, apps, samples, ())


def invented(mine: Run, **others: Run) -> tuple[Plan, dict[str, Comparison]]:
    part = evaluation_paper.whole(1, 1)
    runs: dict[str, tuple[Run, ...]] = {HEADLINE: (mine,)}
    runs.update((name.replace("_", "-"), (run,)) for name, run in others.items())
    compared = Comparison("the paper's", runs, base="static", tasks={"task-level": 0.25})
    return Plan(part, ()), {"paper": compared}


def said(wanted: Plan, comparisons: dict[str, Comparison]) -> str:
    done = Report("evaluation", this_machine(), {}, figures_of(wanted, comparisons))
    return report.markdown(blocks(wanted, comparisons, done), list(plots.FIGURES))


def test_goals_are_judged_by_measurements() -> None:
    wanted, comparisons = invented(made(1.2, 0.1, 100, 2), static=made(0.5, 0.4, 250, 0))
    found = figures_of(wanted, comparisons)
    assert found["utilization_ratio_max"].value == pytest.approx(2.4)
    assert found["utilization_ratio_max"].reached is True
    assert found["fairness_loss_ratio_mean"].value == pytest.approx(4)
    assert found["speedup_mean"].value == pytest.approx(2.5)
    assert found["speedup_mean"].reached is False
    assert found["adjustment_time_share_docker"].value == pytest.approx(0.02)
    assert "workload6_mean_completion_s" not in found, "it was not run"


def test_the_report_shows_where_dorm_is_behind_and_why() -> None:
    text = said(*invented(made(1.0, 0.2, 200, 0), static=made(0.5, 0.4, 400, 0), task_level=made(1.2, 0.1, 201, 0)))
    line = next(line for line in text.splitlines() if line.startswith("| task-level | behind"))
    assert line == "| task-level | behind, 1.20× | behind, 2.00× | level |"
    assert "| static | ahead, 2.00× | ahead, 2.00× | ahead, 2.00× |" in text
    assert "Behind task-level in utilization" in text
    assert "its 1.2 become 0.9, against 1." in text
    assert "Behind static" not in text
    assert "Traces that were not given" not in text


def test_the_headline_is_one_of_the_contenders() -> None:
    labels = [contender.label for contender in evaluation_paper.contenders()]
    assert HEADLINE in labels
    assert len(labels) == len(set(labels)) == 9
    assert evaluation_paper.static().params == {"counts": STATIC_COUNTS}
    halved = evaluation_paper.static(0.5).params["counts"]
    assert halved["lr-*"] == 4
    assert all(value >= 1 for value in halved.values())


def test_missing_parts_are_reported(tmp_path: Path) -> None:
    wanted = plan(quick=True, traces=tmp_path)
    assert len(wanted.missing) == 5
    with raises(BenchError, "file.no_folder", "nowhere"):
        plan(traces=tmp_path / "nowhere")
    (tmp_path / "philly_2017").mkdir()
    (tmp_path / "philly_2017" / "philly.csv").write_text("nonsense\n")
    with pytest.raises(BenchError) as refused:
        plan(quick=True, traces=tmp_path)
    assert "philly.csv" in str(refused.value)


def test_the_busiest_week(traces: Path) -> None:
    week, begin = busiest_week(load(f"philly:{traces / 'philly_2017' / 'philly.csv'}"))
    assert (begin, len(week.apps)) == (0.0, 21), "of equals, the first"


def test_runs_return_to_their_parts() -> None:
    """They run the longest first."""
    whole = plan(quick=True)
    wanted = Plan(few(whole.paper, "static", "task-level"), ())
    found = run_plan(wanted, workers=1)
    for part in wanted.parts:
        for job in part.jobs:
            (run,) = found[part.key].runs[job.label]
            assert (run.adjustments == 0) or job.scenario.policy != "static"
            assert len(run.apps) == 8
    assert found["paper"].tasks.keys() == {"task-level"}


@pytest.mark.soak
def test_the_cost_of_a_crash_loop_for_its_neighbor() -> None:
    part = crash_loop()
    wanted = Plan(evaluation_paper.whole(1, 1), (), crash_loop=part)
    runs = [run(job.scenario, every_s=part.every_s) for job in part.jobs]
    found = {cost.label: cost for cost in costs(part, part.comparison(runs))}
    assert found.keys() == {HEADLINE, "static", "app-level", "task-level", "tiresias", "optimus"}
    assert 1 <= found[HEADLINE].restarts <= 3, "one for its arrival, at most two for hundreds of failures"
    assert found[HEADLINE].useful > 0.7
    assert found["app-level"] == ("app-level", 0, 1.0), "nobody makes room for the newcomer"
    assert part in wanted.parts
