"""`dorm simulate`: policies compared on one workload, in virtual time."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorm.cli.errors import USAGE, Fail, WrongUsage, line, report_error
from dorm.cli.output import Format, console, counted, show_document, solver_prints_elsewhere
from dorm.cli.signals import interrupted_by_sigterm
from dorm.cli.source import progress_of
from dorm.cli.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm_lab.compare.comparison import Comparison
    from replay.simulator.contenders import Contender
    from replay.simulator.scenario import Scenario
    from replay.simulator.timings import Timings
    from replay.simulator.workload import SimulatedNode, Workload

PANEL = "What if"
_DRAWN = ("html", "png")
_FIXED = ("static", "tiresias", "fifo", "srtf", "gavel", "shockwave")
"""Policies that give every app a fixed number of containers."""
_MOST_RUNS = 1000
_PROGRESS_S = 60.0
_SAMPLES, _EVERY_S = 1000, 300.0
_OUTAGES_AFTER_S = 30 * 86_400.0


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(simulate)


def complete_workload(incomplete: str) -> list[str]:
    """Complete kinds of workloads, and file names after the colon of a kind that is read from a file."""
    from dorm_lab.workloads.by_name import KINDS

    kind, colon, path = incomplete.partition(":")
    if not colon or f"{kind}:" not in KINDS:
        return [name for name in KINDS if name.startswith(incomplete)]
    begin = Path(path)
    folder = begin if path.endswith("/") else begin.parent
    paths = sorted(path_ for path_ in folder.glob("*") if str(path_).startswith(str(begin) if path else ""))
    return [f"{kind}:{path_}{'/' if path_.is_dir() else ''}" for path_ in paths]


def complete_contender(incomplete: str) -> list[str]:
    """Complete policies, and the parameters of the policy that is being typed."""
    from dorm.policies.registry import names, policy

    begin, comma, last = incomplete.rpartition(",")
    if not comma:
        return [name for name in names() if name.startswith(last)]
    chosen = next((part for part in reversed(begin.split(",")) if "=" not in part), "").rpartition(":")[2]
    known = [f"{key}=" for key in sorted(policy(chosen).check_params({}))] if chosen in names() else []
    return [f"{begin},{word}" for word in (*known, "timings=", "pause=", *names()) if word.startswith(last)]


def _target(text: str) -> str:
    if text in {*Format, *_DRAWN} or Path(text).suffix.lower() in (".html", ".png", ".json"):
        return text
    raise WrongUsage(
        f"{text!r} is neither one of {', '.join([*Format, *_DRAWN])} nor a file that ends in .html, .png or .json",
        code="usage.output.unknown",
    )


def _log(path: Path | None) -> Path | None:
    if path is not None and path.suffix != ".dorm":
        raise WrongUsage(f"{path}: name a file that ends in .dorm", code="usage.file_name")
    return path


def simulate(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", autocompletion=complete_workload, help="paper; parametric,apps=50; or a trace, such as philly:FILE,from=2017-10-01,to=2017-10-08.")],
    policy: Annotated[list[str] | None, typer.Option("--policy", "-p", metavar="P[,KEY=VALUE,...]", autocompletion=complete_contender, help="Policy to compare: dorm,theta1=0.2; may be repeated, or name several: dorm,static (the " "default). Without parameters, static gives each app what the paper's baseline or the " "trace's job had.")] = None,
    nodes: Annotated[str | None, typer.Option(metavar="NODES", help="The cluster: '16x gpu=4,cpu=32,memory=128GiB; 4x cpu=64 zone=a'; default: the workload's own.")] = None,
    load: Annotated[float | None, typer.Option(metavar="PART", min=0.001, max=100, help="Target load, such as 0.8: use as many nodes of the shape in --nodes as make the " "workload demand this fraction of them.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workload's random numbers.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Number of seeds, starting with --seed; the table shows means and their spread.")] = 1,
    rounds: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, max=600, help="Decide once every N virtual seconds; default: soon after something happens, as a real " "master does.")] = None,
    timings: Annotated[str | None, typer.Option(metavar="docker|live|free|pause=30", help="Cost of an adjustment: a restart as with Docker (the default), a live resize, nothing, " "or this many seconds without work, also at the first start.")] = None,
    mtbf: Annotated[str | None, typer.Option(metavar="DURATION", help="Let nodes crash: the mean time until a node does, such as 30d.")] = None,
    repair: Annotated[str, typer.Option(metavar="DURATION", help="With --mtbf: the mean time that a node stays down.")] = "1h",
    until: Annotated[str | None, typer.Option(metavar="DURATION", help="Stop after this virtual time, such as 24h; default: when all apps have ended.")] = None,
    every: Annotated[float | None, typer.Option(metavar="SECONDS", min=1, max=86400, help="Interval at which to sample utilization and fairness, in virtual seconds; default: by the length of the workload, at most 300.")] = None,
    base: Annotated[str | None, typer.Option(metavar="POLICY", help="Baseline of the speed-ups; default: static, if it is among the policies.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FORMAT|FILE", callback=_target, envvar="DORM_OUTPUT", help="table, wide, json, yaml, html or png; or a file to write: NAME.html, NAME.png, NAME.json.")] = "table",
    apps: Annotated[bool, typer.Option("--apps", help="In JSON and YAML: every app of every run as well.")] = False,
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE.dorm", callback=_log, help="Write the log of the run, for dorm replay, dorm state and dorm story; each run gets its " "own file.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a workload with rows that can't be used, instead of skipping them.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Number of parallel runs; default: one for each core.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:  # fmt: skip
    """Compare policies on a workload, in virtual time.

    The live core decides, and simulated agents and apps respond. All policies see
    the same apps at the same moments. A run depends only on the workload, the
    options and the seed.

    COMPLETION, P95 and WAIT are per app, from its submission. UTILIZATION is
    summed over kinds of resources. TIME LOST is the fraction of the time of
    allocated containers that adjustments, or launches of tasks, took. WORST ρ and
    UNFAIR (ρ > 1.1) are finish-time fairness: how much longer an app took than
    with its fair part of the cluster. Exit code 1: an app had not ended although
    --until was not given.

    [bold]Examples[/]

      dorm simulate paper

      dorm simulate paper -p dorm,static,app-level,task-level --seeds 3

      dorm simulate paper -p dorm -p careful:dorm,theta2=0.05 -o paper.html

      dorm simulate parametric,apps=200 --nodes '16x gpu=4,cpu=32,memory=128GiB'

      dorm simulate philly:philly.csv,from=2017-10-01,to=2017-10-08 \\
        --nodes gpu=8,cpu=64 --load 0.8 --rounds 60 --timings pause=30

      dorm simulate paper -p dorm --log run.dorm
      dorm replay timeline --file run.dorm -o run.html
    """
    contenders = _contenders(policy)
    label = _base(base, contenders)
    usual, charged = _usual(rounds, timings, until)
    _check_target(output, force=force)
    loaded = _workloads(workload, range(seed, seed + seeds), strict=strict)
    contenders, loaded = _with_counts(contenders, loaded)
    scenarios = [
        _scenario(workload, _nodes(workload, nodes, load), usual, charged, strict=strict) for workload in loaded
    ]
    if mtbf is not None:
        scenarios = [_failing(scenario, mtbf, repair, seed + place) for place, scenario in enumerate(scenarios)]
    _check_declared(contenders, loaded[0])
    every_s = every or _every_s(loaded)
    used = list(range(seed, seed + len(loaded)))
    settings = {"seeds": used, "nodes": len(scenarios[0].nodes), "rounds_s": rounds,
                "timings": timings or "docker", "mtbf": mtbf, "repair": repair if mtbf else None, "until": until, "every_s": every_s}  # fmt: skip
    compared = _run(
        loaded[0].name, contenders, scenarios, used,
        base=label, every_s=every_s, log=log, force=force, workers=workers,
    )  # fmt: skip
    _show(compared, contenders, loaded[0], settings, output, with_apps=apps, force=force)
    _report_unfinished(compared, cut=until is not None)


def _usage(error: Exception) -> Fail:
    return Fail.of(error, USAGE)


def _contenders(texts: list[str] | None) -> list[Contender]:
    from replay.simulator import SimulationError
    from replay.simulator.contenders import parse_all

    try:
        return parse_all(texts or ["dorm,static"])
    except SimulationError as error:
        raise _usage(error) from None


def _with_counts(contenders: list[Contender], workloads: list[Workload]) -> tuple[list[Contender], list[Workload]]:
    """Give policies of fixed counts without any the workload's: the paper's, or what the jobs of a trace had.

    App names carry the latter for all contenders, so a policy's run does not depend on the others."""
    import msgspec

    from dorm_lab.workloads.requests import by_request
    from replay.simulator.contenders import STATIC_COUNTS

    lacking = [
        contender
        for contender in contenders
        if contender.policy in _FIXED and not {"count", "counts"} & contender.params.keys()
    ]
    counts: dict[str, int] = {}
    if workloads[0].name == "paper":
        counts = dict(STATIC_COUNTS)
    else:
        named = [by_request(workload) for workload in workloads]
        workloads = [workload for workload, _ in named]
        counts = {key: count for _, each in named for key, count in each.items()}
    if not counts:
        return contenders, workloads
    given = {
        entry.label: msgspec.structs.replace(entry, params={**entry.params, "counts": counts}) for entry in lacking
    }
    return [given.get(contender.label, contender) for contender in contenders], workloads


