"""Batch sizes on the log: declarations and reports of apps, decisions, and agents' actions."""

from __future__ import annotations

from typing import Any

import pytest

from agents.contract import container_spec
from agents.reconcile import Announced, announced, files_of
from dorm.core.asking import problem_of
from dorm.core.batches import MOST_BATCHES, STEP, batch_now
from dorm.core.query.views import describe
from dorm.policies.problem import Batch
from events import kinds as k
from tests.agents.folding import desired_of
from tests.core.records import Bench

RANGE = {"initial": 64, "least": 32, "most": 4096, "per_container": 512}
CURVE = [[1, 1.0], [2, 1.8], [4, 3.0]]


def bench(policy: str = "pollux", **fields: Any) -> Bench:
    """An app that accepts a range of batch sizes and runs, alone on a node."""
    made = Bench(a=4)
    made.add(k.PolicyChanged(policy=policy), "operator")
    made.running(n_max=4, batch=RANGE, speed=CURVE, steps=100_000, **fields)
    return made


def report(made: Bench, noise: float | None, name: str = "app") -> None:
    app = made.app(name)
    node = app.generations[app.generation].containers[0].node
    made.add(k.AppProgressed(app=app.id, generation=app.generation, step=app.step + 1, noise=noise), node)


def batches(facts: list[Any]) -> dict[str, int]:
    return {name: size for fact in facts if isinstance(fact, k.Resized) for name, size in fact.batches.items()}


def test_a_policy_learns_of_the_range_once_the_noise_was_reported() -> None:
    made = bench()
    (asked,) = problem_of(made.state, made.now).apps
    assert asked.batch is None
    report(made, 1000.0)
    made.wait(60)
    (asked,) = problem_of(made.state, made.now).apps
    assert asked.batch == Batch(64, 32, 4096, 512, 1000.0)
    assert asked.age_s == 60.0


@pytest.mark.parametrize("noise", [-1.0, float("nan"), float("inf"), None])
def test_an_invalid_noise_changes_nothing(noise: float | None) -> None:
    made = bench()
    report(made, 7.0)
    report(made, noise)
    assert made.app().noise == 7.0


def test_the_noise_of_an_app_without_a_range_is_ignored() -> None:
    made = Bench(a=4)
    made.running(n_max=1)
    report(made, 7.0)
    assert made.app().noise is None


@pytest.mark.parametrize("policy", ["pollux", "sia", "dorm-speed"])
def test_an_app_that_keeps_its_containers_gets_another_batch_size(policy: str) -> None:
    made = bench(policy)
    before = made.app().generation
    report(made, 100_000.0)
    made.wait(60)
    told = batches(made.settle())
    assert list(told) == [made.app().id]
    assert made.app().batch == told[made.app().id] > 64 * STEP
    assert made.app().generation == before
    made.wait(60)
    assert batches(made.decide(allocate=True)) == {}, "it has it already"


def test_a_hardly_different_batch_size_is_not_announced() -> None:
    made = bench()
    report(made, 100_000.0)
    made.wait(60)
    made.settle()
    size = made.app().batch
    made.state.apps[made.app().id].batch = round(size * (STEP + 1) / 2)
    assert batches(made.decided(allocate=True)) == {}
    made.state.apps[made.app().id].batch = round(size * (STEP + 0.1))
    assert batches(made.decided(allocate=True)) == {made.app().id: size}


def test_without_a_choice_by_the_policy_the_batch_size_stays() -> None:
    made = bench("dorm")
    report(made, 100_000.0)
    made.wait(60)
    assert batches(made.settle()) == {}
    assert made.app().batch == 0


def test_a_resized_app_gets_its_batch_size_with_the_decision() -> None:
    made = bench()
    report(made, 100_000.0)
    made.wait(10_000)
    made.add(k.AppUpdated(app=made.app().id, n_max=2), "ann")
    facts = made.settle()
    assert batches(facts)
    (change,) = [change for fact in facts if isinstance(fact, k.Resized) for change in fact.changes]
    assert len(change.placement) <= 2


def test_a_decision_names_a_bounded_number_of_them() -> None:
    assert MOST_BATCHES * (48 + 16) < 64 * 1024, "they fit into what a decision keeps for the rest (`round_size`)"


def test_a_decision_about_an_app_without_a_range_is_counted_and_changes_nothing() -> None:
    made = Bench(a=4)
    made.running(n_max=1)
    ignored = made.state.counters.ignored
    fact = k.Resized(
        policy="pollux",
        policy_version=1,
        params={},
        solver="",
        changes=[],
        reasons={},
        utilization=0.0,
        fairness_loss=0.0,
        fairness_budget=0.0,
        excess=0.0,
        overhead=0,
        overhead_budget=0,
        status="",
        bound=0.0,
        digest="",
        batches={made.app().id: 5, "nobody": 6},
    )
    made.say(fact)
    assert made.app().batch == 0
    assert made.state.counters.ignored == ignored + 2


class TestAgents:
    def test_containers_read_the_batch_size_from_a_file_that_the_agent_replaces(self) -> None:
        made = bench()
        app = desired_of(made.records, "a").apps[made.app().id]
        assert files_of(app) == {"batch": b"64\n"}
        assert announced(app) == Announced(batch=64)
        report(made, 100_000.0)
        made.wait(60)
        size = batches(made.settle())[made.app().id]
        assert files_of(desired_of(made.records, "a").apps[made.app().id]) == {"batch": b"%d\n" % size}

    def test_the_environment_names_the_file_if_there_is_a_range(self) -> None:
        made = bench()
        app = desired_of(made.records, "a").apps[made.app().id]
        where = {"checkpoint_dir": "/c", "checkpoint_mount": "", "run_dir": "/run/x", "devices": ()}
        env = container_spec(made.app().id, app, 0, **where).env  # type: ignore[arg-type]
        assert env["DORM_BATCH"] == "/run/x/batch"


def test_a_description_shows_the_batch_size_and_its_reason() -> None:
    made = bench()
    now = batch_now(made.app(), made.state)
    assert now is not None
    assert (now.now, now.least, now.most, now.noise) == (64, 32, 4096, None)
    assert now.why == "it has reported no gradient noise yet, so it has the initial 64"
    report(made, 100_000.0)
    (size,) = batches(made.settle()).values()
    now = batch_now(made.app(), made.state)
    assert now is not None
    assert now.now == size > 64
    assert now.efficiency == pytest.approx(100_064 / (100_000 + size))
    assert now.steps == pytest.approx(size / 64 * 100_064 / (100_000 + size))
    assert f"each of {size} samples teaches" in now.why
    assert describe(made.app(), made.now, made.state)["batch"]["now"] == size


def test_it_explains_a_missing_policy_choice_and_a_missing_speed() -> None:
    made = bench("drf")
    report(made, 1000.0)
    now = batch_now(made.app(), made.state)
    assert now is not None
    assert now.why == "the policy drf chooses no batch sizes, so it has the initial 64"
    made = Bench(a=4)
    made.add(k.PolicyChanged(policy="dorm-speed"), "operator")
    made.running(n_max=3, batch=RANGE)
    made.running("plain")
    assert batch_now(made.app("plain"), made.state) is None
    report(made, 1000.0)
    assert not batches(made.settle())
    now = batch_now(made.app(), made.state)
    assert now is not None
    assert now.why == "its spec declares no speed, which a choice needs, so it has the initial 64"
