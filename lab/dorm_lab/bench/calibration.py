"""How accurate the simulator is: real and simulated adjustments and completions, compared.

Three runs for each runtime, on clusters of real parts:

    resizes      the NumPy sample app is resized back and forth.  Timings are fitted from every second turn through all sizes,
                 and the turns between are simulated and compared phase by phase (`replay.simulator.forks.fitting_timings`
                 defines the phases).  They alternate, because other load on a machine changes within minutes
    first        three sample apps contend until all are completed
    second       the same apps contend in another order, at other times.  Each of the two is simulated with the timings and
                 speeds that are fitted from the other, and completion times are compared

A simulation is given what was submitted or requested, and when, but nothing about the outcome
(`dorm_lab.rehearsal`).  All times are the log's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import msgspec

import compose.apps
from dorm.bench import BenchError
from dorm.bench.cluster import CAPACITY, NODES, Watch, attended, bench_cluster, runtimes
from dorm.bench.report import Report, figure, this_machine
from dorm.bench.resize import endless
from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm.local.spec_files import load_spec
from dorm_lab.rehearsal import Row, completion_rows, completions, phase_rows, rehearse, sizes
from replay.simulator.forks.fitting import Fitting
from replay.simulator.forks.fitting_timings import fit
from replay.simulator.forks.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from dorm.bench.cluster import RuntimeName, Wanted
    from dorm.bench.report import Figure, Progress
    from dorm.local.cluster import LocalCluster
    from events.kinds import Event
    from events.log.records import Record
    from events.spec import AppSpec
    from replay.simulator.forks.fitting_timings import Phases
    from replay.simulator.timings import Timings

GOAL_ERROR = 0.1
"""Largest error of the mean pause, and of completion times on average."""
SIZES = (2, 4, 1, 3)
"""Containers, in turns; the app starts with the most that it may have, 4."""
FIRST = ((0.0, "logistic"), (6.0, "mlp"), (12.0, "factorize"))
SECOND = ((0.0, "factorize"), (4.0, "logistic"), (9.0, "mlp"))
"""Seconds from the start of the run, and the sample app that is submitted then."""
_APPS = Path(compose.apps.__file__).parent
_STEPS_OF_A_PACE = 6
"""Steps between two resizes, enough to measure the app's pace."""
_LONGEST_S = 60.0
_LONGEST_RUN_S = 600.0


class Calibrated(NamedTuple):
    """The report, and its tables by runtime and name."""

    report: Report
    tables: dict[tuple[str, str], list[Row]]


class _Run(NamedTuple):
    """A real run, from its log."""

    history: History
    state: State


async def bench_calibration(*, runs: int, wanted: Wanted, docker_url: str | None, progress: Progress) -> Calibrated:
    """Run `runs` resizes for each runtime, at least two turns through all sizes.  Raises BenchError, and what a cluster raises
    that can't start."""
    machine = this_machine()
    figures: dict[str, Figure] = {}
    tables: dict[tuple[str, str], list[Row]] = {}
    timings: dict[str, Timings] = {}
    measured = await runtimes(wanted, docker_url, progress)
    for runtime in measured:
        work = partial(_resize_all, runtime=runtime, runs=runs, progress=progress)
        records = await _on_a_cluster(runtime, docker_url, work)
        timings[runtime], rows, same = await asyncio.to_thread(resizes_compared, records)
        first, second = [
            await _on_a_cluster(runtime, docker_url, lambda cluster: _contend(cluster, runtime, arrivals, progress))  # noqa: B023
            for arrivals in (FIRST, SECOND)
        ]
        foretold = await asyncio.to_thread(contentions_compared, first, second)
        the_other = await asyncio.to_thread(contentions_compared, second, first)
        tables |= {
            (runtime, "adjustment:"): rows, (runtime, "second run:"): foretold[0], (runtime, "first run:"): the_other[0]
        }  # fmt: skip
        completed = [*foretold[0], *the_other[0]]
        figures |= _figures(runtime, rows, completed)
        alike = same + foretold[1] + the_other[1]
        figures[f"{runtime}_same_sizes_mean"] = figure(alike / (1 + len(completed)), "ratio")
    settings = {
        "resizes": runs,
        "containers": list(SIZES),
        "first_run": [list(arrival) for arrival in FIRST],
        "second_run": [list(arrival) for arrival in SECOND],
        "timings": {runtime: msgspec.to_builtins(fitted) for runtime, fitted in timings.items()},
        "runtimes": measured,
        "nodes": NODES,
        "node_capacity": CAPACITY,
        "clock": "log time",
    }
    return Calibrated(Report(bench="calibration", machine=machine, settings=settings, figures=figures), tables)


def _figures(runtime: str, adjustment: Sequence[Row], completion: Sequence[Row]) -> dict[str, Figure]:
    figures = {}
    for row in adjustment:
        figures[f"{runtime}_{row.name}_real_s"] = figure(row.real_s, "s")
        figures[f"{runtime}_{row.name}_simulated_s"] = figure(row.simulated_s, "s")
    figures[f"{runtime}_pause_error_mean"] = figure(abs(adjustment[-1].error), "ratio", f"<= {GOAL_ERROR:g}")
    figures[f"{runtime}_completion_real_s"] = figure(fmean(row.real_s for row in completion), "s")
    figures[f"{runtime}_completion_simulated_s"] = figure(fmean(row.simulated_s for row in completion), "s")
    figures[f"{runtime}_completion_error_mean"] = figure(
        fmean(abs(row.error) for row in completion), "ratio", f"<= {GOAL_ERROR:g}"
    )
    return figures


