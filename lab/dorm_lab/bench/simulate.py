"""The cost of simulating: a month of a real cluster in virtual time, under `static` and `dorm`.

The month is October 2017 of Microsoft's Philly trace (Jeon et al., USENIX ATC 2019), 47,192 jobs of one GPU and more, if its
file is given; otherwise the same number of synthetic apps, with arrivals and work drawn so that their means and the median of
the work are equal.  Under `static` each job has the containers that it had, synthetic ones have one; under `dorm` it may have
1 to twice as many.  Every run is complete: until its last app has ended.

An *event* is one position of the log: a record of its own, or each fact in a round of the master's.  Times are CPU seconds of
a run, without reading the workload; each run is in its own process, one after the other.
"""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench import BenchError
from dorm.bench.apart import items_of
from dorm.bench.report import Figure, Report, figure, this_machine
from dorm_lab.workloads import by_name as workloads
from dorm_lab.workloads import nodes
from dorm_lab.workloads.requests import by_request
from events.errors import code_of
from events.kinds import Round
from replay.simulator import SimulationError
from replay.simulator.scenario import Scenario
from replay.simulator.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dorm.bench.report import Progress
    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.records import Record

POLICIES = ("static", "dorm")
GOALS = {"philly_month_static_s": "<= 600", "philly_month_dorm_s": "<= 600", "peak_memory_mb": "<= 1024"}
MONTH = "from=2017-10-01,to=2017-11-01"
MADE_UP = "parametric,apps={apps},arrival=exponential:56.8s,work=lognormal:33437s:2.44,gpu=1,n_max=2"
"""47,192 in 31 days are one every 56.8 s; the trace's October has a mean of 33,437 GPU-seconds per job and a median of 1,684
s, so ln(33437 / 1684) = σ²/2."""
APPS, QUICK_APPS = 47_192, 1_500


class Wanted(NamedTuple):
    """The workload and cluster to measure."""

    trace: Path | None = None
    """Philly's file."""
    nodes: int = 80
    """Number of nodes of 8 GPUs: the month's jobs take 79 % of 80 nodes on average."""
    rounds: tuple[int, ...] = (300, 60)
    """Seconds of virtual time for which an allocation waits for further events; goals are of the first."""
    quick: bool = False
    """Only the first apps."""


class Ran(NamedTuple):
    """One run."""

    cpu_s: float
    wall_s: float
    records: int
    events: int
    allocations: int
    """Rounds that hold a decision of the policy."""
    apps: int
    days: float
    """Days of virtual time."""
    live_max: int
    """The most apps that waited or ran at once."""
    peak_mb: float


class Done(NamedTuple):
    """The report, and whether it was stopped before everything was measured."""

    report: Report
    interrupted: bool


def bench_simulate(wanted: Wanted, *, progress: Progress) -> Done:
    """Run one after the other; after Ctrl-C return the figures measured so far.  Raises BenchError."""
    machine = this_machine()
    ran: dict[tuple[str, int], Ran] = {}
    interrupted = False
    try:
        for every_s in wanted.rounds:
            for policy in POLICIES:
                case = f"{policy}, rounds of {every_s} s"
                progress(case)
                for item in items_of([(run, (wanted, policy, every_s))]):
                    if isinstance(item, Ran):
                        ran[policy, every_s] = item
                    else:
                        progress(f"{case}: {item}")
    except KeyboardInterrupt:
        interrupted = True
    except SimulationError as error:
        raise BenchError(str(error), code=code_of(error)) from None
    if not ran:
        raise BenchError("it was stopped before anything was measured", code="bench.stopped")
    settings = {
        "event": "a record, or each fact in a round",
        "clock": "CPU time of a run, without the reading of its workload",
        "workload": workload_of(wanted),
        "nodes": f"{wanted.nodes} of 8 GPUs",
        "rounds_s": wanted.rounds,
        "runs": {f"{policy}_{every_s}": ran_._asdict() for (policy, every_s), ran_ in ran.items()},
    } | ({"interrupted": True} if interrupted else {})
    return Done(Report("simulate", machine, settings, _figures(wanted, ran)), interrupted)


def _figures(wanted: Wanted, ran: dict[tuple[str, int], Ran]) -> dict[str, Figure]:
    month = "quick" if wanted.quick else "philly_month"
    figures: dict[str, Figure] = {}
    first = ran.get(("static", wanted.rounds[0]))
    if first is not None:
        figures["simulated_events_per_s"] = figure(first.events / first.cpu_s, "events/s")
    for (policy, every_s), run_ in ran.items():
        name = f"{month}_{policy}{'' if every_s == wanted.rounds[0] else f'_rounds_{every_s}'}_s"
        figures[name] = figure(run_.cpu_s, "s", GOALS.get(name))
    figures["peak_memory_mb"] = figure(max(run_.peak_mb for run_ in ran.values()), "MiB", GOALS["peak_memory_mb"])
    return figures


def workload_of(wanted: Wanted) -> str:
    """Return the workload in the form that `workloads.load` takes."""
    if wanted.trace is None:
        return MADE_UP.format(apps=QUICK_APPS if wanted.quick else APPS)
    return f"philly:{wanted.trace},{MONTH}" + (f",limit={QUICK_APPS}" if wanted.quick else "")


def run(wanted: Wanted, policy: str, every_s: int) -> Iterator[Ran | str]:
    """Yield one run's result, with words about its progress.  Raises SimulationError, and BenchError if an app is left
    over."""
    workload, counts = by_request(workloads.load(workload_of(wanted)))
    fixed = {"counts": counts} if counts else {"count": 1}
    shape = "gpu=8" if wanted.trace is not None else "gpu=8,cpu=64,memory=512GiB"
    scenario = Scenario(
        apps=workload.apps,
        nodes=nodes.parse(f"{wanted.nodes}x {shape}"),
        policy=policy,
        params=fixed if policy == "static" else {},
        quiet_s=every_s,
        quiet_limit_s=every_s,
        idle_s=every_s,
        progress_s=0.0,
    )
    simulation = Simulation(scenario)
    count = _Count(simulation)
    simulation.observe(count.take)
    span = max(1.0, scenario.apps[-1].at_s if scenario.apps else 1.0)
    shown = 0
    cpu, wall = time.process_time(), time.perf_counter()
    for now in simulation.play():
        part = min(99, int((now - simulation.begin) / 1e7 / span))
        if part > shown:
            shown = part
            yield f"{part} % of the submissions, {count.events:,} events"
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if simulation.unfinished:
        raise BenchError(
            f"{len(simulation.unfinished)} apps never ended, {simulation.unfinished[0]} among them",
            code="simulation.unfinished",
        )
    yield Ran(
        cpu_s=round(cpu, 3),
        wall_s=round(wall, 3),
        records=simulation.state.seq,
        events=count.events,
        allocations=count.allocations,
        apps=len(scenario.apps),
        days=round((simulation.agenda.now - simulation.begin) / 86_400e9, 2),
        live_max=count.live_max,
        peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    )


class _Count:
    """Counts what was written."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.events = self.allocations = self.live_max = 0

    def take(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        if isinstance(event, Round):
            self.events += len(event.events)
            self.allocations += event.allocated
            self.live_max = max(self.live_max, len(self._simulation.state.names))
        else:
            self.events += 1
