"""Engines that are away or silent, containers half made, and containers of others: on a real engine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from agents.runtime.docker import container_config
from agents.runtime.docker.engine import Engine
from agents.runtime.interface import Conflict, Refused, Unavailable
from events import kinds as k
from tests.agents.harness import PATIENCE_S, POLITE, STUBBORN, Harness, container_dir, ended, look, output, says, until
from tests.agents.one_node import NODE, Node
from tests.agents.runtime.conformance import COUNT_ME, starts
from tests.agents.wire import wired
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.runtime.docker.runtime import DockerRuntime
    from agents.runtime.interface import ContainerSpec

pytestmark = pytest.mark.docker


async def half_made(runtime: DockerRuntime, engine: Engine, spec: ContainerSpec) -> str:
    """Leave a container as an agent does that dies right after its creation; return its name."""
    name = container_config.container_name(runtime._host, spec.key)
    assert runtime._dirs.make(spec.key, owner=runtime._host.profile.user_of(spec.tenant))
    await engine.create(name, container_config.container_config(runtime._host, spec, runtime.run_dir(spec.key), None))
    return name


# half made


async def test_a_container_that_was_created_but_not_started_is_started(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    spec = docker_harness.shell(COUNT_ME + POLITE)
    await half_made(runtime, engine, spec)
    seen = await look(runtime, spec.key)
    assert seen is not None
    assert (seen.state, seen.exit_code, seen.error) == ("created", None, "")
    await runtime.stop(spec.key, 1)  # nothing to stop, no error
    assert (await runtime.ensure(spec)).state == "running"
    await says(runtime, spec.key, b"ready")
    assert starts(runtime, spec.key) == 1


async def test_a_created_container_can_be_removed(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    spec = docker_harness.shell(POLITE)
    await half_made(runtime, engine, spec)
    await runtime.remove(spec.key)
    assert await runtime.list() == []


async def test_a_container_that_another_agent_starts_is_waited_for(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    """The dead agent's request takes effect after the new one has looked, and the program is quick to end."""
    spec = docker_harness.shell(COUNT_ME + "exit 3")
    name = await half_made(runtime, engine, spec)
    (container_dir(runtime, spec.key) / "starting").touch()
    ensuring = asyncio.create_task(runtime.ensure(spec))
    while (await engine.inspect(name) or {})["State"]["Status"] == "created" and not ensuring.done():
        await engine.start(name)
    await ensuring
    assert (await ended(runtime, spec.key)).exit_code == 3
    assert starts(runtime, spec.key) == 1


async def test_a_failed_start_is_reported_and_cleared(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    """An agent died between the failure and its clearing up."""
    spec = docker_harness.shell(POLITE, resources={"gpu": 1}, devices=("no-such-gpu",))
    name = await half_made(runtime, engine, spec)
    with contextlib.suppress(Exception):
        await engine.start(name)
    seen = await look(runtime, spec.key)
    assert seen is not None
    assert (seen.state, seen.exit_code, seen.started_at) == ("exited", None, 0)
    assert "device driver" in seen.error
    with pytest.raises(Refused) as refused:
        await runtime.ensure(spec)
    assert refused.value.cause == "device"
    assert await runtime.list() == []


async def test_a_paused_container_counts_as_running_and_can_be_stopped(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    spec = docker_harness.shell(STUBBORN)
    await runtime.ensure(spec)
    async with engine._docker._query(
        f"containers/{container_config.container_name(runtime._host, spec.key)}/pause", "POST"
    ):
        pass
    seen = await look(runtime, spec.key)
    assert seen is not None
    assert seen.state == "running"
    await runtime.stop(spec.key, 0.1)
    assert (await ended(runtime, spec.key)).exit_code == 137


# others on the same engine


async def test_nodes_and_clusters_share_an_engine(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], cluster: str
) -> None:
    nodes = [docker_node("a"), docker_node("b"), docker_node("c", cluster=cluster + "-other")]
    specs = [docker_harness.shell(POLITE) for _ in nodes]
    for node, spec in zip(nodes, specs, strict=True):
        await node.open()
        await node.ensure(spec)
    for node, spec in zip(nodes, specs, strict=True):
        assert [seen.key for seen in await node.list()] == [spec.key]
    a, b, c = nodes
    for key in (specs[1].key, specs[2].key):
        await a.stop(key, 0)
        await a.remove(key)
        assert await a.use(key) is None
        with pytest.raises(KeyError):
            await output(a, key)
        with pytest.raises(KeyError):
            await a.run(key, ("true",), PATIENCE_S)
    for other in specs[1:]:
        assert (await a.ensure(other)).state == "running"  # others' containers of this key have other names
    for node in (b, c):
        assert (await node.list())[0].state == "running"
    for node in nodes:
        for seen in await node.list():
            await node.stop(seen.key, 0)
            await node.remove(seen.key)
        await node.close()


async def test_two_clusters_of_one_name_share_an_engine(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], tmp_path: Path
) -> None:
    """Equal names of cluster, node and app: only the root distinguishes them."""
    spec = docker_harness.shell(COUNT_ME + POLITE)
    roots = [tmp_path / "one", tmp_path / "two"]
    one, two = [docker_node("node", root=root) for root in roots]
    for runtime in (one, two):
        await runtime.open()
        assert (await runtime.ensure(spec)).state == "running"
        await says(runtime, spec.key, b"ready")
    await one.stop(spec.key, PATIENCE_S)
    await one.remove(spec.key)
    assert (await one.list(), await one.use(spec.key)) == ([], None)
    assert [seen.state for seen in await two.list()] == ["running"]
    await two.close()

    again = docker_node("node", root=roots[1])  # a restarted agent adopts what runs
    await again.open()
    assert (await again.ensure(spec)).state == "running"
    assert starts(again, spec.key) == 1
    await one.close()
    await emptied(again)


