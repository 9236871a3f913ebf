"""The solvers reach the optimum, alone and through resizes and deaths, and say truthfully how far they are from it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from dorm import elastic
from dorm.bench.elastic.workers import Workers
from dorm.elastic.contract import Contract
from dorm.elastic.errors import ContractError
from dorm.elastic.solvers import LOSSES, Network, Round, local_sgd, minibatch_sgd, solve

if TYPE_CHECKING:
    from collections.abc import Iterator

DIGITS = load_digits()
FEATURES = DIGITS.data / 16.0
LABELS = np.where(DIGITS.target % 2 == 0, 1.0, -1.0)
L2 = 1e-3


def objective(model: Any, loss: str) -> float:
    return float(LOSSES[loss].value(FEATURES @ model, LABELS) / len(LABELS) + 0.5 * L2 * model @ model)


@pytest.fixture(scope="module")
def optimum() -> float:
    """The least objective of logistic regression, by another library."""
    other = LogisticRegression(C=1.0 / (L2 * len(LABELS)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    return objective(other.fit(FEATURES, LABELS).coef_[0], "logistic")


def alone(loss: str, gap: float, tasks: int = 1, rounds: int = 400) -> tuple[Any, list[Round]]:
    model = np.zeros(64)
    with elastic.join(state={"model": model}, contract=Contract()) as job:
        found = list(solve(job, model, FEATURES, LABELS, loss=loss, l2=L2, gap=gap, tasks=tasks, rounds=rounds))
    return model, found


@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared"])
def test_the_gap_bounds_the_distance_from_the_optimum(loss: str) -> None:
    _, found = alone(loss, gap=1e-3)
    assert found[-1].gap <= 1e-3
    best = min(one.objective for one in alone(loss, gap=1e-5)[1])
    for one in found:
        assert -1e-9 <= one.objective - best <= one.gap + 1e-5


def test_it_finds_the_optimum_of_another_library(optimum: float) -> None:
    model, _ = alone("logistic", gap=1e-7)
    assert objective(model, "logistic") == pytest.approx(optimum, abs=2e-7)


def test_micro_tasks_need_more_rounds() -> None:
    few, many = (alone("logistic", gap=1e-3, tasks=tasks)[1] for tasks in (1, 4))
    assert len(many) > 2 * len(few)


@pytest.mark.parametrize(("arguments", "code"), [({"loss": "none", "l2": 1.0}, "loss"), ({"l2": 0.0}, "l2")])
def test_what_cannot_be_solved_is_refused(arguments: dict[str, Any], code: str) -> None:
    model = np.zeros(64)
    with elastic.join(state={"model": model}, contract=Contract()) as job, pytest.raises(ContractError) as error:
        next(solve(job, model, FEATURES, LABELS, **arguments))
    assert error.value.code == f"elastic.contract.{code}"


@pytest.mark.parametrize("train", [minibatch_sgd, local_sgd])
def test_a_network_learns_the_digits(train: Any) -> None:
    network = Network(64, 32, 10)
    extra = {"local_batch": 32} if train is local_sgd else {}
    with elastic.join(state={"network": network}, contract=Contract()) as job:
        settings = {"batch": 128, "rate": 0.3, "epochs": 8, **extra}
        losses = [loss for _, loss in train(job, network, FEATURES, DIGITS.target, **settings)]
    assert losses[-1] < 0.3 < losses[0]
    assert np.mean(network.predict(FEATURES) == DIGITS.target) > 0.9


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(tmp_path, str(Path(__file__).with_name("cocoa.py")), "0.02")
    yield workers
    workers.close()


@pytest.mark.slow
def test_dual_variables_move_with_their_chunks_and_a_death_costs_only_its_own(workers: Workers, optimum: float) -> None:
    workers.announce(0, 1)
    workers.until(lambda: 3 in workers.epochs())
    workers.announce(0, 1, 2)
    workers.until(lambda: any(change["cause"] == "grow" for change in workers.changes()))
    grown = next(change for change in workers.changes() if change["cause"] == "grow")
    # A third of the chunks, each with its dual variables (1797 / 16 of 8 bytes), and the model.
    assert 4 * 112 * 8 + 512 <= grown["bytes_moved"] <= 6 * 113 * 8 + 512
    workers.signal(1, signal.SIGKILL)
    workers.until(lambda: any(change["cause"] == "death" for change in workers.changes()))
    workers.announce(0)
    assert workers.wait(0, 2) == [0, 0]
    word, members, gap, value = workers.output(0).split()
    assert (word, members) == ("finished", "1")
    assert float(gap) <= 1e-5
    assert -1e-7 <= float(value) - optimum <= 2e-5
