"""Starters on PyTorch: through a grow and a shrink they end with the loss of an undisturbed run.

They run where PyTorch and the library are installed: `make test-engines` installs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.apps.partition import REPOSITORY
from tests.samples.starter import resized, starter, two_nodes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(400)]
SAME = 1e-3
"""Relative: 32-bit sums of other partial sums, over a few hundred steps."""


def undisturbed(module: str, steps: int, folder: Path) -> float:
    """Return the last loss of a run by one worker without a resize."""
    folder.mkdir()
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "DORM_PROGRESS": str(folder / "progress"),
        "DORM_CHECKPOINT_DIR": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # As a container of half a core has it.
    }
    command = [sys.executable, "-m", module, "--steps", str(steps)]
    subprocess.run(command, env=env, cwd=REPOSITORY, check=True, timeout=200)
    lines = [json.loads(line) for line in (folder / "progress").read_text().splitlines()]
    return float([line["loss"] for line in lines if "loss" in line][-1])


@pytest.mark.parametrize(("name", "library", "steps"), [
    ("lightning_digits", "lightning", 150), ("transformers_text", "transformers", 120),
])  # fmt: skip
async def test_it_ends_with_the_loss_of_an_undisturbed_run(name: str, library: str, steps: int, tmp_path: Path) -> None:
    pytest.importorskip(library, reason=f"needs {library}: `make test-engines`")
    found = starter(name)
    module = found["command"][2]
    command = ["python3", "-m", module, "--steps", str(steps), "--pace", "0.2"]
    spec = {**found, "command": command, "demand": {"cpu": "500m", "memory": "512MiB"}}
    async with two_nodes(tmp_path / "cluster") as client:
        app = await resized(client, spec, (1, 3, 2), each=10, longest_s=200.0)
        assert (app.step, app.checkpoint) == (steps, steps)
        assert app.loss == pytest.approx(undisturbed(module, steps, tmp_path / "alone"), rel=SAME)
