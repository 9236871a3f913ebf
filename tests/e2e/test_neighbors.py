"""Real processes: a crash loop next to a working app, and a cluster that is stopped and restarted."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.commands import done
from tests.e2e.local_up import leaving_nothing, named, up, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio]

STEPS = """\
import json, os, sys, time
for step in range(1, int(sys.argv[1]) + 1):
    if os.environ["DORM_SLOT"] == "0":
        with open(os.environ["DORM_PROGRESS"], "a") as file:
            file.write(json.dumps({"step": step}) + "\\n")
    time.sleep(0.2)
sys.exit(int(sys.argv[2]))
"""
_TWO_CORES = ("--capacity", "cpu=2,memory=1GiB")


def stepper(name: str, steps: int, code: int, **fields: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", STEPS, str(steps), str(code)]
    return {"name": name, "command": command, "demand": {"cpu": 1}, "grace": "2s", **fields}


@pytest.mark.soak
async def test_a_crash_loop_leaves_its_neighbor_alone(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder, *_TWO_CORES) as cluster, cluster.client() as client:
        await done(cluster.home, "submit", write_spec(folder, stepper("victim", 10_000, 0, n_max=4)))
        await until(client, lambda s: named(s, "victim").step > 3, "it works")
        retries = {"limit": 100, "backoff": "1s", "longest": "1s"}
        await done(cluster.home, "submit", write_spec(folder, stepper("crasher", 10, 1, n_max=1, retries=retries)))
        await until(client, lambda s: named(s, "crasher").failures == 1, "it has failed once", timeout=60)
        await until(client, lambda s: named(s, "crasher").failures == 6, "it has failed again and again", timeout=90)
        victim = json.loads(await done(cluster.home, "describe", "victim", "-o", "json"))
        assert victim["generation"] <= 3, "it made room for the newcomer, and for no failure"


async def test_apps_that_ran_before_a_restart_have_priority(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder:
        async with up(folder, *_TWO_CORES) as cluster, cluster.client() as client:
            await done(cluster.home, "submit", write_spec(folder, stepper("older", 10_000, 0, n_min=3, n_max=4)))
            await until(client, lambda s: named(s, "older").step > 3, "it works")
            await done(cluster.home, "submit", write_spec(folder, stepper("younger", 10_000, 0, n_min=4, n_max=4)))
            await until(client, lambda s: named(s, "younger").waiting is not None, "it waits")
        async with up(folder, *_TWO_CORES) as cluster, cluster.client() as client:
            await until(client, lambda s: any(one.phase == "running" for one in s.live_apps()), "one of them runs")
            apps = {row["name"]: row["phase"] for row in json.loads(await done(cluster.home, "ps", "-o", "json"))}
            assert apps == {"older": "running", "younger": "waiting"}
