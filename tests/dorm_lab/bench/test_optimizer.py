"""The optimizer's bench: all figures, equal for equal seeds, checked by hand, and a report of every early end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from dorm.bench import BenchError
from dorm.policies import registry as policies
from dorm.policies.registry import policy
from dorm_lab.bench.optimizer import judge
from dorm_lab.bench.optimizer import optimizer as bench
from dorm_lab.bench.optimizer.optimizer import bench_optimizer, figures, measure
from dorm_lab.bench.optimizer.samples import Answer, Played, Run, Samples, Solved, Wanted, gap_to_exact
from dorm_lab.bench.optimizer.scale import SIZES, SMALL_SIZES, bench_scale, chosen_sizes, prefix
from tests.bench.test_report import checked
from tests.e2e.commands import DORM, done, environment, refused
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.bench.report import Report
    from dorm.policies.problem import Allocation, Problem

pytestmark = pytest.mark.soak

SMALL = Run(apps=5, nodes=4, shapes=3, events=4, seed=1)
TIMES = {"event_p50_s", "event_p95_s", "event_max_s", "event_wall_p50_s", "cold_start_s"}
POOLED = ("instances", "gap_to_exact_max")
ALWAYS = {
    *TIMES,
    "excess_mean",
    "loss_over_budget_max",
    "changed_apps_mean",
    "moves_mean",
    "efficiency_mean",
    "utility_uniformity_mean",
    "envy_freeness_mean",
    "content_apps_mean",
    "instances",
    "peak_memory_mb",
}
TO_BOUND = {"gap_to_bound_p50", "gap_to_bound_max"}
TO_EXACT = {
    "gap_to_exact_mean", "gap_to_exact_p95", "gap_to_exact_p99", "gap_to_exact_max",
    "missed_n_min_count", "missed_floor_count", "unlike_instances", "reference_instances", "reference_proven_instances",
    "reference_gap_mean", "reference_p50_s",
}  # fmt: skip


def quiet(_: str) -> None:
    pass


def made(run: Run) -> dict[str, Any]:
    report, interrupted = bench_optimizer(run, progress=quiet)
    assert not interrupted
    return checked(msgspec.json.encode(report))


@pytest.mark.slow
def test_a_small_run_gives_all_figures_against_the_exact_policy() -> None:
    told: list[str] = []
    run = msgspec.structs.replace(SMALL, sequences=2, labels=True)
    report, _ = bench_optimizer(run, progress=told.append)
    document = checked(msgspec.json.encode(report))
    found = document["figures"]
    # If every problem is unlike there is no gap; that is not so with these.
    assert found.keys() == ALWAYS | TO_BOUND | TO_EXACT
    assert found["instances"]["value"] == found["reference_instances"]["value"] == 10
    assert found["event_p95_s"]["goal"] == "<= 0.5"
    assert found["gap_to_exact_mean"]["goal"] == "<= 0.001"
    assert found["gap_to_exact_p99"]["goal"] == "<= 0.01"
    assert found["missed_n_min_count"]["goal"] == "<= 0"
    assert 0 < found["event_p50_s"]["value"] <= found["event_p95_s"]["value"] <= found["event_max_s"]["value"]
    assert 10 < found["peak_memory_mb"]["value"] < 1000
    settings = document["settings"]
    assert (settings["apps"], settings["seed"], settings["reference"]) == (5, 1, "exact")
    assert settings["mix"]["cold start"] == 2
    assert sum(settings["mix"].values()) == 10
    assert any("event 10 of 10" in text for text in told)
    assert any("reference 10 of 10" in text for text in told)


@pytest.mark.slow
def test_a_seed_gives_the_same_problems_and_answers_under_any_hash_seed() -> None:
    """Measuring processes have their own hash seeds, drawn each time."""
    run = msgspec.structs.replace(SMALL, events=8, reference="bound", labels=True)
    first, second, other = (made(one)["settings"] for one in (run, run, msgspec.structs.replace(run, seed=2)))
    for name in ("problems_digest", "answers_digest"):
        assert re.fullmatch("[0-9a-f]{64}", first[name])
        assert first[name] == second[name] != other[name]


@pytest.mark.slow
def test_the_exact_policy_against_itself_misses_nothing() -> None:
    found = made(msgspec.structs.replace(SMALL, policy="dorm-exact", events=3))["figures"]
    assert found["missed_n_min_count"]["value"] == found["unlike_instances"]["value"] == 0
    assert found["gap_to_exact_max"]["value"] == found["reference_gap_mean"]["value"]
    assert found["reference_proven_instances"]["value"] == found["reference_instances"]["value"] == 4


@pytest.mark.parametrize(("reference", "more"), [("bound", TO_BOUND), ("none", set())])
def test_without_a_reference_its_figures_are_left_out(reference: Wanted, more: set[str]) -> None:
    run = Run(apps=3, nodes=2, shapes=1, events=2, policy="static", reference=reference)
    found = made(run)["figures"]
    assert found.keys() == (ALWAYS - {"loss_over_budget_max"}) | more


@pytest.mark.parametrize(
    ("size", "goal"),
    [
        ((30, 20, 3), ("<= 0.5", "event_p95_s")),
        ((100, 100, 3), ("<= 0.3", "event_p95_s")),
        ((500, 1000, 3), ("<= 0.07", "event_p50_s")),
        ((500, 1000, 12), ("<= 0.15", "event_p50_s")),
        ((2000, 10000, 3), ("<= 0.4", "event_p50_s")),
        ((2000, 10000, 12), None),
        ((10000, 50000, 3), None),
    ],
)
def test_goals_go_by_the_size(size: tuple[int, int, int], goal: tuple[str, str] | None) -> None:
    apps, nodes, shapes = size
    found = figures(samples(Run(apps=apps, nodes=nodes, shapes=shapes, events=2), [answer(), answer()]))
    timed = {name: one.goal for name, one in found.items() if name in TIMES and one.goal}
    assert timed == ({goal[1]: goal[0]} if goal else {})


# By hand


def answer(
    net: float = 2.0, bound: float = 2.0, excess: float = 0.0, *, waiting: int = 0, status: str = "near"
) -> Answer:
    return Answer(net, bound, excess, status, judge.Served(0, (), waiting, (waiting > 0,)))


def samples(run: Run, ours: list[Answer], exact: list[Answer] | None = None) -> Samples:
    """Two events of no cost for each answer given, the first of them a cold start."""
    found = Samples(run)
    for index, one in enumerate(ours):
        found.played.append(
            Played(
                sequence=0, number=index + 1, event="arrival", cpu_s=float(index), wall_s=float(index), answer=one,
                loss=0.3, loss_budget=0.6, changed=index, moved=2 * index, digests=(b"p", b"a"), peak_mb=10.0 + index,
                task=None,
            )
        )  # fmt: skip
    found.solved = {index: Solved(index, 1.0, one, (index, 2)) for index, one in enumerate(exact or [])}
    return found


@pytest.mark.parametrize(
    ("ours", "exact", "gap"),
    [
        (answer(2.0), answer(2.0, 2.0), 0.0),
        (answer(1.9), answer(2.0, 2.0), 0.05),
        (answer(2.0), answer(1.9, 2.5), 0.2),
        (answer(2.1), answer(2.0, 2.0), 0.0),
        (answer(2.0, excess=0.1), answer(2.0, 2.0), 0.05),
        (answer(2.3, excess=0.1), answer(2.0, 2.0), 0.05),
        (answer(1.9, excess=0.1), answer(2.0, 2.0, excess=0.2), 0.05),
        (answer(0.0), answer(0.0, 0.0), 0.0),
        (answer(2.0 - 1e-12), answer(2.0, 2.0), 0.0),
    ],
)
def test_the_gap_to_exact(ours: Answer, exact: Answer, gap: float) -> None:
    assert gap_to_exact(ours, exact) == pytest.approx(gap, abs=1e-12)


def test_answers_that_serve_other_apps_have_no_gap_and_worse_ones_count_as_misses() -> None:
    ours = [answer(1.9), answer(1.0, waiting=2), answer(1.0), answer(1.0), answer(1.8)]
    exact = [answer(2.0), answer(2.0), answer(2.0, waiting=1), answer(2.0, status="fallback"), answer(1.9)]
    found = figures(samples(SMALL, ours, exact))
    values = {name: one.value for name, one in found.items()}
    assert (values["unlike_instances"], values["missed_n_min_count"]) == (3, 1)
    assert values["missed_floor_count"] == 1, "the last, of the two that are comparable"
    assert values["gap_to_exact_mean"] == pytest.approx(0.075)
    assert values["gap_to_exact_max"] == pytest.approx(0.1)
    assert values["gap_to_bound_p50"] == pytest.approx(0.5)
    assert values["gap_to_bound_max"] == pytest.approx(0.5)


def test_cold_starts_are_reported_separately() -> None:
    found = {name: one.value for name, one in figures(samples(SMALL, [answer()] * 4)).items()}
    assert (found["cold_start_s"], found["event_p50_s"], found["event_max_s"]) == (0.0, 2.0, 3.0)
    assert (found["changed_apps_mean"], found["moves_mean"]) == (2.0, 4.0)
    assert (found["loss_over_budget_max"], found["peak_memory_mb"], found["instances"]) == (0.5, 13.0, 4)


def test_without_an_event_nothing_was_measured() -> None:
    with raises(BenchError, "bench.stopped"):
        figures(samples(SMALL, [answer()]))


class OverfullPolicy:
    """Gives every app its n_min on the first node."""

    name = "overfull"
    version = 1

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return params

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        node = problem.nodes[0].id
        counts = {app.id: {node: app.n_min} for app in problem.apps}
        return msgspec.structs.replace(policy("static").allocate(problem, {}), counts=counts)


def test_an_answer_that_breaks_a_rule_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policies._REGISTRY, "overfull", (__name__, "OverfullPolicy"))
    run = Run(apps=12, nodes=2, shapes=1, events=2, seed=9, policy="overfull")
    with raises(BenchError, "bench.wrong_answer", "seed 9", "n00001"):
        list(bench.play(run))


# Ended early


class Interrupts:
    """Ctrl-C at the n-th message."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, text: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_ctrl_c_returns_the_measurements_so_far() -> None:
    run = Run(apps=3, nodes=2, shapes=1, events=1000, policy="static", reference="bound")
    report, interrupted = bench_optimizer(run, progress=Interrupts(4))
    assert interrupted
    document = checked(msgspec.json.encode(report))
    assert document["settings"]["interrupted"] is True
    assert document["figures"]["instances"]["value"] == 4
    with raises(BenchError, "bench.stopped"):
        bench_optimizer(run, progress=Interrupts(1))


