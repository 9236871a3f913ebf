"""The bench of `dorm run` on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm_lab.bench.run import bench_run
from tests.bench.test_clusters import home
from tests.bench.test_report import checked

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["home"]


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.soak
async def test_a_project_is_sent_once(home: Path) -> None:
    made = await bench_run(files=40, runs=1, progress=lambda _: None)
    figures = checked(msgspec.json.encode(made))["figures"]
    assert figures["shipping_run_sent_parts_count"]["value"] >= 2
    assert figures["run_sent_parts_count"]["value"] == 0
    assert figures["run_first_line_p50_s"]["value"] > figures["python_first_line_p50_s"]["value"] > 0