async def emptied(runtime: DockerRuntime) -> None:
    for seen in await runtime.list():
        await runtime.stop(seen.key, 0)
        await runtime.remove(seen.key)
    await runtime.close()


async def test_a_damaged_identity_orphans_no_container(
    docker_node: Callable[..., DockerRuntime], tmp_path: Path
) -> None:
    runtime = docker_node()
    await runtime.open()
    await runtime.close()
    identity = tmp_path / "node" / "identity"
    kept = identity.read_text()
    identity.write_text("")
    with raises(Conflict, "identity.malformed"):
        await runtime.open()
    identity.write_text(kept)
    await runtime.open()  # the failure let go of the root
    await runtime.close()


async def test_an_unrelated_container_is_left_alone(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    spec = docker_harness.shell(POLITE)
    name = container_config.container_name(runtime._host, spec.key)
    await engine.create(
        name, {"Image": docker_harness.image, "Entrypoint": ["sleep", "600"], "HostConfig": {"NetworkMode": "host"}}
    )
    await engine.start(name)
    with pytest.raises(Conflict):
        await runtime.ensure(spec)
    await runtime.stop(spec.key, 0)
    await runtime.remove(spec.key)
    info = await engine.inspect(name)
    assert info is not None
    assert info["State"]["Running"]
    assert await runtime.list() == []
    await engine.kill(name, "SIGKILL")
    await engine.wait(name, PATIENCE_S)
    await engine.delete(name)


# engines in trouble


async def test_without_an_engine_the_runtime_is_unavailable(
    docker_node: Callable[..., DockerRuntime], tmp_path: Path
) -> None:
    for url in (f"unix://{tmp_path}/none.sock", "tcp://127.0.0.1:1", "http://x"):
        runtime = docker_node("away", url=url)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await runtime.open()
    with pytest.raises(Unavailable):
        await runtime.list()


async def test_a_cut_wire(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], docker_host: str, tmp_path: Path
) -> None:
    if not docker_host.startswith("unix://"):
        pytest.skip("the wire joins unix sockets")
    async with wired(tmp_path / "wire.sock", docker_host) as wire:
        runtime = docker_node(url=wire.url)
        await runtime.open()
        spec = docker_harness.shell(POLITE)
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        hints = runtime.hints()
        await anext(hints)
        stopping = asyncio.create_task(runtime.stop(docker_harness.shell(POLITE).key, 1))
        following = asyncio.create_task(output(runtime, spec.key, follow=True))
        await stopping
        await asyncio.wait([following], timeout=0.2)  # let it reach the engine; it cannot end before the cut

        await wire.cut()
        with pytest.raises(Unavailable):
            await following
        for call in (
            runtime.list(),
            runtime.ensure(spec),
            runtime.ensure(docker_harness.shell(POLITE)),
            runtime.stop(spec.key, 1),
            runtime.run(spec.key, ("true",), 1),
            runtime.remove(spec.key),
            output(runtime, spec.key),
        ):
            with pytest.raises(Unavailable):
                await call
        again = asyncio.create_task(anext(hints))

        await wire.heal()
        async with asyncio.timeout(PATIENCE_S):
            await again  # connected once more
        await hints.aclose()
        assert (await runtime.list())[0].state == "running"
        await runtime.stop(spec.key, PATIENCE_S)
        assert (await until(runtime, spec.key, lambda seen: seen.state == "exited")).exit_code == 7
        await runtime.close()


