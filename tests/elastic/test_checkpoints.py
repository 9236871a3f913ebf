"""A job that starts again from a checkpoint in the middle of an epoch uses each sample of that epoch once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

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
