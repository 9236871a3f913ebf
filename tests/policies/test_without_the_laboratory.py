"""Without the laboratory, logs that name its policies fold the same, and an error for such a policy says what to install."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from dorm import plugins
from dorm.cli.changes import change_of
from dorm.core.evolve import evolve
from dorm.core.settings import parameters_in_force, policy_after
from dorm.core.state import FailedPolicy, Settings, State, digest
from dorm.policies import registry
from events import kinds as k
from events.spec import SpecError
from events.times import SettingRefused
from replay.audit.audit import verify
from replay.simulator import SimulationError
from replay.simulator.contenders import parse
from tests.core.records import Bench
from tests.errors import raises
from tests.replay.audit.test_planned_log import planned
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from events.log.records import Record


pytestmark = pytest.mark.usefixtures("only_policies_of_ours")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laboratory is not installed."""
    monkeypatch.setattr(plugins, "laboratory_names", list)
    monkeypatch.setattr(plugins, "laboratory_policy", None)


@cache
def _planned() -> tuple[tuple[Record, ...], str]:
    """The records of a log that `oasis` decided, and the digest of their fold."""
    run = planned()
    return tuple(run.records), digest(run.state)


@pytest.fixture(autouse=True)
def _made_before() -> None:
    """The log is written while the laboratory is there."""
    _planned()


def test_with_the_laboratory_every_policy_is_there() -> None:
    assert registry.names() == registry.all_names()
    assert plugins.laboratory_names() == sorted(registry.LABORATORY)
    for name in registry.LABORATORY:
        policy = registry.policy(name)
        assert (policy.name, policy.check_params({})) == (name, registry.check_params(name, {}))
        assert not getattr(policy, "plugin", ""), "it is Dorm's own"
    assert not plugins.discover()


def test_its_policies_are_known_and_not_installed(bare: None) -> None:
    assert registry.names() == ["dorm", "dorm-exact", "dorm-speed", "dorm-speed-exact", "drf", "fifo", "static"]
    for name in registry.LABORATORY:
        assert registry.built_in(name)
        assert not registry.installed(name)
        assert registry.version_of(name) is None
        with raises(registry.UnknownPolicy, "policy.not_installed", name, "pip install 'dorm[lab]'"):
            registry.policy(name)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (k.PolicyChanged(policy="tiresias", params={"thresholds": [10, 20]}), ""),
        (k.PolicyChanged(policy="tiresias", params={"thresholds": [20, 10]}), "policy.parameter.not_ascending"),
        (k.PolicyChanged(policy="sia", params={"p": 0}), "policy.parameter.out_of_range"),
        (k.PolicyChanged(policy="market", params={"budget": 1}), "policy.parameter.unknown"),
        (k.PolicyChanged(policy="shockwave", params={"count": 4, "rounds": 3}), ""),
        (k.PolicyChanged(policy="shockwave", params={"count": 0}), "policy.parameter.out_of_range"),
        (k.PolicyChanged(policy="app-level", params={"grow": 1}), "policy.parameter.wrong_type"),
    ],
)
def test_a_change_to_one_is_folded_as_with_the_laboratory(bare: None, change: k.PolicyChanged, code: str) -> None:
    settings = Settings()
    if code:
        with raises(SettingRefused, code):
            policy_after(settings, change)
    else:
        chosen, params = policy_after(settings, change)
        assert parameters_in_force(Settings(policy=chosen, params=params)).items() >= params.items()


async def test_a_log_of_one_folds_alike_and_an_audit_does_not_check_its_decisions(bare: None) -> None:
    records, folded = _planned()
    state = State()
    report = await verify(log_of(list(records)))
    for record in records:
        evolve(state, record)
    assert digest(state) == folded
    assert report.divergence is None
    assert "this build has no policy 'oasis'" in report.not_checked_because


def test_a_master_keeps_every_place_and_says_what_to_install(bare: None) -> None:
    made = Bench(a=8)
    made.running("first", n_max=4)
    before = made.placed("first")
    made.add(k.PolicyChanged(policy="tiresias"))
    made.submit("second", n_max=4)
    made.settle()
    failed = made.state.policy_failure
    assert isinstance(failed, FailedPolicy)
    assert (failed.policy, failed.version, failed.code) == ("tiresias", 0, "policy.not_installed")
    assert "pip install 'dorm[lab]'" in failed.reason
    assert made.placed("first") == before


def test_commands_refuse_one_before_anything_is_changed(bare: None) -> None:
    with raises(SpecError, "policy.not_installed", "tiresias"):
        change_of(["policy=tiresias"], Settings())
    with raises(SimulationError, "policy.not_installed", "sia"):
        parse("sia,p=-1")
