"""The solvers reach the optimum, alone and through resizes and deaths, and report correctly how far they are from it."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from compose.apps.learning import digits
from dorm import elastic
from dorm.elastic.contract import Contract
from dorm.elastic.errors import ContractError
from dorm.elastic.solvers import LOSSES, Network, Round, local_sgd, minibatch_sgd, solve
from dorm.elastic.solvers.scale_in import ScaleIn, Wish
from dorm_lab.bench.elastic.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

DIGITS = digits.load(os.environ)
FEATURES = DIGITS.images
LABELS = np.where(DIGITS.labels % 2 == 0, 1.0, -1.0)
L2 = 1e-3


def objective(model: Any, loss: str) -> float:
    return float(LOSSES[loss].value(FEATURES @ model, LABELS) / len(LABELS) + 0.5 * L2 * model @ model)


@pytest.fixture(scope="module")
def optimum() -> float:
    """The least objective of logistic regression, by another library."""
    from sklearn.linear_model import LogisticRegression  # Slow to import, and only some of the tests need it.

    other = LogisticRegression(C=1.0 / (L2 * len(LABELS)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    return objective(other.fit(FEATURES, LABELS).coef_[0], "logistic")


def alone(loss: str, gap: float, tasks: int = 1, rounds: int = 400) -> tuple[Any, list[Round]]:
    model = np.zeros(64)
    with elastic.join(state={"model": model}, contract=Contract()) as job:
        found = list(solve(job, model, FEATURES, LABELS, loss=loss, l2=L2, gap=gap, tasks=tasks, rounds=rounds))
    return model, found


@pytest.mark.soak
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


@pytest.mark.soak
def test_micro_tasks_need_more_rounds() -> None:
    few, many = (alone("logistic", gap=1e-3, tasks=tasks)[1] for tasks in (1, 4))
    assert len(many) > 2 * len(few)


@pytest.mark.parametrize(("arguments", "code"), [({"loss": "none", "l2": 1.0}, "loss"), ({"l2": 0.0}, "l2")])
def test_unsolvable_problems_are_refused(arguments: dict[str, Any], code: str) -> None:
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
        losses = [loss for _, loss in train(job, network, FEATURES, DIGITS.labels, **settings)]
    assert losses[-1] < 0.3 < losses[0]
    assert np.mean(network.predict(FEATURES) == DIGITS.labels) > 0.9


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(tmp_path, str(Path(__file__).with_name("cocoa.py")), "0.02")
    yield workers
    workers.close()


@pytest.mark.soak
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


def falls(*, rounds: int, rate: float, gap: float, at: float) -> list[tuple[float, float]]:
    """Rounds of a second each, in which log(gap) falls by `rate`."""
    return [(gap * math.exp(-rate * number), at + number) for number in range(rounds)]


def wishes(scaling: ScaleIn, members: int, rounds: list[tuple[float, float]]) -> list[Wish]:
    found = [scaling.round(members, gap, at) for gap, at in rounds]
    return [wish for wish in found if wish is not None]


def test_fewer_members_are_asked_for_once_the_gap_falls_more_slowly() -> None:
    scaling = ScaleIn()
    assert wishes(scaling, 4, falls(rounds=60, rate=0.5, gap=1.0, at=0)) == [], "as fast as ever"
    slow = falls(rounds=60, rate=0.01, gap=1e-13, at=60)
    (wish,) = wishes(scaling, 4, slow)
    assert wish.size == 2
    assert "more slowly than before" in wish.reason
    assert wishes(scaling, 2, falls(rounds=60, rate=0.02, gap=1e-14, at=120)) == [], "and it falls faster with them"


def test_the_request_is_withdrawn_where_fewer_are_slower() -> None:
    scaling = ScaleIn()
    wishes(scaling, 4, falls(rounds=60, rate=0.5, gap=1.0, at=0))
    assert [wish.size for wish in wishes(scaling, 4, falls(rounds=60, rate=0.02, gap=1e-13, at=60))] == [2]
    assert [wish.size for wish in wishes(scaling, 2, falls(rounds=60, rate=0.001, gap=1e-14, at=120))] == [None]
    later = [*falls(rounds=60, rate=0.5, gap=1e-14, at=180), *falls(rounds=60, rate=0.001, gap=1e-27, at=240)]
    assert wishes(scaling, 4, later) == [], "for good"


def test_one_member_asks_for_nothing() -> None:
    scaling = ScaleIn()
    rounds = [*falls(rounds=60, rate=0.5, gap=1.0, at=0), *falls(rounds=60, rate=0.0, gap=1e-13, at=60)]
    assert wishes(scaling, 1, rounds) == []


@pytest.mark.soak
@pytest.mark.slow
def test_a_leaver_with_a_higher_slot_than_the_newcomer_hands_over_its_chunks(workers: Workers, optimum: float) -> None:
    """Its address is in no announcement that the newcomer reads."""
    workers.announce(0, 5)
    workers.until(lambda: 3 in workers.epochs())
    workers.announce(0, 3)
    workers.until(lambda: any(change["cause"] == "move" for change in workers.changes()))
    assert workers.wait(0, 3, 5) == [0, 0, 0]
    assert -1e-7 <= float(workers.output(0).split()[3]) - optimum <= 2e-5
