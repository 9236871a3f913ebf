"""Histories of a virtual cluster in which apps are held and released at any moment keep every promise, and come to an end."""

from __future__ import annotations

import pytest

from tests.core.gates.worlds import GatedWorld
from tests.tries import tries


@pytest.mark.parametrize("first", [0, 4])
def test_any_history_with_gates_keeps_every_promise(first: int) -> None:
    for seed in range(first, first + 4):
        GatedWorld(seed, outages=0.3 * (seed % 2), live=0.3 * (seed % 3)).run()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + tries(40, 400), 20))
def test_longer_histories_with_gates_keep_them_too(first: int) -> None:
    for seed in range(first, first + 20):
        GatedWorld(seed, steps=300, outages=0.3 * (seed % 2), live=0.3 * (seed % 3)).run()
