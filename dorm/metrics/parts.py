"""Metrics of the parts that run in this process: a master, agents, and the process itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY

from dorm.health import printing
from dorm.master.computing import Run
from dorm.metrics.cluster import counter, gauge, histogram
from dorm.metrics.families import AGENT_STATES
from dorm.metrics.tally import PHASE_BOUNDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from prometheus_client import Metric

    from agents.agent import Agent
    from dorm.master.master import Master

    Source = Callable[[], Awaitable[Iterable[Metric]]]


class SolveTimer:
    """A master's `solve` that measures how long each decision takes to compute."""

    def __init__(self) -> None:
        self.seconds = Histogram.empty(PHASE_BOUNDS)

    async def __call__(self, function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        began = asyncio.get_running_loop().time()
        try:
            return await asyncio.to_thread(function, *args, **how)
        finally:
            if isinstance(function, Run):
                self.seconds.observe(asyncio.get_running_loop().time() - began)


def of_master(master: Master, timer: SolveTimer) -> Source:
    async def metrics() -> Iterable[Metric]:
        return [*_master_metrics(master, timer)]

    return metrics


def of_agents(agents: Sequence[Agent]) -> Source:
    async def metrics() -> Iterable[Metric]:
        return [*_agent_metrics(agents)]

    return metrics


def _master_metrics(master: Master, timer: SolveTimer) -> Iterator[Metric]:
    yield gauge("dorm_master_leading", master.leads)
    yield gauge("dorm_master_folded_sequence", master.state.seq)
    yield gauge("dorm_master_lease_left_seconds", master.lease_left_s)
    yield histogram("dorm_master_solve_seconds", {(): timer.seconds})


def _agent_metrics(agents: Sequence[Agent]) -> Iterator[Metric]:
    every = [agent.vitals() for agent in agents]
    yield gauge("dorm_agent_joined", {(one.node,): one.joined for one in every})
    yield gauge(
        "dorm_agent_containers", {(one.node, state): one.containers[state] for one in every for state in AGENT_STATES}
    )
    yield gauge("dorm_agent_folded_sequence", {(one.node,): one.seq for one in every})
    yield gauge("dorm_agent_pending_facts", {(one.node,): one.pending for one in every})
    yield gauge("dorm_agent_runtime_silence_seconds", {(one.node,): one.silence_s for one in every})
    yield gauge("dorm_agent_lease_left_seconds", {(one.node,): max(0.0, one.lease_left_s) for one in every})


def process_metrics() -> Iterator[Metric]:
    """Yield what this process lost of its own log, and the client library's own metrics: `process_*` (memory, CPU, open files)
    and `python_*`."""
    yield counter("dorm_log_lines_lost_total", printing.lost())
    yield from REGISTRY.collect()
