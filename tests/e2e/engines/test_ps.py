"""Parameter servers: their number follows the size, and the result does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.engines.resized import grown_and_shrunk, sample
from tests.e2e.story import undisturbed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow]
STEPS = 250


@pytest.mark.soak
async def test_servers_and_workers_grow_and_shrink_and_lose_nothing(tmp_path: Path) -> None:
    """With a server for each worker, 2 containers are 1 and 1, and 4 are 2 and 2."""
    spec = sample("logistic_ps", steps=STEPS, pace=0.01, engine_options={"workers_per_server": 1})
    app = await grown_and_shrunk(tmp_path / "cluster", spec)
    assert app.step == STEPS
    assert app.loss == pytest.approx(undisturbed(tmp_path / "alone", "logistic", STEPS), rel=1e-9)
