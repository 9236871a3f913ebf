"""The rules between the cluster's times, which no change breaks."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dorm.core.settings import times_of
from dorm.core.state import Settings
from events.kinds import PolicyChanged
from events.times import HarmfulTimes, Times, broken_rule, rules, times_after, written
from tests.core.records import Bench
from tests.errors import raises


def test_the_defaults_keep_every_rule() -> None:
    assert broken_rule(Times()) is None
    assert times_of(Settings()) == Times()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"node_lease_s": 1}, "settings.node_lease.below_grace"),
        ({"node_grace_s": 600}, "settings.node_lease.below_grace"),
        ({"node_grace_s": 10}, "settings.node_grace.too_short"),
        ({"heartbeat_s": 8}, "settings.node_grace.too_short"),
        ({"heartbeat_s": 0.1, "node_grace_s": 0.3, "node_lease_s": 1}, "settings.node_lease.too_short"),
        ({"quiet_ms": 5000}, "settings.quiet_limit.below_quiet"),
        ({"quiet_limit_ms": 60_000}, "settings.idle.below_quiet_limit"),
    ],
)
def test_harmful_combinations_are_refused_with_advice(change: dict[str, Any], code: str) -> None:
    with raises(HarmfulTimes, code, ": set a longer "):
        times_after(Times(), PolicyChanged(**change))


def test_a_change_is_judged_by_all_resulting_times() -> None:
    change = PolicyChanged(heartbeat_s=1, node_grace_s=3, node_lease_s=10, quiet_ms=5000, quiet_limit_ms=9000)
    after = times_after(Times(), change)
    assert (after.heartbeat_s, after.node_grace_s, after.node_lease_s, after.quiet_ms) == (1, 3, 10, 5000)
    assert times_after(after, PolicyChanged(policy="static")) == after


def test_a_master_never_reaches_harmful_times() -> None:
    """Whatever strangers publish, in any order."""
    chance = random.Random(5)
    values = {
        "heartbeat_s": [0.1, 1, 5, 60, 3600],
        "node_grace_s": [0.1, 1, 3, 15, 60, 86_400],
        "node_lease_s": [1, 3, 10, 60, 300, 864_000],
        "quiet_ms": [0, 200, 60_000],
        "quiet_limit_ms": [0, 1000, 600_000],
        "idle_s": [1, 30, 900],
        "retention_s": [0, 60, 86_400],
    }
    accepted = refused = 0
    for _ in range(40):
        bench = Bench(a=4)
        for _ in range(25):
            names = chance.sample(sorted(values), chance.randint(1, 3))
            change = PolicyChanged(**{name: chance.choice(values[name]) for name in names})  # type: ignore[arg-type]
            before = msgspec.structs.replace(bench.state.settings)
            bench.add(change)
            assert all(rule.holds for rule in rules(times_of(bench.state.settings)))
            last = bench.state.refused_changes[-1] if bench.state.refused_changes else None
            if last is not None and last.seq == bench.state.seq:
                refused += 1
                assert bench.state.settings == before, "a refused change changes nothing"
                assert last.reason
            else:
                accepted += 1
        assert len(bench.state.refused_changes) <= 8
    assert min(accepted, refused) > 100


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (0.2, "200ms"), (90, "90s"), (300, "5m"), (86_400, "1d")])
def test_durations_are_written_as_people_do(seconds: float, text: str) -> None:
    assert written(seconds) == text
