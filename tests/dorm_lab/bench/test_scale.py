"""The model of a control plane's load, by hand; and its unit costs, measured."""

from __future__ import annotations

import math

import pytest

from dorm_lab.bench.scale.measuring import bench_scale
from dorm_lab.bench.scale.model import LARGEST_ROUND, Cluster, Costs, decide_s, first_full, loads, round_bytes

COSTS = Costs(appends_per_s=10_000.0, append_cpu_us=200.0, out_cpu_s_per_mb=0.002, fold_us=2.0)


def test_loads_by_hand() -> None:
    cluster = Cluster(nodes=1000, apps=600, decisions_per_s=0.5, heartbeat_s=5.0, servers=3, cores=4)
    # 600 apps: 30 change, 60 wait.
    assert round_bytes(cluster) == 1200 + 30 * 250 + 60 * 150
    found = loads(cluster, COSTS)
    parts = 0.5 * 30 * 8
    records = 200 + 10 + 0.5 + parts
    out = 1000 * 1300 + parts * 1500 + 0.5 * 3 * 17_700
    assert math.isclose(found["appends"], records / 10_000)
    assert math.isclose(found["server_cpu"], (records * 200e-6 + out / 1e6 * 0.002) / 12)
    assert math.isclose(found["server_network"], out / 3 / 110e6)
    assert math.isclose(found["folding"], 10.5 * 2e-6)
    assert math.isclose(found["connections"], 0.05)


def test_decisions_take_the_measured_time() -> None:
    assert math.isclose(decide_s(500, 1_000), 0.081)
    assert math.isclose(decide_s(2_000, 10_000), 0.255)
    assert math.isclose(decide_s(10_000, 50_000), 1.1)
    assert decide_s(1, 1) < decide_s(100, 100) < 0.081 < decide_s(100_000, 100_000)


def test_a_round_is_never_larger_than_a_message() -> None:
    assert round_bytes(Cluster(nodes=1, apps=10**6, decisions_per_s=1.0)) == LARGEST_ROUND


def test_the_first_full_resource() -> None:
    wide = Cluster(nodes=100_000, apps=50_000, decisions_per_s=10.0, quiet_limit_s=10.0)
    busy = Cluster(nodes=1_000, apps=10_000, decisions_per_s=2.0, facts_per_app_s=0.0, changed=0.0)
    assert [first_full(loads(one, COSTS)) for one in (wide, busy)] == ["connections", "deciding"]


def test_a_nodes_traffic_does_not_grow_with_waiting_apps() -> None:
    few, many = (Cluster(nodes=1000, apps=10_000, decisions_per_s=1.0, waiting=waiting) for waiting in (0.0, 0.9))
    network = [loads(one, COSTS)["server_network"] for one in (few, many)]
    # Only the traffic of three readers of whole rounds grows.
    assert network[1] - network[0] < 3 * LARGEST_ROUND / 3 / 110e6


@pytest.mark.nats
@pytest.mark.soak
async def test_unit_costs_are_measured() -> None:
    report = await bench_scale(
        [Cluster(nodes=100, apps=50, decisions_per_s=0.01)], seconds=2.0, progress=lambda _: None
    )
    values = {name: one.value for name, one in report.figures.items()}
    assert values["appends_per_s"] > 50
    assert 1 < values["append_server_cpu_us"] < 100_000
    assert 0 <= values["send_server_cpu_ms_per_mb"] < 1_000
    assert values["n100_appends_share"] > 0
