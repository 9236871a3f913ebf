"""A small `make overload`: everything is real except for the containers."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.commands import REPOSITORY, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.soak


@pytest.mark.nats
async def test_a_small_cluster_survives_floods(tmp_path: Path) -> None:
    size = ("--agents", "20", "--apps", "8", "--for", "5", "--report-every", "0.5", "--flood", "200")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.lab.overload", *size, "-o", "json",
        cwd=REPOSITORY, env=environment(tmp_path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(100):
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b""), err
    report = json.loads(out)
    figures = {name: figure["value"] for name, figure in report["figures"].items()}
    assert figures["agents_joined"] == 20
    lost = ("agents_ended", "reports_failed", "nodes_lost", "apps_failed", "unreadable")
    assert {name: figures[name] for name in lost} == dict.fromkeys(lost, 0)
    assert figures["apps_completed"] > 0
    assert figures["resized"] > 0
    assert report["settings"]["flood_phases"] == ["steady", "reports", "tails", "submissions"]
    for phase in ("", "submissions_", "tails_", "reports_"):
        assert figures[f"{phase}reports_per_s"] > 0
        assert figures[f"{phase}answer_p99_s"] > 0
