"""The sample app that uses `dorm.elastic`, resized live on a real cluster; the log has the ledger of each epoch."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import aiodocker
import msgspec
import psutil
import pytest

from dorm.elastic import ledger
from dorm.local.cluster import LocalCluster
from events import kinds as k
from tests.e2e.live.test_live import all_nodes, facts, members, neighbor, options
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dorm.core.state import App

pytestmark = [pytest.mark.nats, pytest.mark.slow]

SAMPLES = 1416
"""The digits that are trained on; the others are held out."""


def app(epochs: int) -> dict[str, Any]:
    program = [sys.executable, "-m", "compose.apps.elastic_mlp", "--epochs", str(epochs), "--pace", "0.06"]
    return {
        "name": "digits-elastic",
        "engine": "elastic",
        "elastic": "live",
        "command": program,
        "demand": {"cpu": 1},
        "n_max": 3,
    }


async def test_it_is_resized_and_loses_a_member_and_no_sample(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path)) as cluster:
        client = cluster.client
        await all_nodes(client)
        # More epochs than there is time for: on a busy machine, it would else complete while newcomers still start.
        trained = await client.submit(app(epochs=100_000))
        await until(client, lambda s: s.apps[trained.id].step >= 5 and grown(s.apps[trained.id]), "it trains")
        other = await client.submit(neighbor())
        await until(client, lambda s: s.apps[other.id].phase == "running", "it makes room")
        await client.cancel(other.id)
        state = await until(client, lambda s: grown(s.apps[trained.id]), "it grows again")
        newest = max(members(state.apps[trained.id]))
        os.kill(pid_of(trained.id, newest), signal.SIGKILL)
        state = await until(
            client, lambda s: newest not in members(s.apps[trained.id]), "it goes on without the dead one"
        )
        before = state.apps[trained.id].step
        state = await until(
            client,
            lambda s: s.apps[trained.id].step > before + 50 and grown(s.apps[trained.id]),
            "another one joins, and it trains on",
        )
        kept = state.apps[trained.id]
        assert (kept.generation, kept.failures, kept.lost_steps) == (1, 1, 0)
        await client.cancel(trained.id)
        await until(client, lambda s: bool(s.apps[trained.id].ended), "it ends")
        events = await facts(client)
        found = epochs(events)
        assert found == dict.fromkeys(range(len(found)), (SAMPLES, ledger.expected(SAMPLES).digest))
        assert found
        changes = [fact for fact in events if isinstance(fact, k.MembershipChanged)]
        assert {"start", "shrink", "grow", "death"} <= {fact.change for fact in changes}
        await check_log(client)
        await cluster.stop_now()


@pytest.mark.docker
@pytest.mark.soak
async def test_it_is_resized_in_docker_too(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    """A neighbor takes a container's room and gives it back, and the engine kills one."""
    asked = {**app(epochs=2_000), "image": docker_image, "demand": {"cpu": 1, "memory": "256MiB"}}
    asked["command"] = ["python3", *asked["command"][1:]]
    room = msgspec.structs.replace(options(tmp_path), runtime="docker", docker_url=docker_host)
    cluster = LocalCluster(room)
    try:
        async with cluster:
            client = cluster.client
            await all_nodes(client)
            trained = await client.submit(asked)
            await until(client, lambda s: s.apps[trained.id].step >= 5, "it trains")
            other = await client.submit({**neighbor(), "image": docker_image})
            await until(client, lambda s: s.apps[other.id].phase == "running", "it makes room")
            await client.cancel(other.id)
            state = await until(client, lambda s: len(members(s.apps[trained.id])) == 3, "it grows again")
            newest = max(members(state.apps[trained.id]))
            await until(client, lambda s: committed(s.apps[trained.id]), "the newcomer trains")
            await kill_container(docker_host, trained.id, newest)
            state = await until(client, lambda s: newest not in members(s.apps[trained.id]), "it loses one")
            before = state.apps[trained.id].step
            state = await until(client, lambda s: s.apps[trained.id].step > before + 50, "it trains on")
            assert (state.apps[trained.id].generation, state.apps[trained.id].lost_steps) == (1, 0)
            events = await facts(client)
            found = epochs(events)
            assert found == dict.fromkeys(range(len(found)), (SAMPLES, ledger.expected(SAMPLES).digest))
            assert found
            changes = {fact.change for fact in events if isinstance(fact, k.MembershipChanged)}
            assert {"start", "shrink", "grow", "death"} <= changes
            await check_log(client)
    finally:
        await cluster.remove_containers()


def grown(app: App) -> bool:
    """Whether it has all its members, and none is still on its way: a member that leaves before it trained is not a
    shrink."""
    return len(members(app)) == 3 and committed(app)


def committed(app: App) -> bool:
    """Whether no change of its members is under way."""
    return app.generations[app.generation].change is None


async def kill_container(docker_host: str, app_id: str, slot: int) -> None:
    async with aiodocker.Docker(docker_host) as docker:
        for container in await docker.containers.list():
            labels = (await container.show())["Config"]["Labels"]
            if labels.get("dorm.app") == app_id and labels.get("dorm.slot") == str(slot):
                await container.kill()
                return
    raise AssertionError(f"no container of slot {slot} runs")


def epochs(events: Iterable[k.Event]) -> dict[int, tuple[int, str]]:
    """The samples and the ledger of each epoch on the log."""
    found = {}
    for fact in events:
        if isinstance(fact, k.EpochCompleted):
            found[fact.epoch] = (fact.samples, fact.ledger)
            for run in fact.earlier:
                found |= dict.fromkeys(range(run.first, run.last + 1), (run.samples, run.ledger))
    return found


def pid_of(app_id: str, slot: int) -> int:
    """Return the process of one slot."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        own = environment.get("DORM_APP") == app_id and environment.get("DORM_SLOT") == str(slot)
        if own and "compose.apps.elastic_mlp" in process.cmdline():
            found.append(process.pid)
    (pid,) = found
    return pid
