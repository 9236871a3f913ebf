"""What `dorm-speed` learns from how fast an app has worked."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies.problem import AppDemand, Measured, NodeRoom, Problem
from dorm.policies.registry import policy
from dorm.policies.speed import curves, learning
from dorm.policies.speed.learning import Learned, known_of
from dorm.policies.speed.learning import learned as learned_from
from tests.dorm_lab.policies.baselines.test_speed_policies import totals
from tests.policies.problems import app, node, slow_machine
from tests.tries import tries


def law(n: float, s: float) -> float:
    """Steps per second by the law of a step with γ = 1, with one step per second on one container."""
    return 1 / (1 / n + (s if n > 1 else 0.0))


def learned(one: AppDemand) -> Learned:
    return learned_from(known_of(one))


def worked(points: dict[int, float], seconds: float = 60.0, most: int = 64, **more: object) -> AppDemand:
    measured = tuple(Measured(n, rate, seconds) for n, rate in points.items())
    return msgspec.structs.replace(app("a", 1, 1, (1, most)), measured=measured, **more)


def test_one_point_a_minute_gives_the_level_and_the_law_the_rest() -> None:
    known = learned(worked({4: 10.0}))
    assert known.basis == "measured"
    assert known.rate(4) == pytest.approx(10.0)
    assert 10.0 < known.rate(8) < 20.0
    assert 2.4 < known.rate(1) < 2.8
    assert known.uncertainty(4) < known.uncertainty(8) < known.uncertainty(64)


@pytest.mark.parametrize("s", [0.003, 0.03, 0.3])
def test_three_points_distinguish_apps_that_scale(s: float) -> None:
    known = learned(worked({n: law(n, s) for n in (1, 4, 8)}))
    for n in (1, 2, 4, 8, 16):
        assert known.rate(n) == pytest.approx(law(n, s), rel=0.12), n


def test_measurements_correct_declarations() -> None:
    """Its owner says that it scales; four containers were as fast as two."""
    declared = tuple((n, float(n)) for n in (1, 2, 4, 8))
    known = learned(worked({2: 2.0, 4: 2.0}, seconds=600.0, most=8, speed=declared))
    assert known.rate(4) == pytest.approx(2.0, rel=0.05)
    assert known.rate(8) == pytest.approx(4.0, rel=0.1), "beyond, its owner's curve goes on from there"


def test_a_short_stretch_weighs_less_than_a_long_one() -> None:
    declared = tuple((n, float(n)) for n in (1, 2, 4, 8))
    points = (Measured(1, 1.0, 3600.0), Measured(4, 2.0, 2.0))
    short = learned(msgspec.structs.replace(worked({}, most=8), speed=declared, measured=points))
    long = learned(
        msgspec.structs.replace(worked({}, most=8), speed=declared, measured=(points[0], Measured(4, 2.0, 3600.0)))
    )
    assert long.rate(4) == pytest.approx(2.0, rel=0.02)
    assert 3.0 < short.rate(4) < 4.0


def test_a_similar_app_is_expected_to_be_as_fast() -> None:
    like = tuple(Measured(n, 7 * law(n, 0.3), 600.0) for n in (1, 4))
    known = learned(msgspec.structs.replace(app("new", 1, 1, (1, 16)), alike=like))
    assert known.basis == "alike"
    assert known.rate(4) == pytest.approx(7 * law(4, 0.3), rel=0.1)
    assert known.largest == 4


ANY_RATE = st.sampled_from([0.0, -1.0, 1e-300, 1e-9, 0.5, 1.0, 3.0, 1e6, 1e12, 1e300, math.inf, math.nan])


@settings(slow_machine, max_examples=tries(8, 3_000))
@given(
    points=st.lists(st.tuples(st.integers(-1, 70), ANY_RATE, ANY_RATE), max_size=6),
    declared=st.lists(st.tuples(st.integers(-1, 70), ANY_RATE), max_size=4),
    least=st.integers(1, 4),
    gang=st.integers(1, 3),
)
def test_nonsense_gives_a_curve_and_the_same_one_again(
    points: list[tuple[int, float, float]], declared: list[tuple[int, float]], least: int, gang: int
) -> None:
    measured = tuple(Measured(n, rate, seconds) for n, rate, seconds in points)
    silly = msgspec.structs.replace(
        app("silly", 1, 1, (least * gang, 24 * gang)), gang=gang, speed=tuple(declared), measured=measured
    )
    known = learned(silly)
    assert np.isfinite(known.rates).all()
    assert (known.rates[1:] > 0).all()
    assert (np.diff(known.counts) > 0).all()
    again = msgspec.structs.replace(silly, measured=measured[::-1], speed=tuple(declared[::-1]))
    assert learned(again).rates.tobytes() == known.rates.tobytes() or len({n for n, _ in declared}) < len(declared)
    assert silly.n_min <= curves.explored(silly) <= silly.n_max
    assert silly.n_min <= curves.useful(silly) <= silly.n_max
    assert curves.LEAST_WORK_S <= curves.work_s(silly) <= curves.MOST_WORK_S


@pytest.mark.parametrize("rate", [1e-6, 1e6])
def test_an_implausible_measurement_starves_no_other_app(rate: float) -> None:
    nodes: tuple[NodeRoom, ...] = (node("n0", 8, 32), node("n1", 8, 32))
    odd = msgspec.structs.replace(worked({2: 1.0, 4: rate}, most=8), id="odd", remaining_steps=1e5)
    fair = msgspec.structs.replace(worked({2: 1.0, 4: 1.9}, most=8), id="fair", remaining_steps=1e5)
    got = totals(policy("dorm-speed").allocate(Problem(nodes, (odd, fair)), {}))
    assert min(got.values()) >= 4


class TestGrowth:
    NODES = (node("n0", 32, 128),)

    def decide(self, one: AppDemand) -> tuple[int, str]:
        got = policy("dorm-speed").allocate(Problem(self.NODES, (one,)), {})
        return totals(got)["a"], got.reasons["a"].code if "a" in got.reasons else ""

    def test_it_grows_to_twice_the_measured_size(self) -> None:
        here = worked({2: 2.0}, most=32, current={"n0": 2}, remaining_steps=1e6)
        assert self.decide(here) == (4, "learning")
        here = worked({2: 2.0, 4: 4.0}, most=32, current={"n0": 4}, remaining_steps=1e6)
        assert self.decide(here) == (8, "learning")

    def test_declared_speeds_are_known(self) -> None:
        declared = tuple((n, float(n)) for n in range(1, 33))
        here = worked({2: 2.0}, most=32, current={"n0": 2}, remaining_steps=1e6, speed=declared)
        assert self.decide(here) == (32, "")

    def test_an_app_that_never_reported_is_not_held_back(self) -> None:
        assert self.decide(worked({}, most=32, current={"n0": 2}, served_s=1e6))[0] > 4


@pytest.mark.parametrize("counts", [(4,), (1, 2, 4, 8), (1, 2, 3, 5, 8, 9, 12, 17, 24, 32)])
def test_the_law_fits_as_a_plain_search_of_the_grid_does(counts: tuple[int, ...]) -> None:
    points = tuple(learning.Point(n, 3.0 * n / (1 + 0.05 * (n - 1)) * (1 + 0.02 * (-1) ** n), 60.0 * n) for n in counts)
    best = math.inf
    for shape in learning._GRID:
        off = [-math.log(rate) - float(learning._log_time(np.array([float(n)]), *shape)[0]) for n, rate, _ in points]
        weight = [learning.trust(seconds) / learning._NOISE**2 for _, _, seconds in points]
        scale = math.fsum(map(math.prod, zip(weight, off, strict=True))) / math.fsum(weight)
        apart = math.fsum(each * (one - scale) ** 2 for each, one in zip(weight, off, strict=True))
        if apart + learning._unusual(*shape) < best:
            best, fitted = apart + learning._unusual(*shape), (scale, shape)
    tried = np.array([1.0, 6.0, 64.0])
    assert learning.law(points, tried) == pytest.approx(-(fitted[0] + learning._log_time(tried, *fitted[1])), rel=1e-12)
