"""The cost of keys and signatures: submission to running container on a cluster that knows its users and on an open one.

Both clusters run at once, and each gets the next app in turn, so other load affects both alike.  On the
one that knows its users, connections prove who they are, servers check subjects, ids of messages are keyed, the fold checks
authors, and the master signs each round, which agents verify.
"""

from __future__ import annotations

import asyncio
import contextlib
from statistics import median
from typing import TYPE_CHECKING

from dorm.bench.cluster import CAPACITY, NODES, Watch, attended, bench_cluster
from dorm.bench.report import Report, figure, spread, this_machine
from dorm.bench.submit import submit_one

if TYPE_CHECKING:
    from dorm.bench.cluster import RuntimeName
    from dorm.bench.report import Progress
    from dorm.local.cluster import LocalCluster

GOAL = "<= 5"
"""Percent."""


async def bench_trust(*, apps: int, runtime: RuntimeName, docker_url: str | None, progress: Progress) -> Report:
    """Measure `apps` submissions on each of two clusters.  Raises BenchError and what a cluster raises that can't start."""
    machine = this_machine()
    async with (
        bench_cluster(runtime, docker_url) as without,
        bench_cluster(runtime, docker_url, trust=True) as known,
    ):
        submitting = _submit_in_turns({"open": without, "known": known}, apps, progress)
        seconds = await attended(without, attended(known, submitting))
    slower = 100 * (median(seconds["known"]) / median(seconds["open"]) - 1)
    return Report(
        bench="trust",
        machine=machine,
        settings={
            "apps": apps,
            "runtime": runtime,
            "nodes": f"{NODES} on each of two clusters",
            "node_capacity": CAPACITY,
            "clock": "log time",
        },
        figures={
            **spread("open_submit_to_started", seconds["open"]),
            **spread("known_submit_to_started", seconds["known"]),
            "signed_slower_percent": figure(slower, "%", GOAL),
        },
    )


async def _submit_in_turns(clusters: dict[str, LocalCluster], apps: int, progress: Progress) -> dict[str, list[float]]:
    """Return the seconds from submission to start on each cluster."""
    times: dict[str, list[float]] = {name: [] for name in clusters}
    async with contextlib.AsyncExitStack() as stack:
        watches = {
            name: await stack.enter_async_context(contextlib.aclosing(Watch(cluster.client.log)))
            for name, cluster in clusters.items()
        }
        for number in range(-1, apps):
            progress("warming up" if number < 0 else f"app {number + 1} of {apps}")
            # The first cluster alternates, too.
            for name in sorted(clusters, reverse=bool(number % 2)):
                sample = await submit_one(clusters[name], watches[name], f"bench-{number + 1}")
                if number >= 0:
                    times[name].append(sample.total)
            await asyncio.sleep(2 * watches["open"].state.settings.quiet_ms / 1000)
    return times
