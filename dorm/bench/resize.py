"""How long a resize by checkpoint and restart takes, phase by phase, of the NumPy sample app while it trains.

The app (`compose/apps/logistic.yaml`, changed to run without end and to report every step) is resized up and down by changing
its n_max; each time, it trains again before the next resize.  Times are the log's own (JetStream's, at storing), from one
clock:

    decision    Resized
    prepare     → the last ContainersPrepared: images and containers of the new generation, while the old one works on
    stop        → ContainerExited of the last container of the old generation: SIGTERM, the step's end, the checkpoint
    wait        → GenerationReleased
    start       → ContainerStarted of the last container of the new generation
    restart     the sum of the last three: how long no container works
    train       → AppProgressed of the new generation: import, data, rendezvous, its first step, the agent's look at it

Lost steps are those done after the last accepted checkpoint, over all resizes.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dorm.bench import BenchError
from dorm.bench.cluster import CAPACITY, NODES, Watch, attended, bench_cluster, runtimes
from dorm.bench.report import Report, figure, spread, this_machine
from dorm.local.spec_files import load_spec
from events.kinds import AppProgressed

if TYPE_CHECKING:
    from dorm.bench.cluster import RuntimeName, Wanted
    from dorm.bench.report import Figure, Progress
    from dorm.core.state import State
    from dorm.local.cluster import LocalCluster
    from events.kinds import Event
    from events.spec import AppSpec

GOAL_RESTART_S = 1.5
SMALL, LARGE = 2, 4
"""Containers, in turns."""
_SPEC = Path(__file__).parents[2] / "compose" / "apps" / "logistic.yaml"
_STEPS = 2_000_000_000
_LONGEST_S = 60.0


class Sample(msgspec.Struct, frozen=True):
    """One resize, in seconds."""

    prepare: float
    stop: float
    wait: float
    start: float
    train: float
    lost_steps: int

    @property
    def restart(self) -> float:
        return self.stop + self.wait + self.start


async def bench_resize(*, runs: int, wanted: Wanted, docker_url: str | None, progress: Progress) -> Report:
    """Run `runs` resizes for each runtime.  Raises BenchError and what a cluster raises that can't start."""
    machine = this_machine()
    figures: dict[str, Figure] = {}
    measured = await runtimes(wanted, docker_url, progress)
    spec = await asyncio.to_thread(endless)
    for runtime in measured:
        async with bench_cluster(runtime, docker_url) as cluster:
            samples = await attended(cluster, _resize_all(cluster, spec, runtime, runs, progress))
        figures |= _figures(runtime, samples)
    return Report(
        bench="resize",
        machine=machine,
        settings={
            "runs": runs,
            "app": " ".join(spec.command),
            "containers": [SMALL, LARGE],
            "runtimes": measured,
            "nodes": NODES,
            "node_capacity": CAPACITY,
            "clock": "log time",
        },
        figures=figures,
    )


def _figures(runtime: str, samples: list[Sample]) -> dict[str, Figure]:
    figures = spread(f"{runtime}_restart", [sample.restart for sample in samples], f"<= {GOAL_RESTART_S:g}")
    for phase in ("prepare", "stop", "wait", "start", "train"):
        figures |= spread(f"{runtime}_{phase}", [getattr(sample, phase) for sample in samples])
    figures[f"{runtime}_lost_steps"] = figure(sum(sample.lost_steps for sample in samples), "steps")
    return figures


def endless() -> AppSpec:
    """Return the sample app's spec without its limit of steps, and with a line of progress for every step."""
    spec = load_spec(_SPEC)

    def changed(command: list[str]) -> list[str]:
        if "--steps" not in command:
            raise BenchError(f"{_SPEC.name} names no --steps", code="bench.no_steps")
        at = command.index("--steps") + 1
        return [*command[:at], str(_STEPS), "--report-every", "1", *command[at + 1 :]]

    return msgspec.structs.replace(
        spec, command=changed(list(spec.command)), resume=changed(list(spec.resume)), n_max=LARGE
    )


async def _resize_all(
    cluster: LocalCluster, spec: AppSpec, runtime: RuntimeName, runs: int, progress: Progress
) -> list[Sample]:
    samples = []
    async with contextlib.aclosing(Watch(cluster.client.log)) as watch:
        progress(f"{runtime}: starting the app")
        app = await cluster.client.submit(spec, answer_timeout=_LONGEST_S)
        await _trains(watch, app.id, generation=1)
        for number in range(runs):
            size = SMALL if number % 2 == 0 else LARGE
            progress(f"{runtime}: resize {number + 1} of {runs}, to {size} containers")
            samples.append(await _resize_one(cluster, watch, app.id, size))
    return samples


async def _resize_one(cluster: LocalCluster, watch: Watch, app_id: str, size: int) -> Sample:
    before = watch.app(app_id).generation
    await cluster.client.update(app_id, n_max=size)
    trains_at = await _trains(watch, app_id, generation=before + 1)
    app = watch.app(app_id)
    done = app.history[-1] if app.history else None
    if done is None or done.to_generation != before + 1 or done.containers_after != size:
        raise BenchError(f"the resize to {size} containers came out as {done}", code="bench.wrong_answer")
    began_at = done.prepared_at or done.decided_at
    moments = [done.decided_at, began_at, done.stopped_at, done.released_at, done.started_at, trains_at]
    prepare, stop, wait, start, train = ((later - earlier) / 1e9 for earlier, later in pairwise(moments))
    return Sample(prepare=prepare, stop=stop, wait=wait, start=start, train=train, lost_steps=done.lost_steps)


async def _trains(watch: Watch, app_id: str, *, generation: int) -> int:
    """Wait until all containers of this generation run and it has made a step; return the log time of that step."""
    trains_at = 0

    def holds(state: State, event: Event) -> bool:
        nonlocal trains_at
        if isinstance(event, AppProgressed) and (event.app, event.generation) == (app_id, generation):
            trains_at = trains_at or state.time
        app = state.apps.get(app_id)
        return trains_at > 0 and app is not None and app.settled

    await watch.until(holds, f"generation {generation}'s first step", timeout=_LONGEST_S)
    return trains_at
