"""An undisturbed history in which a process dies right before one of its steps, for each of its steps, that is, at every
await."""

from __future__ import annotations

import pytest

from tests.simulation.history import History
from tests.tries import tries

SEED = 4
"""Two masters, three nodes, three apps that are resized again and again."""
WHO = {
    "a master": lambda history: history.leaders[history.masters[0]],
    "an agent": lambda history: history.agents["n1"],
}


def steps_of(who: str, crash_in: int = 0) -> int:
    """Return the number of its steps in its first life, without the first few, in a history that kept every promise."""
    steps: list[int] = []

    def aim(history: History) -> None:
        history.world.after(0.0, watch, history)
        history.world.after(history.span_s, lambda: steps.append(WHO[who](history).steps))

    def watch(history: History) -> None:
        process = WHO[who](history)
        first = process.steps
        process.on_end(lambda ended: steps.append(ended.steps - first))
        if crash_in:
            process.kill(crash_in=crash_in)

    outcome = History(SEED, only=(), alter=aim).run()
    assert not outcome.broken, "\n".join([f"{who} died before its step {crash_in}", *outcome.story])
    return steps[0]


@pytest.mark.soak
@pytest.mark.parametrize("who", sorted(WHO))
def test_a_process_may_die_at_any_await(who: str) -> None:
    whole = steps_of(who)
    assert whole > 100
    tried = tries(20, whole)
    for number in range(tried):
        step = 1 + number * whole // tried
        assert steps_of(who, step) == step
