"""`dorm-speed`: which of the waiting apps gets its n_min first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.policies import integer
from dorm.policies.problem import Problem
from dorm.policies.registry import policy
from dorm.policies.speed import queueing
from tests.dorm_lab.policies.baselines.test_speed_policies import telling
from tests.policies.problems import app, node

if TYPE_CHECKING:
    from dorm.policies.problem import AppDemand

PATIENCE_S = 600.0
NODE = node("n0", 4, 16)


def waiting(name: str, seconds: float | None, waited_s: float = 0.0, **more: Any) -> AppDemand:
    """An app that needs all of the node for so many seconds, or does not say for how long."""
    wide = app(name, 1, 1, (4, 4), **more)
    known = wide if seconds is None else telling(wide, seconds, (4, 1.0))
    return msgspec.structs.replace(known, waited_s=waited_s)


def order(*apps: AppDemand) -> list[str]:
    instance = integer.read(Problem((NODE,), apps))
    return [instance.apps[row].id for row in queueing.in_order(instance, None, PATIENCE_S).arrival]


def started(*apps: AppDemand) -> list[str]:
    got = policy("dorm-speed").allocate(Problem((NODE,), apps), {"patience_s": PATIENCE_S})
    return [name for name, counts in sorted(got.counts.items()) if counts]


def test_the_shortest_of_those_that_arrive_together_starts_first() -> None:
    for waited_s in (0, 20):
        apps = waiting("long", 9000, waited_s), waiting("short", 60, waited_s), waiting("middle", 1800, waited_s)
        assert order(*apps) == ["short", "middle", "long"]
        assert started(*apps) == ["short"]


def test_the_ratio_of_a_long_app_grows_while_it_waits() -> None:
    assert order(waiting("long", 3000, 500), waiting("short", 60, 9)) == ["long", "short"]
    assert order(waiting("long", 3000, 500), waiting("short", 60, 11)) == ["short", "long"]


def test_an_app_that_has_waited_beyond_patience_and_its_own_length_comes_first() -> None:
    """So an owner who declares too little overtakes others for a while, and not for good."""
    liar = waiting("liar", 1, 599)
    assert order(waiting("honest", 500, 601), liar) == ["honest", "liar"]
    assert order(liar, waiting("honest", 5000, 4990)) == ["liar", "honest"]
    assert order(liar, waiting("honest", 5000, 5010)) == ["honest", "liar"]
    assert started(liar, waiting("honest", 5000, 5010)) == ["honest"]


def test_apps_beyond_their_patience_are_served_by_arrival() -> None:
    assert order(waiting("old", 500, 700), waiting("short", 5, 650)) == ["old", "short"]


def test_apps_without_known_work_count_as_an_hour_and_keep_the_usual_patience() -> None:
    assert order(waiting("unknown", None, 300), waiting("short", 60, 20)) == ["short", "unknown"]
    assert order(waiting("unknown", None, 601), waiting("short", 60, 599)) == ["unknown", "short"]
    assert order(waiting("first", None, 30), waiting("second", None, 20)) == ["first", "second"]


def test_a_weight_counts() -> None:
    assert order(waiting("one", 600, 60), waiting("other", 600, 60, weight=2.0)) == ["other", "one"]


def test_apps_that_run_keep_their_order() -> None:
    running = [app(name, 1, 1, (1, 1), {"n0": 1}) for name in ("b", "a")]
    assert order(running[0], waiting("short", 60, 20), running[1]) == ["b", "a", "short"]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0, 0.0, 1e300])
def test_nonsense_is_ordered_too(odd: float) -> None:
    apps = (
        waiting("steps", odd, 10),
        waiting("waited", 60, odd),
        waiting("weight", 60, 10, weight=odd),
        waiting("sound", 60, 10),
    )
    assert sorted(order(*apps)) == ["sound", "steps", "waited", "weight"]
