"""The changes of settings between two states of a log, and their authors.

Only the records that determine settings and authority are read: a server sends no others, so a year between the states
costs little.
"""

from __future__ import annotations

import copy
from contextlib import aclosing
from typing import TYPE_CHECKING, get_args

from dorm.core.evolve import evolve
from events import kinds as k
from events import subjects
from replay.reading import cluster_name
from replay.travel.diff import SetBy, settings_changed

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.interface import ReadableLog

_KINDS = (k.PolicyChanged, *get_args(k.OfIdentities))


async def settings_between(log: ReadableLog, one: State, other: State) -> list[SetBy]:
    """Return the changes that took effect after the earlier state, up to the later one, in order.  Raises what `log.read`
    raises."""
    earlier, later = (one, other) if one.seq <= other.seq else (other, one)
    if earlier.seq == later.seq:
        return []
    state = copy.deepcopy(earlier)
    state.plugins = {**earlier.plugins, **later.plugins}
    state.nodes = copy.deepcopy({**earlier.nodes, **later.nodes})
    cluster = await cluster_name(log)
    wanted = [subjects.fact_pattern(cluster, cls.__name__) for cls in _KINDS]
    found: list[SetBy] = []
    async with aclosing(log.read(after=earlier.seq, subjects=wanted)) as batches:
        async for batch in batches:
            for record in batch:
                if record.seq > later.seq:
                    return found
                before = copy.copy(state.settings)
                state.seq = record.seq - 1
                event, folded = evolve(state, record)
                changes = settings_changed(before, state.settings)
                if isinstance(event, k.PolicyChanged) and changes and folded in ("applied", "refused"):
                    found.append(SetBy(record.seq, record.time, event.by, changes))
    return found