def _base(wanted: str | None, contenders: Sequence[Contender]) -> str:
    """Return the label of the contender that the others are compared with, '' for none."""
    labels = [contender.label for contender in contenders]
    if wanted is None:
        return next((contender.label for contender in contenders if contender.policy == "static"), "")
    if wanted not in labels:
        raise Fail(
            f"--base {wanted!r} is not among the policies that are compared: {', '.join(labels)}",
            USAGE,
            code="simulation.base.unknown",
        )
    return wanted


def _workloads(text: str, seeds: Sequence[int], *, strict: bool) -> list[Workload]:
    """Return one workload for each seed; a single one if nothing in it is random."""
    from dorm_lab.workloads.by_name import load
    from dorm_lab.workloads.options import WrongOption

    try:
        workloads = [load(text, strict=strict, seed=seeds[0])]
    except WrongOption as error:
        raise _usage(error) from None
    for seed in seeds[1:]:
        other = load(text, strict=strict, seed=seed)
        if other.apps == workloads[0].apps:
            _print_note(f"nothing in {workloads[0].name} is drawn: all seeds are one")
            break
        workloads.append(other)
    return workloads


def _nodes(workload: Workload, text: str | None, load: float | None) -> tuple[SimulatedNode, ...]:
    from dorm_lab.workloads.nodes import parse, sized
    from replay.simulator import SimulationError

    if text is None and load is not None:
        raise Fail(
            "--load needs the shape of a node: --nodes gpu=8,cpu=64,memory=512GiB",
            USAGE,
            code="simulation.nodes.missing",
        )
    if text is None:
        if not workload.nodes:
            raise Fail(
                f"workload {workload.name} names no cluster; say --nodes '16x gpu=4,cpu=32,memory=128GiB', or a shape with "
                "--load 0.8", USAGE, code="simulation.nodes.missing",
            )  # fmt: skip
        return workload.nodes
    try:
        given = parse(text)
        if load is None:
            return given
        if len(given) != 1:
            raise SimulationError(f"--load needs one shape of node in --nodes, not {len(given)} nodes")
        return sized(workload, given[0].capacity, load)
    except SimulationError as error:
        raise _usage(error) from None