async def test_a_wire_cut_while_a_stop_waits(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], docker_host: str, tmp_path: Path
) -> None:
    async with wired(tmp_path / "wire.sock", docker_host) as wire:
        runtime = docker_node(url=wire.url)
        await runtime.open()
        spec = docker_harness.shell("trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")  # Before, a signal would end the shell.
        stopping = asyncio.create_task(runtime.stop(spec.key, PATIENCE_S))
        await says(runtime, spec.key, b"asked")
        await wire.cut()
        with pytest.raises(Unavailable):  # not taken for the end of its grace
            await stopping
        await wire.heal()
        assert (await runtime.list())[0].state == "running"
        await runtime.close()


async def test_a_silent_engine_is_given_up(docker_host: str, tmp_path: Path) -> None:
    async with wired(tmp_path / "wire.sock", docker_host) as wire:
        engine = Engine(wire.url, ask_s=0.2, change_s=0.2)
        await engine.open()
        wire.silent = True
        await wire.cut()
        await wire.heal()
        for call in (engine.list(()), engine.inspect("x"), engine.start("x"), engine.delete("x"), engine.stats("x")):
            with pytest.raises(Unavailable):
                await call
        assert await engine.wait("x", 0.1) is False
        await engine.close()


async def test_many_waits_do_not_block_other_calls(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime]
) -> None:
    """The usual pool of connections has room for 100."""
    runtime = docker_node()
    await runtime.open()
    spec = docker_harness.shell(POLITE)
    await runtime.ensure(spec)
    name = container_config.container_name(runtime._host, spec.key)
    waits = [asyncio.create_task(runtime._engine.wait(name, PATIENCE_S)) for _ in range(120)]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.sleep(0)  # all have asked for a connection
        assert (await runtime.list())[0].state == "running"
        await runtime.stop(spec.key, PATIENCE_S)
        assert all(await asyncio.gather(*waits))
    await runtime.close()


async def test_the_engines_own_figures_agree_with_the_files(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    spec = docker_harness.spec(
        "python3", "-c", "x = b'x' * 50_000_000\nimport time\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    sample = container_config.use_of(await engine.stats(container_config.container_name(runtime._host, spec.key)))
    use = await runtime.use(spec.key)
    assert use is not None
    assert sample.cpu_s <= use.cpu_s
    assert abs(sample.memory - use.memory) < 10_000_000
    assert 50_000_000 < use.memory < 100_000_000


async def test_an_engine_that_can_not_create_it(
    docker_harness: Harness, runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its OCI runtime were not installed: nothing that the app could mend."""
    made = container_config.container_config

    def broken(*given: Any) -> Any:
        request = made(*given)
        request["HostConfig"]["Runtime"] = "none-such"
        return request

    spec = docker_harness.shell(POLITE)
    monkeypatch.setattr(container_config, "container_config", broken)
    with pytest.raises(Unavailable) as failed:
        await runtime.ensure(spec)
    assert failed.value.doing in ("create", "start")
    assert "none-such" in failed.value.said
    assert "dorm-" not in failed.value.said  # the container's name, which people know otherwise
    await runtime.stop(spec.key, 0.0)
    await runtime.remove(spec.key)
    assert await runtime.list() == []
    monkeypatch.undo()
    assert (await runtime.ensure(spec)).state == "running"


async def test_an_engine_that_creates_nothing_is_the_nodes_failure(
    docker_node: Callable[..., DockerRuntime], docker_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole agent: the log says it once, and then that the container has failed here."""
    made = container_config.container_config

    def broken(*given: Any) -> Any:
        request = made(*given)
        request["HostConfig"]["Runtime"] = "none-such"
        return request

    monkeypatch.setattr(container_config, "container_config", broken)
    node = Node(tmp_path)
    node.make_runtime = lambda: docker_node(NODE)
    async with node.agent():
        await node.release(image=docker_image, deadlines={"start": "3s"})
        ended = await node.until(k.ContainerExited)
        assert isinstance(ended, k.ContainerExited)
        assert (ended.reason, ended.exit_code) == ("start", None)
        assert ended.message.startswith("its node could not create it for 3 s: ")
        assert "none-such" in ended.message
        (delayed,) = [fact for fact in node.facts() if isinstance(fact, k.ContainerDelayed)]
        assert (delayed.doing, delayed.failing, "none-such" in delayed.reason) == ("create", True, True)
