"""Every kind of real fault once, on three machines with three NATS servers and three masters, while apps are submitted and
train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.bench.test_report import checked
from tests.lab.chaos.chaos import Wanted, bench_chaos
from tests.lab.chaos.faults import KINDS, Fault
from tests.lab.machines.dockerd import why_not
from tests.lab.machines.engines import unavailable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.soak, pytest.mark.cluster, pytest.mark.docker, pytest.mark.nats, pytest.mark.slow]

FAULTS = (
    Fault("container_removed", 1, 0.0, 1.0),
    Fault("leader_killed", 0, 1.0, 0.5),
    Fault("agent_paused", 0, 3.0, -2.0),  # the next one comes while it lasts
    Fault("stream_follower_killed", 1, 1.0, 1.5),
    Fault("engine_killed", 1, 1.0, 1.5),
    Fault("live_engine_killed", 0, 1.0, 0.5),
    Fault("agent_killed", 2, 1.0, 0.5),
    Fault("stream_leader_killed", 0, 1.0, 3.0),
    Fault("machine_lost", 1, 3.0, 3.0),
    Fault("leader_paused", 0, 9.0, -6.0),
    Fault("follower_killed", 0, 1.0, 5.0),
    Fault("machine_cut", 2, 4.0, 2.0),
    Fault("server_paused", 2, 2.0, 1.0),
    Fault("two_servers_killed", 1, 1.0, 4.0),
    Fault("all_servers_killed", 0, 1.0, 4.0),
)
"""Times are short; effects after the end of a lease have their own tests."""


@pytest.mark.timeout(600)
async def test_nothing_is_lost_doubled_or_wrong(tmp_path: Path, docker_archive: Path) -> None:
    if reason := why_not():
        unavailable(f"no machines can be made: {reason}")
    assert {fault.kind for fault in FAULTS} == set(KINDS)
    # A busy machine receives heartbeats late.
    wanted = Wanted(attacked_s=300.0, faults=FAULTS, gap_s=(6.0, 9.0), node_grace_s=3.0, keep=tmp_path)
    said: list[str] = []
    try:
        done = await bench_chaos(wanted, tell=said.append)
        assert done.wrong == []
    except BaseException:
        print("\n".join(said))
        for output in sorted(tmp_path.glob("*.log")):
            print(f"--- {output.name}\n{output.read_text(errors='replace')[-4000:]}")
        raise
    figures = checked(msgspec.json.encode(done.report))["figures"]
    assert {kind for kind in KINDS if figures[f"faults_{kind}"]["value"] == 1} == set(KINDS)
    assert figures["apps_completed"]["value"] > 0
    assert all(figure["value"] <= 0 for figure in figures.values() if figure.get("goal") == "<= 0")
    assert [one.seconds for one in done.recoveries if one.seconds is None] == []