@pytest.mark.slow
def test_references_until_ctrl_c_count() -> None:
    found = measure(msgspec.structs.replace(SMALL, policy="static"), Interrupts(7))
    assert (len(found.played), len(found.solved), found.interrupted) == (5, 2, True)
    assert figures(found)["reference_instances"].value == 2


@pytest.mark.slow
async def test_ctrl_c_in_a_terminal_prints_the_results_so_far(tmp_path: Path) -> None:
    """It goes to all processes of the terminal, and only the reporting one obeys it."""
    ours, theirs = os.openpty()
    arguments = [
        "bench",
        "optimizer",
        "--apps",
        "3",
        "--nodes",
        "2",
        "--events",
        "100000",
        "--policy",
        "static",
        "-o",
        "json",
    ]
    process = await asyncio.create_subprocess_exec(
        *DORM, *arguments, stdout=asyncio.subprocess.PIPE, stderr=theirs, start_new_session=True,
        env=environment(tmp_path, TERM="xterm"),
    )  # fmt: skip
    os.close(theirs)
    try:
        await asyncio.wait_for(_until(ours, rb"event ([3-9]|\d\d+) of 100001"), 60)
        # Read all the time: a program whose terminal is full waits until someone reads it, even to end.
        rest = asyncio.create_task(asyncio.to_thread(_rest, ours))
        measuring = psutil.Process(process.pid).children(recursive=True)
        assert measuring
        os.killpg(process.pid, signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        said = await asyncio.wait_for(rest, 60)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        os.close(ours)
    assert process.returncode == 130
    document = checked(out)
    assert document["settings"]["interrupted"] is True
    assert document["figures"]["instances"]["value"] >= 3
    assert b"Traceback" not in said
    assert said.count(b'"code": "interrupted"') == 1
    _, alive = psutil.wait_procs(measuring, timeout=20)
    assert alive == []


async def _until(terminal: int, wanted: bytes) -> None:
    seen = b""
    while not re.search(wanted, seen):
        seen = seen[-200:] + await asyncio.to_thread(os.read, terminal, 4096)


def _rest(terminal: int) -> bytes:
    """What is still to be read; a terminal without a writer answers with an error."""
    seen = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            return seen
        if not part:
            return seen
        seen += part


# All sizes


@pytest.mark.slow
def test_all_sizes_in_one_report_and_one_plot(tmp_path: Path) -> None:
    runs = [
        Run(apps=4, nodes=3, shapes=2, events=2, policy="dorm-exact"),
        Run(apps=4, nodes=6, shapes=5, events=2, reference="bound"),
    ]
    scale = bench_scale(runs, progress=quiet, plot=tmp_path / "scale.png")
    assert not scale.interrupted
    document = checked(msgspec.json.encode(scale.report))
    assert document["bench"] == "optimizer-scale"
    assert document["settings"].keys() == {"a4_n3_s2", "a4_n6_s5"}
    assert document["figures"].keys() == {f"a4_n3_s2_{name}" for name in ALWAYS | TO_BOUND | TO_EXACT} | {
        f"a4_n6_s5_{name}" for name in ALWAYS | TO_BOUND
    }
    assert [run for run, _ in scale.sizes] == runs
    assert shown(tmp_path / "scale.png") > 1000


def test_small_sizes_count_together_too() -> None:
    runs = [Run(apps=3, nodes=nodes, shapes=2, events=2, policy="static", reference="exact") for nodes in (2, 3)]
    figures = bench_scale(runs, progress=quiet).report.figures
    counts, worst = [
        [figures[f"{name}_{figure}"].value for name in ("a3_n2_s2", "a3_n3_s2", SMALL_SIZES)] for figure in POOLED
    ]
    assert counts[2] == counts[0] + counts[1] == 6
    assert worst[2] == max(worst[:2]) > 0


def test_sizes_measured_until_ctrl_c_are_given() -> None:
    runs = [Run(apps=3, nodes=nodes, shapes=1, events=4, policy="static", reference="bound") for nodes in (2, 3, 4)]
    scale = bench_scale(runs, progress=Interrupts(8))
    assert scale.interrupted
    assert [run.nodes for run, _ in scale.sizes] == [2, 3]
    checked(msgspec.json.encode(scale.report))
    only_first = bench_scale(runs, progress=Interrupts(6))
    assert [run.nodes for run, _ in only_first.sizes] == [2]
    with raises(BenchError, "bench.stopped"):
        bench_scale(runs, progress=Interrupts(1))


def test_sizes_can_be_left_out_and_changed() -> None:
    assert chosen_sizes(up_to=10_000) == list(SIZES)
    assert len({prefix(run) for run in SIZES}) == len(SIZES)
    small = chosen_sizes(up_to=30, events=3, reference="bound")
    assert [(run.apps, run.events, run.against) for run in small] == [(apps, 3, "bound") for apps in (10, 20, 30)]
    assert sum(run.sequences * (run.events + 1) for run in SIZES if run.against == "exact") >= 500
    with raises(BenchError, "bench.too_small", "10"):
        chosen_sizes(up_to=9)


# Plots and the command line


def shown(file: Path) -> int:
    """How many pixels of a PNG have a colour (neither white, black, nor a grey)."""
    from matplotlib.image import imread

    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    picture = imread(file)
    assert picture.shape[0] >= 400
    assert picture.shape[1] >= 800
    return int((picture[:, :, :3].max(axis=2) - picture[:, :, :3].min(axis=2) > 0.2).sum())


@pytest.mark.slow
async def test_the_command_prints_a_table_and_writes_a_plot(tmp_path: Path) -> None:
    plot = tmp_path / "events.png"
    size = ("--apps", "4", "--nodes", "3", "--events", "3", "--reference", "bound")
    out = await done(tmp_path, "bench", "optimizer", *size, "--param", "theta1=0.2", "--plot", str(plot))
    assert re.search(r"^event_p95_s +\S+ +s +<= 0.5 +(yes|no)", out, re.MULTILINE)
    assert shown(plot) > 1000
    out = await done(tmp_path, "bench", "optimizer", *size, "--param", "theta1=0.2", "--no-gpus", "-o", "json")
    document = checked(out)
    assert document["settings"]["params"] == {"theta1": 0.2}
    assert document["settings"]["gpus"] is False


WRONG = [
    (["--policy", "lottery"], "policy.unknown"),
    (["--param", "theta9=1"], "policy.parameter.unknown"),
    (["--param", "theta1"], "usage.not_a_pair"),
    (["--reference", "best"], "usage.bad_parameter"),
    (["--plot", "there.svg"], "usage.file_name"),
    (["--plot", "no/such/there.png"], "file.no_folder"),
]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["optimizer", "optimizer-scale"])
@pytest.mark.parametrize(("arguments", "error"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
async def test_wrong_usage(tmp_path: Path, command: str, arguments: list[str], error: str) -> None:
    assert f"[{error}]" in await refused(tmp_path, "bench", command, *arguments, code=2)


@pytest.mark.slow
async def test_wrong_sizes(tmp_path: Path) -> None:
    for name in ("--apps", "--nodes", "--shapes", "--events", "--sequences"):
        assert name in await refused(tmp_path, "bench", "optimizer", name, "0", code=2)
    assert "[bench.too_small]" in await refused(tmp_path, "bench", "optimizer-scale", "--up-to", "9", code=2)


def test_without_matplotlib_a_plot_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(BenchError, "package.missing", "matplotlib"):
        bench_optimizer(SMALL, progress=quiet, plot=tmp_path / "plot.png")


def test_the_report_can_be_read_back() -> None:
    run = Run(apps=2, nodes=2, shapes=1, events=1, policy="static", reference="none")
    report: Report = bench_optimizer(run, progress=quiet)[0]
    assert json.loads(msgspec.json.encode(report))["settings"]["mix"]["cold start"] == 1
