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
from tests.e2e import test_causes as causes
from tests.e2e.engines.resized import grown_and_shrunk, sample
from tests.lab.machines.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="needs PyTorch: `make test-engines`")
pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(300)]
STEPS = 250
SAME = 1e-4
"""Relative: 32-bit sums of other partial sums; measured: 5e-7."""

FAILS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    for step in range(1, 100):
        if rank and step == 5:
            raise ValueError("label 17 is out of range")
        dist.all_reduce(torch.ones(1) * step)
finally:
    dist.destroy_process_group()
    while rank and not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
"""
"""One worker fails.  As in programs that flush a log or write a profile, its connections end long before it does."""


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


async def test_the_worker_that_failed_is_the_reason_and_not_the_one_that_lost_it(tmp_path: Path) -> None:
    app = await causes.fails(
        tmp_path,
        lambda go: causes.spec(
            FAILS, go, engine="torchrun", n_min=2, n_max=2, retries={"limit": 0, "fatal_exit_codes": [1]}
        ),
        causes.one_has_ended,
    )
    assert app.end_reason.startswith("slot 1 on ")
    assert app.end_reason.endswith("ValueError: label 17 is out of range (exit code 1 is final)")
