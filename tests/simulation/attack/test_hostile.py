"""Hostile users, nodes and forgers, together with every other fault: their records change nothing that belongs to others."""

from __future__ import annotations

from tests.simulation.attack.hostile import trusted
from tests.simulation.history import History
from tests.tries import tries


def test_records_of_hostile_users_change_nothing_of_others() -> None:
    for seed in range(tries(3, 1_000)):
        outcome = History(seed, alter=trusted).run()
        assert not outcome.broken, "\n".join([outcome.broken, *outcome.story])
