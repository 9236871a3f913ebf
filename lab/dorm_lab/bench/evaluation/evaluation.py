"""The evaluation: Dorm against other policies, on the paper's workload and on real traces, all in virtual time.

    evaluation_parts    a part: runs that are compared with each other
    evaluation_paper    the paper's workload, and its variations
    evaluation_crash_loop  what an app that fails repeatedly costs its neighbor
    evaluation_traces   real traces, if their folder is given
    evaluation_figures  the figures of evaluation.json, with their goals
    evaluation_text     the report's text, computed from the runs

`evaluate` runs a plan over all cores and writes a folder: report.md, report.html, plots, evaluation.json.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from dorm.bench import BenchError
from dorm.bench.report import Report, this_machine
from dorm_lab.bench.evaluation import paper as evaluation_paper
from dorm_lab.bench.evaluation.crash_loop import crash_loop
from dorm_lab.bench.evaluation.figures import figures_of
from dorm_lab.bench.evaluation.kept import Kept
from dorm_lab.bench.evaluation.parts import RIVALS, SPEED
from dorm_lab.bench.evaluation.plan import Plan
from dorm_lab.bench.evaluation.sweeps import SWEEPS
from dorm_lab.bench.evaluation.text import blocks
from dorm_lab.bench.evaluation.traces import TRACES
from dorm_lab.compare import page, plots, report
from dorm_lab.compare.runs import run_all
from events.errors import code_of
from replay.simulator import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from dorm_lab.bench.evaluation.parts import Part
    from dorm_lab.compare.comparison import Comparison
    from replay import Progress
    from replay.simulator.outcome import Run
    from replay.simulator.scenario import Scenario

SEEDS = 5
"""Number of seeds of the paper's workload; a variation has the first `VARIED` of them."""
VARIED = 3
OPTIONAL = (
    "variations",
    "philly",
    "alibaba",
    "pollux",
    "pollux_tuned",
    "pollux_events",
    "restart_cost",
    "elastic_apps",
)
"""Parts that can be left out."""
RARE = ("pollux, fixed", f"{SPEED}, live", *RIVALS)
"""Contenders on traces that can be left out."""


def plan(
    *,
    seeds: int = SEEDS,
    varied: int = VARIED,
    quick: bool = False,
    traces: Path | None = None,
    without: Collection[str] = (),
) -> Plan:
    """Return the runs to make, `without` some of the `OPTIONAL` parts and `RARE` contenders.

    `quick` only checks that everything works: few apps, one seed, three variations.
    Raises BenchError if the folder does not exist, and for a trace that exists and can't be read."""
    apps = 8 if quick else None
    seeds = 1 if quick else seeds
    if traces is not None and not traces.is_dir():
        raise BenchError(f"traces {traces}: there is no such folder", code="file.no_folder")
    whole = evaluation_paper.whole(seeds, apps)
    variations = evaluation_paper.variations(min(seeds, varied), apps)
    parts, missing = [], []
    for name, build in TRACES.items():
        with _refusals():
            part = None if traces is None else build(traces, quick)
        if part is None:
            missing.append(name)
        else:
            parts.append(part)
    with _refusals():
        sweeps = () if traces is None else tuple(sweep for build in SWEEPS if (sweep := build(traces, quick)))
    variations = () if "variations" in without else variations[:3] if quick else variations
    parts = [_without(part, without) for part in parts if part.key not in without]
    sweeps = tuple(sweep for sweep in sweeps if sweep.part.key not in without)
    left_out = tuple(name for name in (*OPTIONAL, *RARE) if name in without)
    return Plan(whole, variations, tuple(parts), tuple(missing), crash_loop(), sweeps, left_out)


def _without(part: Part, labels: Collection[str]) -> Part:
    return msgspec.structs.replace(part, jobs=tuple(job for job in part.jobs if job.label not in labels))


