"""An app that asks for fewer workers itself: CoCoA, whose duality gap falls faster with fewer late in a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dorm.local.cluster import LocalCluster
from events import kinds as k
from tests.e2e.live.test_live import all_nodes, facts, members, options
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow]


async def test_it_shrinks_by_its_own_wish_and_finishes(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path)) as cluster:
        client = cluster.client
        await all_nodes(client)
        program = [sys.executable, "-m", "compose.apps.elastic_cocoa", "--gap", "1e-5", "--pace", "0.15"]
        app = await client.submit(
            {
                "name": "cocoa",
                "engine": "elastic",
                "elastic": "live",
                "command": program,
                "demand": {"cpu": 1},
                "n_max": 3,
            }
        )
        state = await until(client, lambda s: s.apps[app.id].size_request is not None, "it asks for fewer")
        asked = state.apps[app.id].size_request
        assert asked is not None
        assert asked.containers == 1
        assert "the gap falls" in asked.reason
        state = await until(client, lambda s: len(members(s.apps[app.id])) == 1, "it shrinks")
        why = state.apps[app.id].waiting
        assert why is not None
        assert (why.code, why.text) == ("asked", f"it asked for 1: {asked.reason}")
        state = await until(client, lambda s: bool(s.apps[app.id].ended), "it completes")
        done = state.apps[app.id]
        assert (done.ended, done.generation, done.lost_steps) == ("completed", 1, 0)
        assert (done.history[-1].live, done.history[-1].containers_before) == (True, 3)
        requests = [fact for fact in await facts(client) if isinstance(fact, k.AppResizeRequested)]
        assert requests[0].containers == 1
        await check_log(client)
        await cluster.stop_now()
