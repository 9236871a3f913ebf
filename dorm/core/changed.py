"""What a record changed in a state: which apps and which nodes, for everyone who follows a fold.

The fold of a record touches what it names, with few exceptions: an operator's word about a node may void placements of any
app, a decision says for every app why it waits, and an app that ends opens the gates of others.  Those exceptions stand
here once, next to the rules that make them; readers of a fold (the dashboard, usage, timelines, the nodes' parts) ask
`changed_by` and do not guess from kinds.  An answer may name too much, never too little: `tests/core/test_changed.py`
compares whole states before and after each record of random histories.

Not covered: an app that had ended and leaves the state, its retention over, with whichever round comes next; and what
only decisions read of a node, which is the evidence about failures there (`Node.failed`, `proven_at`) and its cursor of ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.submissions import app_of_request
from events import kinds as k
from events import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.folded import Folded
    from dorm.core.state import App, State
    from events.log.records import Record


class Changed(msgspec.Struct, frozen=True, gc=False):
    """What a record may have changed."""

    apps: tuple[str, ...] = ()
    """Ids, in the order in which the record names them."""
    nodes: tuple[str, ...] = ()
    everything: bool = False
    """Whether any app and any node may differ; `apps` and `nodes` are then those that the record names."""
    reasons: bool = False
    """Whether a decision says for any app why it waits (`App.waiting`, `retry_at`, `room_taken`)."""


NOTHING = Changed()
_WITHOUT_EFFECT = ("ignored", "forbidden", "void", "unknown", "unreadable")
_ENDS = (k.AppCompleted, k.AppFailed, k.AppCancelled)


def changed_by(state: State, record: Record, event: k.Event, folded: Folded) -> Changed:
    """Return what a record changed; `state` is the one after it."""
    if folded in _WITHOUT_EFFECT or not event.KIND.folded:
        return NOTHING
    if isinstance(event, k.Round):
        return _by_round(state, event)
    kind = event.KIND
    if kind.writers[0] == "node" and kind.on == "app":
        return _named(state, event)
    if kind.by_name:
        app = app_of_request(state, event.app, subjects.who_of(record.subject))  # type: ignore[attr-defined]  # it has one
        return Changed(apps=(app.id,)) if app is not None else NOTHING
    if isinstance(event, k.AppSubmitted):  # It waits for an answer.
        return NOTHING
    if kind.rule == "identity" and not isinstance(event, k.NodeExpelled):
        return NOTHING
    return _named(state, event, everything=True)


def _named(state: State, event: k.Event, *, everything: bool = False) -> Changed:
    app, node = getattr(event, "app", ""), getattr(event, "node", "")
    everything = everything or _any_node_changed(state)
    return Changed((app,) if app else (), (node,) if node else (), everything)


def _by_round(state: State, event: k.Round) -> Changed:
    apps: dict[str, None] = {}
    nodes: dict[str, None] = {}
    everything, reasons = _any_node_changed(state), False
    for fact in event.events:
        if isinstance(fact, k.Resized):
            apps |= dict.fromkeys(change.app for change in fact.changes)
            reasons = True
            continue
        apps |= dict.fromkeys(_apps_of(state, fact))
        if node := getattr(fact, "node", ""):
            nodes[node] = None
        everything |= fact.KIND.on == "node"
    if not (apps or nodes or everything or reasons):
        return NOTHING
    return Changed(tuple(apps), tuple(nodes), everything, reasons)


def _apps_of(state: State, fact: k.Event) -> Iterable[str]:
    """Return the apps whose state a fact may change: its own, and those whose gates it opens or closes."""
    name = getattr(fact, "app", "")
    if isinstance(fact, k.AppRejected):
        return [app.id for app in state.apps.values() if name in (app.id, app.name)] if name else ()
    if isinstance(fact, k.AppAccepted | k.AppRevised):
        return (name, *fact.after)
    if isinstance(fact, _ENDS):
        return (name, *(app.id for app in state.apps.values() if _waits_for(app, name)))
    return (name,) if name else ()


def _waits_for(app: App, name: str) -> bool:
    """Return whether a gate of an app named one that has ended; the gate has no id of an app that has left the state."""
    return app.gates is not None and any(awaited.app in ("", name) for awaited in app.gates.after)


def _any_node_changed(state: State) -> bool:
    """Return whether the record voided placements on nodes: they may be of any app."""
    return state.dirty_seq == state.seq and any(node.changed_seq == state.seq for node in state.nodes.values())
