"""Bounded wait: over long histories whose capacity suffices, no app waits indefinitely, and small apps never starve
large ones.

Why, and how long at most: an app that has waited longer than `patience_s` and longest of all has nodes kept for it, enough
that their whole room holds its n_min (`goals.reserved`).  No other app gets a further container there, so containers
there only end, and once the last one has (after L, the longest run time), the app fits.  What is free on the nodes that
are kept never shrinks, so another choice of nodes only brings it forward.  Who is older goes first, and needs L at most
in its turn; a lost node may put those that it hit on the nodes that are kept, which costs L once more.  So

    wait ≤ patience_s + L · (1 + older apps that waited + nodes lost meanwhile) + 2 rounds

where rounds are a minute apart, one until the policy sees that the patience is over and one until it sees an end.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.policies.dorm import optimizer
from dorm.policies.problem import AppDemand
from tests.core.histories import ROUND_S, History, cores, large, small
from tests.policies.problems import slow_machine
from tests.tries import LONG, tries

pytestmark = pytest.mark.slow

PATIENCE_S = 300.0
LONGEST = 12
"""Rounds that an app runs at most."""

LOAD = 0.7
"""Of the cluster's cores that n_min of all apps take on average."""

PARAMS = st.fixed_dictionaries(
    {
        "theta2": st.sampled_from([0.0, 0.1, 1.0]),
        "max_changes": st.sampled_from([1, 50]),
        "theta1": st.sampled_from([0.0, 0.1]),
        "patience_s": st.just(PATIENCE_S),
    }
)


