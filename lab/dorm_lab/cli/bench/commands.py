"""`dorm bench NAME` for the benches of the laboratory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.bench.options import Docker, Runtime, RuntimeWanted
from dorm.cli.bench.report import show_machine, show_report
from dorm.cli.bench.running import end_if, measuring, show_measurements, unless_stopped, wrong_usage
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, print_table, show_document
from dorm.cli.program_logs import Verbose
from dorm.cli.settings import complete_policy, parse_params
from dorm_lab.cli.bench import elastic, evaluation, oasis, scale
from dorm_lab.cli.bench import run as run_bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.bench.report import Figure, Report
    from dorm_lab.rehearsal import Row


class Reference(StrEnum):
    """The references that answers are compared with."""

    auto = "auto"
    exact = "exact"
    bound = "bound"
    none = "none"


Policy = Annotated[str, typer.Option(help="Policy to measure.", autocompletion=complete_policy)]
Param = Annotated[list[str] | None, typer.Option(help="Parameter of the policy, such as theta1=0.2; may be repeated.")]
ReferenceWanted = Annotated[
    Reference,
    typer.Option(help="exact: solve every problem exactly as well; bound: the policy's own bound; auto: by the size."),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write a plot to this file; needs dorm\\[plots].")]


def register(app: typer.Typer) -> None:
    """Add the laboratory's benches to `dorm bench`."""
    for bench in (trust, pause, calibration, replay, simulate, optimizer, optimizer_scale):
        app.command()(bench)
    for module in (elastic, evaluation, oasis, run_bench, scale):
        module.register(app)


def trust(
    apps: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of apps on each cluster, one after the other.")
    ] = 50,
    docker: Docker = None,
    runtime: Runtime = RuntimeWanted.auto,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the cost of keys and signatures: submissions to an authenticated and to an open cluster.

    [bold]Examples[/]

      dorm bench trust

      dorm bench trust --runtime process --apps 10 -o json
    """
    from dorm.bench.cluster import runtimes
    from dorm_lab.bench.trust import bench_trust

    async def work(progress: Callable[[str], None]) -> Report:
        *_, chosen = await runtimes(runtime.value, docker, progress)
        return await bench_trust(apps=apps, runtime=chosen, docker_url=docker, progress=progress)

    with measuring("trust", verbose) as show:
        report = run(unless_stopped(work(show)))
    show_report(report, output)


def pause(
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="Number of resizes.")] = 10,
    every: Annotated[int, typer.Option(min=1, max=1000, help="The app reports its progress every N steps.")] = 1,
    load: Annotated[
        float, typer.Option(min=0.0, max=30.0, help="Seconds that the app takes to load before its first step.")
    ] = 2.0,
    scaling: Annotated[
        float, typer.Option(min=0.0, max=1.5, help="n containers are n to this power as fast as one.")
    ] = 0.9,
    runtime: Runtime = RuntimeWanted.auto,
    docker: Docker = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Compare the reported pause of a resize with the time to the first step by the app's own clock.

    [bold]Examples[/]

      dorm bench pause

      dorm bench pause --runtime docker --every 20 -o json
    """
    from dorm_lab.bench.pause import bench_pause

    with measuring("pause", verbose) as progress:
        work = bench_pause(
            runs=runs,
            every=every,
            load_s=load,
            scaling=scaling,
            wanted=runtime.value,
            docker_url=docker,
            progress=progress,
        )
        report = run(unless_stopped(work))
    show_report(report, output)


