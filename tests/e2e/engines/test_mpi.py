"""Open MPI without ssh: mpirun reaches the other containers through the launcher, through a grow and a shrink."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents import engines
from agents.engines import Place
from events.kinds import Placed
from events.spec import check_spec
from tests.apps.partition import REPOSITORY
from tests.e2e.engines.resized import grown_and_shrunk, sample
from tests.e2e.story import undisturbed
from tests.lab.machines.namespaces import NodeCluster

if TYPE_CHECKING:
    from tests.lab.machines.namespaces import Node

pytestmark = [
    pytest.mark.nats,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("mpirun") and importlib.util.find_spec("mpi4py")) and "CI" not in os.environ,
        reason="needs mpirun (Debian: openmpi-bin) and mpi4py (the extra `mpi`)",
    ),
]
STEPS = 250


@pytest.mark.soak
async def test_ranks_of_all_containers_train_save_and_resume(tmp_path: Path) -> None:
    spec = sample("logistic_mpi", steps=STEPS, pace=0.01, n_min=2)
    app = await grown_and_shrunk(tmp_path / "cluster", spec)
    assert app.step == STEPS
    assert app.loss == pytest.approx(undisturbed(tmp_path / "alone", "logistic", STEPS), rel=1e-9)


@pytest.mark.cluster
@pytest.mark.docker
async def test_containers_of_two_machines_form_one_world(tmp_path: Path) -> None:
    """Two containers on each of two machines that share nothing but a network."""
    steps = 20
    async with NodeCluster(2) as machines:
        placement = tuple(
            Placed(slot=slot, node=str(slot % 2), address=machines.nodes[slot % 2].address, port=20001 + slot)
            for slot in range(4)
        )
        workers = [start(tmp_path, machines.nodes[slot % 2], placement, slot, steps) for slot in range(4)]
        try:
            codes = [await asyncio.to_thread(worker.wait, 60.0) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    assert codes == [0] * 4, [(tmp_path / str(slot) / "log").read_text() for slot in range(4)]
    said = [json.loads(line) for line in (tmp_path / "0" / "progress").read_text().splitlines()]
    losses = [line["loss"] for line in said if "loss" in line]
    assert losses[-1] == pytest.approx(undisturbed(tmp_path / "alone", "logistic", steps), rel=1e-9)


def start(folder: Path, node: Node, placement: tuple[Placed, ...], slot: int, steps: int) -> subprocess.Popen[bytes]:
    """Start one container's command in its machine's network, as the process runtime would."""
    own = folder / str(slot)
    own.mkdir()
    program = [sys.executable, "-m", "compose.apps.logistic_mpi", "--steps", str(steps)]
    spec = check_spec({"name": "m", "command": program, "demand": {"cpu": 1}, "engine": "mpi", "n_min": 4})
    place = Place(
        app="m-1",
        generation=1,
        spec=spec,
        placement=placement,
        slot=slot,
        master_port=20100,
        command=tuple(program),
        folder=str(own),
    )
    launch = engines.prepare(place)
    for name, text in launch.files.items():
        (own / name).write_text(text)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "TMPDIR": str(own),
        "DORM_APP": "m-1",
        "DORM_GENERATION": "1",
        "DORM_PROGRESS": str(own / "progress"),
        **launch.defaults,
        **launch.env,
    }
    with (own / "log").open("wb") as log:
        return subprocess.Popen(node.enter(launch.command), env=env, cwd=own, stdout=log, stderr=log)
