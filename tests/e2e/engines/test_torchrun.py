"""PyTorch on gloo through a grow and a shrink, without and with torchrun's own launcher.

It runs where PyTorch is installed: `make test-engines` installs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.apps.partition import REPOSITORY
from tests.e2e.engines.resized import grown_and_shrunk, sample
from tests.lab.machines.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="needs PyTorch: `make test-engines`")
pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(300)]
STEPS = 250
SAME = 1e-4
"""Relative: 32-bit sums of other partial sums; measured: 5e-7."""


def undisturbed(folder: Path) -> float:
    """Return the loss of a run by one worker without a resize."""
    folder.mkdir()
    progress = folder / "progress"
    env = {
        "PATH": os.environ["PATH"],
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports(1)[0]),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "DORM_PROGRESS": str(progress),
    }
    command = [sys.executable, "-m", "compose.apps.torch_mlp", "--steps", str(STEPS)]
    subprocess.run(command, env=env, cwd=REPOSITORY, check=True, timeout=120)
    losses = [json.loads(line)["loss"] for line in progress.read_text().splitlines()]
    return float(losses[-1])


@pytest.mark.parametrize(
    "options",
    [{}, {"processes": 2}, {"rendezvous": "c10d", "restarts": 1}],
    ids=["variables", "launcher", "c10d"],
)
async def test_workers_train_save_and_resume(tmp_path: Path, options: dict[str, object]) -> None:
    spec = sample("torch_mlp", steps=STEPS, pace=0.2, n_min=2, engine_options=options)
    spec["demand"] = {"cpu": "500m", "memory": "256MiB"}
    app = await grown_and_shrunk(tmp_path / "cluster", spec)
    assert app.step == STEPS
    assert app.loss == pytest.approx(undisturbed(tmp_path / "alone"), rel=SAME)
