"""Containers that end with their engine, or by the engine's own tools: neither done nor failed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker.engine import Engine
from agents.runtime.docker.runtime import DockerRuntime
from agents.runtime.interface import ContainerSpec, Key
from compose.engine import Engine as Loader
from compose.image import SAMPLES_REF
from tests.agents.harness import PATIENCE_S, Harness, ended, says
from tests.lab.machines.dockerd import Dockerd, why_not
from tests.lab.machines.engines import unavailable
from tests.lab.machines.leases import Lease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = [pytest.mark.docker, pytest.mark.slow]

POLITE_AND_DONE = 'trap "exit 0" TERM; echo ready; while :; do sleep 0.05; done'


async def test_a_manually_stopped_container_is_not_completed(docker_harness: Harness, docker_host: str) -> None:
    async with docker_harness.opened() as runtime:
        assert isinstance(runtime, DockerRuntime)
        spec, other = docker_harness.shell(POLITE_AND_DONE), docker_harness.shell("exit 0")
        for one in (spec, other):
            await runtime.ensure(one)
        await says(runtime, spec.key, b"ready")
        engine = Engine(docker_host)
        await engine.open()
        await engine.kill((await engine.list((f"dorm.generation={spec.key.generation}",)))[0]["Id"], "SIGTERM")
        await engine.close()
        stopped, done = await ended(runtime, spec.key), await ended(runtime, other.key)
    assert (stopped.exit_code, stopped.interrupted) == (0, True)
    assert (done.exit_code, done.interrupted) == (0, False)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
async def test_a_completed_app_stays_completed_regardless_of_the_nodes_clock(
    docker_harness: Harness, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    engines = time.time
    monkeypatch.setattr(time, "time", lambda: engines() + ahead_s)
    async with docker_harness.opened() as runtime:
        spec = docker_harness.shell("exit 0")
        await runtime.ensure(spec)
        done = await ended(runtime, spec.key)
    assert (done.exit_code, done.interrupted) == (0, False)


BRIDGE = Path("/sys/class/net/docker0")


@pytest.fixture
async def own_engine(docker_archive: Path) -> AsyncIterator[Callable[[bool], Awaitable[Dockerd]]]:
    """`await own_engine(live_restore)` gives an engine that a test may kill."""
    if reason := why_not():
        unavailable(f"no engine can be started: {reason}")
    lease = Lease.take()
    bridge = BRIDGE.exists()

    async def make(live_restore: bool) -> Dockerd:
        engine = Dockerd(lease.home / "engine", f"{lease.name}/engine", live_restore=live_restore)
        await engine.start()
        async with Loader(engine.url) as loader:
            await loader.load(docker_archive)
        return engine

    yield make
    lease.release()
    assert BRIDGE.exists() >= bridge, "the machine's own engine keeps its network"


@pytest.mark.parametrize("live_restore", [False, True], ids=["stops them", "lets them live"])
async def test_an_engine_that_was_killed_and_restarted(
    own_engine: Callable[[bool], Awaitable[Dockerd]], tmp_path: Path, live_restore: bool
) -> None:
    engine = await own_engine(live_restore)
    runtime = DockerRuntime("node", tmp_path / "node", url=engine.url)
    await runtime.open()
    go = runtime.run_dir(Key("app", 2, 0)) / "go"
    alone = 'while ! [ -e "$HOME/go" ]; do sleep 0.05; done; exit 5'
    for generation, script in enumerate((POLITE_AND_DONE, alone), start=1):
        spec = ContainerSpec(Key("app", generation, 0), SAMPLES_REF, ("sh", "-c", script), env={}, resources={})
        await runtime.ensure(spec)
    await says(runtime, Key("app", 1, 0), b"ready")
    await engine.kill()
    if live_restore:
        go.touch()  # without an engine, only the container itself ends it
        await asyncio.sleep(0.5)
    await engine.start()
    if live_restore:
        own = await ended(runtime, Key("app", 2, 0))
        assert (own.exit_code, own.interrupted) == (5, False)
        assert (await runtime.list())[0].state == "running"
        await runtime.stop(Key("app", 1, 0), PATIENCE_S)
    else:
        for generation in (1, 2):
            assert (await ended(runtime, Key("app", generation, 0))).interrupted
    await runtime.close()
