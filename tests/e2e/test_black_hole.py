"""One broken node among good ones, on a real cluster of plain processes: it swallows no app, and is suspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.local.cluster import LocalCluster, LocalOptions
from events import kinds as k
from tests.e2e.ports import own_ports
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow]
BROKEN = "node-2"
JOBS = 6


async def test_a_broken_node_costs_no_app_a_retry_and_is_suspect(tmp_path: Path) -> None:
    options = LocalOptions(
        data=tmp_path / "data",
        cluster=f"t{abs(hash(str(tmp_path))) % 10**8}",
        agents=3,
        ports=own_ports(),
        capacity={"cpu": 2000, "memory": 2**30},
        runtime="process",
        report_interval_s=0.5,
        progress_interval_s=0.2,
    )
    script = f'[ "$DORM_NODE" != {BROKEN} ] || exit 1; sleep 0.5'
    async with LocalCluster(options) as cluster:
        client = cluster.client
        await until(client, lambda state: len(state.nodes) == 3, "all nodes have joined")
        assert BROKEN in (await client.state()).nodes
        for number in range(JOBS):
            await client.submit(
                {"name": f"j{number}", "command": ["sh", "-c", script], "demand": {"cpu": 1}, "retries": {"limit": 0}}
            )
        state = await until(
            client,
            lambda state: len(state.apps) == JOBS and all(app.ended for app in state.apps.values()),
            "all apps have ended",
        )
        assert {app.ended for app in state.apps.values()} == {"completed"}
        facts = [logged.event async for logged in client.events(follow=False)]
        failed = [fact for fact in facts if isinstance(fact, k.GenerationFailed)]
        assert {fact.node for fact in failed} <= {BROKEN}
        assert not any(fact.counted for fact in failed)
        if len({fact.app for fact in failed}) >= state.settings.suspect_after:
            state = await until(client, lambda state: state.nodes[BROKEN].shown == "suspect", "it is suspect")
        await check_log(client)
