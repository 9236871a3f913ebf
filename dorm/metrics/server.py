"""`/metrics` over HTTP, with the metrics of the parts that run in this process, and the pages about whether it is alive and
ready.

The parts are a master, agents, and the process itself.  Each source has its own time limit and may fail: the metrics of
the others are served.  One scrape is made at a time; further ones wait for it and get the same body.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import REGISTRY

from dorm.health import printing
from dorm.health.pages import add_pages
from dorm.master.computing import Run
from dorm.metrics.address import Address, MetricsError
from dorm.metrics.cluster import CONTENT_TYPE, counter, exposition, gauge, histogram
from dorm.metrics.families import AGENT_STATES
from dorm.metrics.tally import PHASE_BOUNDS, Histogram
from events.logger import Logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from prometheus_client import Metric

    from agents.agent import Agent
    from dorm.health.checks import Health
    from dorm.master.master import Master
    from dorm.metrics.follower import Follower

    Source = Callable[[], Awaitable[Iterable[Metric]]]


# --- metrics of this process ------------------------------------------------------------------------------------------


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
    yield gauge("dorm_agent_joined", {(each.node,): each.joined for each in every})
    yield gauge(
        "dorm_agent_containers",
        {(each.node, state): each.containers[state] for each in every for state in AGENT_STATES},
    )
    yield gauge("dorm_agent_folded_sequence", {(each.node,): each.seq for each in every})
    yield gauge("dorm_agent_pending_facts", {(each.node,): each.pending for each in every})
    yield gauge("dorm_agent_runtime_silence_seconds", {(each.node,): each.silence_s for each in every})
    yield gauge("dorm_agent_lease_left_seconds", {(each.node,): max(0.0, each.lease_left_s) for each in every})


def process_metrics() -> Iterator[Metric]:
    """Yield what this process lost of its own log, and the client library's own metrics: `process_*` (memory, CPU, open files)
    and `python_*`."""
    yield counter("dorm_log_lines_lost_total", printing.lost())
    yield from REGISTRY.collect()


# --- the server -------------------------------------------------------------------------------------------------------

_SOURCE_S = 8.0
_log = Logger(__name__)


class MetricsServer:
    """Use as an async context manager; serves what `sources` return, the process's own metrics, and the pages of `health`.
    With `else_any_port` it takes any free port if the given one is in use."""

    def __init__(
        self, address: Address, sources: Iterable[Source], *, else_any_port: bool = False, health: Health | None = None
    ) -> None:
        self._sources = list(sources)
        self._health = health
        self._else_any_port = else_any_port
        self._runner: web.AppRunner | None = None
        self._making: asyncio.Task[bytes] | None = None
        self.address = address
        """Address on which it listens."""

    async def __aenter__(self) -> MetricsServer:
        """Raises MetricsError if the address is in use or not this machine's."""
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._answer)
        if self._health is not None:
            add_pages(app, self._health)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await self._listen(self._runner)
        except OSError as error:
            await self._runner.cleanup()
            text = f"metrics can't be served at {self.address}: {error.strerror or error}; choose another address"
            raise MetricsError(text, code="metrics.address.unusable") from None
        return self

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self.address
        try:
            await web.TCPSite(runner, host, port, backlog=16).start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not self._else_any_port:
                raise
            await web.TCPSite(runner, host, 0, backlog=16).start()
        self.address = Address(host, int(runner.addresses[0][1]))

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._scrape())
        body = await asyncio.shield(self._making)
        response = web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
        response.enable_compression()
        return response

    async def _scrape(self) -> bytes:
        samples: list[Metric] = [*process_metrics()]
        for metrics in await asyncio.gather(*map(_ask, self._sources)):
            samples += metrics
        return await asyncio.to_thread(exposition, samples)


async def _ask(source: Source) -> list[Metric]:
    """A source that fails or takes too long is missing from the scrape, and does not affect the others."""
    try:
        async with asyncio.timeout(_SOURCE_S):
            return list(await source())
    except Exception as error:
        _log.warning("a part of the metrics is missing from a scrape", reason=repr(error))
        return []


@contextlib.asynccontextmanager
async def serving(server: MetricsServer, follower: Follower | None, after: asyncio.Event | None) -> AsyncIterator[None]:
    """Serve, and follow the log with `follower` once `after` is set: a master that starts folds first.  Raises
    MetricsError."""

    async def follow(follower: Follower) -> None:
        if after is not None:
            await after.wait()
        await follower.run()

    following = None
    async with server:
        _log.debug("metrics", address=str(server.address))
        try:
            following = asyncio.create_task(follow(follower)) if follower is not None else None
            yield
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
