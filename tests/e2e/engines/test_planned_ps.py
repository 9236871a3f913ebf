"""OASiS on real processes: an app with parameter servers is admitted with a plan, runs by it, and another is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.local.cluster import LocalCluster, LocalOptions
from events.codec import decode
from events.kinds import AppPlanned, ContainerStarted, PolicyChanged, Resized, Round
from tests.e2e.engines.resized import sample
from tests.e2e.ports import own_ports
from tests.e2e.story import check_log, undisturbed, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow]
STEPS = 150
WORTHLESS = {"worth": 1e-6, "decay": 1e6}
URGENT = {"worth": 100.0, "decay": 360.0, "target": "30s"}


@pytest.mark.soak
async def test_a_plan_gives_workers_and_parameter_servers_and_is_on_the_log(tmp_path: Path) -> None:
    options = LocalOptions(
        data=tmp_path / "cluster",
        cluster="oasis",
        agents=2,
        ports=own_ports(),
        capacity={"cpu": 1000, "memory": 2**30},
        runtime="process",
        report_interval_s=0.5,
        progress_interval_s=0.2,
    )
    async with LocalCluster(options) as cluster:
        try:
            await _play(cluster, tmp_path)
        finally:
            await cluster.stop_now()


async def _play(cluster: LocalCluster, folder: Path) -> None:
    client = cluster.client
    await client.change_policy(PolicyChanged(policy="oasis", params={"slot_s": 5.0, "slots": 100}))
    # 2 workers and 2 parameter servers: 40 s of one worker are 20 s of the partition, which is more than the steps take.
    training = sample(
        "logistic_ps",
        steps=STEPS,
        pace=0.02,
        engine_options={"workers_per_server": 1},
        utility=URGENT,
        work={"mini_batch": "20s", "chunks": 2},
    )
    app = await client.submit(training)
    state = await until(client, lambda s: s.apps[app.id].step >= 10, "it trains")
    plan = state.apps[app.id].plan
    assert plan is not None
    assert max(sum(slot.containers.values()) for slot in plan.slots) == 4
    late = await client.submit(
        {
            "name": "worthless",
            "command": ["sleep", "600"],
            "demand": {"cpu": "500m", "memory": "256MiB"},
            "utility": WORTHLESS,
            "work": {"mini_batch": "10m", "chunks": 1},
        }
    )
    state = await until(client, lambda s: s.apps[late.id].waiting is not None, "the other is refused")
    refused = state.apps[late.id].waiting
    assert refused is not None
    assert refused.code == "price"
    assert "refused" in refused.text
    state = await until(client, lambda s: bool(s.apps[app.id].ended), "it completes", timeout=120.0)
    ended = state.apps[app.id]
    assert (ended.ended, ended.step) == ("completed", STEPS)
    assert ended.loss == pytest.approx(undisturbed(folder / "alone", "logistic", STEPS), rel=1e-9)
    await client.cancel(late.id)
    await until(client, lambda s: bool(s.apps[late.id].ended), "the other is cancelled")
    await check_log(client)
    started, promised, decided = 0, 0, 0
    async for record in client.records():
        event = decode(record)
        started += isinstance(event, ContainerStarted) and event.app == app.id
        for fact in event.events if isinstance(event, Round) else ():
            promised += isinstance(fact, AppPlanned) and fact.app == app.id
            decided += isinstance(fact, Resized) and fact.policy == "oasis"
    assert started >= 4
    assert promised >= 1
    assert decided >= 2