def calibration(
    runs: Annotated[
        int, typer.Option(min=8, max=100_000, help="Number of resizes: half to fit, half to compare.")
    ] = 24,
    runtime: Runtime = RuntimeWanted.auto,
    docker: Docker = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the accuracy of the simulator: compare real and simulated adjustments and completion times.

    Timings and speeds are fitted to one part of the measurements, and used to
    simulate the other part. This takes minutes.

    [bold]Examples[/]

      dorm bench calibration --runtime docker

      dorm bench calibration --runtime process --runs 8 -o json
    """
    from dorm_lab.bench.calibration import bench_calibration

    tables: dict[tuple[str, str], list[Row]] = {}

    async def measured(progress: Callable[[str], None]) -> Report:
        done = await bench_calibration(runs=runs, wanted=runtime.value, docker_url=docker, progress=progress)
        tables.update(done.tables)
        return done.report

    with measuring("calibration", verbose) as show:
        report = run(unless_stopped(measured(show)))
    if output in (Format.json, Format.yaml):
        show_document(report, output)
        return
    rows = [
        {
            "runtime": name, "what": f"{what} {row.name}", "real": f"{row.real_s:.3f}",
            "simulated": f"{row.simulated_s:.3f}", "error": f"{100 * row.error:+.1f} %",
        }
        for (name, what), comparison in tables.items()
        for row in comparison
    ]  # fmt: skip
    columns = [("RUNTIME", "runtime"), ("MEAN OF", "what"), ("REAL S", "real"), ("SIMULATED S", "simulated")]
    print_table(rows, [*columns, ("ERROR", "error")])
    show_machine(report)


def replay(
    events: Annotated[int, typer.Option(min=1000, max=100_000_000, help="Records of the log to measure.")] = 1_000_000,
    large: Annotated[
        int, typer.Option(min=0, max=1_000_000_000, help="Records of a second log, for moments and memory; 0 for none.")
    ] = 10_000_000,
    server: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Records of a log on a NATS server; 0 for none.")
    ] = 200_000,
    passes: Annotated[int, typer.Option(min=1, max=1000, help="Number of measurements of folds.")] = 3,
    moments: Annotated[int, typer.Option(min=1, max=10_000, help="Number of states to look up.")] = 20,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take half a minute: 100,000 records, and no second log.")
    ] = False,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure replay: folds from an archive and a server, past states, repeated decisions, memory, disk space.

    It generates a log, and takes some minutes and half a gigabyte of disk, which
    it frees again. Ctrl-C prints what was measured so far.

    [bold]Examples[/]

      dorm bench replay --quick

      dorm bench replay --large 0 --server 0 --passes 10

      dorm bench replay -o json
    """
    from dorm_lab.bench.replay.replay import QUICK, Sizes, bench_replay

    sizes = QUICK if quick else Sizes(events, large, server, passes, moments)
    show_measurements("replay", lambda progress: bench_replay(sizes, progress=progress), output, verbose)


def simulate(
    trace: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="The Philly trace, a CSV file; default: generated apps.",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=100_000, help="Number of nodes, of 8 GPUs each.")] = 80,
    rounds: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="SECONDS", help="Seconds of virtual time between allocations; default: 300 and 60."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take half a minute: the first 1,500 apps, rounds of 300 s.")
    ] = False,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure simulation: a month of a real cluster in virtual time, under the policies `static` and `dorm`.

    It takes about ten minutes. Ctrl-C prints what was measured so far.

    [bold]Examples[/]

      dorm bench simulate --quick

      dorm bench simulate --trace philly.csv --rounds 300

      dorm bench simulate --trace philly.csv -o json
    """
    from dorm_lab.bench.simulate import Wanted, bench_simulate

    wanted = Wanted(trace, nodes, tuple(rounds or ((300,) if quick else (300, 60))), quick)
    show_measurements("simulate", lambda progress: bench_simulate(wanted, progress=progress), output, verbose)


def optimizer(
    apps: Annotated[int, typer.Option(min=1, max=100_000, help="Approximate number of apps.")] = 30,
    nodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of nodes.")] = 20,
    shapes: Annotated[
        int, typer.Option(min=1, max=1_000, help="Number of node shapes: up to 3 usual ones, or this many random ones.")
    ] = 3,
    events: Annotated[int, typer.Option(min=1, max=1_000_000, help="Rounds after the cold start.")] = 30,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the first sequence; the same seed gives the same problems.")
    ] = 0,
    sequences: Annotated[int, typer.Option(min=1, max=100_000, help="Sequences, each with the next seed.")] = 1,
    policy: Policy = "dorm",
    param: Param = None,
    reference: ReferenceWanted = Reference.auto,
    gpus: Annotated[bool, typer.Option(help="Give some nodes and apps GPUs.")] = True,
    labels: Annotated[
        bool, typer.Option("--labels", help="Give nodes labels, and apps requirements and gangs.")
    ] = False,
    types: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=32, help="Number of node types, with apps whose speeds are declared or measured."
        ),
    ] = 0,
    plot: Plot = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the optimizer's cost and the quality of its answers while apps arrive and end and nodes fail and return.

    [bold]Examples[/]

      dorm bench optimizer --apps 500 --nodes 1000 --events 40

      dorm bench optimizer --sequences 25 --events 20 -o json

      dorm bench optimizer --policy static --param count=4
    """
    from dorm_lab.bench.optimizer.optimizer import bench_optimizer, check
    from dorm_lab.bench.optimizer.samples import Run

    wanted = Run(
        apps=apps, nodes=nodes, shapes=shapes, events=events, seed=seed, sequences=sequences, policy=policy,
        params=parse_params(param), reference=reference.value, gpus=gpus, labels=labels, types=types,
    )  # fmt: skip
    with wrong_usage():
        check(wanted, plot)
    with measuring("optimizer", verbose) as progress:
        report, interrupted = bench_optimizer(wanted, progress=progress, plot=plot)
    show_report(report, output)
    end_if(interrupted)


