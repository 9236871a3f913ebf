"""Consequences of silence: from when each node was last heard to facts about it.

The shell keeps when each node was heard as soft state; the consequences are published on the log, once. A lost node's
containers count as possibly running until its lease has certainly ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.kinds import Event, NodeLeaseEnded, NodeLost, NodeRecovered
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from dorm.core.state import State

LEASE_MARGIN_S = 10.0
"""Added to the lease: an agent that fences itself still needs time to kill its containers."""


def conclude(state: State, heard: Mapping[str, int], now: int, alive: Container[str] | None = None) -> list[Event]:
    """Return facts about nodes, in order of their ids.

    `heard` is, by node, when (UTC ns) this master last heard it, or started to listen for it.  The latter alone brings no lost
    node back: only nodes in `alive` come back (None: all in `heard`).
    """
    grace = int(state.settings.node_grace_s * SECOND)
    lowered = state.shortened.get("node_grace_s")
    lowered_at = lowered.at if lowered is not None else 0
    facts: list[Event] = []
    for name in sorted(state.nodes):
        node = state.nodes[name]
        last = heard.get(name)
        if last is None or node.condition == "left":
            continue
        silence = now - last
        # A cut-off agent uses the lease that it knows, not later settings.
        lease = int((node.lease_s + LEASE_MARGIN_S) * SECOND)
        # Before a lower grace time was on the log, no node could know that it had to send heartbeats more often.
        if node.condition == "up" and now - max(last, lowered_at) > grace:
            facts.append(NodeLost(node=name, last_heard=last))
        elif node.condition == "lost" and silence <= grace and (alive is None or name in alive):
            facts.append(NodeRecovered(node=name))
        elif node.condition == "lost" and not node.lease_ended and silence > max(lease, grace):
            facts.append(NodeLeaseEnded(node=name, last_heard=last))
    return facts
