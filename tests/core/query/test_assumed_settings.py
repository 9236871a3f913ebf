"""Settings that are assumed, in plans and forks: all that `dorm policy set` takes, checked alike."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.cli.changes import change_of, settings_in
from dorm.core.query.assumed import Assumed, UnknownSetting
from dorm.core.query.in_force import change_for, settings_of
from dorm.core.query.plans import plan
from dorm.core.settings import all_after
from dorm.core.state import Settings, State
from tests.errors import raises

NOW = Settings(policy="dorm", params={"theta2": 0.3}, quiet_ms=500)


@pytest.mark.parametrize(
    "pairs",
    [
        ["theta2=0.5"],
        ["theta2=default", "theta1=0.2"],
        ["quiet=2s", "quiet_limit=20s", "idle=1m"],
        ["policy=static", "count=3", "retention=1h"],
        ["policy=tiresias"],
        ["node_grace=1m", "node_lease=10m", "heartbeat=2s"],
        ["checkpoints=" + "a" * 32],
        ["quiet=default"],
    ],
)
def test_assumed_settings_equal_those_of_the_command(pairs: list[str]) -> None:
    state = State(settings=NOW)
    assumed, words = change_for(settings_in(state, pairs), state)
    wanted = all_after(NOW, change_of(pairs, NOW))
    found = all_after(NOW, assumed)
    assert (found.policy, Settings(**_times(found))) == (wanted.policy, Settings(**_times(wanted)))
    known = {name: value for name, value in wanted.params.items() if name in found.params}
    assert known.items() <= found.params.items()
    assert len(words) == len(pairs)


def _times(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in Settings.__struct_fields__ if name not in ("policy", "params")}


def test_equal_settings_change_nothing() -> None:
    assert settings_of(change_of(["policy=dorm"], NOW), NOW, {}) == {}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"node_grace_s": 1.0}, "settings.node_grace.too_short"),
        ({"quiet_ms": "often"}, "settings.refused"),
        ({"quiet_ms": -1}, "settings.refused"),
        ({"theta9": 1}, "policy.parameter.unknown"),
        ({"policy": "nonsense"}, "policy.unknown"),
    ],
)
def test_invalid_settings_cannot_be_assumed(settings: dict[str, Any], code: str) -> None:
    with raises(UnknownSetting, code):
        plan(State(settings=NOW), 1, Assumed(settings=settings))
