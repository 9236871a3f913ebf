"""What an agent desires after a log: the part that a master derives from it, and the node's own facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.desired import Desired, own_subjects
from dorm.core.evolve import evolve
from dorm.core.parts.deriving import part_of
from dorm.core.state import State
from tests.core.records import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record


def desired_of(records: Sequence[Record], node: str, *, part_at: int | None = None, cluster: str = CLUSTER) -> Desired:
    """Return the desired state of a node that has read all its own facts and a part: of the last record, which comes after
    them, or of the record `part_at`, which comes before them."""
    desired, state = Desired(node), State()
    for record in records[:part_at]:
        evolve(state, record)
    part = part_of(state, cluster, node)
    if part_at is not None:
        desired.install(part)
    own = own_subjects(cluster, node)
    for record in records:
        if record.subject in own:
            desired.fold(record)
    desired.install(part)
    return desired
