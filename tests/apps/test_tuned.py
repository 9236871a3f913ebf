"""Batch sizes chosen by Dorm, in the app: estimates, the value of a step, and agreement among workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from compose.apps.learning.batches import SHARDS
from compose.apps.learning.tuned import batch_in, gain, noise_parts
from tests.apps.partition import Partition

if TYPE_CHECKING:
    from pathlib import Path


def test_the_noise_is_estimated_without_bias() -> None:
    """Gradients of samples around a known mean: |G|² = 4 · 0.5² and tr(Σ) = 4 · 3²."""
    chance = np.random.default_rng(7)
    b, shards = 8, 24
    parts = []
    for _ in range(4000):
        means = 0.5 + 3.0 * chance.standard_normal((shards, b, 4)).mean(axis=1)
        small = float((means * means).sum(axis=1).mean())
        whole = means.mean(axis=0)
        parts.append(noise_parts(small, float(whole @ whole), b, b * shards))
    g2, spread = np.mean(parts, axis=0)
    assert g2 == pytest.approx(1.0, rel=0.05)
    assert spread == pytest.approx(36.0, rel=0.02)


def test_the_value_of_a_step() -> None:
    assert gain(48, 48, 100.0) == 1.0
    assert gain(96, 48, 0.0) == 1.0, "without noise, more samples teach nothing"
    assert gain(96, 48, 1e12) == pytest.approx(2.0), "with much of it, each teaches as much"


def test_the_file_is_read_with_care(tmp_path: Path) -> None:
    file = tmp_path / "batch"
    assert batch_in(file, 48, 1000) == 48
    for text, size in (("100\n", 96), ("", 48), ("many", 48), ("1", 48), ("999999", 1000 // SHARDS * SHARDS)):
        file.write_text(text)
        assert batch_in(file, 48, 1000) == size


@pytest.mark.slow
def test_all_workers_change_at_the_same_step_and_a_resumed_app_continues(tmp_path: Path) -> None:
    file = tmp_path / "size"
    file.write_text("48")
    options = ("--steps", "300", "--report-every", "10", "--pace", "0.0005")
    environment = {"DORM_BATCH": str(file)}
    with Partition(tmp_path, "logistic_batch", *options, world_size=2, start=False) as partition:
        for rank in range(2):
            partition.start(rank, environment=environment)
        partition.until_step(50)
        file.write_text("240")
        partition.until(lambda: "batch size 48 -> 240" in partition.stdout(), "it changes")
        partition.signal(1)
        assert partition.exit_codes() == [143, 143]
        noise = [line["noise"] for line in partition.progress() if "noise" in line]
        assert noise
        assert all(each > 0 for each in noise)
    with Partition(tmp_path, "logistic_batch", *options, generation=2, start=False) as partition:
        partition.start(0, "--resume", environment=environment)
        assert partition.exit_codes() == [0]
        assert "batch size" not in partition.stdout(), "it had its 240 samples before"
        assert partition.result()["step"] == 300
