"""The cost of one round of a policy, and the quality of its answers, over sequences of events on clusters of any size.

Sequences are those of `dorm_lab.bench.optimizer.workload`, and each problem starts from the previous answer.  First a whole
run is played and timed, in one process that does nothing else; only then are the same problems solved again for reference, on
all cores.  Each answer is checked in integers against its problem: an answer that breaks a rule ends the bench.

* Time is CPU time of the process (the solver runs within it), of `allocate` alone, with wall time next to it.  The cold start,
  all apps at once on an empty cluster, is reported separately from the events.
* Gaps are parts of a bound on U less the price of changes, the goal that is most expensive to reach.  `gap_to_exact` is to the
  bound that the exact policy proves under its own choices for the earlier goals, plus what is lost beyond it in excess
  fairness loss; `gap_to_bound` is to the bound that the measured policy itself proves.
* n_min comes before all that.  If the two serve different apps, their utilizations are not comparable: such problems count
  in `unlike_instances` and have no gap, and in `missed_n_min_count` if the exact policy serves better.
* The soft floors come before utilization too: `missed_floor_count` is how often the exact policy comes closer to them.
* Efficiency, utility uniformity and envy-freeness measure an answer of any policy as a division of nodes among apps whose
  weights are budgets (`dorm_lab.policies.market.answers`): 1 is best for each.
* The exact policy has limits too: `reference_proven_instances` is how often its answer is proven optimal, and
  `reference_gap_mean` how far its own answers are from its bounds.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dorm.bench import BenchError
from dorm.bench.apart import items_of, processors
from dorm.bench.report import Figure, Report, figure, percentile, spread, this_machine
from dorm.policies import goals as goals_of
from dorm.policies import integer
from dorm.policies.registry import policy
from dorm_lab.bench.optimizer import judge
from dorm_lab.bench.optimizer.samples import Answer, Goals, Played, Run, Samples, Solved, Task, gap, goals
from dorm_lab.bench.optimizer.typed import Types
from dorm_lab.bench.optimizer.workload import World
from dorm_lab.policies.market.answers import measured
from events.errors import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dorm.bench.report import Progress
    from dorm.policies.problem import Allocation, Problem


EXACT = "dorm-exact"


def bench_optimizer(run: Run, *, progress: Progress, plot: Path | None = None) -> tuple[Report, bool]:
    """Measure one size.  The flag is set if Ctrl-C ended it early; then the figures cover the events measured so far.

    Raises BenchError for an unknown policy or invalid parameters, an answer that breaks a rule, and if nothing was measured.
    """
    from dorm_lab.bench.optimizer.plot import plot_run

    check(run, plot)
    machine = this_machine()
    samples = measure(run, progress)
    report = Report(bench="optimizer", machine=machine, settings=settings(samples), figures=figures(samples))
    if plot is not None:
        plot_run(samples, plot)
    return report, samples.interrupted


def check(run: Run, plot: Path | None) -> None:
    """Check the arguments before anything is measured.  Raises BenchError for an unknown policy or invalid parameters, and for
    a plot that could not be written."""
    from dorm_lab.bench.optimizer.plot import check_plot

    try:
        policy(run.policy).check_params(run.params)
    except (LookupError, ValueError) as error:
        raise BenchError(str(error), code=code_of(error)) from None
    check_plot(plot)


def measure(run: Run, progress: Progress) -> Samples:
    """Play, then solve again.  Ctrl-C ends it with the samples so far."""
    samples = Samples(run)
    total = run.sequences * (run.events + 1)
    try:
        with contextlib.closing(items_of([(play, (run,))])) as stream:
            for played in stream:
                samples.played.append(played)
                progress(f"{run}: event {len(samples.played)} of {total}, {played.event}, {played.cpu_s:.3g} s")
        if run.against == "exact":
            _solve_again(samples, progress)
    except KeyboardInterrupt:
        samples.interrupted = True
    return samples


def _solve_again(samples: Samples, progress: Progress) -> None:
    tasks = [(index, played.task) for index, played in enumerate(samples.played) if played.task is not None]
    workers = min(processors(), len(tasks))
    works = [(solve, (samples.run, tasks[first::workers])) for first in range(workers)]
    with contextlib.closing(items_of(works)) as stream:
        for solved in stream:
            samples.solved[solved.index] = solved
            progress(f"{samples.run}: reference {len(samples.solved)} of {len(tasks)}, {solved.cpu_s:.3g} s")


# Run in separate processes


def play(run: Run) -> Iterator[Played]:
    """Yield every event of every sequence, one after the other."""
    chosen = policy(run.policy)
    params = chosen.check_params(run.params)
    for sequence in range(run.sequences):
        world = World(
            apps=run.apps,
            nodes=run.nodes,
            shapes=run.shapes,
            seed=run.seed + sequence,
            gpus=run.gpus,
            labels=run.labels,
        )
        types = Types(run.types, run.seed + sequence) if run.types else None
        for _ in range(run.events + 1):
            problem = world.next_problem()
            if types is not None:
                problem = types.problem(problem)
            wall, cpu = time.perf_counter(), time.process_time()
            allocation = chosen.allocate(problem, params)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if faults := judge.faults(problem, allocation.counts):
                where = f"seed {run.seed + sequence}, event {world.number} ({world.event.kind} {world.event.subject})"
                raise BenchError(
                    f"{run}, {where}: the answer breaks a rule: {'; '.join(faults[:3])}", code="bench.wrong_answer"
                )
            yield Played(
                sequence=sequence,
                number=world.number,
                event=world.event.kind,
                cpu_s=cpu,
                wall_s=wall,
                answer=_answer(problem, allocation, params),
                loss=allocation.fairness_loss,
                loss_budget=allocation.fairness_budget,
                changed=judge.changed(problem, allocation.counts),
                moved=judge.moved(problem, allocation.counts),
                digests=(_digest(problem), _digest(allocation.counts)),
                peak_mb=_peak_mb(),
                task=Task(problem, allocation.counts) if run.against == "exact" else None,
                division=measured(problem, allocation.counts),
            )
            world.apply(allocation)


def solve(run: Run, tasks: Sequence[tuple[int, Task]]) -> Iterator[Solved]:
    """Solve the same problems by the exact policy, under the same parameters if it has them."""
    chosen = policy(EXACT)
    known = chosen.check_params({})
    params = chosen.check_params({key: value for key, value in run.params.items() if key in known})
    for index, task in tasks:
        began = time.process_time()
        allocation = chosen.allocate(task.problem, params)
        cpu = time.process_time() - began
        yield Solved(
            index,
            cpu,
            _answer(task.problem, allocation, params),
            _below_floor(task.problem, params, [task.counts, allocation.counts]),
        )


def _below_floor(problem: Problem, params: dict[str, Any], both: list[dict[str, dict[str, int]]]) -> tuple[int, int]:
    """Return how many containers running apps lack below their floors, where the apps that the second answer runs are owed a
    share."""
    instance = integer.read(problem)
    ours, exact = (
        np.array([sum(counts[app.id].values()) for app in instance.apps], np.int64) // instance.gang for counts in both
    )
    floors = goals_of.terms(instance, params, 0, goals_of.placed(instance, exact)).floors
    lacks = [np.where(n > 0, np.maximum(floors - n, 0) * instance.gang, 0) for n in (ours, exact)]
    return int(lacks[0].sum()), int(lacks[1].sum())


def _answer(problem: Problem, allocation: Allocation, params: dict[str, Any]) -> Answer:
    return Answer(
        net=allocation.utilization - allocation.change_cost,
        bound=allocation.bound,
        excess=allocation.excess,
        status=allocation.status,
        served=judge.served(problem, allocation.shortage, params.get("patience_s", float("inf"))),
    )


def _digest(value: Any) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(value, order="deterministic")).digest()


def _peak_mb() -> float:
    """Return the peak memory of this program since it started, excluding the process before `exec`, which `getrusage` would
    include."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise BenchError("this system does not report how much memory a process has used", code="bench.no_memory_figures")


