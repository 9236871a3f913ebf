"""The time from a submission to its running container, on an idle cluster: small apps, one after the other.

Each app is one container that sleeps; once it has started, it is cancelled, and the next one follows when it is gone and the
master's quiet time has passed.  All times are the log's own (JetStream's, at storing), from one clock:

    submitted   AppSubmitted is stored, which is just before its acknowledgement, so figures are a little too long
    accept      → AppAccepted
    decide      → Resized: the master's quiet time, then the solver
    release     → GenerationReleased
    start       → ContainerStarted is stored

The quiet time (a setting) is intentional, so that a burst of submissions causes one decision instead of fifty: goals apply to
the time beyond it, and both are reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from compose.image import SAMPLES_REF
from dorm.bench.cluster import CAPACITY, NODES, Watch, attended, bench_cluster, runtimes
from dorm.bench.report import Report, figure, spread, this_machine

if TYPE_CHECKING:
    from dorm.bench.cluster import RuntimeName, Wanted
    from dorm.bench.report import Figure, Progress
    from dorm.core.state import App
    from dorm.local.cluster import LocalCluster

GOALS_S = {"process": 0.3, "docker": 0.6}
"""Beyond the quiet time, p50."""
_SPEC: dict[str, Any] = {
    "image": SAMPLES_REF,
    "command": ["sleep", "600"],
    "demand": {"cpu": "100m", "memory": "64MiB"},
    "n_max": 1,
    "grace": "5s",
    "retries": {"limit": 0},
}
_LONGEST_S = 60.0


class Sample(msgspec.Struct, frozen=True):
    """Durations of one app, in seconds."""

    accept: float
    decide: float
    release: float
    start: float

    @property
    def total(self) -> float:
        return self.accept + self.decide + self.release + self.start


async def bench_submit(*, apps: int, wanted: Wanted, docker_url: str | None, progress: Progress) -> Report:
    """Measure `apps` submissions for each runtime.  Raises BenchError and what a cluster raises that can't start."""
    machine = this_machine()
    figures: dict[str, Figure] = {}
    quiet_s = 0.0
    measured = await runtimes(wanted, docker_url, progress)
    for runtime in measured:
        async with bench_cluster(runtime, docker_url) as cluster:
            quiet_s, samples = await attended(cluster, _submit_all(cluster, runtime, apps, progress))
        figures |= _figures(runtime, samples, quiet_s)
    return Report(
        bench="submit",
        machine=machine,
        settings={
            "apps": apps,
            "app": f"one container, `{' '.join(_SPEC['command'])}`, cancelled once it has started",
            "not_counted": "one app before, while the master may still load its solver",
            "runtimes": measured,
            "nodes": NODES,
            "node_capacity": CAPACITY,
            "clock": "log time",
        },
        figures={**figures, "quiet_s": figure(quiet_s, "s")},
    )


def _figures(runtime: str, samples: list[Sample], quiet_s: float) -> dict[str, Figure]:
    goal = GOALS_S[runtime]
    total = [sample.total for sample in samples]
    figures = spread(f"{runtime}_submit_to_started", total, f"<= {goal + quiet_s:g}")
    beyond = [seconds - quiet_s for seconds in total]
    figures |= spread(f"{runtime}_submit_to_started_beyond_quiet", beyond, f"<= {goal:g}")
    for phase in Sample.__struct_fields__:
        figures |= spread(f"{runtime}_{phase}", [getattr(sample, phase) for sample in samples])
    return figures


async def _submit_all(
    cluster: LocalCluster, runtime: RuntimeName, apps: int, progress: Progress
) -> tuple[float, list[Sample]]:
    """Return the quiet time in seconds, and a sample of each app."""
    samples = []
    async with contextlib.aclosing(Watch(cluster.client.log)) as watch:
        progress(f"{runtime}: warming up")
        await submit_one(cluster, watch, "bench-warm-up")
        for number in range(apps):
            progress(f"{runtime}: app {number + 1} of {apps}")
            samples.append(await submit_one(cluster, watch, f"bench-{number}"))
            quiet_s = watch.state.settings.quiet_ms / 1000
            await asyncio.sleep(2 * quiet_s)
    return quiet_s, samples


async def submit_one(cluster: LocalCluster, watch: Watch, name: str) -> Sample:
    """Submit an app, and cancel it once it has started; return when it is gone."""
    submitted = await cluster.client.submit({"name": name, **_SPEC}, answer_timeout=_LONGEST_S)

    def found() -> App | None:
        return watch.state.apps.get(submitted.id)

    def started(*_: object) -> bool:
        app = found()
        return app is not None and app.settled

    def gone(*_: object) -> bool:
        app = found()
        return app is not None and bool(app.ended) and all(g.ended for g in app.generations.values())

    await watch.until(started, f"the start of {name}", timeout=_LONGEST_S)
    app = watch.app(name)
    generation = app.generations[app.generation]
    moments = [
        app.submitted_at, app.accepted_at, generation.decided_at, generation.released_at, generation.started_at
    ]  # fmt: skip
    await cluster.client.cancel(submitted.id)
    await watch.until(gone, f"the end of {name}", timeout=_LONGEST_S)
    return Sample(*((after - before) / 1e9 for before, after in pairwise(moments)))