def run_plan(
    wanted: Plan, *, workers: int | None = None, progress: Progress | None = None, kept: Kept | None = None
) -> dict[str, Comparison]:
    """Run everything, side by side; return comparisons by the key of their part.  `progress` is called with the number
    of ended apps.  Runs that are `kept` are not repeated.

    Raises what `run_all` does, and OSError if a run cannot be kept."""
    kept = kept if kept is not None else Kept(None, "")
    comparisons: dict[str, Comparison] = {}
    total = sum(len(job.scenario.apps) for part in wanted.parts for job in part.jobs)
    done = 0
    for every_s in sorted({part.every_s for part in wanted.parts}):
        parts = [part for part in wanted.parts if part.every_s == every_s]
        jobs = [(part, place) for part in parts for place in range(len(part.jobs))]
        runs = {(part.key, place): run for part, place in jobs if (run := kept.get(part, place)) is not None}
        left = [(part, place) for part, place in jobs if (part.key, place) not in runs]
        done += sum(map(_size, jobs)) - sum(map(_size, left))
        # The longest first, so that it does not run alone at the end.
        left.sort(key=lambda job: -_weight(_scenario(job)))

        def ended(place: int, run: Run, left: list[tuple[Part, int]] = left) -> None:
            kept.put(*left[place], run)

        shown = _after(done, total, progress)
        scenarios = [_scenario(job) for job in left]
        ran = run_all(scenarios, every_s=every_s, workers=workers, progress=shown, timed=True, done=ended)
        runs.update(((part.key, place), run) for (part, place), run in zip(left, ran, strict=True))
        for part in parts:
            comparisons[part.key] = part.comparison([runs[part.key, place] for place in range(len(part.jobs))])
        done += sum(map(_size, left))
    return comparisons


def _scenario(job: tuple[Part, int]) -> Scenario:
    part, place = job
    return part.jobs[place].scenario


def _size(job: tuple[Part, int]) -> int:
    return len(_scenario(job).apps)


def _after(done: int, total: int, progress: Progress | None) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda ended, _: progress(done + ended, total)


def _weight(scenario: Scenario) -> float:
    """Estimate the duration: the optimizing policies decide longer than the others."""
    return len(scenario.apps) * len(scenario.nodes) * (10.0 if scenario.policy.startswith("dorm") else 1.0)


def check_folder(folder: Path) -> None:
    """Check before anything runs that the report can be written there.  Raises BenchError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"folder {folder}: {error.strerror or error}", code=code_of(error)) from None
    with _refusals():
        plots.need("matplotlib")
        plots.need("plotly")


def evaluate(wanted: Plan, folder: Path, *, workers: int | None = None, progress: Progress | None = None) -> Report:
    """Run the plan and write the folder; return the content of its evaluation.json.

    An evaluation that is interrupted leaves its runs in the folder, and the next one with the same plan and sources continues
    from there.  Raises BenchError."""
    check_folder(folder)
    machine = this_machine()
    kept = Kept(folder, wanted.digest)
    with _refusals():
        comparisons = run_plan(wanted, workers=workers, progress=progress, kept=kept)
    figures = figures_of(wanted, comparisons)
    settings = {
        "seeds": comparisons[wanted.paper.key].seeds,
        "apps": len(wanted.paper.jobs[0].scenario.apps),
        "traces": [part.key for part in wanted.traces],
        "variations": [variation.name for variation in wanted.variations],
    }
    done = Report(bench="evaluation", machine=machine, settings=settings, figures=figures)
    with _refusals():
        _write(wanted, comparisons, done, folder)
        kept.drop()
    return done


def _write(wanted: Plan, comparisons: dict[str, Comparison], done: Report, folder: Path) -> None:
    text = blocks(wanted, comparisons, done)
    for block in text:
        if isinstance(block, report.Curves):
            (folder / f"{block.slug}.png").write_bytes(plots.curves_png(block))
        elif isinstance(block, report.Figures):
            for name in plots.FIGURES:
                picture = plots.one_png(name, block.comparison)
                (folder / report.figure_file(block.slug, name)).write_bytes(picture)
    (folder / "report.md").write_text(report.markdown(text, list(plots.FIGURES)), "utf-8")
    (folder / "report.html").write_text(page.page(text, "Evaluation of Dorm"), "utf-8")
    data = msgspec.json.format(msgspec.json.encode(done), indent=2)
    (folder / "evaluation.json").write_bytes(data + b"\n")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except SimulationError as error:
        raise BenchError(str(error), code=code_of(error)) from None
    except OSError as error:
        raise BenchError(f"{error.filename or 'the folder'}: {error.strerror or error}", code=code_of(error)) from None
