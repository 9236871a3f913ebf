"""Real traces in the evaluation: a busy week of each cluster trace, and the workloads of Pollux's simulator.

A folder of traces holds, as far as they are needed,

    philly_2017/philly.csv
    alibaba_openb_2023/            with the lists of nodes and pods
    pollux_workloads/workloads/    workload-1.csv to workload-8.csv
    pollux_profiles/
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from dorm_lab.bench.evaluation.parts import (
    EVENTS,
    HEADLINE,
    RIVALS,
    SPEED,
    TUNED,
    WIDE,
    Job,
    Part,
    declaring,
    in_rounds,
)
from dorm_lab.compare import yardstick
from dorm_lab.workloads import by_name as workloads
from dorm_lab.workloads import nodes as clusters
from dorm_lab.workloads.traces.pollux import bounded
from replay.simulator.contenders import Contender
from replay.simulator.scenario import Scenario, Tasks
from replay.simulator.timings import LIVE, Timings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm_lab.workloads.traces.pollux import Batches, Bounds
    from replay.simulator.workload import SimulatedApp, SimulatedNode, Workload


DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
ROUNDS_S = 300.0
"""Decisions on the cluster traces come at most this often, in virtual seconds."""
RESTART = Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=30.0, resume_s=30.0)
"""Every start and every adjustment takes 30 s in which the GPUs are held, as in Pollux's simulator (OSDI 2021, §5.1)."""
SHARE = 0.25
"""The part of a week's jobs that is sampled, on a cluster that is smaller by the same factor: minutes instead of hours."""
QUICK = "limit=40"
LOAD = 0.8
"""Mean demand as a part of the cluster."""
DECLARED = ("optimus", "dorm-speed")
"""Policies that know remaining work and speeds on the cluster traces."""
GPUS = 8
"""Number of GPUs on each node of a cluster for Philly; the trace does not describe its machines, most of which had 8 (USENIX
ATC 2019, §2)."""


def philly(folder: Path, quick: bool) -> Part | None:
    file = folder / "philly_2017" / "philly.csv"
    if not file.is_file():
        return None
    whole = workloads.load(f"philly:{file}," + (QUICK if quick else f"sample={SHARE}"))
    week, first = busiest_week(whole)
    week = msgspec.structs.replace(week, apps=tuple(_by_request(app) for app in week.apps))
    nodes = clusters.sized(week, {"gpu": GPUS}, LOAD)
    week = clusters.fitting(week, nodes)
    counts = {f"{_prefix(n)}*": n for n in sorted({_requested(app) for app in week.apps})}
    part = "a few" if quick else f"{SHARE:.0%}"
    about = (
        f"{len(week.apps):,} jobs, {part} of those that were submitted to Microsoft's Philly cluster in its busiest "
        f"week (from day {first / DAY_S:.0f} of the trace), on {len(nodes)} nodes with {GPUS} GPUs: as many as "
        f"let them ask for {LOAD:.0%} of the GPUs on average.",
        "Fixed counts, of static and tiresias, are those that the jobs had.",
        *_skipped(week),
    )
    return _week("philly", "Philly, a busy week", _on_cluster(week, nodes, counts), (*about, *week.assumptions))


def alibaba(folder: Path, quick: bool) -> Part | None:
    source = folder / "alibaba_openb_2023"
    if not source.is_dir():
        return None
    whole = workloads.load(f"alibaba:{source}" + (f",{QUICK}" if quick else ""))
    week, first = busiest_week(whole)
    nodes = clusters.matched(week, whole.nodes, LOAD)
    week, faster = _hurried(clusters.fitting(week, nodes), nodes)
    about = (
        f"{len(week.apps):,} pods of Alibaba's GPU cluster, submitted in its busiest week (from day "
        f"{first / DAY_S:.0f} of the trace), on {len(nodes):,} nodes, which have the shapes of its own, and "
        f"{faster:.1f} times as fast: then they ask for {LOAD:.0%} of the scarcest resource on average.",
        *_skipped(week),
    )
    return _week("alibaba", "Alibaba, a busy week", _on_cluster(week, nodes, {"*": 1}), (*about, *week.assumptions))


def _week(key: str, title: str, jobs: tuple[Job, ...], about: tuple[str, ...]) -> Part:
    return Part(key=key, title=title, jobs=jobs, base="static", every_s=ROUNDS_S, window_s=WEEK_S, about=about)