def optimizer_scale(
    up_to: Annotated[int, typer.Option(metavar="APPS", min=1, help="Skip sizes with more apps.")] = 10_000,
    events: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Rounds at each size; fewer at large ones unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same problems.")] = 0,
    policy: Policy = "dorm",
    param: Param = None,
    reference: ReferenceWanted = Reference.auto,
    plot: Plot = None,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:
    """Measure the optimizer's cost and quality from 10 apps on 20 nodes to 10,000 on 50,000: one table, one plot.

    It takes long, most of it for exact answers to small problems. Ctrl-C prints
    what was measured so far.

    [bold]Examples[/]

      dorm bench optimizer-scale --plot optimizer.png

      dorm bench optimizer-scale --up-to 500 --reference bound
    """
    from dorm_lab.bench.optimizer.optimizer import check
    from dorm_lab.bench.optimizer.scale import bench_scale, chosen_sizes

    with wrong_usage():
        runs = chosen_sizes(
            up_to=up_to, events=events, seed=seed, policy=policy, params=parse_params(param), reference=reference.value
        )
        check(runs[0], plot)
    with measuring("optimizer-scale", verbose) as progress:
        scale = bench_scale(runs, progress=progress, plot=plot)
    if output in (Format.json, Format.yaml):
        show_document(scale.report, output)
    else:
        rows = [
            {"size": f"{run.apps:,} × {run.nodes:,}", "shapes": run.shapes} | _formatted(figures)
            for run, figures in scale.sizes
        ]
        print_table(rows, [("APPS × NODES", "size"), ("SHAPES", "shapes"), *_SCALE_COLUMNS])
        show_machine(scale.report)
    end_if(scale.interrupted)


_SCALE_COLUMNS = [
    ("P50 S", "event_p50_s"),
    ("P95 S", "event_p95_s"),
    ("MAX S", "event_max_s"),
    ("COLD S", "cold_start_s"),
    ("EXACT MEAN", "gap_to_exact_mean"),
    ("P99", "gap_to_exact_p99"),
    ("BOUND P50", "gap_to_bound_p50"),
    ("MAX", "gap_to_bound_max"),
    ("MISSED", "missed_n_min_count"),
    ("CHANGED", "changed_apps_mean"),
    ("MOVES", "moves_mean"),
    ("MIB", "peak_memory_mb"),
    ("PROBLEMS", "instances"),
]


def _formatted(figures: dict[str, Figure]) -> dict[str, str | None]:
    """Format a size's figures, gaps in percent, with their goals if they have one: `✓` reached, `✗` and the goal not."""
    shown: dict[str, str | None] = {}
    for _, name in _SCALE_COLUMNS:
        value = figures.get(name)
        if value is not None:
            factor, unit = (100, " %") if value.unit == "ratio" else (1, "")
            goal = f" ✗ {factor * float(str(value.goal).split()[1]):g}{unit}" if value.reached is False else ""
            shown[name] = f"{factor * value.value:.3g}{unit}{' ✓' if value.reached else goal}"
            if value.value >= 1000:
                shown[name] = f"{value.value:,.0f}"
    return shown
