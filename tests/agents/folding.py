"""What an agent desires after a log: the part that a master derives from it, and the node's own facts.  A master that does
nothing but write parts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agents.desired import Desired, own_subjects
from dorm.core.evolve import evolve
from dorm.core.parts.deriving import part_of
from dorm.core.state import State
from events.log.memory import MemoryLog
from events.parts import document_of, packed, sign
from tests.core.records import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.chain import SealKey
    from events.log.records import Record
    from events.parts import NodePart


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


async def write_parts(log: MemoryLog, cluster: str, node: str, key: SealKey | None = None) -> None:
    """Store the node's part after each record, as a leading master, until cancelled."""
    log.parts.writes(True)
    state = State()
    async with contextlib.aclosing(MemoryLog.read(log, follow=True)) as batches:
        async for batch in batches:
            for record in batch:
                evolve(state, record)
            await store(log, part_of(state, cluster, node), key)


async def store(log: MemoryLog, part: NodePart, key: SealKey | None = None) -> None:
    """Store a part, signed with that key."""
    document, last = document_of(part), await log.parts.last(part.node)
    body = packed(document, sign(key, document) if key is not None else "")
    await log.parts.put(part.node, body, last.revision if last is not None else 0)
