"""The documentation's picture of the dashboard: a simulated cluster, as the browser draws it.

python -m tests.web.picture docs/dashboard.png
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec
from PIL import Image

from dorm.web.offline import page
from replay.page.recording import record
from replay.simulator.scenario import Scenario
from replay.simulator.simulation import Simulation
from tests.replay.made_log import log_of
from tests.simulator.histories import seq_at, trained, written
from tests.simulator.scenarios import nodes
from tests.web.browsing import chrome, opened

SIZE = (1300, 1490)
_AT_S = 620.0
"""Seconds of the simulated log at which the slider stands."""


def scenario() -> Scenario:
    """Six apps on three nodes, that grow, shrink and wait for each other."""
    large = {"n_max": 8, "demand": {"cpu": 1, "memory": "4GiB"}}
    small = {"n_max": 5, "demand": {"cpu": 1, "memory": "8GiB"}}
    apps = (
        trained("digits-mlp", 0, 2600, **large),
        trained("speech-large", 90, 2900, n_min=2, **large),
        trained("ads-ranking", 230, 1400, **small),
        trained("images-vae", 300, 1700, **small),
        trained("fraud-trees", 450, 900, **small),
        trained("maps-gnn", 580, 1200, **large),
    )
    return Scenario(apps=apps, nodes=nodes(3), progress_s=10.0)


async def take(file: Path) -> None:
    """Write the picture.  Needs a browser."""
    records = written(Simulation(scenario()))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "cluster.html"
        whole.write_text(page(msgspec.json.encode(await record(log_of(records), "Dorm")), "Dorm"))
        address = f"{whole.as_uri()}#/cluster?at={seq_at(records, _AT_S)}"
        async with chrome() as browser, opened(browser, address, size=SIZE) as tab:
            await tab.locator(".lanenames", has_text="maps-gnn").wait_for()
            await tab.screenshot(path=file, animations="disabled")
    with Image.open(file) as drawn:
        smaller = drawn.convert("RGB").quantize(256)
    smaller.save(file, optimize=True)


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1])))
