"""Each broken variant is caught: a bug that the simulation misses in a variant, it would miss in the real code."""

from __future__ import annotations

import pytest

from tests.simulation.running import Choice, play
from tests.simulation.variants import VARIANTS, caught_by

pytestmark = pytest.mark.soak


def test_there_are_enough_variants() -> None:
    assert len(VARIANTS) >= 25


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_is_caught(name: str) -> None:
    assert caught_by(name) is not None


def test_no_variant_is_left_in_place() -> None:
    name = "no barrier: released before the last generation has ended"
    found = caught_by(name)
    assert found is not None
    assert not play(found.seed, Choice()).outcome.broken
