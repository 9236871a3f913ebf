"""A cluster of real parts for one bench: server, master, agents, on Docker or on processes, removed afterwards.

Its data lies where `dorm up` keeps its own, so the log is synced to the same kind of disk; folder, containers and server are
removed when the bench ends, even after an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agents.config import HIGHEST_PORT
from agents.runtime.removing import delete
from compose.image import ImageUnavailable, ensure_samples_image
from dorm.bench import BenchError
from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm.local.cluster import LocalCluster, LocalOptions
from dorm.local.home import home
from dorm.local.runtimes import EngineError, choose_runtime
from events.kinds import Round

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from dorm.bench.report import Progress
    from dorm.core.state import App
    from events.kinds import Event
    from events.log.interface import ReadableLog

T = TypeVar("T")
RuntimeName = Literal["process", "docker"]
Wanted = Literal["auto", "process", "docker", "both"]

NODES = 3
CAPACITY = {"cpu": 1000, "memory": 2 * 2**30}
"""Capacity of each node, as in the demo."""
_START_S = 60.0
_LOWEST_PORT, _PORTS = 21_000, 300
"""Apps listen on random ports here, so a bench does not conflict with `dorm up` or another bench."""


async def runtimes(wanted: Wanted, docker_url: str | None, progress: Progress) -> list[RuntimeName]:
    """Return the runtimes to measure, with Docker's image built; `auto` is processes, and Docker if an engine answers. Raises
    BenchError, EngineError."""
    if wanted == "process":
        return ["process"]
    try:
        choice = await choose_runtime("docker", docker_url)
    except EngineError:
        if wanted == "auto":
            progress("no Docker engine answers: no figures of Docker")
            return ["process"]
        raise
    progress(f"{choice.note}: looking for the sample apps' image")
    try:
        await ensure_samples_image(docker_url, progress=progress)
    except ImageUnavailable as error:
        raise BenchError(
            f"Docker can't be measured ({error}); leave it out with --runtime process", code="docker.unavailable"
        ) from error
    return ["docker"] if wanted == "docker" else ["process", "docker"]


@contextlib.asynccontextmanager
async def bench_cluster(
    runtime: RuntimeName, docker_url: str | None, *, trust: bool = False, progress_s: float = 0.5
) -> AsyncIterator[LocalCluster]:
    """Start `NODES` nodes on this machine; with `trust`, of a cluster that knows its users.
    Of each app, at most one report of progress is published in `progress_s`."""
    name = f"bench-{secrets.token_hex(4)}"
    data = home() / name
    low = _LOWEST_PORT + _PORTS * secrets.randbelow((HIGHEST_PORT - _LOWEST_PORT) // _PORTS)
    cluster = LocalCluster(
        LocalOptions(
            data=data,
            cluster=name,
            agents=NODES,
            capacity=CAPACITY,
            runtime=runtime,
            docker_url=docker_url,
            ports=(low, low + _PORTS - 1),
            progress_interval_s=progress_s,
            trust=trust,
        )
    )
    try:
        async with contextlib.AsyncExitStack() as started:
            try:
                async with asyncio.timeout(_START_S):
                    await started.enter_async_context(cluster)
            except TimeoutError:
                raise BenchError(f"the cluster did not start within {_START_S:g} s", code="bench.too_slow") from None
            try:
                yield cluster
            finally:
                await cluster.stop_now()
    finally:
        try:
            await cluster.remove_containers()
        finally:
            await asyncio.to_thread(delete, data)


async def attended(cluster: LocalCluster, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; an error of the master or an agent ends it and is raised."""
    working, failing = asyncio.create_task(work), asyncio.create_task(cluster.failed())
    try:
        await asyncio.wait([working, failing], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await failing
        return await working
    finally:
        working.cancel()
        failing.cancel()
        await asyncio.gather(working, failing, return_exceptions=True)


class Watch:
    """A separate fold over a cluster's log, advanced until a condition holds."""

    def __init__(self, log: ReadableLog) -> None:
        self.state = State()
        self._records = log.read(follow=True)
        self._pending: list[Any] = []

    async def until(self, holds: Callable[[State, Event], bool], what: str, *, timeout: float) -> None:
        """Fold until `holds` returns true for the state and the record just folded.  Raises BenchError if that takes longer
        than `timeout` seconds, or if an app fails meanwhile, because nothing can be measured then."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if not self._pending:
                        self._pending = list(reversed(await anext(self._records)))
                    event, _ = evolve(self.state, self._pending.pop())
                    _no_failure(event)
                    if holds(self.state, event):
                        return
        except TimeoutError:
            apps = ", ".join(f"{app.name} is {app.phase}" for app in self.state.live_apps())
            raise BenchError(
                f"{what} took longer than {timeout:g} s ({apps or 'no app runs'})", code="bench.too_slow"
            ) from None

    def app(self, name: str) -> App:
        """Return an app by name or id.  Raises BenchError."""
        known = self.state.find_app(name)
        if known is None:
            raise BenchError(f"the app {name} is not on the log", code="app.not_found")
        return known

    async def aclose(self) -> None:
        await self._records.aclose()


def _no_failure(event: Event) -> None:
    for fact in event.events if isinstance(event, Round) else []:
        if type(fact).__name__ in ("AppFailed", "AppRejected", "GenerationFailed", "NodeLost"):
            raise BenchError(
                f"{type(fact).__name__}: {getattr(fact, 'reason', '') or getattr(fact, 'node', '')}", code="app.failed"
            )