def _hurried(week: Workload, nodes: tuple[SimulatedNode, ...]) -> tuple[Workload, float]:
    """Compress the arrivals so that the demand is `LOAD` of the scarcest resource: a cluster with one node of each of the
    trace's many shapes already exceeds what a week of it needs.  Run times stay."""
    demanded: Counter[str] = Counter()
    has: Counter[str] = Counter()
    for app in week.apps:
        container_s = app.spec.n_min * app.work / app.speed.rate((app.spec.n_min,))
        demanded.update({kind: round(amount * container_s) for kind, amount in app.spec.resources().items()})
    for node in nodes:
        has.update(node.capacity)
    span_s = max(1.0, week.apps[-1].at_s - week.apps[0].at_s)
    load = max(demanded[kind] / (span_s * has[kind]) for kind in demanded if has[kind])
    factor = max(1.0, LOAD / load) if load > 0 else 1.0
    apps = tuple(msgspec.structs.replace(app, at_s=round(app.at_s / factor, 3)) for app in week.apps)
    return msgspec.structs.replace(week, apps=apps), factor


def _skipped(workload: Workload) -> tuple[str, ...]:
    if not workload.skipped:
        return ()
    first = workload.skipped[0]
    return (f"{len(workload.skipped):,} rows are left out; the first is line {first.line}: {first.reason}.",)


def busiest_week(workload: Workload) -> tuple[Workload, float]:
    """Return the seven days with the most submissions, starting at a whole day of the trace, and their start (seconds)."""
    at = [app.at_s for app in workload.apps]
    days = range(int(at[-1] / DAY_S) + 1)
    weeks = [(bisect_left(at, day * DAY_S + WEEK_S) - bisect_left(at, day * DAY_S), -day) for day in days]
    begin = -max(weeks)[1] * DAY_S
    apps = tuple(
        msgspec.structs.replace(app, at_s=app.at_s - begin)
        for app in workload.apps[bisect_left(at, begin) : bisect_left(at, begin + WEEK_S)]
    )
    return msgspec.structs.replace(workload, apps=apps), begin


def _on_cluster(week: Workload, nodes: tuple[SimulatedNode, ...], counts: dict[str, int]) -> tuple[Job, ...]:
    """Return the jobs; `counts` are what the jobs had, for the policies with fixed partitions."""
    usual = Scenario(
        apps=week.apps,
        nodes=nodes,
        timings=RESTART,
        quiet_s=ROUNDS_S,
        quiet_limit_s=ROUNDS_S,
        idle_s=ROUNDS_S,
        progress_s=0.0,
    )
    known = msgspec.structs.replace(usual, apps=tuple(declaring(app) for app in week.apps), progress_s=ROUNDS_S)
    against = (
        Contender(HEADLINE, "dorm", {"theta1": 0.1, "theta2": 0.1}),
        Contender("static", "static", {"counts": counts}),
        Contender("app-level", "app-level"),
        Contender("task-level", "task-level", tasks=Tasks()),
        Contender("tiresias", "tiresias", {"counts": counts}),
        Contender("optimus", "optimus"),
        Contender(SPEED, "dorm-speed"),
    )
    return tuple(
        Job(
            contender.label,
            in_rounds(contender.of(known if contender.policy in DECLARED else usual), contender, ROUNDS_S),
        )
        for contender in against
    )


