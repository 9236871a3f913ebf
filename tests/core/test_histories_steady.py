"""No flapping: under steady load an app is changed seldom, and never for nothing.

Each round of the policy is better than staying, by its goals and with the price of changing, and the apps that run are the
same: so rounds without events come to rest, and what follows one event is over within a few rounds.
"""

from __future__ import annotations

from random import Random

import pytest

from dorm.policies.dorm import optimizer
from dorm.policies.problem import AppDemand
from tests.core.histories import History, cores
from tests.tries import tries

pytestmark = [pytest.mark.soak, pytest.mark.slow]

GIB = 2**30
REST = 12
"""Rounds within which everything has come to rest; more than 5 were never seen."""

PER_EVENT = 3
"""Changes of one app that one event may lead to; more than 2 were never seen."""

MEAN_PER_EVENT = 0.6
"""Changes of an app for each event, over all apps of a cluster; 0.2 is usual."""


@pytest.fixture(params=["as it is", "nothing is tiny"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "nothing is tiny":
        monkeypatch.setattr(optimizer, "TINY", 0)


def any_app(chance: Random, name: str, adjust: tuple[float | None, ...]) -> AppDemand:
    size = chance.choice((1, 2, 3, 4))
    n_min = chance.choice((1, 1, 2))
    return AppDemand(
        name,
        {"cpu": size * 1000, "memory": chance.choice((1, 2, 4, 8)) * size * GIB // 2},
        chance.choice((1.0, 1.0, 2.0, 4.0)),
        n_min,
        n_min * chance.randint(2, 6),
        adjust_s=chance.choice(adjust),
    )


def cluster(
    seed: int, adjust: tuple[float | None, ...], params: dict[str, float] | None = None
) -> tuple[History, Random]:
    """A fixed set of apps that would use half as much again as there is, at n_max, and well less than all at n_min."""
    chance = Random(seed)
    history = History([cores(f"n{j}", chance.choice((8, 16))) for j in range(chance.randint(3, 6))], params)
    total = sum(node.capacity["cpu"] for node in history.nodes.values()) / 1000
    wants = needs = 0.0
    while wants < 1.5 * total:
        app = any_app(chance, f"{chance.getrandbits(16):04x}-{len(history.apps)}", adjust)
        size = app.demand["cpu"] / 1000
        needs += app.n_min * size
        if needs > 0.7 * total:
            break
        wants += app.n_max * size
        history.submit(app)
    return history, chance


ANY: tuple[float | None, ...] = (None, 0.0, 2.0, 30.0, 300.0)
FREE: tuple[float | None, ...] = (0.0,)
"""Changing costs nothing at all: only the order of the goals keeps apps where they are."""


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("adjust", [ANY, FREE])
@pytest.mark.parametrize("params", [{}, {"theta2": 1.0}, {"theta1": 0.0, "max_changes": 1}])
def test_without_events_rounds_settle(adjust: tuple[float | None, ...], params: dict[str, float]) -> None:
    for seed in range(tries(1, 12)):
        history, chance = cluster(seed, adjust, params)
        history.settle(REST)
        assert len(history.apps) > 2
        # From elsewhere too: some have ended, and a node comes and goes.
        for name in chance.sample(sorted(history.apps), 2):
            history.finish(name)
        lost = chance.choice(sorted(history.nodes))
        history.lose(lost)
        history.settle(REST)
        history.give_back(lost)
        history.settle(REST)
        for _ in range(3):
            before = history.placement()
            history.round()
            assert history.placement() == before


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("adjust", [ANY, FREE])
def test_an_event_changes_each_app_a_few_times_at_most(adjust: tuple[float | None, ...]) -> None:
    changed = events = apps = 0
    seeds = tries(1, 12)
    for seed in range(seeds):
        history, chance = cluster(seed, adjust)
        history.settle(REST)
        for number in range(6):
            history.changes.clear()
            if number % 2:
                history.finish(chance.choice(sorted(history.apps)))
            else:
                history.submit(any_app(chance, f"new{number}", adjust))
            history.settle(REST)
            assert max(history.changes.values(), default=0) <= PER_EVENT
            changed += sum(history.changes.values())
            apps += len(history.apps)
            events += 1
    assert events == 6 * seeds
    assert changed > 0
    assert changed / apps <= MEAN_PER_EVENT


@pytest.mark.usefixtures("each_way")
def test_while_events_follow_each_other_changes_stay_within_theta2() -> None:
    """An event each round, so that nothing ever comes to rest: θ2 is what bounds the churn."""
    history, chance = cluster(7, ANY)
    history.settle(REST)
    history.changes.clear()
    rounds, running = 24, 0
    for number in range(rounds):
        if number % 2:
            history.finish(chance.choice(sorted(history.apps)))
        else:
            history.submit(any_app(chance, f"new{number}", ANY))
        running += len(history.apps)
        history.round()
    assert 0 < sum(history.changes.values()) <= -(-running // 10) + rounds
    assert max(history.changes.values()) <= rounds / 2


@pytest.mark.usefixtures("each_way")
def test_cheap_changes_are_made_more_often() -> None:
    """Apps that differ only in the cost of an adjustment, over the same events: those that resume at once are resized
    first."""
    cheap = dear = 0
    for seed in range(4):
        chance = Random(seed)
        history = History([cores(f"n{j}", 8) for j in range(4)])
        order = list(range(8))
        chance.shuffle(order)
        for index in order:
            cost = 2.0 if index in order[::2] else 600.0
            kind = "cheap" if cost == 2.0 else "dear"
            history.submit(
                AppDemand(
                    f"{index}-{kind}",
                    {"cpu": 1000, "memory": GIB},
                    1.0,
                    1,
                    8,
                    dict.fromkeys(history.nodes, 1),
                    adjust_s=cost,
                )
            )
        assert history.settle(REST) == 0
        for number in range(6):
            if number % 2:
                history.finish(f"guest{number - 1}")
            else:
                history.submit(AppDemand(f"guest{number}", {"cpu": 1000, "memory": GIB}, 1.0, 2, 4))
            history.settle(REST)
        cheap += sum(count for name, count in history.changes.items() if name.endswith("cheap"))
        dear += sum(count for name, count in history.changes.items() if name.endswith("dear"))
    assert cheap >= 8
    assert cheap > 3 * dear


def test_rounds_settle_at_a_hundred_nodes() -> None:
    chance = Random(3)
    history = History([cores(f"n{j:03}", chance.choice((8, 16))) for j in range(100)])
    for number in range(60):
        history.submit(any_app(chance, f"{chance.getrandbits(16):04x}-{number}", ANY))
    history.settle(REST)
    history.changes.clear()
    for name in sorted(history.apps)[:3]:
        history.finish(name)
    history.settle(REST)
    assert max(history.changes.values(), default=0) <= PER_EVENT