# Results


def figures(samples: Samples) -> dict[str, Figure]:
    """Return the figures of one run, omitting what was not measured.  Raises BenchError if there is not even one event."""
    events, goal = samples.events, goals(samples.run)
    if not events:
        raise BenchError("it was stopped before the first event", code="bench.stopped")
    cpu = [event.cpu_s for event in events]
    figures_ = spread("event", cpu)
    figures_["event_p50_s"] = figure(percentile(cpu, 50), "s", goal.p50_s)
    figures_["event_p95_s"] = figure(percentile(cpu, 95), "s", goal.p95_s)
    figures_["event_max_s"] = figure(max(cpu), "s")
    figures_["event_wall_p50_s"] = figure(percentile([event.wall_s for event in events], 50), "s")
    figures_["cold_start_s"] = figure(
        percentile([played.cpu_s for played in samples.played if played.number == 1], 50), "s"
    )
    figures_ |= _gaps(samples, goal)
    budgets = [played for played in samples.played if played.loss_budget > 0]
    figures_["excess_mean"] = figure(_mean([played.answer.excess for played in samples.played]), "share")
    if budgets:
        figures_["loss_over_budget_max"] = figure(max(budget.loss / budget.loss_budget for budget in budgets), "ratio")
    figures_["changed_apps_mean"] = figure(_mean([event.changed for event in events]), "apps")
    figures_["moves_mean"] = figure(_mean([event.moved for event in events]), "containers")
    if divisions := [played.division for played in samples.played if played.division is not None]:
        figures_["efficiency_mean"] = figure(_mean([division.efficiency for division in divisions]), "ratio")
        figures_["utility_uniformity_mean"] = figure(_mean([division.uniformity for division in divisions]), "ratio")
        figures_["envy_freeness_mean"] = figure(_mean([division.envy_freeness for division in divisions]), "ratio")
        figures_["content_apps_mean"] = figure(_mean([division.content for division in divisions]), "ratio")
    figures_["instances"] = figure(len(samples.played), "instances")
    figures_["peak_memory_mb"] = figure(max(played.peak_mb for played in samples.played), "MiB")
    return figures_


