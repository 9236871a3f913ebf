"""`/metrics` for Prometheus: the cluster as this process sees it, and this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dorm.api.answers import Answer
from dorm.api.routes import Call, Parameters, Route
from dorm.metrics.cluster import CONTENT_TYPE, LogFigures, exposition, log_metrics
from dorm.metrics.parts import process_metrics

if TYPE_CHECKING:
    from prometheus_client import Metric

    from dorm.core.state import State


async def metrics(call: Call[Parameters, None]) -> Answer:
    """Counters begin with this process; a master's `--metrics` keeps them across restarts."""
    services = call.services
    now = services.clock()

    def of(state: State) -> tuple[int, list[Metric]]:
        return state.seq, services.counted.metrics(state, now)

    seq, found = await services.follower.look(of)
    found += log_metrics(LogFigures(services.follower.end, None), seq)
    found += process_metrics()
    return Answer(await asyncio.to_thread(exposition, found), str(seq), media=CONTENT_TYPE)


ROUTES = [Route("GET", "/metrics", metrics, "Metrics for Prometheus", media=(CONTENT_TYPE.partition(";")[0],))]