def _requested(app: SimulatedApp) -> int:
    """Return what the job had; importers set elastic bounds of 1 to twice that."""
    return max(1, app.spec.n_max // 2)


def _prefix(count: int) -> str:
    return f"gpus-{count}-"


def _by_request(app: SimulatedApp) -> SimulatedApp:
    """Return the app with its request as a prefix of its name, so that fixed counts can match it."""
    spec = msgspec.structs.replace(app.spec, name=f"{_prefix(_requested(app))}{app.spec.name}")
    return msgspec.structs.replace(app, spec=spec)


def pollux(folder: Path, quick: bool) -> Part | None:
    against: tuple[tuple[Contender, Bounds], ...] = (
        (Contender(HEADLINE, "dorm", {"theta1": 0.1, "theta2": 0.1}), "requested"),
        (Contender(WIDE, "dorm", {"theta1": 0.1, "theta2": 0.1}), "wide"),
        (Contender(f"{HEADLINE}, live", "dorm", {"theta1": 0.1, "theta2": 0.1}, timings=LIVE), "requested"),
        (Contender("tiresias", "tiresias"), "rigid"),
        (Contender("optimus", "optimus"), "wide"),
        (Contender("pollux, fixed", "pollux"), "wide"),
        (Contender("sia, fixed", "sia"), "wide"),
        (Contender(SPEED, "dorm-speed"), "wide"),
        (Contender(f"{SPEED}, live", "dorm-speed", timings=LIVE), "wide"),
        *((Contender(name, name), _bounds_of(name)) for name in RIVALS),
    )
    about = (
        "160 jobs of six models sampled from Philly in each of Pollux's workloads, on 16 nodes with 4 GPUs; the batch "
        "size is the workload's, and every start and restart takes 30 s in which the GPUs are held.",
        "tiresias, fifo, srtf, gavel and shockwave give a job exactly the number of GPUs that it asked for; dorm, drf, themis "
        "and market give at most that number, or 64 if the label says so, and the others at most 64. The others, srtf, themis "
        "and shockwave know speeds, and optimus, dorm-speed, srtf, themis and shockwave know the remaining work.",
        "gavel decides every 360 s and shockwave every 120 s, as in their papers, and the others every 60 s; under themis, "
        "an app holds the GPUs that it wins for 20 minutes.",
    )
    return _of_pollux(
        folder, quick, against, "fixed", key="pollux", title="Pollux's workloads", base="tiresias", about=about
    )


def pollux_tuned(folder: Path, quick: bool) -> Part | None:
    """Return the same with batch sizes that policies choose: never compared with fixed ones."""
    against: tuple[tuple[Contender, Bounds], ...] = (
        (Contender("pollux", "pollux"), "wide"),
        (Contender("sia", "sia"), "wide"),
        (Contender(SPEED, "dorm-speed"), "wide"),
        (Contender(f"{SPEED}, live", "dorm-speed", timings=LIVE), "wide"),
    )
    about = (
        "The same jobs accept any batch size that was measured, up to 64 GPUs. They begin with the workload's, report their "
        "gradient noise every minute, and get another size with a decision, without a restart.",
        "ρ is relative to a fair part of the cluster with the workload's batch size.",
    )
    title = "Pollux's workloads, batch sizes tuned"
    return _of_pollux(folder, quick, against, "tuned", key=TUNED, title=title, base="pollux", about=about)


def pollux_events(folder: Path, quick: bool) -> Part | None:
    """Return the same with decisions at events, as a master decides, which shows the value of a live resize."""
    against: tuple[tuple[Contender, Bounds], ...] = (
        (Contender(SPEED, "dorm-speed"), "wide"),
        (Contender(f"{SPEED}, live", "dorm-speed", timings=LIVE), "wide"),
    )
    about = (
        "The same jobs, whose batch sizes are tuned.  dorm-speed decides as a master does: when an app has arrived or ended, "
        f"after a quiet time of {yardstick.QUIET_S:g} s.",
        f"A start or a restart takes {yardstick.RESTART_S:.0f} s; with live resizing a start takes about a second, and a "
        f"resize stops an app for {1000 * LIVE.resume_s:.0f} ms.",
    )
    title = "Pollux's workloads, batch sizes tuned, decisions at events"
    part = _of_pollux(folder, quick, against, "tuned", key=EVENTS, title=title, base=SPEED, about=about)
    if part is None:
        return None
    jobs = tuple(msgspec.structs.replace(job, scenario=yardstick.at_events(job.scenario)) for job in part.jobs)
    return msgspec.structs.replace(part, jobs=jobs)


def _of_pollux(
    folder: Path, quick: bool, against: tuple[tuple[Contender, Bounds], ...], batches: Batches, **fields: Any
) -> Part | None:
    source, profiles = folder / "pollux_workloads" / "workloads", folder / "pollux_profiles"
    files = sorted(source.glob("workload-*.csv"))[: 1 if quick else None]
    if not files or not profiles.is_dir():
        return None
    read = [workloads.load(f"pollux:{file},profiles={profiles},batches={batches}") for file in files]
    jobs: list[Job] = []
    for contender, bounds in against:
        for workload in read:
            apps = tuple(bounded(app, bounds) for app in workload.apps[: 8 if quick else None])
            jobs.append(
                Job(contender.label, yardstick.scenario(msgspec.structs.replace(workload, apps=apps), contender))
            )
    return Part(jobs=tuple(jobs), every_s=ROUNDS_S, seeds=tuple(file.stem for file in files), **fields)


def _bounds_of(rival: str) -> Bounds:
    """Return what a job may have: policies with whole counts give it what it asked for."""
    return "rigid" if rival in ("fifo", "srtf", "gavel", "shockwave") else "requested"


TRACES: dict[str, Callable[[Path, bool], Part | None]] = {
    "Philly (philly_2017)": philly,
    "Alibaba (alibaba_openb_2023)": alibaba,
    "Pollux (pollux_workloads, pollux_profiles)": pollux,
    "Pollux, batch sizes tuned (the same)": pollux_tuned,
    "Pollux, decisions at events (the same)": pollux_events,
}
"""Each returns None if its files do not exist."""