def _gaps(samples: Samples, goal: Goals) -> dict[str, Figure]:
    figures_ = {}
    if gaps := samples.gaps_to_exact():
        figures_["gap_to_exact_mean"] = figure(_mean(gaps), "ratio", goal.to_exact_mean)
        figures_["gap_to_exact_p95"] = figure(percentile(gaps, 95), "ratio")
        figures_["gap_to_exact_p99"] = figure(percentile(gaps, 99), "ratio", goal.to_exact_p99)
        figures_["gap_to_exact_max"] = figure(max(gaps), "ratio")
    if solved := samples.solved.values():
        figures_["missed_n_min_count"] = figure(samples.missed, "instances", goal.missed)
        figures_["missed_floor_count"] = figure(samples.missed_floors, "instances")
        figures_["unlike_instances"] = figure(len(samples.unlike), "instances")
        proven = sum(reference.answer.status == "optimal" for reference in solved)
        figures_["reference_instances"] = figure(len(solved), "instances")
        figures_["reference_proven_instances"] = figure(proven, "instances")
        own = [gap(reference.answer.bound - reference.answer.net, reference.answer.bound) for reference in solved]
        figures_["reference_gap_mean"] = figure(_mean(own), "ratio")
        figures_["reference_p50_s"] = figure(percentile([reference.cpu_s for reference in solved], 50), "s")
    if gaps := samples.gaps_to_bound():
        figures_["gap_to_bound_p50"] = figure(percentile(gaps, 50), "ratio", goal.to_bound_p50)
        figures_["gap_to_bound_max"] = figure(max(gaps), "ratio")
    return figures_


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def settings(samples: Samples) -> dict[str, Any]:
    """Return what was played: two runs that agree in both digests had the same problems and the same answers."""
    kinds = [played.event for played in samples.played]
    settings_ = {
        **msgspec.to_builtins(samples.run),
        "reference": samples.run.against,
        "mix": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "problems_digest": samples.digest(0),
        "answers_digest": samples.digest(1),
        "clock": "CPU time of the process that decides",
    }
    if samples.interrupted:
        settings_["interrupted"] = True
    return settings_
