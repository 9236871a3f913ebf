"""A real app whose batch size a decision changes while it trains, by the gradient noise that it reports."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from dorm.core.batches import batch_now
from dorm.local.cluster import LocalCluster, LocalOptions
from events import kinds as k
from tests.e2e.ports import own_ports
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client

pytestmark = [pytest.mark.nats, pytest.mark.slow]
STEPS = 1200
INITIAL = 48
TRAINING = {
    "name": "digits",
    "command": [sys.executable, "-m", "compose.apps.logistic_batch", "--steps", str(STEPS), "--pace", "0.0005"],
    "demand": {"cpu": 1},
    "n_min": 2,
    "n_max": 2,
    "steps": STEPS,
    # Two workers are hardly faster than one, so a step costs nearly the same for more samples.
    "speed": [[1, 70], [2, 72]],
    "batch": {"initial": INITIAL, "least": INITIAL, "most": 480, "per_container": 480},
}


async def test_its_batch_size_follows_from_its_own_noise(tmp_path: Path) -> None:
    options = LocalOptions(
        data=tmp_path,
        cluster="batches",
        ports=own_ports(),
        capacity={"cpu": 3000, "memory": 2**30},
        runtime="process",
        report_interval_s=0.5,
        progress_interval_s=0.2,
    )
    async with LocalCluster(options) as cluster:
        try:
            await _play(cluster.client, tmp_path)
        finally:
            await cluster.stop_now()


async def _play(client: Client, folder: Path) -> None:
    await client.change_policy(k.PolicyChanged(policy="dorm-speed"))
    app = await client.submit(TRAINING)
    state = await until(client, lambda s: s.apps[app.id].noise is not None and s.apps[app.id].step > 200, "it trains")
    assert state.apps[app.id].batch in (0, INITIAL), "nothing has been decided since it reported its noise"
    generation = state.apps[app.id].generation
    other = await client.submit({"name": "other", "command": ["sleep", "600"], "demand": {"cpu": 1}})
    state = await until(client, lambda s: s.apps[app.id].batch > INITIAL, "the next decision changes its batch size")
    assert state.apps[app.id].generation == generation, "it is not restarted for that"
    now = batch_now(state.apps[app.id], state)
    assert now is not None
    assert "that was the best progress per second" in now.why
    await client.cancel(other.id)
    state = await until(client, lambda s: bool(s.apps[app.id].ended), "it completes")
    done = state.apps[app.id]
    assert (done.ended, done.step) == ("completed", STEPS)
    decided = [
        fact.batches[app.id]
        async for logged in client.events(follow=False)
        if isinstance(fact := logged.event, k.Resized) and app.id in fact.batches
    ]
    assert decided
    printed = await asyncio.to_thread(_printed, folder)
    taken = round(decided[0] / 24) * 24
    assert f"batch size {INITIAL} -> {taken} after step" in printed
    (result,) = [json.loads(line)["result"] for line in printed.splitlines() if line.startswith('{"result"')]
    assert result["accuracy"] > 0.95, "as with 48 samples all the time (0.97)"
    await check_log(client)


def _printed(folder: Path) -> str:
    """What all containers have printed."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("log*")) if path.is_file())
