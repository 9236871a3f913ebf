"""Bad nodes of each kind, and broken apps, among honest ones; see `tests.simulation.bad_nodes`.

`make simulate` plays one such history in eight, and `tests.simulation.variants` shows what they catch.
"""

from __future__ import annotations

import pytest

from tests.simulation.bad_nodes import BadNodes
from tests.tries import tries

CHUNK = 10
FIRST = tries(2, CHUNK)
"""Seeds that `make test` plays."""
SEEDS = tries(20, long=1000)


@pytest.mark.parametrize(
    "begin", [0, *(pytest.param(begin, marks=pytest.mark.soak) for begin in range(CHUNK, SEEDS, CHUNK))]
)
def test_no_honest_app_pays_for_a_bad_node(begin: int) -> None:
    count = CHUNK if begin else FIRST
    for seed in range(begin, begin + count):
        outcome = BadNodes(seed).run()
        assert not outcome.broken, "\n".join([outcome.broken, *outcome.story])