def _usual(rounds: float | None, timings: str | None, until: str | None) -> tuple[dict[str, Any], Timings | None]:
    """Return the settings common to all scenarios, and the timings for every app, None for each app's own.

    In rounds, apps report progress no more often than decisions use it."""
    from events.quantities import duration
    from replay.simulator import SimulationError
    from replay.simulator.contenders import parse_timings
    from replay.simulator.scenario import Rounds

    usual: dict[str, Any] = {}
    if rounds:
        usual = {"quiet_s": 0.0, "rounds": Rounds(rounds), "progress_s": max(rounds, _PROGRESS_S)}
    try:
        usual["until_s"] = None if until is None else duration(until)
        return usual, None if timings is None else parse_timings(timings)
    except (SimulationError, ValueError) as error:
        raise _usage(error) from None


def _scenario(
    workload: Workload,
    nodes: tuple[SimulatedNode, ...],
    usual: dict[str, Any],
    timings: Timings | None,
    *,
    strict: bool,
) -> Scenario:
    from dorm_lab.cli.comparisons import skipped_in_words
    from dorm_lab.workloads.nodes import fitting
    from replay.simulator.contenders import with_timings
    from replay.simulator.scenario import Scenario

    fits = fitting(workload, nodes, strict=strict)
    if left := skipped_in_words(fits):
        _print_note(left)
    if not fits.apps:
        raise Fail(f"workload {workload.name} has no app that these nodes could run", code="workload.nothing_fits")
    scenario = Scenario(apps=fits.apps, nodes=nodes, **usual)
    return scenario if timings is None else with_timings(scenario, timings)


