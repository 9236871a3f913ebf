"""A machine joins the cluster under a node's name, and leaves it.

    one holder    a name belongs to the machine that joined with it, by the identity that its agent announces, until no
                  container on that machine can run any more.  Another machine that asks for the name is refused, and
                  the node says so (`Node.refused`); what it reports under the name counts for nothing
    again         an agent that starts again joins again.  Its containers may have gone on, so the node keeps what is
                  known of it: who drained it, which apps failed there, how far its ports were given away.  Only plans
                  that assumed other resources, another address or other ports are void
    by itself     an agent that stops in an orderly way leaves once nothing of its containers runs.  So they end with
                  it, and its room is free without waiting for its lease.  A process that was replaced meanwhile can
                  end nothing: its farewell comes too late

A machine that asks for a name waits for an answer, whatever becomes of its request (`dorm.core.parts.concerned`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core import faults
from dorm.core.authority import is_own
from dorm.core.containers import end_containers_on
from dorm.core.effects import mark_dirty, request_rebalance, void_plans_on
from dorm.core.folded import IGNORED, NODE, NODE_PARTS, Effect, ignored
from dorm.core.shared_folder import settle_folder
from dorm.core.state import Node, Refused
from events.identities import ends, may_hold

if TYPE_CHECKING:
    from dorm.core.state import State
    from events import kinds as k
    from events.log.records import Record

_REFUSED_NODE = Effect("refused", node=True, everything=True)


def node_joined(state: State, event: k.NodeJoined, record: Record) -> Effect:
    if not is_own(state, event, record):
        return IGNORED
    old = state.nodes.get(event.node)
    if old is not None and not may_hold(old.identity, event.identity, gone=old.gone):
        old.refused = Refused(event.identity, event.address, state.time)
        return _REFUSED_NODE
    node = state.nodes[event.node] = Node(
        id=event.node,
        address=event.address,
        capacity=dict(sorted(event.capacity.items())),
        labels=dict(sorted(event.labels.items())),
        ports=event.ports,
        runtime=event.runtime,
        draining=old.draining if old and old.draining != "shutdown" else "",
        joined_at=state.time,
        up_at=state.time,
        lease_s=max(state.settings.node_lease_s, event.lease_s),
        changed_seq=state.seq,
        checkpoints=event.checkpoints,
        foreign=old.foreign if old else False,
        foreign_at=old.foreign_at if old else 0,
        port_cursor=old.port_cursor if old else 0,
        identity=event.identity,
        refused=old.refused if old and old.identity == event.identity else None,
        prepares=event.prepares,
        abilities=sorted(set(event.abilities)),
        offers=event.offers,
        process=event.process,
    )
    if old is not None:
        faults.carried_over(state, node, old)
    settle_folder(state)
    if old and (old.capacity, old.address, old.ports) != (node.capacity, node.address, node.ports):
        void_plans_on(state, node)
    request_rebalance(state)
    mark_dirty(state)
    return NODE


def node_left(state: State, event: k.NodeLeft, record: Record) -> Effect:
    node = state.nodes.get(event.node)
    if not is_own(state, event, record):
        return IGNORED
    if node is None or node.condition == "left" or event.identity != node.identity:
        return ignored(state)
    if not ends(node.process or "", event.process):
        return ignored(state)
    node.condition, node.lease_ended = "left", False
    void_plans_on(state, node)
    end_containers_on(state, node.id, "the node left")
    return NODE_PARTS
