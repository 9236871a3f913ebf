"""Open MPI without ssh: mpirun reaches the other containers through the launcher, through a grow and a shrink."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.e2e.engines.resized import grown_and_shrunk, sample
from tests.e2e.story import undisturbed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.nats,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("mpirun") and importlib.util.find_spec("mpi4py")) and "CI" not in os.environ,
        reason="needs mpirun (Debian: openmpi-bin) and mpi4py (the extra `mpi`)",
    ),
]
STEPS = 150


async def test_ranks_of_all_containers_train_save_and_go_on(tmp_path: Path) -> None:
    spec = sample("logistic_mpi", steps=STEPS, pace=0.01, n_min=2)
    app = await grown_and_shrunk(tmp_path / "cluster", spec)
    assert app.step == STEPS
    assert app.loss == pytest.approx(undisturbed(tmp_path / "alone", "logistic", STEPS), rel=1e-9)
