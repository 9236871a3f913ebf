"""A starter on a cluster of two nodes: it runs small, grows, shrinks, and completes."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dorm.local.cluster import LocalCluster, LocalOptions
from dorm.local.spec_files import load_document
from tests.apps.partition import REPOSITORY
from tests.e2e.ports import own_ports
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.core.state import App
    from events.runtimes import WantedRuntime as RuntimeName

STARTERS = REPOSITORY / "compose" / "apps" / "starters"


def starter(name: str, **fields: Any) -> dict[str, Any]:
    """Return the spec of a starter with other fields, and with a failure instead of a retry."""
    return {**load_document(STARTERS / f"{name}.yaml"), "retries": {"limit": 0}, **fields}


@contextlib.asynccontextmanager
async def two_nodes(
    data: Path, *, runtime: RuntimeName = "process", docker: str | None = None
) -> AsyncIterator[Client]:
    """A cluster with room for four containers of half a core."""
    options = LocalOptions(
        data=data,
        cluster=f"t{abs(hash(str(data))) % 10**8}",
        agents=2,
        ports=own_ports(),
        capacity={"cpu": 1000, "memory": 4 * 2**30},
        runtime=runtime,
        docker_url=docker,
        report_interval_s=0.5,
        progress_interval_s=0.2,
    )
    cluster = LocalCluster(options)
    try:
        async with cluster:
            try:
                yield cluster.client
            finally:
                await cluster.stop_now()
    finally:
        if runtime == "docker":
            await cluster.remove_containers()


async def resized(client: Client, spec: dict[str, Any], sizes: tuple[int, ...], *, each: int, longest_s: float) -> App:
    """Run an app with each of these sizes until it has done `each` more steps, and return it once it has completed."""
    app = await client.submit({**spec, "n_min": sizes[0], "n_max": sizes[0]})
    for number, size in enumerate(sizes, 1):
        if number > 1:
            # The bounds may never cross on the way.
            await client.update(app.id, n_min=min(size, sizes[number - 2]), n_max=max(size, sizes[number - 2]))
            await client.update(app.id, n_min=size, n_max=size)
        state = await until(
            client,
            lambda s, number=number: s.apps[app.id].generation == number and s.apps[app.id].phase == "running",  # type: ignore[misc]
            f"generation {number} runs",
            timeout=longest_s,
        )
        reached = state.apps[app.id].step + each
        await until(
            client,
            lambda s, reached=reached: s.apps[app.id].step >= reached,  # type: ignore[misc]
            f"it works with {size}",
            timeout=longest_s,
        )
    state = await until(client, lambda s: bool(s.apps[app.id].ended), "it ends", timeout=longest_s)
    ended = state.apps[app.id]
    assert ended.ended == "completed", ended.end_reason
    changes = [(change.containers_before, change.containers_after) for change in ended.history]
    assert changes == list(pairwise(sizes))
    assert (ended.lost_steps, ended.failures) == (0, 0)
    await check_log(client)
    return ended


async def printed(client: Client, app: App) -> str:
    """Return what the containers of its last generation wrote, of one after the other."""
    ran = await client.output.generation(app)
    found = b""
    for slot in sorted(ran.nodes):
        async for chunk in client.output.read_slot(ran, slot, follow=False, tail=None):
            found += chunk
    return found.decode()