def _every_s(workloads: Sequence[Workload]) -> float:
    """Return the sampling interval: a thousandth of the arrivals' span plus the longest app's time with all containers."""
    apps = [app for workload in workloads for app in workload.apps]
    longest_s = max(app.work / max(app.speed.rate((app.spec.n_max,)), 1e-9) for app in apps)
    return float(round(min(max((max(app.at_s for app in apps) + longest_s) / _SAMPLES, 1.0), _EVERY_S)))


def _failing(scenario: Scenario, mtbf: str, repair: str, seed: int) -> Scenario:
    """Return the scenario with outages until some time after the last submission."""
    import msgspec

    from dorm_lab.workloads.outages import poisson
    from events.quantities import duration
    from replay.simulator import SimulationError

    until_s = scenario.until_s or scenario.apps[-1].at_s + _OUTAGES_AFTER_S
    try:
        outages = poisson(scenario.nodes, mtbf_s=duration(mtbf), repair_s=duration(repair), until_s=until_s, seed=seed)
    except (SimulationError, ValueError) as error:
        raise _usage(error) from None
    return msgspec.structs.replace(scenario, outages=outages)


def _check_declared(contenders: Sequence[Contender], workload: Workload) -> None:
    needy = ("dorm-speed", "oasis", "optimus", "shockwave", "srtf", "themis")
    asking = [contender.policy for contender in contenders if contender.policy in needy]
    if asking and not any(app.spec.steps for app in workload.apps):
        _print_note(
            f"{asking[0]} needs the work that is left, which no app of {workload.name} reports; add told=yes to the workload"
        )


def _run(
    name: str, contenders: Sequence[Contender], scenarios: Sequence[Scenario], seeds: Sequence[int], *,
    base: str, every_s: float, log: Path | None, force: bool, workers: int | None,
) -> Comparison:  # fmt: skip
    from dorm_lab.compare.comparison import Comparison
    from dorm_lab.compare.runs import run_all

    jobs = [
        (contender, seed, contender.of(scenario))
        for contender in contenders
        for seed, scenario in zip(seeds, scenarios, strict=True)
    ]
    if len(jobs) > _MOST_RUNS:
        raise Fail(f"{len(jobs):,} runs are too many; at most {_MOST_RUNS:,}", USAGE, code="simulation.too_many_runs")
    logs = [log_file(log, job.label, seed, alone=len(jobs) == 1) for job, seed, _ in jobs]
    with interrupted_by_sigterm(), progress_of("simulating") as progress, solver_prints_elsewhere():
        runs = run_all(
            [scenario for _, _, scenario in jobs],
            every_s=every_s, workers=workers, progress=progress, logs=logs, force=force,
        )  # fmt: skip
    by_label = {
        contender.label: tuple(run for run, (its, _, _) in zip(runs, jobs, strict=True) if its is contender)
        for contender in contenders
    }
    tasks = {contender.label: 1 - contender.tasks.efficiency for contender in contenders if contender.tasks is not None}
    return Comparison(name=name, runs=by_label, base=base, tasks=tasks)


