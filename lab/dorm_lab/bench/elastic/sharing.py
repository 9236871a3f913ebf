"""The cost of a partition for its app: the same work bare and in a partition, and live resizes through the control plane.

On a cluster of this machine (server, master, three agents), processes instead of containers:

    rest      One worker computes in a partition, two others bare, in short turns: while one runs, the others are stopped, so
              other load on the machine affects all alike.  CPU time of a step is compared turn by turn.  The location of a
              process's memory changes its speed, so each round has new processes; the difference between two bare workers of
              a round is the resolution of the machine.  After the last round, CPU time of the control plane is counted,
              while the worker in the partition runs alone and the bench, which shares a process with it, sleeps.
    live      An app is resized between 2 and 4 workers while it trains.
    restart   The same app without `elastic: live`.

A live resize costs the pause of the members, newcomers that hold resources but do not train yet, and the control plane's CPU
time beyond that at rest.  The sum, as a part of the containers' time, is scaled from one resize after another to one each
minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import time
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from dorm.bench import BenchError
from dorm.bench.cluster import NODES, Watch, attended, bench_cluster
from dorm_lab.bench.elastic import steps
from dorm_lab.bench.elastic.pauses import DEVICE_S, script
from dorm_lab.bench.elastic.workers import SEARCHED
from events.kinds import MembershipChanged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.bench.report import Progress
    from dorm.core.state import State
    from dorm.local.cluster import LocalCluster
    from events.kinds import Event

__all__ = ["LARGE", "PER_MINUTE_S", "SMALL", "Amounts", "Resize", "Shared", "sharing"]

SMALL, LARGE = 2, 4
PER_MINUTE_S = 60.0
_TURN_S = 0.1
"""The speed of a shared machine changes within seconds, so turns that are compared follow each other closely."""
_BARE = ("bare", "again")
_PROGRESS_S = 1.0
"""The default of `dorm up` and agents."""
_LONGEST_S = 60.0
_STEPS = 20


class Amounts(NamedTuple):
    """How much is measured."""

    rounds: int = 20
    """Processes differ more from each other than the turns of one, so many short rounds show more than few long ones."""
    turns: int = 10
    """Turns of each worker in a round."""
    live: int = 6
    restarts: int = 4
    rest_s: float = 15.0
    """Seconds for which the control plane's CPU time at rest is counted."""
    settles_s: float = 30.0
    """Seconds from an app's start to its rest: agents look at the progress of new containers more often."""


class Resize(NamedTuple):
    """One resize through the control plane."""

    how: str
    cause: str
    pause_s: float
    start_s: float = 0.0
    """Live: from the release to the start of the last newcomer."""
    boot_s: float = 0.0
    """Live: from there until it trains, less the pause."""
    lost_container_s: float = 0.0
    """Live: container-seconds without training, per container."""
    control_s: float = 0.0
    """CPU seconds of the control plane, beyond those at rest."""


class Shared(NamedTuple):
    """What was measured."""

    ratios: list[float]
    """CPU time of a step in the partition, against a bare one, by round."""
    bare_ratios: list[float]
    """The same of one bare worker against the other."""
    control_cores: float
    """CPU seconds of server, master and agents for each second, at rest."""
    resizes: list[Resize]

    @property
    def ratio(self) -> float:
        return fmean(self.ratios)

    @property
    def error(self) -> float:
        """The standard error of the mean ratio."""
        return stdev(self.ratios) / math.sqrt(len(self.ratios)) if len(self.ratios) > 1 else 0.0

    @property
    def noise(self) -> float:
        """The largest difference between two bare workers of a round."""
        return max(abs(bare_ratio - 1.0) for bare_ratio in self.bare_ratios)

    @property
    def at_rest(self) -> float:
        """The overhead without resizes: longer steps, and an agent's part of its node.  Server and master are counted with
        the agents, as if they ran on the apps' nodes."""
        return self.ratio - 1.0 + self.control_cores / NODES

    @property
    def per_minute(self) -> float:
        """The overhead with one live resize each minute."""
        costs = [resize.lost_container_s + resize.control_s / NODES for resize in self.resizes if resize.how == "live"]
        return self.at_rest + fmean(costs) / PER_MINUTE_S


