"""The bench of looking back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm_lab.bench.replay import replay
from dorm_lab.bench.replay.replay import Sizes, bench_replay, label
from tests.bench.test_report import checked

if TYPE_CHECKING:
    from dorm.bench.report import Report

pytestmark = pytest.mark.slow

TINY = Sizes(records=6000, large=9000, server=2000, passes=1, jumps=2, bare=1, bare_large=1, jobs=1, stretch=1500)


def _measured(report: Report) -> dict[str, float]:
    return {name: one["value"] for name, one in checked(msgspec.json.encode(report))["figures"].items()}


@pytest.mark.soak
def test_a_tiny_run_gives_all_figures() -> None:
    done = bench_replay(TINY, progress=lambda _: None)
    found = _measured(done.report)
    assert not done.interrupted
    assert found.keys() >= {
        "archive_fold_events_per_s", "archive_fold_records_per_s", "jetstream_fold_events_per_s", "archive_bytes_per_event",
        "verify_decisions_per_s", "state_at_6k_p50_s", "state_at_9k_p50_s", "state_at_6k_no_snapshots_p50_s", "restart_s",
        "peak_memory_mb",
    }  # fmt: skip
    assert all(value > 0 for value in found.values())
    goals = {name: str(one.goal) for name, one in done.report.figures.items() if one.reached is not None}
    assert goals == replay.GOALS
    assert done.report.settings["verify"]["decisions"] > 5


@pytest.mark.soak
def test_ctrl_c_keeps_the_measurements_so_far() -> None:
    def tell(words: str) -> None:
        if words.startswith("deciding"):
            raise KeyboardInterrupt

    done = bench_replay(TINY, progress=tell)
    assert done.interrupted
    assert done.report.settings["interrupted"]
    assert "archive_fold_events_per_s" in _measured(done.report)
    assert "verify_decisions_per_s" not in done.report.figures


def test_sizes_have_short_labels() -> None:
    assert [label(size) for size in (1_000_000, 10_000_000, 250_000, 999, 1500)] == ["1m", "10m", "250k", "999", "1500"]
