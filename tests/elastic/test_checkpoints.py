"""The ledger if a job starts again from a checkpoint in the middle of an epoch, and if a script leaves its loop."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dorm import elastic
from dorm.elastic import ledger
from dorm.elastic.contract import Announcement, Contract

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


def test_the_ledger_continues_with_the_samples_before_the_checkpoint(tmp_path: Path) -> None:
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


def count_samples(folder: Path, membership: int, until: int | None) -> dict[int, float]:
    """Count in each chunk's value the samples of three epochs; stop before step `until` by SIGTERM, with a checkpoint."""
    alone = Announcement(1, membership, {0: ("127.0.0.1", 0)}, founders=(0,))
    counted: dict[int, float] = {}
    with elastic.join(contract=Contract(shared=folder, progress=folder / "progress", fixed=alone)) as job:
        for step in job.steps(97, batch=10, epochs=3, chunks=8, values=lambda chunk, samples: np.zeros(1)):
            if step.number == until:
                os.kill(os.getpid(), signal.SIGTERM)
            for chunk, samples in step.parts.items():
                step.values[chunk] += len(samples)
            counted = {chunk: float(value[0]) for chunk, value in step.values.items()}
    return counted


@pytest.mark.parametrize("membership", [1, 2])
def test_values_of_chunks_continue_with_any_membership(tmp_path: Path, membership: int) -> None:
    """A worker that fails at the start of a generation has another membership announced before the first step."""
    with pytest.raises(SystemExit, match="143"):
        count_samples(tmp_path, 1, until=14)
    counted = count_samples(tmp_path, membership, until=None)
    assert sum(counted.values()) == 3 * 97
