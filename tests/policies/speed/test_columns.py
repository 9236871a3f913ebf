"""The program with few of its columns has the answer of the whole one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dorm.policies.speed import columns


@pytest.mark.parametrize("seed", range(12))
def test_few_columns_are_enough(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps that grow and shrink, most of them for a restart; room, θ2 and θ1 bind."""
    chance = np.random.default_rng(seed)
    apps, each = 60, 12
    member = np.repeat(np.arange(apps), each)
    units = np.tile(np.arange(each) - 4, apps).astype(np.float64)
    gain = chance.uniform(0.5, 2.0, apps)[member] * (np.sqrt(units + 6) - np.sqrt(6)) + chance.normal(
        0, 0.01, apps * each
    )
    restarts = np.where(chance.random(apps)[member] < 0.8, 1.0, 0.01)
    uses = np.column_stack([units * chance.uniform(0.5, 1.5, apps)[member], restarts, np.abs(units) * 0.1])
    rest = np.array([5.0, 4.0, chance.uniform(-0.5, 3.0)])
    whole = columns.maximize(gain, uses, member, rest, apps)
    monkeypatch.setattr(columns, "FIRST", 20)
    real, solved = columns._solve, []

    def counting(*args: Any) -> Any:
        solved.append(int(args[-1].sum()))
        return real(*args)

    monkeypatch.setattr(columns, "_solve", counting)
    few = columns.maximize(gain, uses, member, rest, apps, few=0)
    assert few == pytest.approx(whole, abs=1e-7)
    assert max(solved) < len(gain)
    assert (uses[:, :-1].T @ few <= rest[:-1] + 1e-6).all()
    assert np.bincount(member, weights=few).max() <= 1 + 1e-6
