"""DRF against the paper's own examples and an exact event-by-event filling; the other figures by their definitions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.policies import shares


def fair(demand: list[list[int]], totals: list[int], weights: list[float], caps: list[int]) -> list[float]:
    fractions = shares.demand_fractions(np.array(demand, np.int64), np.array(totals, np.int64))
    found: list[float] = shares.theoretical_shares(fractions, np.array(weights), np.array(caps, np.int64)).tolist()
    return found


def test_the_example_of_the_drf_paper() -> None:
    """NSDI 2011, §4.1: 9 CPUs and 18 GB, tasks of (1 CPU, 4 GB) and (3 CPU, 1 GB): 3 and 2 tasks, 2/3 each."""
    assert fair([[1, 4], [3, 1]], [9, 18], [1, 1], [100, 100]) == pytest.approx([2 / 3, 2 / 3], abs=1e-9)


def test_weights_of_the_drf_paper() -> None:
    """§4.3: dominant shares in proportion to weights.  Memory binds: 2λ + λ/6 = 1."""
    assert fair([[1, 4], [3, 1]], [9, 18], [2, 1], [100, 100]) == pytest.approx([12 / 13, 6 / 13], abs=1e-9)


def test_a_cap_frees_room_for_others() -> None:
    """User A wants one task only; B then gets what is left of its dominant resource: 8 CPUs of 9."""
    assert fair([[1, 4], [3, 1]], [9, 18], [1, 1], [1, 100]) == pytest.approx([2 / 9, 8 / 9], abs=1e-9)


def test_filling_continues_for_apps_that_need_no_exhausted_resource() -> None:
    """A and B use up the CPU, C needs only memory and fills it."""
    got = fair([[1, 0], [1, 0], [0, 1]], [10, 10], [1, 1, 1], [100, 100, 100])
    assert got == pytest.approx([0.5, 0.5, 1.0], abs=1e-9)


@pytest.mark.parametrize(
    ("demand", "weight", "cap"), [([0, 0], 1.0, 5), ([1, 1], 0.0, 5), ([1, 1], 1.0, 0), ([1, 0], 1.0, 5)]
)
def test_an_app_that_fits_nowhere_has_no_share(demand: list[int], weight: float, cap: int) -> None:
    """No demand, no weight, a cap of nothing, or in need of a kind (the first) of which the cluster has none."""
    got = fair([demand, [0, 1]], [0 if demand == [1, 0] else 10, 10], [weight, 1.0], [cap, 10])
    assert got == pytest.approx([0.0, 1.0])


def exact_filling(
    demand: list[list[int]], totals: list[int], weights: list[Fraction], caps: list[int]
) -> list[Fraction]:
    """Progressive filling step by step in fractions: to the next cap or the next resource that is used up."""
    kinds = range(len(totals))
    unit = [max(Fraction(row[k], totals[k]) for k in kinds) for row in demand]
    part = [[Fraction(row[k], totals[k]) / unit[i] for k in kinds] for i, row in enumerate(demand)]
    share = [Fraction(0)] * len(demand)
    active = [i for i in range(len(demand)) if caps[i] > 0]
    while active:
        steps = [(caps[i] * unit[i] - share[i]) / weights[i] for i in active]
        for k in kinds:
            rate = sum(weights[i] * part[i][k] for i in active)
            if rate:
                steps.append((1 - sum(share[i] * part[i][k] for i in range(len(demand)))) / rate)
        step = min(steps)
        for i in active:
            share[i] += step * weights[i]
        full = [k for k in kinds if sum(share[i] * part[i][k] for i in range(len(demand))) == 1]
        active = [i for i in active if share[i] < caps[i] * unit[i] and not any(part[i][k] for k in full)]
    return share


@given(st.data())
def test_filling_by_prefix_sums_is_the_exact_filling(data: st.DataObject) -> None:
    kinds = data.draw(st.integers(1, 3))
    apps = data.draw(st.integers(1, 6))
    totals = data.draw(st.lists(st.integers(5, 60), min_size=kinds, max_size=kinds))
    rows = st.lists(st.integers(0, 5), min_size=kinds, max_size=kinds).filter(any)
    demand = data.draw(st.lists(rows, min_size=apps, max_size=apps))
    weights = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=apps, max_size=apps))
    caps = data.draw(st.lists(st.integers(0, 40), min_size=apps, max_size=apps))
    expected = exact_filling(demand, totals, [Fraction(w) for w in weights], caps)
    got = fair(demand, totals, [float(w) for w in weights], caps)
    assert got == pytest.approx([float(share) for share in expected], abs=2e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_no_app_could_gain_without_taking_from_a_poorer_one(seed: int, apps: int) -> None:
    """Each app is at its cap or needs a resource that is used up, among whose users nobody has a higher share by weight."""
    random = np.random.default_rng(seed)
    fractions = random.random((apps, 4)) * random.integers(0, 2, (apps, 4)) * 0.01 + 1e-6
    weights, caps = random.random(apps) + 0.1, random.integers(1, 500, apps)
    unit = shares.dominant_units(fractions)
    got = shares.theoretical_shares(fractions, weights, caps)
    use = (fractions / unit[:, None] * got[:, None]).sum(axis=0)
    assert (use <= 1 + 1e-6).all()
    level = got / weights
    capped = got >= caps * unit - 1e-8
    full = use >= 1 - 1e-6
    highest = level.max()
    for i in np.flatnonzero(~capped):
        assert full.any()
        assert level[i] >= highest - 1e-6


def test_fairness_loss_does_not_depend_on_the_order() -> None:
    ours, theirs = [0.1, 0.7, 1e-17, 0.3], [0.3, 0.2, 0.5, 0.1]
    assert shares.fairness_loss(ours, theirs) == shares.fairness_loss(ours[::-1], theirs[::-1])
    assert shares.fairness_loss(ours, theirs) == pytest.approx(1.4)


def test_change_budget_means_the_product_and_not_its_last_bits() -> None:
    assert 0.07 * 100 > 7
    assert shares.change_budget(100, 0.07) == 7
    assert shares.change_budget(30, 0.1) == 3
    assert shares.change_budget(31, 0.1) == 4
    assert shares.change_budget(1, 0.1) == 1
    assert shares.change_budget(0, 0.1) == 0
    assert shares.change_budget(50, 0.0) == 0


def test_utilization_adds_up_the_kinds_that_exist() -> None:
    assert shares.utilization({"cpu": 3, "memory": 4, "gpu": 9}, {"cpu": 6, "memory": 16, "gpu": 0}) == 0.75
    assert shares.utilization({}, {}) == 0


def test_demand_for_an_absent_resource_is_infinite() -> None:
    fractions = shares.demand_fractions(np.array([[1, 0], [1, 2]]), np.array([4, 0]))
    assert fractions.tolist() == [[0.25, 0.0], [0.25, math.inf]]
    assert shares.fairness_budget(3, 0.1) == pytest.approx(0.6)
