"""The fold of identities: who may do what from here on (`events.identities` has the rules)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.effects import request_rebalance, void_plans_on
from dorm.core.folded import APPLIED, FORBIDDEN, NODE_PARTS, Effect, ignored
from events import kinds as k
from events import subjects
from events.identities import MOST_REFUSALS, NotAllowed, Refusal, after, takes
from events.limits import clipped

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.records import Record

_ABOUT = ("app", "node", "webhook", "name", "token")
"""Fields that name the subject of an event; the first one that it has counts."""
_KNOWN_TO_AGENTS: dict[type, Effect] = {
    k.NodeEnrolled: Effect(node=True, parts="touched"),
    k.TrustEnabled: Effect(parts="all"),
}
"""Effects of events that agents have to know."""


def identities_changed(state: State, event: k.OfIdentities, record: Record) -> Effect:
    """Fold an event about identities."""
    who = subjects.who_of(record.subject)
    refused = takes(state.known, event, who, record.seq)
    if refused is not None:
        return refuse(state, event, who, refused)
    state.known = after(state.known, event, who, state.seq)
    if isinstance(event, k.NodeExpelled):
        _expel(state, event.node)
        return NODE_PARTS
    return _KNOWN_TO_AGENTS.get(type(event), APPLIED)


def _expel(state: State, name: str) -> None:
    """Nothing new goes to an expelled node, until it is enrolled and joins again."""
    node = state.nodes.get(name)
    if node is None:
        return
    node.draining = node.draining or "shutdown"
    request_rebalance(state)
    void_plans_on(state, node)


def refuse(state: State, event: k.Event, who: str, refused: NotAllowed, *, answered: bool = False) -> Effect:
    """Note a record that its author may not publish.  An open cluster only counts it.  `answered`: its author gets an answer,
    so the master need not report it."""
    known = state.known
    if known is None:
        return ignored(state)
    known.refused += 1
    about = next((str(named) for name in _ABOUT if (named := getattr(event, name, ""))), "")
    noted = Refusal(
        state.seq,
        state.time,
        who[:64],
        type(event).__name__,
        about[:200],
        refused.code,
        clipped(refused.reason),
        answered,
    )
    known.refusals = [*known.refusals, noted][-MOST_REFUSALS:]
    known.untold += not answered
    return FORBIDDEN


def refusals_reported(state: State, event: k.RecordsRefused) -> Effect:
    """The master has reported refused records."""
    known = state.known
    if known is not None:
        known.told = max(known.told, event.upto)
        known.untold = len(known.unreported_refusals())
    return APPLIED


def refusal_at(state: State, seq: int) -> Refusal | None:
    """Return why the record `seq`, the last one or one shortly before it, was refused for its author."""
    known = state.known
    return (
        next((refusal for refusal in reversed(known.refusals) if refusal.seq == seq), None)
        if known is not None
        else None
    )
