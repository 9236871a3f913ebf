"""All measurements of live resizing in one run: pauses, convergence, balance, overhead, and the use of each sample.

    pauses     live and by checkpoint and restart, in NumPy and, if it is installed, in PyTorch, at several sizes, by cause;
               for comparison, torchrun's elastic agent and torchft, or the reason why not
    shared     the same through the control plane, and what a partition costs its app
    targets    rounds and time to a target: uni-tasks, micro-tasks, resized runs
    balance    a step with one worker at half speed, against the ideal split
    schedules  random resizes, deaths and freezes in virtual time: samples lost and used twice

Each part's module says what it measures and how.  All of them need only NumPy, except for the PyTorch variants.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dorm.bench import BenchError
from dorm.bench.report import Figure, Report, figure, percentile, this_machine
from dorm_lab.bench.elastic.balance import WORKERS, Balanced, balance
from dorm_lab.bench.elastic.convergence import L2, PLANS, RESIZED_AFTER, TARGETS, TASKS, Trained, convergence
from dorm_lab.bench.elastic.data import SETS, write
from dorm_lab.bench.elastic.pauses import DEVICE_S, FROZEN, Pause, Proven, no_torch, pauses
from dorm_lab.bench.elastic.peers import LAST_CALL_S, PEERS, SAVE_EVERY_S, missing, peer_pauses
from dorm_lab.bench.elastic.schedules import Tally, tallies
from dorm_lab.bench.elastic.sharing import LARGE, SMALL, Amounts, Shared, sharing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.bench.report import Progress

__all__ = ["PARTS", "QUICK", "Done", "Results", "Wanted", "bench_elastic", "check"]

PARTS = ("pauses", "peers", "shared", "targets", "balance", "schedules")
LIVE_GOALS = {"numpy": 0.05, "torch": 1.0}
"""Seconds, p50 over all sizes and causes."""
TAIL_GOALS = {"numpy": 0.05}
"""The same for p99."""
GOALS = LIVE_GOALS, TAIL_GOALS
SPEED_UP_GOAL = 10
FROZEN_GOAL_S = 2.0
BALANCE_GOAL = 1.15
REST_GOAL, MINUTE_GOAL = 0.01, 0.03
CAUSES = ("grow", "shrink", "death")


class Wanted(NamedTuple):
    """What to measure, and how much of it."""

    parts: tuple[str, ...] = PARTS
    sizes: tuple[int, ...] = (2, 4, 8)
    cycles: int = 4
    """Turns of shrinking, growing and a death at each size, live in NumPy; the other kinds take longer and get one each."""
    schedules: int = 200
    sets: tuple[str, ...] = ("digits", "generated")
    plans: tuple[str, ...] = tuple(PLANS)
    shared: Amounts = Amounts()
    torch: bool = True


QUICK = Wanted(
    sizes=(2, 4), cycles=1, schedules=40, sets=("digits",), shared=Amounts(1, 8, 2, 2, settles_s=0.0), torch=False
)


class Results:
    """What has been measured so far."""

    def __init__(self) -> None:
        self.pauses: list[Pause] = []
        self.proven: list[Proven] = []
        self.shared: Shared | None = None
        self.trained: list[Trained] = []
        self.balanced: Balanced | None = None
        self.tallies: list[Tally] = []
        self.not_measured: dict[str, str] = {}


class Done(NamedTuple):
    """The report, what it was made from, and whether it was stopped before everything was measured."""

    report: Report
    interrupted: bool
    results: Results


def check(wanted: Wanted) -> None:
    """Check before anything runs.  Raises BenchError."""
    for part in wanted.parts:
        if part not in PARTS:
            raise BenchError(f"part {part}: there are {', '.join(PARTS)}", code="usage.unknown")
    for size in wanted.sizes:
        if size < 2 or size % 2:
            raise BenchError(f"size {size}: an even number of workers, which can be halved", code="usage.value")


def bench_elastic(wanted: Wanted, *, progress: Progress) -> Done:
    """Measure one part after the other; after Ctrl-C return the figures measured so far.  Raises BenchError, and what a
    cluster raises that can't start."""
    machine = this_machine()
    results = Results()
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="dorm-bench-elastic-") as folder:
        try:
            _measure(wanted, Path(folder), results, progress)
        except KeyboardInterrupt:
            interrupted = True
    figures = figures_of(results)
    if not figures:
        raise BenchError("it was stopped before anything was measured", code="bench.stopped")
    settings = _settings(wanted, results) | ({"interrupted": True} if interrupted else {})
    return Done(Report(bench="elastic", machine=machine, settings=settings, figures=figures), interrupted, results)


