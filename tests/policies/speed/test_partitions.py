"""The free room of partitions under construction."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dorm.policies import integer
from dorm.policies.problem import Problem
from dorm.policies.speed.placing import partitions
from dorm.policies.speed.placing.partitions import Partitions
from tests.policies.problems import app, node
from tests.tries import tries


@pytest.mark.parametrize("most", [0, 2, 200])
@pytest.mark.parametrize("seed", range(tries(2, 200)))
def test_nothing_is_ruled_out_while_a_node_has_room(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was placed, taken off, cleared and restored before, and however few changes are remembered."""
    monkeypatch.setattr(partitions, "MOST_FREED", most)
    chance = random.Random(seed)
    nodes = tuple(node(f"n{i}", chance.randint(1, 8), chance.randint(4, 32)) for i in range(8))
    apps = [app(f"a{i}", chance.randint(1, 3), chance.randint(1, 8), (1, 20)) for i in range(6)]
    instance = integer.read(Problem(nodes, tuple(apps)))
    parts = Partitions(instance, [{} for _ in apps], None)
    ruled_out = 0
    for _ in range(60):
        i = chance.randrange(len(apps))
        match chance.randrange(4):
            case 0 | 1:
                parts.put(i, chance.randint(1, 12))
            case 2:
                parts.take(i, min(int(parts.n[i]), chance.randint(0, 4)))
            case _:
                row = parts.clear(i)
                if chance.random() < 0.5:
                    parts.restore(i, row)
        assert (parts.free >= 0).all()
        for each in range(len(apps)):
            fits = bool((parts.free >= instance.demand[each]).all(axis=1).any())
            assert parts.some_fit(each) or not fits
            ruled_out += not parts.some_fit(each)
        assert np.array_equal(parts.free, integer.free_room(instance, parts.rows))
    assert ruled_out or most
