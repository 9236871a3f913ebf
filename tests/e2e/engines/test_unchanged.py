"""A project that was not written for Dorm: `bash run.sh`, a pipe, four data-loader workers in each process, a log beside it.

It is resized by its neighbors, from 2 containers to 4, to 1 and to 3, and loses no step after its last save: everything that
it starts lives until its programs have saved, and nothing in its folders is in anybody's way.  It runs where PyTorch is
installed: `make test-engines` installs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dorm.workdir import ship
from tests.e2e.story import check_log, until
from tests.samples.starter import printed, two_nodes

if TYPE_CHECKING:
    from dorm.client.client import Client

pytest.importorskip("torch", reason="needs PyTorch: `make test-engines`")
pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(550)]
PROJECT = Path(__file__).parent / "gpt"
LONGEST_S = 240.0
"""Seconds in which a generation has to work on a busy machine: importing PyTorch takes most of it."""


def neighbor(name: str, containers: int) -> dict[str, Any]:
    return {"name": name, "command": ["sleep", "3600"], "demand": {"cpu": "500m"}, "n_min": containers}


async def works_with(client: Client, app: str, containers: int, generation: int) -> None:
    """Wait until a generation has this size and has gone beyond the steps of the one before."""
    state = await until(
        client,
        lambda s: s.apps[app].generation == generation and s.apps[app].phase == "running",
        f"generation {generation} runs",
        timeout=LONGEST_S,
    )
    assert len(state.apps[app].generations[generation].containers) == containers
    reached = state.apps[app].step
    await until(client, lambda s: s.apps[app].step >= reached + 5, f"generation {generation} works", timeout=LONGEST_S)


async def test_a_script_with_loader_workers_survives_every_resize(tmp_path: Path) -> None:
    async with two_nodes(tmp_path / "cluster") as client:
        first = await client.submit(neighbor("first", 2))
        await until(client, lambda s: s.apps[first.id].phase == "running", "the first neighbor runs")
        steps = 160
        app = await client.submit(
            {
                "name": "gpt",
                "engine": "torchrun",
                "command": ["bash", "run.sh", "--steps", str(steps), "--pace", "0.15"],
                "workdir": await ship(client, PROJECT),
                "demand": {"cpu": "500m", "memory": "512MiB"},
                "n_min": 1,
                "n_max": 4,
                "grace": "60s",
                "retries": {"limit": 0},
            }
        )
        await works_with(client, app.id, 2, generation=1)
        await client.cancel(first.id)
        await works_with(client, app.id, 4, generation=2)
        second = await client.submit(neighbor("second", 3))
        await works_with(client, app.id, 1, generation=3)
        third = await client.submit(neighbor("third", 1))
        await until(client, lambda s: bool(s.apps[third.id].waiting), "the third neighbor waits")
        await client.cancel(second.id)
        await works_with(client, app.id, 3, generation=4)
        state = await until(client, lambda s: bool(s.apps[app.id].ended), "it ends", timeout=LONGEST_S)
        ended = state.apps[app.id]
        assert ended.ended == "completed", ended.end_reason
        assert [(one.containers_before, one.containers_after) for one in ended.history] == [(2, 4), (4, 1), (1, 3)]
        assert (ended.step, ended.checkpoint, ended.lost_steps, ended.failures) == (steps, steps, 0, 0)
        assert sum(one.killed for one in ended.history) == 0
        assert ended.loss is not None
        assert ended.loss < 1.5
        said = await printed(client, ended)
        assert "rank 0 of 3 begins after step" in said
        assert said.count("the script goes on after") == 3
        await client.cancel(third.id)
        await until(client, lambda s: bool(s.apps[third.id].ended), "its neighbor ends")
        await check_log(client)
