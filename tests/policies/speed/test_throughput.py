"""The model of throughput and efficiency, against models whose parameters are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from dorm.policies.problem import AppDemand, Batch, NodeRoom, Problem
from dorm.policies.speed import throughput
from dorm.policies.speed.throughput import goodputs
from dorm.policies.speed.tuning import Tuning

if TYPE_CHECKING:
    from dorm.policies.speed.throughput import Points

BATCH = Batch(initial=256, least=64, most=2048, per_container=128, noise=1000.0)
COUNTS = np.array([1, 2, 3, 4, 6, 8, 16, 32])


def step_s(n: int, samples: float, *, across: bool) -> float:
    """T(n, m) of the module's docstring."""
    passes = max(1, -(-samples // (128 * n)))
    alpha, beta = (0.2, 0.01) if across else (0.05, 0.004)
    return passes * 0.1 + 0.002 * samples / n + (alpha + beta * max(n - 2, 0) if n > 1 else 0.0)


def curve(*counts: int, samples: int = 256, node: int = 4) -> Points:
    return tuple((n, 1 / step_s(n, samples, across=n > node)) for n in counts)


def best(n: int, batch: Batch, *, across: bool) -> float:
    """The best goodput of all whole batch sizes, one by one."""
    noise, initial = batch.noise, batch.initial
    return max(
        m / initial / step_s(n, m, across=across) * (noise + initial) / (noise + m)
        for m in range(max(batch.least, n), batch.most + 1)
    )


def test_a_curve_of_the_model_gives_the_best_goodput_of_all_batch_sizes() -> None:
    found = goodputs(curve(1, 2, 3, 4, 8, 16, 32), BATCH, COUNTS, 4)
    for place, n in enumerate(COUNTS.tolist()):
        for across in (False, True):
            if across and n == 1:
                continue
            chosen = int(found.batches[int(across), place])
            assert BATCH.least <= chosen <= BATCH.most
            assert found.values[int(across), place] == pytest.approx(best(n, BATCH, across=across), rel=0.05)


def test_noisier_gradients_make_larger_batches_worthwhile() -> None:
    quiet = goodputs(curve(1, 2, 4, 8, 16), msgspec.structs.replace(BATCH, noise=50.0), COUNTS, 4)
    loud = goodputs(curve(1, 2, 4, 8, 16), msgspec.structs.replace(BATCH, noise=50_000.0), COUNTS, 4)
    assert (loud.batches >= quiet.batches).all()
    assert (loud.batches[1] > quiet.batches[1]).any()


def test_a_range_of_one_size_is_the_curve_itself() -> None:
    fixed = Batch(initial=256, least=256, most=256, per_container=128, noise=1000.0)
    points = curve(1, 2, 4, 8, 16)
    found = goodputs(points, fixed, np.array([1, 2, 4, 8, 16]), 4)
    natural = [0, 0, 0, 1, 1]
    assert found.batches.tolist() == [[256] * 5] * 2
    assert found.values[natural, range(5)] == pytest.approx([rate for _, rate in points])


def test_a_fixed_batch_gains_nothing_beyond_its_curve_and_loses_by_crossing_nodes() -> None:
    points = curve(1, 2, 4, 8)
    found = goodputs(points, None, np.array([2, 8, 16, 64]), 4)
    assert found.values[1, 1] == pytest.approx(points[-1][1])
    assert found.values[1, 1:].tolist() == [found.values[1, 1]] * 3
    assert found.values[0, 0] > found.values[1, 0], "two containers on two nodes"
    assert not found.batches.any()


def test_without_a_speed_n_containers_are_n_times_as_fast() -> None:
    assert goodputs((), BATCH, COUNTS, 4).values.tolist() == [COUNTS.tolist()] * 2


@pytest.mark.parametrize(
    "points",
    [((1, 5.0),), ((4, 1e-9), (8, 1e9)), ((1, 1e200), (2, 1e-200)), ((1, 3.0), (2, 2.0), (64, 1.0)), ((1000, 1.0),)],
)
@pytest.mark.parametrize("noise", [0.0, 1.0, 1e300, float("inf"), float("nan"), -4.0])
def test_nonsense_gives_finite_positive_numbers(points: Points, noise: float) -> None:
    found = goodputs(throughput.known(points), msgspec.structs.replace(BATCH, noise=noise), COUNTS, 4)
    assert np.isfinite(found.values).all()
    assert (found.values > 0).all()
    one = goodputs(throughput.known(points), msgspec.structs.replace(BATCH, noise=noise), np.array([1]), 4).values[0, 0]
    assert (found.values <= throughput.MOST_GAIN * one * COUNTS * (1 + 1e-9)).all()


def test_impossible_points_are_left_out() -> None:
    given = ((4, 2.0), (0, 1.0), (2, float("nan")), (3, float("inf")), (1, -1.0), (1, 1.0), (8, 0.0))
    assert throughput.known(given) == ((1, 1.0), (4, 2.0))


class TestTuning:
    def test_the_curve_of_an_app_is_its_goodput_and_the_batch_that_of_its_count(self) -> None:
        app = AppDemand("a", {"gpu": 1}, 1.0, 1, 8, speed=curve(1, 2, 4, 8), batch=BATCH)
        other = AppDemand("b", {"gpu": 1}, 1.0, 1, 8, speed=((1, 1.0),))
        tuning = Tuning(Problem((NodeRoom("n0", {"gpu": 4}), NodeRoom("n1", {"gpu": 4})), (app, other)))
        tuned, same = tuning.problem.apps
        assert same is other
        assert tuned.batch is None
        assert [n for n, _ in tuned.speed] == list(range(1, 9))
        for n, rate in tuned.speed:
            assert rate == pytest.approx(best(n, BATCH, across=n > 4), rel=0.05)
        sizes = tuning.batches({"a": {"n0": 4, "n1": 4}, "b": {"n0": 1}})
        assert sizes == {"a": int(goodputs(app.speed, BATCH, np.array([8]), 4).batches[1, 0])}
        assert tuning.batches({"a": {}, "b": {}}) == {}

    def test_a_problem_without_batch_sizes_is_left_alone(self) -> None:
        problem = Problem((NodeRoom("n0", {"gpu": 4}),), (AppDemand("b", {"gpu": 1}, 1.0, 1, 8),))
        assert Tuning(problem).problem is problem
