"""The accuracy of the pause that Dorm shows for a resize, compared with the app's own clock.

An app that loads for a while and then makes steps at a constant rate is resized up and down.  Its worker of rank 0 prints
the time at which it begins its first step.  Dorm's figures are taken from the log, as in `describe`, stories and prices:

    real         from the decision to the beginning of the first step, by the app's clock
    shown        the same as `dorm describe` shows it: `total_s` of the adjustment
    error        |shown - real| / real
    priced       the pause as an adjustment is priced, without repeated work, compared with the real one from the end of the
                 preparation

The app reports every step, or seldom (`every`), since the time of the first step follows from the first report.  Everything
runs on one machine, so there is one clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.bench import BenchError
from dorm.bench.cluster import CAPACITY, NODES, Watch, attended, bench_cluster, runtimes
from dorm.bench.report import Report, figure, percentile, spread, this_machine
from dorm.core.costs import cost_s
from dorm.core.query.views import adjustment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.bench.cluster import RuntimeName, Wanted
    from dorm.bench.report import Figure, Progress
    from dorm.core.state import App, State
    from dorm.local.cluster import LocalCluster
    from events.kinds import Event

GOAL = 0.05
"""Largest relative error."""
SMALL, LARGE = 2, 4
"""Containers, in turns."""
STEP_S = 0.2
"""Seconds of a step by one worker; n of them are n ** `scaling` times as fast."""
_WORKS_S = 4.0
"""Time for which the app works between two resizes: until after the first marks on the log, which determine its pace."""
_LONGEST_S = 60.0
_PROGRAM = """\
import json, os, signal, sys, time
load_s, step_s, every = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
saved = os.path.join(os.environ["DORM_CHECKPOINT_DIR"], "step")
rank = int(os.environ["DORM_RANK"])
step_s /= int(os.environ["DORM_WORLD_SIZE"]) ** float(sys.argv[4])
progress = open(os.environ["DORM_PROGRESS"], "a", buffering=1)
time.sleep(load_s)
step = int(open(saved).read()) if os.path.exists(saved) else 0
if rank == 0:
    print("first step at", time.time_ns(), flush=True)
while not asked:
    time.sleep(step_s)
    step += 1
    if rank == 0 and step % every == 0:
        progress.write(json.dumps({"step": step, "loss": 1.0 / step}) + "\\n")
if rank == 0:
    with open(saved + ".partial", "w") as file:
        file.write(str(step))
    os.replace(saved + ".partial", saved)
    progress.write(json.dumps({"checkpoint": step}) + "\\n")
sys.exit(143)
"""


class Sample(msgspec.Struct, frozen=True):
    """One resize, in seconds."""

    real: float
    shown: float
    real_pause: float
    priced: float

    @property
    def error(self) -> float:
        return abs(self.shown - self.real) / self.real

    @property
    def priced_error(self) -> float:
        return abs(self.priced - self.real_pause) / self.real_pause


async def bench_pause(
    *, runs: int, every: int, load_s: float, scaling: float, wanted: Wanted, docker_url: str | None, progress: Progress
) -> Report:
    """Run `runs` resizes for each runtime, of an app that loads for `load_s` seconds, reports each `every` steps, and whose n
    workers are n ** `scaling` times as fast as one.  Raises BenchError and what a cluster raises that can't start."""
    machine = this_machine()
    figures: dict[str, Figure] = {}
    measured = await runtimes(wanted, docker_url, progress)
    for runtime in measured:
        async with bench_cluster(runtime, docker_url) as cluster:
            samples = await attended(
                cluster, _resize_all(cluster, _spec(every, load_s, scaling), runtime, runs, progress)
            )
        figures |= _figures(runtime, samples)
    return Report(
        bench="pause",
        machine=machine,
        settings={
            "runs": runs,
            "every": every,
            "load_s": load_s,
            "scaling": scaling,
            "step_s": STEP_S,
            "containers": [SMALL, LARGE],
            "runtimes": measured,
            "nodes": NODES,
            "node_capacity": CAPACITY,
        },
        figures=figures,
    )


