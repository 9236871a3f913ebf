"""The results of undisturbed trainings, and the apps with another result."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import dorm
from compose.apps.learning.checkpoint import FILE
from dorm.bench import BenchError
from tests.lab.chaos.work import TRAININGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from dorm.core.state import App
    from tests.lab.chaos.work import Training

_SAME = 1e-6
"""Relative tolerance. With one machine and one library, not a bit differs; an image may have another NumPy than this
process."""
_TRAIN_S = 120.0


class Result(NamedTuple):
    """The result of a training."""

    loss: float
    parameters: NDArray[np.float64]


async def undisturbed() -> dict[Training, Result]:
    """Return the result of each training, run by a single worker.  Raises BenchError if it can't be."""
    return {training: await _alone(training) for training in TRAININGS}


async def _alone(training: Training) -> Result:
    with tempfile.TemporaryDirectory(prefix="dorm-chaos-") as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"compose.apps.{training.program}", "--steps", str(training.steps)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "DORM_CHECKPOINT_DIR": folder, "PYTHONPATH": str(Path(dorm.__file__).parents[1])},
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), _TRAIN_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise BenchError(f"{training.program} does not train alone: {err.decode(errors='replace').strip()}")
        loss = float(json.loads(out.splitlines()[-1])["result"]["loss"])
        return Result(loss, _parameters(Path(folder), training.steps))


def _parameters(folder: Path, steps: int) -> NDArray[np.float64]:
    """Return the parameters of the checkpoint after the last step.  Raises OSError, ValueError, KeyError if there is none."""
    with np.load(folder / FILE, allow_pickle=False) as arrays:
        if json.loads(arrays["about"].tobytes())["step"] != steps:
            raise ValueError("the last checkpoint is not of the last step")
        found: NDArray[np.float64] = arrays["parameters"]
        return found


def other_results(
    completed: Iterable[tuple[App, Training]], alone: Mapping[Training, Result], checkpoints: Path
) -> list[str]:
    """Return the completed apps whose last checkpoint, or whose loss on the log, differs from that of an undisturbed run."""
    found = []
    for app, training in completed:
        right = alone[training]
        try:
            parameters = _parameters(checkpoints / app.id, training.steps)
        except (OSError, ValueError, KeyError) as error:
            found.append(f"{app.name}: {error}")
            continue
        if not np.allclose(parameters, right.parameters, rtol=_SAME, atol=1e-9):
            found.append(f"{app.name}: its parameters differ by up to {np.abs(parameters - right.parameters).max():g}")
        if app.step != training.steps or app.loss is None or not math.isclose(app.loss, right.loss, rel_tol=_SAME):
            found.append(
                f"{app.name}: told of step {app.step} and loss {app.loss}, not {training.steps} and {right.loss}"
            )
    return found
