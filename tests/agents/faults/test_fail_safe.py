"""Nothing outlives its lease: supervisors and guards that are killed, and folders that are removed under them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from agents import node_lease
from agents.runtime.interface import Displaced, Key
from agents.runtime.process.runtime import ProcessRuntime
from events import kinds as k
from tests.agents.harness import PATIENCE_S, STUBBORN, Harness, container_dir, look, processes, running, says
from tests.agents.harness import ended as end_of
from tests.agents.one_node import NODE, Node
from tests.agents.runtime.test_docker_guard import guards, pair
from tests.agents.runtime.test_process_crashes import found, kill_and_wait
from tests.errors import codes_in, raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agents.runtime.docker.runtime import DockerRuntime
    from agents.runtime.interface import ContainerSpec

pytestmark = pytest.mark.slow


@pytest.fixture
async def runtime(process_harness: Harness) -> AsyncIterator[ProcessRuntime]:
    """Not closed: most tests take its folder away."""
    runtime = process_harness.make()
    assert isinstance(runtime, ProcessRuntime)
    await runtime.open()
    yield runtime
    await runtime.close()


def family(harness: Harness, number: str) -> ContainerSpec:
    """A program that ignores SIGTERM, with a child and a child in a separate session."""
    return harness.shell(f"sleep {number} & setsid sleep {number} & {STUBBORN}")


async def started(runtime: ProcessRuntime, spec: ContainerSpec, number: str) -> list[psutil.Process]:
    """All processes of it but its supervisor and guardian."""
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    program = psutil.Process(found(runtime, spec.key).program)
    async with asyncio.timeout(PATIENCE_S):
        while len(children := processes(number)) < 2:  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.01)
    return [program, *children]


async def die(all_of_them: list[psutil.Process]) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, all_of_them, PATIENCE_S)
    assert alive == []


async def test_a_program_and_its_children_die_with_a_killed_supervisor(
    process_harness: Harness, runtime: ProcessRuntime, unused_number: str
) -> None:
    spec = family(process_harness, unused_number)
    all_of_them = await started(runtime, spec, unused_number)
    await kill_and_wait(found(runtime, spec.key).supervisor)
    await die(all_of_them)
    seen = await end_of(runtime, spec.key)
    assert (seen.state, seen.exit_code) == ("exited", None)


async def test_a_program_runs_on_without_its_guardian_and_still_ends_with_the_lease(
    process_harness: Harness, runtime: ProcessRuntime, unused_number: str
) -> None:
    await runtime.extend_lease(600.0)
    spec = family(process_harness, unused_number)
    all_of_them = await started(runtime, spec, unused_number)
    guardian = psutil.Process(found(runtime, spec.key).supervisor).parent()
    assert guardian is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # which are the supervisor's business
        guardian.send_signal(number)
    assert guardian.is_running()
    await kill_and_wait(guardian.pid)
    assert all(process.is_running() for process in all_of_them)
    await runtime.extend_lease(0.5)
    await die(all_of_them)
    assert (await end_of(runtime, spec.key)).lease_ended


async def test_a_container_whose_folder_is_removed_is_killed_and_listed_until_then(
    process_harness: Harness, runtime: ProcessRuntime, unused_number: str
) -> None:
    """An agent that no longer sees it would report it as lost, and its app would start again next to it."""
    spec = family(process_harness, unused_number)
    all_of_them = await started(runtime, spec, unused_number)
    supervisor = found(runtime, spec.key).supervisor
    os.kill(supervisor, signal.SIGSTOP)
    shutil.rmtree(container_dir(runtime, spec.key))
    seen = await look(runtime, spec.key)
    assert seen is not None
    assert seen.state == "running"
    os.kill(supervisor, signal.SIGCONT)
    await die(all_of_them)
    async with asyncio.timeout(PATIENCE_S):
        while await look(runtime, spec.key) is not None:  # noqa: ASYNC110  (its supervisor ends a moment later)
            await asyncio.sleep(0.01)


async def test_nothing_survives_the_removal_of_a_node_s_folder(
    process_harness: Harness, runtime: ProcessRuntime, tmp_path: Path, unused_number: str
) -> None:
    """As an operator does with the folder of an agent that was stopped or killed."""
    await runtime.extend_lease(600.0)
    all_of_them = await started(runtime, family(process_harness, unused_number), unused_number)
    shutil.rmtree(tmp_path / "node")
    await die(all_of_them)
    for what in (runtime.list(), runtime.lease_left(), runtime.extend_lease(600.0)):
        with raises(Displaced, "runtime.displaced"):
            await what


async def test_a_folder_that_was_made_again_is_not_the_agent_s(runtime: ProcessRuntime, tmp_path: Path) -> None:
    await runtime.extend_lease(600.0)
    shutil.rmtree(tmp_path / "node")
    newcomer = ProcessRuntime("node", tmp_path / "node")
    await newcomer.open()
    with pytest.raises(Displaced):
        await runtime.list()
    await newcomer.extend_lease(300.0)
    with pytest.raises(Displaced):
        await runtime.extend_lease(600.0)
    await runtime.close()
    left = await newcomer.lease_left()
    assert left is not None
    assert 0 < left <= 300.0
    assert node_lease.looked_after(str(tmp_path / "node" / node_lease.FILE)), (
        "the one that closes lets go of nothing but its own"
    )
    await newcomer.close()


async def test_a_lease_whose_record_is_removed_still_ends_on_time(
    process_harness: Harness, runtime: ProcessRuntime, tmp_path: Path, unused_number: str
) -> None:
    ends_at = node_lease.after(4.0)
    await runtime.extend_lease(4.0)
    spec = family(process_harness, unused_number)
    all_of_them = await started(runtime, spec, unused_number)
    (tmp_path / "node" / node_lease.FILE).unlink()
    await die(all_of_them)
    assert node_lease.now_ns() >= ends_at
    assert (await end_of(runtime, spec.key)).lease_ended


async def test_an_agent_whose_folder_is_removed_ends_and_calls_nothing_lost(tmp_path: Path) -> None:
    """Its supervisor is stopped, so the container runs on for as long as the test lasts."""
    node = Node(tmp_path)
    runtime = ProcessRuntime(NODE, tmp_path / "containers")
    node.make_runtime = lambda: runtime
    supervisor = 0
    try:
        async with node.working():
            supervisor = found(runtime, Key("app-1", 1, 0)).supervisor
            os.kill(supervisor, signal.SIGSTOP)
            (tmp_path / "containers").rename(tmp_path / "removed")
            assert node.running is not None
            with pytest.raises(ExceptionGroup) as ended:
                await node.running
        assert "runtime.displaced" in codes_in(ended.value)
        assert not any(isinstance(fact, k.ContainerExited) for fact in node.facts())
    finally:
        os.kill(supervisor, signal.SIGCONT)
        os.kill(supervisor, signal.SIGUSR1)


# --- Docker ------------------------------------------------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.soak
async def test_the_guard_kills_with_the_lease_even_if_the_folder_is_gone(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], tmp_path: Path, unused_number: str
) -> None:
    runtime = docker_node()
    await runtime.open()
    ends_at = node_lease.after(6.0)
    await runtime.extend_lease(6.0)
    spec = docker_harness.shell(f"setsid sleep {unused_number} & {STUBBORN}")
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    held, guard = await running(unused_number), await pair(tmp_path / "node")
    await runtime.close()
    shutil.rmtree(tmp_path / "node")
    await die(held)
    assert node_lease.now_ns() >= ends_at
    await die(guard)
    await _remove_strays(runtime)


@pytest.mark.docker
@pytest.mark.parametrize("which", [0, 1], ids=["parent", "worker"])
async def test_a_guard_that_is_killed_is_replaced_by_its_partner(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], tmp_path: Path, unused_number: str, which: int
) -> None:
    """No agent is there that would start another one."""
    runtime = docker_node()
    await runtime.open()
    await runtime.extend_lease(600.0)
    spec = docker_harness.shell(f"setsid sleep {unused_number} & {STUBBORN}")
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    held = await running(unused_number)
    before = await pair(tmp_path / "node")
    await runtime.close()
    await kill_and_wait(before[which].pid)
    assert before[1 - which] in await pair(tmp_path / "node")
    node_lease.write(str(tmp_path / "node" / node_lease.FILE), node_lease.after(0.5), 0)
    await die(held)
    await die(guards(tmp_path / "node"))


async def _remove_strays(runtime: DockerRuntime) -> None:
    """What no runtime on a new folder would see."""
    engine = runtime._engine
    await engine.open()
    for container in await engine.list((f"dorm.cluster={runtime._host.cluster}",)):
        await engine.delete(container["Id"])
    await engine.close()