def _measure(wanted: Wanted, folder: Path, results: Results, progress: Progress) -> None:
    data = write("digits", folder)
    if "schedules" in wanted.parts:
        for number, tally in enumerate(tallies(wanted.schedules)):
            results.tallies.append(tally)
            if number % 10 == 0:
                progress(f"schedule {number} of {wanted.schedules}")
    if "balance" in wanted.parts:
        progress(f"{WORKERS} workers, one of them at half speed")
        results.balanced = balance(folder / "balance", data)
    if "targets" in wanted.parts:
        results.trained.extend(convergence(wanted.sets, wanted.plans, folder, progress))
    if "shared" in wanted.parts:
        results.shared = asyncio.run(sharing(wanted.shared, folder, data, progress))
    if "pauses" in wanted.parts:
        _pauses(wanted, folder, data, results, progress)
    if "peers" in wanted.parts:
        for peer in PEERS:
            if reason := missing(peer) if wanted.torch else _LEFT_OUT:
                results.not_measured[peer] = reason
                continue
            try:
                results.pauses.extend(peer_pauses(peer, wanted.sizes, folder, data, progress))
            except BenchError as error:  # If another system fails, that is a result, and the bench continues.
                results.not_measured[peer] = str(error)


_LEFT_OUT = "left out, as asked"


def _pauses(wanted: Wanted, folder: Path, data: Path, results: Results, progress: Progress) -> None:
    if reason := no_torch() if wanted.torch else _LEFT_OUT:
        results.not_measured["torch"] = reason
    for library, how in product(("numpy", "torch"), ("live", "restart")):
        if library in results.not_measured:
            continue
        cycles = wanted.cycles if (library, how) == ("numpy", "live") else 1
        for pause in pauses(library, how, wanted.sizes, cycles, folder, data, progress):
            if isinstance(pause, Pause):
                results.pauses.append(pause)
            else:
                results.proven.append(pause)


def _settings(wanted: Wanted, results: Results) -> dict[str, Any]:
    claim = claims(results.trained)
    return {
        "parts": wanted.parts,
        "workers": wanted.sizes,
        "pause": "from the last completed step before a change to the first one after it, less an ordinary step",
        "step": f"a network on the digits, a batch of 256, and {DEVICE_S:g} s as for an accelerator",
        "causes": f"grow: the second half of the workers joins; shrink: it leaves; death: SIGKILL; {FROZEN}: SIGSTOP",
        "restart": "all workers are stopped and started at once; without decision and release, which cost both alike",
        "not_measured": results.not_measured,
        "torchrun": f"last call {LAST_CALL_S} s (30 unless set), checkpoints every {SAVE_EVERY_S:g} s, one agent a worker",
        "control_plane": f"{SMALL} to {LARGE} workers and back, processes",
        "data": {name: SETS[name] for name in wanted.sets},
        "targets": {f"{solver}_{name}": TARGETS[solver, name] for solver, name in TARGETS if name in wanted.sets},
        "l2": {name: L2[name] for name in wanted.sets},
        "tasks": f"{TASKS} micro-tasks for each worker; resized after rounds {[after + 1 for after in RESIZED_AFTER]}",
        "target_time": "a core for each worker: CPU time of the slowest worker of each step, summed",
        "micro_tasks_need_more_epochs": claim,
        "schedules": dict(sum((tally.happened for tally in results.tallies), Counter())),
    }


def claims(trained: Sequence[Trained]) -> str:
    """Return whether these runs reproduce the claim that micro-tasks need more epochs, with the ratios."""
    rounds = {(training.solver, training.data, training.plan): training.rounds for training in trained}
    ratios = {
        f"{solver} on {data}, workers: {workers}": rounds[solver, data, f"micro_{workers}"] / alone
        for (solver, data, plan), alone in rounds.items()
        for kind, _, workers in [plan.partition("_")]
        if kind == "uni" and (solver, data, f"micro_{workers}") in rounds
    }
    if not ratios:
        return "not measured"
    shown = "; ".join(f"{name}: x{ratio:.1f}" for name, ratio in ratios.items())
    more = sum(ratio > 1 for ratio in ratios.values())
    return f"{'reproduced' if more == len(ratios) else f'in {more} of {len(ratios)} cases'} ({shown})"


# --- figures ------------------------------------------------------------------------------------------------------------


