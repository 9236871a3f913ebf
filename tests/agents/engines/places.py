"""Places of a generation on three nodes, one of which runs two containers."""

from __future__ import annotations

from typing import Any

from agents import engines
from agents.engines import Launch, Place
from events.kinds import Placed
from events.spec import check_spec
from tests.core.records import document

PLACEMENT = (
    Placed(slot=1, node="a", address="10.0.0.1", port=20001),
    Placed(slot=2, node="a", address="10.0.0.1", port=20002),
    Placed(slot=4, node="b", address="10.0.0.2", port=20009),
    Placed(slot=7, node="c", address="fd00::3", port=20003),
)
SLOTS = [placed.slot for placed in PLACEMENT]


WORK = ("work", "--hard")


def prepared(
    slot: int, engine: str, placement: tuple[Placed, ...] = PLACEMENT, command: tuple[str, ...] = WORK, **options: Any
) -> Launch:
    """Return the launch of one container of an app with this engine and these options."""
    spec = check_spec(document(engine=engine, engine_options=options, n_min=4, n_max=100))
    return engines.prepare(
        Place(
            app="app-x",
            generation=3,
            spec=spec,
            placement=placement,
            slot=slot,
            master_port=20042,
            command=command,
            folder="/dorm/run",
        )
    )
