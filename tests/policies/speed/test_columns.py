"""The program with few of its columns has the answer of the whole one."""

from __future__ import annotations

import itertools
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


@pytest.mark.parametrize("seed", range(8))
def test_whole_choices_are_the_best_ones(seed: int) -> None:
    """Against all combinations: four apps with four choices each, beside what they have now."""
    chance = np.random.default_rng(seed)
    apps, each = 4, 4
    member = np.repeat(np.arange(apps), each)
    gain = np.round(chance.normal(0.3, 1.0, apps * each), 3)
    uses = np.column_stack([chance.integers(-3, 6, apps * each), chance.choice([1.0, 0.2], apps * each)]).astype(float)
    uses = np.column_stack([uses, chance.uniform(-0.2, 0.2, apps * each)])
    rest = np.array([4.0, 2.0, 0.1])

    def value(x: Any) -> float:
        over = uses.T @ x - rest
        return float(gain @ x) - columns.EXCESS * max(0.0, float(over[-1])) if (over[:-1] <= 1e-9).all() else -np.inf

    best = -np.inf
    for taken in itertools.product(range(each + 1), repeat=apps):
        x = np.zeros(apps * each)
        x[[app * each + choice for app, choice in enumerate(taken) if choice < each]] = 1.0
        best = max(best, value(x))
    found = columns.in_whole(gain, uses, member, rest, apps)
    assert found is not None
    assert set(found.tolist()) <= {0.0, 1.0}
    assert np.bincount(member, weights=found).max() <= 1
    assert value(found) >= best - columns.GAP * abs(best) - 1e-6


def test_a_solver_that_fails_leaves_the_choice_to_the_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> Any:
        raise ValueError("no answer")

    monkeypatch.setattr(columns, "milp", fails)
    assert columns.in_whole(np.ones(1), np.ones((1, 3)), np.zeros(1, np.int64), np.ones(3), 1) is None