def stream(seed: int, rounds: int, params: dict[str, float], *, losses: bool) -> History:
    """Arrivals that never stop: mostly small apps, some that need half of the cluster or all of it."""
    chance = Random(seed)
    history = History([cores(f"n{j}", chance.choice((8, 8, 16))) for j in range(chance.choice((3, 4, 6)))], params)
    sizes = [node.capacity["cpu"] // 1000 for node in history.nodes.values()]
    credit = 3 * LOAD * sum(sizes)
    made = 0
    for _ in range(rounds):
        credit += LOAD * sum(sizes)
        while credit > 0:
            made += 1
            name = f"{chance.getrandbits(16):04x}-{made}"
            run = chance.randint(2, LONGEST)
            if chance.random() < 0.15:
                size = chance.choice((2, 4, 8))
                # One node may be away, and it may be the largest.
                most = sum(each // size for each in (sorted(sizes)[:-1] if losses else sizes))
                app = large(name, chance.randint(max(1, most // 2), max(1, most)), size)
            else:
                app = small(chance, name)
            history.submit(app, run)
            credit -= app.n_min * app.demand["cpu"] / 1000 * run
        if history.away and chance.random() < 0.2:
            history.give_back(next(iter(history.away)))
        elif losses and not history.away and chance.random() < 0.03:
            history.lose(chance.choice(sorted(history.nodes)))
        history.round()
    return history


def longest(name: str, history: History) -> float:
    turns = 1 + history.ahead[name] + history.losses[name]
    return PATIENCE_S + ROUND_S * (LONGEST * turns + 2)


def check_waits(history: History) -> int:
    """Gives how many waited beyond their patience."""
    for name, waited in history.waits.items():
        assert waited <= longest(name, history), f"{name} waited {waited:.0f} s behind {history.ahead[name]} others"
    return sum(waited > PATIENCE_S for waited in history.waits.values())


@pytest.mark.soak
@pytest.mark.timeout(600)  # An end by time would look to hypothesis like a failure that comes and goes.
@settings(slow_machine, max_examples=tries(3, 60))
@given(st.integers(0, 10**6), PARAMS, st.booleans())
def test_no_app_waits_longer_than_its_turn_takes(seed: int, params: dict[str, float], losses: bool) -> None:
    history = stream(seed, 40, params, losses=losses)
    assert len(history.waits) >= 4
    check_waits(history)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("losses", "tiny"), [(False, False), (True, True), *([(False, True), (True, False)] if LONG else [])]
)
def test_no_app_waits_longer_than_its_turn_over_long_histories(
    losses: bool, tiny: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not tiny:
        monkeypatch.setattr(optimizer, "TINY", 0)
    for seed in range(int(losses), tries(2, 6), 2):
        beyond = 0
        for theta2, cap in ((0.0, 50), (0.1, 50), (1.0, 1)):
            params = {"theta2": theta2, "max_changes": float(cap), "patience_s": PATIENCE_S}
            beyond += check_waits(stream(seed, tries(50 if tiny else 20, 100), params, losses=losses))
        assert beyond > 0, "nobody's patience was tried"


def small_ones_without_end(params: dict[str, float], rounds: int) -> History:
    """Twelve cores that are always full of apps of one core, with three more waiting; then an app comes that needs two
    whole nodes."""
    chance = Random(1)
    history = History([cores(f"n{j}", 4) for j in range(3)], params)
    made = 0
    for number in range(rounds):
        if number == 3:
            history.submit(large("large", 2, 4), 5)
        while sum(name != "large" for name in history.waits_since) < 3:
            made += 1
            history.submit(AppDemand(f"s{made:03}", {"cpu": 1000}, 1.0, 1, 1), chance.randint(3, 8))
        history.round()
    return history


@pytest.mark.parametrize("theta2", [0.0, 1.0, pytest.param(0.1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("cap", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_a_stream_of_small_apps_starves_no_large_one(theta2: float, cap: int) -> None:
    history = small_ones_without_end({"theta2": theta2, "max_changes": cap}, 26)
    assert "large" not in history.apps
    assert 600.0 < history.waits["large"] <= 600.0 + 8 * ROUND_S + 2 * ROUND_S
    assert len(history.waits) > 25


@pytest.mark.parametrize("theta2", [0.0, pytest.param(1.0, marks=pytest.mark.soak)])
def test_without_ageing_it_would_starve(theta2: float) -> None:
    """What the tests above rest on: with endless patience, the same stream starves the same app."""
    rounds = 40
    history = small_ones_without_end({"theta2": theta2, "patience_s": 3e7}, rounds)
    assert history.waits_since["large"] == 3 * ROUND_S
    assert max(waited for name, waited in history.waits.items() if name != "large") <= 600.0


@pytest.mark.soak
@pytest.mark.parametrize("tiny", [True, False])
def test_the_older_of_two_overdue_apps_starts_first(tiny: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tiny:
        monkeypatch.setattr(optimizer, "TINY", 0)
    history = History([cores(f"n{j}", 4) for j in range(2)], {"theta2": 0.0, "patience_s": 60.0})
    for index in range(8):
        history.submit(AppDemand(f"s{index}", {"cpu": 1000}, 1.0, 1, 1), 4 + index)
    history.round()
    history.submit(large("older", 2, 4), 3)
    history.submit(large("younger", 2, 2), 3)
    order = []
    for _ in range(25):
        before = set(history.waits_since)
        history.round()
        order += sorted(before - set(history.waits_since))
    assert order == ["older", "younger"]


@pytest.mark.parametrize("theta2", [0.1, 1.0])
def test_if_no_app_ends_running_apps_make_room_round_by_round(theta2: float) -> None:
    """Four that run forever fill four nodes; capacity suffices for n_min of all, so each newcomer starts soon."""
    history = History([cores(f"n{j}", 8) for j in range(4)], {"theta2": theta2})
    for index in range(4):
        history.submit(AppDemand(f"a{index}", {"cpu": 1000}, 1.0, 1, 8, adjust_s=600.0))
    history.settle(10)
    assert sum(sum(app.current.values()) for app in history.apps.values()) == 32
    for index, (size, n_min) in enumerate(((4, 1), (4, 2), (2, 2))):
        history.submit(large(f"late{index}", n_min, size))
    history.settle(20)
    assert not history.waits_since
    assert max(history.waits.values()) <= 6 * ROUND_S
