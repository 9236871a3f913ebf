"""The container whose failure explains those of others is the reason, although it ends last."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from dorm.local.cluster import LocalCluster
from tests.e2e.live.test_live import all_nodes, options
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm.core.state import App

pytestmark = [pytest.mark.nats, pytest.mark.slow]

_ENDS = """
print("ValueError: label 17 is out of range", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
sys.exit(3)
"""
"""The culprit ends once the test allows it: until then, its connections alone have ended."""
RIGID = f"""
import os, socket, sys, time
host, port = os.environ["DORM_PEERS"].split(",")[0].rsplit(":", 1)
if os.environ["DORM_RANK"] == "0":
    peer, _ = socket.create_server((host, int(port))).accept()
    if not peer.recv(1):
        raise ConnectionResetError("the other worker hung up")
while True:
    try:
        socket.create_connection((host, int(port))).close()
        break
    except OSError:
        time.sleep(0.02)
{_ENDS}
"""
LIVE = f"""
import contextlib, os, sys, time
import numpy as np
from dorm import elastic
weights = np.zeros(4)
with contextlib.suppress(KeyError), elastic.join(state={{"weights": weights}}) as job:
    for step in job.steps(400, batch=20, epochs=100_000):
        if step.number == 10 and job.contract.slot == 0:
            raise KeyError("label")
        weights += step.sum_over(lambda samples: np.ones(4) * len(samples))
        step.report(loss=1.0)
{_ENDS}
"""


def spec(program: str, go: Path, **fields: Any) -> dict[str, Any]:
    return {
        "name": "culprit",
        "command": [sys.executable, "-c", program, str(go)],
        "demand": {"cpu": 1},
        "n_min": 3,
        "n_max": 3,
        "retries": {"limit": 2, "fatal_exit_codes": [3]},
        **fields,
    }


async def fails(tmp_path: Path, spec: Callable[[Path], dict[str, Any]], signs: Callable[[App], bool]) -> App:
    """Return the app at its end. The culprit ends once the others' `signs` of its failure are on the log."""
    go = tmp_path / "go"
    async with LocalCluster(options(tmp_path)) as cluster:
        client = cluster.client
        await all_nodes(client)
        app = await client.submit(spec(go))
        state = await until(client, lambda s: signs(s.apps[app.id]), "the others fail")
        assert (state.apps[app.id].ended, state.apps[app.id].failures, state.apps[app.id].generation) == ("", 0, 1)
        go.touch()
        state = await until(client, lambda s: bool(s.apps[app.id].ended), "it ends")
        await check_log(client)
        await cluster.stop_now()
        return state.apps[app.id]


def one_has_ended(app: App) -> bool:
    return app.current is not None and app.current.exited > 0


def the_first_is_missed(app: App) -> bool:
    return app.current is not None and app.current.accused == [0]


async def test_a_peer_that_lost_its_connection_is_not_the_cause(tmp_path: Path) -> None:
    app = await fails(tmp_path, lambda go: spec(RIGID, go, n_min=2, n_max=2), one_has_ended)
    assert app.end_reason.startswith("slot 1 on ")
    assert app.end_reason.endswith(
        " ended with exit code 3: ValueError: label 17 is out of range (exit code 3 is final)"
    )


async def test_a_live_worker_that_its_peers_miss_ends_the_app_for_its_own_reason(tmp_path: Path) -> None:
    app = await fails(tmp_path, lambda go: spec(LIVE, go, engine="elastic", elastic="live"), the_first_is_missed)
    assert app.end_reason.startswith("slot 0 on ")
    assert app.end_reason.endswith(
        " ended with exit code 3: ValueError: label 17 is out of range (exit code 3 is final)"
    )