def figures_of(results: Results) -> dict[str, Figure]:
    """Return the figures of what was measured."""
    figures = _pause_figures(results.pauses)
    figures |= _shared_figures(results.shared) if results.shared is not None else {}
    for training in results.trained:
        name = f"{training.solver}_{training.data}_{training.plan}"
        figures[f"{'rounds' if training.solver == 'cocoa' else 'epochs'}_{name}"] = figure(training.rounds, "count")
        figures[f"{name}_s"] = figure(training.seconds, "s")
    if (steps := results.balanced) is not None:
        figures["balanced_step_ratio"] = figure(steps.after_s / steps.ideal_s, "ratio", f"<= {BALANCE_GOAL:g}")
        figures["unbalanced_step_ratio"] = figure(steps.before_s / steps.ideal_s, "ratio")
    if results.tallies:
        every = results.tallies
        figures["schedules"] = figure(len(every), "count")
        figures["schedules_all_ended"] = figure(sum(not tally.finished for tally in every), "count")
        figures["samples_used"] = figure(sum(tally.used for tally in every), "count")
        figures["samples_lost"] = figure(sum(tally.lost for tally in every), "count", "<= 0")
        figures["samples_repeated"] = figure(sum(tally.repeated for tally in every), "count", "<= 0")
        figures["samples_computed_again"] = figure(sum(tally.computed_again for tally in every), "count")
        figures["epochs_wrong_in_schedules"] = figure(sum(tally.wrong_epochs for tally in every), "count", "<= 0")
    if results.proven:
        figures["epochs_proven"] = figure(sum(pause.epochs for pause in results.proven), "count")
        figures["epochs_wrong"] = figure(sum(pause.wrong for pause in results.proven), "count", "<= 0")
    return figures


def _pause_figures(pauses: Sequence[Pause]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    kinds = list(dict.fromkeys((pause.library, pause.how) for pause in pauses))
    for library, how in kinds:
        every = [pause for pause in pauses if (pause.library, pause.how) == (library, how) and pause.cause in CAUSES]
        name = f"{library}_{how}_pause" if how else f"{library}_pause"
        goal, tail = (f"<= {goals[library]:g}" if how == "live" and library in goals else None for goals in GOALS)
        figures |= _spread(name, [pause.seconds for pause in every], goal, tail)
        for workers, cause in dict.fromkeys((other.workers, other.cause) for other in every):
            some = [pause.seconds for pause in every if (pause.workers, pause.cause) == (workers, cause)]
            figures |= _spread(f"{name}_{workers}_{cause}", some)
    frozen = [pause.seconds for pause in pauses if pause.cause == FROZEN]
    if frozen:
        figures["numpy_live_pause_frozen_s"] = figure(max(frozen), "s", f"<= {FROZEN_GOAL_S:g}")
    for library in LIVE_GOALS:
        live, restart = (figures.get(f"{library}_{how}_pause_p50_s") for how in ("live", "restart"))
        if live is not None and restart is not None and live.value > 0:
            ratio = restart.value / live.value
            figures[f"{library}_restart_over_live_ratio"] = figure(ratio, "ratio", f">= {SPEED_UP_GOAL}")
    return figures


def _spread(name: str, seconds: Sequence[float], goal: str | None = None, tail: str | None = None) -> dict[str, Figure]:
    return {
        f"{name}_p50_s": figure(percentile(seconds, 50), "s", goal),
        f"{name}_p99_s": figure(percentile(seconds, 99), "s", tail),
    }


def _shared_figures(shared: Shared) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for how in ("live", "restart"):
        some = [resize.pause_s for resize in shared.resizes if resize.how == how]
        figures |= _spread(f"cluster_{how}_pause", some) if some else {}
    grown = [resize for resize in shared.resizes if (resize.how, resize.cause) == ("live", "grow")]
    if grown:
        figures["cluster_live_start_p50_s"] = figure(percentile([growth.start_s for growth in grown], 50), "s")
        figures["cluster_live_boot_p50_s"] = figure(percentile([growth.boot_s for growth in grown], 50), "s")
    figures["sharing_step_ratio"] = figure(shared.ratio, "ratio")
    figures["sharing_step_error_ratio"] = figure(shared.error, "ratio")
    figures["sharing_step_noise_ratio"] = figure(shared.noise, "ratio")
    figures["sharing_control_plane_cores_mean"] = figure(shared.control_cores, "ratio")
    figures["sharing_overhead_at_rest_ratio"] = figure(shared.at_rest, "ratio", f"<= {REST_GOAL:g}")
    if any(resize.how == "live" for resize in shared.resizes):
        figures["sharing_overhead_live_per_minute_ratio"] = figure(shared.per_minute, "ratio", f"<= {MINUTE_GOAL:g}")
    return figures
