"""The ledger where a job starts again from a checkpoint in the middle of an epoch, and where a script leaves its loop."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dorm import elastic
from dorm.elastic import ledger
from dorm.elastic.contract import Contract

if TYPE_CHECKING:
    from pathlib import Path


def train(folder: Path, until: int | None) -> float:
    """Train for three epochs of ten steps, or until this step is begun; save before every step."""
    weights = np.zeros(1)
    with elastic.join(state={"w": weights}, contract=Contract(shared=folder, progress=folder / "progress")) as job:
        for step in job.steps(97, batch=10, epochs=3, save_every=0.0):
            if step.number == until:
                break
            weights += step.sum_over(lambda samples: float(samples.sum()))
    return float(weights[0])


def test_the_ledger_goes_on_with_the_samples_before_the_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, until=14)
    assert train(tmp_path, until=None) == 3 * sum(range(97))
    facts = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    epochs = [(fact["epoch"], fact["samples"], fact["ledger"]) for fact in facts if "ledger" in fact]
    assert epochs == [(epoch, 97, ledger.expected(97).digest) for epoch in range(3)]
    assert sum(fact.get("cause") == "start" and fact["step"] == 14 for fact in facts) == 1


@pytest.mark.parametrize(("summed", "epochs"), [(True, [0, 1, 2]), (False, [0, 1])])
def test_a_script_that_leaves_its_loop_after_the_sum_has_completed_the_step(
    tmp_path: Path, summed: bool, epochs: list[int]
) -> None:
    """What it says to its peers when it ends depends on that: a peer that is a moment later would take it for dead."""
    with elastic.join(state={"w": np.zeros(1)}, contract=Contract(progress=tmp_path / "progress")) as job:
        for step in job.steps(97, batch=97, epochs=9):
            if step.number == 2 and not summed:
                break
            step.sum_over(lambda samples: float(samples.sum()))
            if step.number == 2:
                break
    facts = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert [fact["epoch"] for fact in facts if "ledger" in fact] == epochs
