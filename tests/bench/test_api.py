"""`dorm bench api` on real processes, as small as it gets: every figure is there, and no event is missing."""

from __future__ import annotations

import pytest

from dorm.bench.api.api import GOALS, Sizes, bench_api

pytestmark = [pytest.mark.nats, pytest.mark.soak, pytest.mark.timeout(600)]


async def test_each_part_gives_its_figures() -> None:
    sizes = Sizes(
        seconds=2.0, nodes=3, events_per_s=60, reads_per_s=20, submissions_per_s=2, readers=20, records=12_000, moments=3,
        parts=("live", "moments"),
    )  # fmt: skip
    report = await bench_api(sizes, tell=lambda _: None)
    found = report.figures
    parts = ("log_server", "master", "api", "load", "callers")
    assert {f"{what}_cores_of_{part}" for what in ("reads", "readers") for part in parts} <= set(found)
    assert all(found[f"reads_cores_of_{part}"].value >= 0 for part in parts)
    assert 0 < found["read_p50_s"].value <= found["read_p99_s"].value
    assert found["events_fewest_of_a_reader"].value == found["events_most_of_a_reader"].value > 0
    assert found["streams_ended"].value == 0
    assert found["state_at_p95_s"].value > 0
    assert found["read_p99_s"].goal == GOALS["read_p99_s"]