# --- comparing ----------------------------------------------------------------------------------------------------------


def resizes_compared(records: Sequence[Record]) -> tuple[Timings, list[Row], bool]:
    """Return timings from every second turn of resizes, the turns between them compared with their simulation, and whether
    all sizes are equal.  Raises BenchError, SimulationError."""
    whole = _observed(records)
    phases = whole.history.phases.phases
    numbers = {(restart_.app, restart_.generation): index for index, restart_ in enumerate(_restarts(phases))}
    if len(numbers) <= len(SIZES):
        raise BenchError(
            f"{len(numbers)} resizes are not enough: two turns through {len(SIZES)} sizes are the least",
            code="bench.too_few",
        )

    def is_compared(phase: Phases) -> bool:
        return numbers.get((phase.app, phase.generation), 0) // len(SIZES) % 2 == 1

    timings = fit([phase for phase in phases if not is_compared(phase)])
    rehearsed = rehearse(whole.history, whole.state, Fitting(whole.history), whole.history.decisions_s, timings)
    real, simulated = (
        [restart for restart in _restarts(many) if is_compared(restart)] for many in (phases, rehearsed.phases)
    )
    return timings, phase_rows(real, simulated), rehearsed.sizes == sizes(phases)


def _restarts(phases: Sequence[Phases]) -> list[Phases]:
    return [phase for phase in phases if phase.kind == "restart"]


def contentions_compared(first: Sequence[Record], second: Sequence[Record]) -> tuple[list[Row], int]:
    """Return completion times of the second run, compared with its simulation by the first one's timings and speeds, and for
    how many apps the sequence of sizes is equal.  Raises BenchError, SimulationError."""
    known, really = _observed(first), _observed(second)
    rehearsed = rehearse(really.history, really.state, Fitting(known.history), known.history.decisions_s)
    rows = completion_rows(completions(really.state), rehearsed.completions)
    if not rows:
        raise BenchError("no app was completed both really and in the simulation", code="bench.nothing_measured")
    real = sizes(really.history.phases.phases)
    return rows, sum(rehearsed.sizes.get(app) == counts for app, counts in real.items())


def _observed(records: Sequence[Record]) -> _Run:
    state = State()
    history = History(state)
    for record in records:
        history.see(state, record, *evolve(state, record))
    return _Run(history, state)


# --- running ------------------------------------------------------------------------------------------------------------


async def _on_a_cluster(
    runtime: RuntimeName, docker_url: str | None, work: Callable[[LocalCluster], Coroutine[None, None, None]]
) -> list[Record]:
    """Return all records that a cluster of its own wrote during this work."""
    async with bench_cluster(runtime, docker_url) as cluster:
        await attended(cluster, work(cluster))
        return [record async for batch in cluster.client.log.read() for record in batch]


async def _resize_all(cluster: LocalCluster, runtime: RuntimeName, runs: int, progress: Progress) -> None:
    spec = await asyncio.to_thread(lambda: _declared(endless()))
    async with contextlib.aclosing(Watch(cluster.client.log)) as watch:
        progress(f"{runtime}: starting the app")
        app = await cluster.client.submit(spec, answer_timeout=_LONGEST_S)
        await _paced(watch, app.id, generation=1)
        for number in range(runs):
            size = SIZES[number % len(SIZES)]
            progress(f"{runtime}: resize {number + 1} of {runs}, to {size} containers")
            await cluster.client.update(app.id, n_max=size)
            await _paced(watch, app.id, generation=number + 2)


async def _paced(watch: Watch, app_id: str, *, generation: int) -> None:
    """Wait until this generation has reported a few steps."""

    def holds(state: State, _: Event) -> bool:
        app = state.apps.get(app_id)
        current = app.generations.get(generation) if app is not None and app.settled else None
        return bool(current and current.pace and current.pace.last_step - current.pace.first_step >= _STEPS_OF_A_PACE)

    await watch.until(holds, f"generation {generation}'s first steps", timeout=_LONGEST_S)


async def _contend(
    cluster: LocalCluster, runtime: RuntimeName, arrivals: Sequence[tuple[float, str]], progress: Progress
) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with contextlib.aclosing(Watch(cluster.client.log)) as watch:
        for at_s, name in arrivals:
            spec = await asyncio.to_thread(lambda name=name: _declared(load_spec(_APPS / f"{name}.yaml")))  # type: ignore[misc]
            await asyncio.sleep(max(0.0, begin + at_s - loop.time()))
            progress(f"{runtime}: {name} joins those that contend")
            await cluster.client.submit(spec, answer_timeout=_LONGEST_S)

        def done(state: State, _: Event) -> bool:
            return len(state.apps) == len(arrivals) and not state.names

        progress(f"{runtime}: waiting for all of them to complete")
        await watch.until(done, "the completion of all apps", timeout=_LONGEST_RUN_S)


def _declared(spec: AppSpec) -> AppSpec:
    """Return the spec with the steps that its command names, as its owner would declare them."""
    return msgspec.structs.replace(spec, steps=int(spec.command[spec.command.index("--steps") + 1]))