def _figures(runtime: str, samples: Sequence[Sample]) -> dict[str, Figure]:
    figures = spread(f"{runtime}_real", [sample.real for sample in samples])
    figures |= spread(f"{runtime}_shown", [sample.shown for sample in samples])
    for name, errors in (
        ("error", [sample.error for sample in samples]),
        ("priced_error", [sample.priced_error for sample in samples]),
    ):
        figures[f"{runtime}_{name}_p50_ratio"] = figure(percentile(errors, 50), "ratio", f"<= {GOAL:g}")
        figures[f"{runtime}_{name}_p95_ratio"] = figure(percentile(errors, 95), "ratio")
    return figures


def _spec(every: int, load_s: float, scaling: float) -> dict[str, Any]:
    return {
        "name": "paused",
        "image": "dorm/samples:1",
        "command": ["python3", "-c", _PROGRAM, str(load_s), str(STEP_S), str(every), str(scaling)],
        "demand": {"cpu": "250m", "memory": "64MiB"},
        "n_min": 1,
        "n_max": LARGE,
    }


async def _resize_all(
    cluster: LocalCluster, spec: dict[str, Any], runtime: RuntimeName, runs: int, progress: Progress
) -> list[Sample]:
    samples = []
    async with contextlib.aclosing(Watch(cluster.client.log)) as watch:
        progress(f"{runtime}: starting the app")
        app = await cluster.client.submit(spec, answer_timeout=_LONGEST_S)
        await _works(watch, app.id, generation=1)
        for number in range(runs):
            size = SMALL if number % 2 == 0 else LARGE
            await asyncio.sleep(_WORKS_S)
            progress(f"{runtime}: resize {number + 1} of {runs}, to {size} containers")
            samples.append(await _resize_one(cluster, watch, app.id, size))
    return samples


async def _resize_one(cluster: LocalCluster, watch: Watch, app_id: str, size: int) -> Sample:
    generation = watch.app(app_id).generation + 1
    await cluster.client.update(app_id, n_max=size)
    await _works(watch, app_id, generation=generation)
    await asyncio.sleep(_WORKS_S)
    app = await cluster.client.app(app_id)
    record = app.history[-1] if app.history else None
    if record is None or record.to_generation != generation or record.containers_after != size:
        raise BenchError(f"the resize to {size} containers came out as {record}", code="bench.wrong_answer")
    first = await _first_step(cluster, app, generation)
    shown, cost = adjustment(app, len(app.history) - 1)["total_s"], cost_s(record)
    if shown is None or cost is None or not record.steps_per_s:
        raise BenchError(f"no pause is known of the resize to {size} containers: {record}", code="bench.wrong_answer")
    return Sample(
        real=(first - record.decided_at) / 1e9,
        shown=shown,
        real_pause=(first - (record.prepared_at or record.decided_at)) / 1e9,
        priced=cost - record.lost_steps / record.steps_per_s,
    )


async def _works(watch: Watch, app_id: str, *, generation: int) -> None:
    """Wait until all containers of this generation run and the log has its first report."""

    def holds(state: State, _: Event) -> bool:
        app = state.apps.get(app_id)
        return (
            app is not None
            and app.generation == generation
            and app.settled
            and bool(app.current and app.current.worked)
        )

    await watch.until(holds, f"generation {generation}'s first report", timeout=_LONGEST_S)


async def _first_step(cluster: LocalCluster, app: App, generation: int) -> int:
    """Return when the worker of rank 0 began its first step, by its own clock (UTC ns)."""
    output = b""
    async for chunk in cluster.client.logs(app.id, generation=generation):
        output += chunk
    parts = output.split()
    if parts[:3] != [b"first", b"step", b"at"]:
        raise BenchError(f"the app printed {output[:200]!r}", code="bench.wrong_answer")
    return int(parts[3])
