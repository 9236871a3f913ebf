"""Histories with faults in which most apps belong to groups: the limit is kept, and every app still gets a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from events import kinds as k
from tests.core.virtual.world import World
from tests.tries import tries

if TYPE_CHECKING:
    from events.kinds import Event


class Grouped(World):
    """A history whose clients submit sweeps.  The invariants, which it asks for after each record, have their limits."""

    def publish(self, event: Event, who: str, msg_id: str = "") -> int:
        if isinstance(event, k.AppSubmitted) and isinstance(event.spec, dict) and self.chance.random() < 0.7:
            group = {"name": self.chance.choice(["one", "two"]), "parallel": 1 + (self.seed % 2)}
            event = msgspec.structs.replace(event, spec={**event.spec, "group": group})
        return super().publish(event, who, msg_id)


@pytest.mark.parametrize("seed", range(tries(2, 400)))
def test_limits_hold_and_no_one_is_stuck(seed: int) -> None:
    world = Grouped(seed).run()
    assert any(app.spec.group is not None for app in world.whole.apps.values()) or len(world.whole.apps) < 4
