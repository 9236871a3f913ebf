"""TF_CONFIG leads every worker to every other, through a grow and a shrink."""

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
async def test_workers_find_each_other_by_tf_config_alone(tmp_path: Path) -> None:
    spec = sample("logistic_tf", steps=STEPS, pace=0.01, n_min=2)
    app = await grown_and_shrunk(tmp_path / "cluster", spec)
    assert app.step == STEPS
    assert app.loss == pytest.approx(undisturbed(tmp_path / "alone", "logistic", STEPS), rel=1e-9)
