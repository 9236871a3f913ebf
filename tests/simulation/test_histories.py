"""Seeds of the general generator; `make simulate` plays many more."""

from __future__ import annotations

import pytest

from tests.simulation.running import Choice, command, play
from tests.tries import tries

CHUNK = 10
FIRST = tries(3, CHUNK)
"""Seeds that `make test` plays."""
SEEDS = tries(20, long=5000)


def broken(seed: int) -> str:
    outcome = play(seed, Choice()).outcome
    return f"{outcome.broken}\nagain: {command(seed, Choice())} --trace" if outcome.broken else ""


@pytest.mark.parametrize(
    "begin", [0, *(pytest.param(begin, marks=pytest.mark.soak) for begin in range(CHUNK, SEEDS, CHUNK))]
)
def test_no_promise_is_broken(begin: int) -> None:
    count = CHUNK if begin else FIRST
    assert [said for seed in range(begin, begin + count) if (said := broken(seed))] == []


def test_an_app_that_completes_while_its_resize_is_decided_waits_for_no_place() -> None:
    """Its containers end while all masters are away, and a decision from before gives a part of its place to a newcomer."""
    outcome = play(8_200_005, Choice(rotate=True)).outcome
    assert not outcome.broken, outcome.broken


def test_a_hold_that_waits_for_the_server_is_released_in_the_end() -> None:
    """The operator's hold is stored only after the last fault, when the server is back."""
    outcome = play(918, Choice(only=(16, 25), apps=(4, 5))).outcome
    assert not outcome.broken, outcome.broken


def test_equal_seeds_give_equal_histories() -> None:
    assert play(5, Choice()).outcome == play(5, Choice()).outcome


@pytest.mark.soak
def test_leaving_out_faults_does_not_change_the_rest_of_a_history() -> None:
    """Faults and apps draw from separate streams, so the rest of a schedule is unchanged."""
    whole, none = play(6, Choice()).outcome, play(6, Choice(only=())).outcome
    assert not whole.broken
    assert not none.broken
    assert none.faults == []
    assert none.submissions == whole.submissions > 0
