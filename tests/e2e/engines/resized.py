"""An app of any engine on a cluster of plain processes: it starts small, grows, shrinks, and completes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.local.cluster import LocalCluster, LocalOptions
from dorm.local.spec_files import load_document
from tests.apps.partition import REPOSITORY
from tests.e2e.ports import own_ports
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.core.state import App

SLOTS = 4
"""Containers of half a core that the cluster has room for, on two nodes."""
LONGEST_S = 240.0
"""Seconds in which a generation has to work on a busy machine: importing PyTorch takes most of it."""


def sample(program: str, *, steps: int, pace: float, **fields: Any) -> dict[str, Any]:
    """Return the spec of a sample app in `compose/apps`, shorter, and with a failure instead of a retry."""
    document: dict[str, Any] = dict(load_document(REPOSITORY / "compose" / "apps" / f"{program}.yaml"))
    for command in ("command", "resume"):
        words = list(document[command])
        words[words.index("--steps") + 1] = str(steps)
        words[words.index("--pace") + 1] = str(pace)
        document[command] = words
    return {**document, "retries": {"limit": 0}, **fields}


async def grown_and_shrunk(data: Path, spec: dict[str, Any]) -> App:
    """Run the app with 2, then 4, then 2 containers, and return it once it has completed."""
    options = LocalOptions(
        data=data,
        cluster=f"t{abs(hash(str(data))) % 10**8}",
        agents=2,
        ports=own_ports(),
        capacity={"cpu": 1000, "memory": 2**30},
        runtime="process",
        report_interval_s=0.5,
        progress_interval_s=0.2,
    )
    async with LocalCluster(options) as cluster:
        try:
            return await _play(cluster.client, spec)
        finally:
            await cluster.stop_now()


async def _play(client: Client, spec: dict[str, Any]) -> App:
    first = await client.submit(_neighbor("first"))
    await until(client, lambda s: s.apps[first.id].phase == "running", "the first neighbor runs")
    app = await client.submit(spec)
    await until(client, lambda s: s.apps[app.id].step >= 10, "it works beside its neighbor")
    await client.cancel(first.id)
    await _works_in(client, app.id, generation=2)
    second = await client.submit(_neighbor("second"))
    await _works_in(client, app.id, generation=3)
    state = await until(client, lambda s: bool(s.apps[app.id].ended), "it completes", timeout=100.0)
    ended = state.apps[app.id]
    assert ended.ended == "completed", ended.end_reason
    sizes = [(change.containers_before, change.containers_after) for change in ended.history]
    assert sizes == [(2, SLOTS), (SLOTS, 2)]
    assert (ended.lost_steps, ended.failures) == (0, 0)
    await client.cancel(second.id)
    await until(client, lambda s: bool(s.apps[second.id].ended), "its neighbor ends")
    await check_log(client)
    return ended


def _neighbor(name: str) -> dict[str, Any]:
    """Half of the cluster, so that the other half is left."""
    return {
        "name": name,
        "command": ["sleep", "600"],
        "demand": {"cpu": "500m", "memory": "256MiB"},
        "n_min": SLOTS // 2,
    }


async def _works_in(client: Client, app: str, *, generation: int) -> None:
    """Wait until a generation works: it has gone beyond the step at which the last one stopped."""
    state = await until(
        client,
        lambda s: s.apps[app].generation == generation and s.apps[app].phase == "running",
        f"generation {generation} runs",
        timeout=LONGEST_S,
    )
    reached = state.apps[app].step
    works = f"generation {generation} works"
    await until(client, lambda s: s.apps[app].step >= reached + 10, works, timeout=LONGEST_S)