def log_file(path: Path | None, label: str, seed: int, *, alone: bool) -> Path | None:
    """Return the file for a run's log: `run.dorm`, or `run-static-seed-1.dorm` if there are several."""
    if path is None or alone:
        return path
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-")
    return path.with_name(f"{path.stem}-{slug}-seed-{seed}{path.suffix}")


def _check_target(output: str, *, force: bool) -> None:
    """Check the target before computing anything: the result must be writable."""
    if output in _DRAWN and sys.stdout.isatty():
        raise Fail(
            f"-o {output} is not text for a terminal; write it to a file: -o comparison.{output}",
            USAGE,
            code="usage.terminal",
        )
    if output in {*Format, *_DRAWN}:
        return
    path = Path(output)
    if not path.parent.is_dir():
        raise Fail(f"{path}: there is no folder {path.parent}", code="file.no_folder")
    if path.exists() and not force:
        raise Fail(f"{path} already exists; choose another name, or replace it with --force", code="file.exists")


def _show(
    compared: Comparison, contenders: Sequence[Contender], workload: Workload, settings: dict[str, Any], output: str, *,
    with_apps: bool, force: bool,
) -> None:  # fmt: skip
    from dorm_lab.cli.comparisons import document_of, show_comparison
    from replay.whole_file import whole_file_now

    if output in (Format.table, Format.wide):
        console.print(headline(workload, settings), markup=False)
        show_comparison(
            compared, contenders, Format(output), apps=len(workload.apps), in_rounds=bool(settings["rounds_s"])
        )
        return
    document = document_of(compared, contenders, workload, settings, with_apps=with_apps)
    if output in (Format.json, Format.yaml):
        show_document(document, Format(output))
        return
    drawn = _draw(output.rpartition(".")[2].lower(), compared, document, f"dorm simulate {workload.name}")
    if output in _DRAWN:
        sys.stdout.buffer.write(drawn)
        sys.stdout.buffer.flush()
        return
    with whole_file_now(Path(output), force=force) as file:
        file.write(drawn)
    console.print(f"{len(compared.labels)} policies are compared in {output} ({len(drawn):,} bytes)", markup=False)


def headline(workload: Workload, settings: dict[str, Any]) -> str:
    """Describe the simulation in one line."""
    seeds = f", seed {settings['seeds'][0]}" if len(settings["seeds"]) == 1 else f", {len(settings['seeds'])} seeds"
    return f"{workload.name}: {counted(len(workload.apps), 'app')} on {counted(settings['nodes'], 'node')}{seeds}\n"


def _draw(form: str, compared: Comparison, document: dict[str, Any], title: str) -> bytes:
    """Return the whole file.  The drawing library is imported only now."""
    if form == "html":
        from dorm_lab.compare.page import html

        return html(compared, title).encode("utf-8", "replace")
    if form == "png":
        from dorm_lab.compare.plots import png

        return png(compared, title)
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _report_unfinished(compared: Comparison, *, cut: bool) -> None:
    from dorm_lab.cli.comparisons import unfinished

    for label in compared.labels:
        for run in compared.runs[label]:
            if text := unfinished(label, run):
                if cut:
                    _print_note(text)
                else:
                    report_error(text, "simulation.unfinished")


def _print_note(text: str) -> None:
    print_line(line(Exception(text)), error=True, flush=True)
