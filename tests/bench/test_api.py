"""`dorm bench api` on real processes, as small as it gets: every figure is there."""

from __future__ import annotations

import pytest

from dorm.bench.api.api import GOALS, Sizes, bench_api
from tests.lab.machines.chromium import chromium

pytestmark = [pytest.mark.nats, pytest.mark.soak, pytest.mark.timeout(600)]


async def test_each_part_gives_its_figures() -> None:
    sizes = Sizes(
        seconds=4.0, nodes=3, events_per_s=60, reads_per_s=20, submissions_per_s=2, readers=20, records=12_000, moments=3,
        parts=("live", "moments", "browser"),
    )  # fmt: skip
    report = await bench_api(sizes, progress=lambda _: None)
    found = report.figures
    parts = ("log_server", "master", "api", "load", "callers")
    assert {f"{what}_cores_of_{part}" for what in ("reads", "readers") for part in parts} <= set(found)
    assert {f"without_readers_cores_of_{part}" for part in parts[:-1]} <= set(found)
    for what in ("change", "mean_change", "p95_change"):
        assert found[f"master_round_{what}_percent"].value > -100
        assert found[f"master_round_{what}_error_percent"].value >= 0
    assert found["master_round_change_percent"].goal == GOALS["master_round_change_percent"]
    assert 0 < found["master_round_p50_s"].value <= found["master_round_p95_s"].value
    assert all(found[f"reads_cores_of_{part}"].value >= 0 for part in parts)
    assert 0 < found["read_p50_s"].value <= found["read_p99_s"].value
    assert 0 < found["events_fewest_of_a_reader"].value <= found["events_most_of_a_reader"].value
    assert found["streams_ended"].value == 0
    assert found["state_at_p95_s"].value > 0
    assert found["read_p99_s"].goal == GOALS["read_p99_s"]
    if chromium() is not None:
        assert found["event_to_browser_p95_s"].value > 0
        assert 0 < found["resize_to_picture_p50_s"].value <= found["resize_to_picture_max_s"].value