async def sharing(amounts: Amounts, folder: Path, data: Path, progress: Progress) -> Shared:
    """Measure on a cluster of its own.  Raises BenchError and what a cluster raises that can't start."""
    async with bench_cluster("process", None, progress_s=_PROGRESS_S) as cluster:
        return await attended(cluster, _measure(cluster, amounts, folder, data, progress))


async def _measure(cluster: LocalCluster, amounts: Amounts, folder: Path, data: Path, progress: Progress) -> Shared:
    async with contextlib.aclosing(Watch(cluster.client.log)) as watch:
        ratios, bare_ratios, cores = await _at_rest(cluster, watch, amounts, folder, data, progress)
        resizes = []
        for how, count in (("live", amounts.live), ("restart", amounts.restarts)):
            if count:
                resizes += await _resize_all(cluster, watch, how, count, cores, folder, data, progress)
        return Shared(ratios, bare_ratios, cores, resizes)


def _spec(name: str, kind: str, log: Path, data: Path, **fields: Any) -> dict[str, Any]:
    command = _command(kind, log, data)
    return {
        "name": name,
        "engine": "elastic",
        "command": command + (["--device-s", str(DEVICE_S)] if kind == "network" else []),
        "demand": {"cpu": "500m", "memory": "256MiB"},
        "env": {"PYTHONPATH": SEARCHED, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        "grace": "10s",
        "retries": {"limit": 0},
        **fields,
    }


def _command(kind: str, log: Path, data: Path) -> list[str]:
    return ["python3", "-P", script("training.py"), kind, "--data", str(data), "--records", str(log)]


# --- at rest ------------------------------------------------------------------------------------------------------------


async def _at_rest(
    cluster: LocalCluster, watch: Watch, amounts: Amounts, folder: Path, data: Path, progress: Progress
) -> tuple[list[float], list[float], float]:
    """Return by round the ratio of a step's CPU times and that of two bare workers, and the cores that the control plane uses
    at rest."""
    ratios, bare_ratios, cores = [], [], 0.0
    for number in range(amounts.rounds):
        progress(f"an app in a partition and bare, in turns: round {number + 1} of {amounts.rounds}")
        logs = {name: folder / f"rest-{number}-{name}" for name in (*_BARE, "shared")}
        for log in logs.values():
            log.mkdir(parents=True)
        spec = _spec(f"bench-rest-{number}", "compute", logs["shared"], data, elastic="live", n_min=1, n_max=1)
        app = await cluster.client.submit(spec, answer_timeout=_LONGEST_S)
        began = time.monotonic()
        used = await _compared(logs, data, amounts.turns)
        if number == amounts.rounds - 1:
            progress("the control plane at rest")
            await asyncio.sleep(max(0.0, began + amounts.settles_s - time.monotonic()))
            cores = await _control_cores(cluster, amounts.rest_s)
        await _end(cluster, watch, app.id)
        bare = list(zip(*(used[name] for name in _BARE), strict=True))
        ratios.append(median(shared / fmean(pair) for shared, pair in zip(used["shared"], bare, strict=True)))
        bare_ratios.append(median(double / single for single, double in bare))
    return ratios, bare_ratios, cores


async def _compared(logs: dict[str, Path], data: Path, turns: int) -> dict[str, list[float]]:
    """Start bare workers next to the one in the partition, and return the CPU seconds of a step in each turn, by worker."""
    await _makes(logs["shared"], 1, _STEPS)
    inside = _workers(logs["shared"])
    if len(inside) != 1:
        raise BenchError(f"{len(inside)} processes of the app were found", code="bench.workers")
    bare = {name: _bare(logs[name], data, inside[0].environ()) for name in _BARE}
    try:
        for log in logs.values():
            await _makes(log, 1, _STEPS)
        processes = {"shared": inside[0], **{name: psutil.Process(process.pid) for name, process in bare.items()}}
        used = await _in_turns(processes, logs, turns)
        processes["shared"].resume()
        return used
    finally:
        for process in bare.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


async def _in_turns(processes: dict[str, psutil.Process], logs: dict[str, Path], turns: int) -> dict[str, list[float]]:
    """Run one process after the other, each turn in another order; return the CPU seconds of a step in each turn."""
    used: dict[str, list[float]] = {name: [] for name in processes}
    names = list(processes)
    for process in processes.values():
        process.suspend()
    for _ in range(turns):
        names.append(names.pop(0))
        made = {}
        for name in names:
            processes[name].resume()
            at = time.monotonic()
            await asyncio.sleep(_TURN_S)
            processes[name].suspend()
            made[name] = _cpu_of_a_step(logs[name], at)
        if all(seconds is not None for seconds in made.values()):
            for name, seconds in made.items():
                used[name].append(seconds or 0.0)
    if not used["shared"]:
        raise BenchError("the workers made no steps in their turns", code="bench.nothing_measured")
    return used


def _bare(log: Path, data: Path, inside: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the program of the partition without one.  `inside` is the environment there: a single variable that chooses
    BLAS's kernels would falsify the result."""
    return subprocess.Popen(
        _command("compute", log, data),
        env={name: value for name, value in inside.items() if not name.startswith("DORM_")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _workers(log: Path) -> list[psutil.Process]:
    """Return the processes that write these records."""
    workers = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(log) in command and script("training.py") in command[:3]:
            workers.append(process)
    return workers


def _control_s(cluster: LocalCluster) -> float:
    """Return the CPU seconds so far of this process, which holds master and agents, of the server and the supervisors."""
    folder = str(cluster.options.data)
    total = time.process_time()
    for process in psutil.process_iter(["cmdline", "cpu_times"]):
        command = process.info["cmdline"] or []
        if (
            any(folder in word for word in command)
            and script("training.py") not in command
            and process.info["cpu_times"]
        ):
            total += process.info["cpu_times"].user + process.info["cpu_times"].system
    return total


async def _control_cores(cluster: LocalCluster, seconds: float) -> float:
    """Return the cores that the control plane uses while the bench does nothing."""
    began, control = time.monotonic(), _control_s(cluster)
    await asyncio.sleep(seconds)
    return (_control_s(cluster) - control) / (time.monotonic() - began)


def _cpu_of_a_step(log: Path, since: float) -> float | None:
    """Return the CPU seconds of a step since then; None if there were fewer than two."""
    for made in steps.trained(steps.read(log)).values():
        turn = [step for step in made if step.at > since]
        if len(turn) > 1:
            return (turn[-1].cpu_s - turn[0].cpu_s) / (len(turn) - 1)
    return None


# --- resizes ------------------------------------------------------------------------------------------------------------


async def _resize_all(
    cluster: LocalCluster,
    watch: Watch,
    how: str,
    count: int,
    cores: float,
    folder: Path,
    data: Path,
    progress: Progress,
) -> list[Resize]:
    log = folder / f"resized-{how}"
    log.mkdir(parents=True)
    extra = {"elastic": "live"} if how == "live" else {}
    spec = _spec(f"bench-{how}", "network", log, data, n_min=1, n_max=LARGE, **extra)
    app = await cluster.client.submit(spec, answer_timeout=_LONGEST_S)
    await _settled(watch, app.id, LARGE)
    await _makes(log, LARGE, _STEPS)
    resizes = []
    for number in range(count):
        size = SMALL if number % 2 == 0 else LARGE
        progress(f"through the control plane, {how}: resize {number + 1} of {count}, to {size} workers")
        resizes.append(await (_live if how == "live" else _restart)(cluster, watch, app.id, size, cores, log))
    await _end(cluster, watch, app.id)
    return resizes


async def _live(cluster: LocalCluster, watch: Watch, app_id: str, size: int, cores: float, log: Path) -> Resize:
    generation = watch.app(app_id).generation
    began, control = time.monotonic(), _control_s(cluster)
    changed: list[MembershipChanged] = []
    moments: dict[str, int] = {}

    def trains(state: State, event: Event) -> bool:
        app = state.apps.get(app_id)
        change = app.generations[app.generation].change if app is not None else None
        if change is not None and change.released_at:
            moments["released"] = change.released_at
            started = [newcomer.started_at for newcomer in change.newcomers.values() if newcomer.started_at]
            moments["started"] = max(started, default=change.released_at)
        if isinstance(event, MembershipChanged) and event.app == app_id and len(event.members) == size:
            changed.append(event)
            moments["trains"] = state.time
        return bool(changed)

    await cluster.client.update(app_id, n_max=size)
    await watch.until(trains, f"a live resize to {size} workers", timeout=_LONGEST_S)
    if watch.app(app_id).generation != generation:
        raise BenchError("the live app was restarted", code="bench.wrong_answer")
    await _settled(watch, app_id, size)
    beyond = _control_s(cluster) - control - cores * (time.monotonic() - began)
    await _makes(log, size, _STEPS)
    records = steps.trained(steps.read(log))
    pause = steps.live_pause(records, generation, changed[0].step)
    start = (moments["started"] - moments["released"]) / 1e9 if size == LARGE else 0.0
    boot = _boot_s(records, generation, changed[0], log) if size == LARGE else 0.0
    newcomers = LARGE - SMALL if size == LARGE else 0
    lost = pause + newcomers * boot / size
    return Resize("live", "grow" if newcomers else "shrink", pause, start, boot, lost, max(0.0, beyond))


def _boot_s(records: steps.Records, generation: int, changed: MembershipChanged, log: Path) -> float:
    """Return how long the newcomers' processes had run when the others stopped for them."""
    before = [
        step.at
        for (of, _), made in records.items()
        for step in made
        if of == generation and step.step == changed.step - 1
    ]
    births = []
    for process in _workers(log):
        with contextlib.suppress(OSError):
            births.append(started_at(process.pid))
    if not before or len(births) < LARGE:
        raise BenchError("the newcomers' processes were not found", code="bench.nothing_measured")
    return max(0.0, max(before) - sorted(births)[SMALL])


def started_at(pid: int) -> float:
    """Return when a process started, in monotonic seconds and to a hundredth.  psutil's `create_time` is up to a second too
    early: it counts from the time of the boot, which the kernel has in whole seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return since_boot + time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)


async def _restart(cluster: LocalCluster, watch: Watch, app_id: str, size: int, _: float, log: Path) -> Resize:
    generation = watch.app(app_id).generation
    await cluster.client.update(app_id, n_max=size)
    await _settled(watch, app_id, size, after=generation)
    await _makes(log, size, _STEPS, generation=generation + 1)
    pause = steps.restart_pause(steps.trained(steps.read(log)), generation)
    return Resize("restart", "grow" if size == LARGE else "shrink", pause)


async def _settled(watch: Watch, app_id: str, size: int, after: int = 0) -> None:
    """Wait until the app has this many containers and no longer changes."""

    def holds(state: State, _: Event) -> bool:
        app = state.apps.get(app_id)
        if app is None or not app.settled or app.generation <= after:
            return False
        generation = app.generations[app.generation]
        return len(generation.containers) == size and generation.change is None and not generation.leaving

    app = watch.state.apps.get(app_id)
    if app is None or not holds(watch.state, None):  # type: ignore[arg-type]  # the state alone is looked at
        await watch.until(holds, f"{size} workers", timeout=_LONGEST_S)


async def _makes(log: Path, workers: int, more: int, generation: int = 0) -> None:
    """Wait until this many workers have each made this many more steps."""
    since = time.monotonic()
    while True:
        records = steps.trained(steps.read(log))
        active = [
            made
            for (of, _), made in records.items()
            if of >= generation and sum(step.at > since for step in made) >= more
        ]
        if len(active) >= workers:
            return
        if time.monotonic() - since > _LONGEST_S:
            raise BenchError(f"{len(active)} of {workers} workers train", code="bench.too_slow")
        await asyncio.sleep(0.2)


async def _end(cluster: LocalCluster, watch: Watch, app_id: str) -> None:
    await cluster.client.cancel(app_id)

    def gone(state: State, _: Event) -> bool:
        app = state.apps.get(app_id)
        return app is not None and bool(app.ended) and all(generation.ended for generation in app.generations.values())

    await watch.until(gone, "the end of an app", timeout=_LONGEST_S)
