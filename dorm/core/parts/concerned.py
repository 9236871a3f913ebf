"""Which nodes' parts a record may have changed.

They follow from the record's content, never from a comparison of all nodes, so the cost of a decision depends only on
its changes.  A node's own reports of starts and exits concern no part: the node knows them, and they are in the next
part that the master writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.parts.deriving import known_nodes, nodes_of
from events import kinds as k
from events import subjects

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.records import Record

_LEAVES_PARTS = (k.AppAccepted, k.AppRejected, k.AppPlanned)
"""Facts about apps that no node has to know."""


class Concerned:
    """Follows a fold (`Observer`); `nodes` are those whose parts may differ from the ones stored last."""

    def __init__(self) -> None:
        self.nodes: dict[str, None] = {}
        self.asked: dict[str, None] = {}
        """Nodes that have joined, and wait for a part that is derived from a later record, even if nothing else differs."""
        self._of_app: dict[str, list[str]] = {}
        """By app: nodes whose parts may mention it."""

    def start(self, state: State) -> None:
        """Begin with a state whose parts are known to be stored."""
        self.nodes, self.asked = {}, {}
        self._of_app = {app.id: nodes for app in state.apps.values() if (nodes := nodes_of(app))}

    def see(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        if isinstance(event, k.NodeJoined) and subjects.who_of(record.subject) == subjects.token(event.node):
            self.nodes[event.node] = self.asked[event.node] = (
                None  # Whatever became of it, the node waits for an answer.
            )
        if folded in ("ignored", "forbidden", "void", "unknown", "unreadable"):
            return
        match event:
            case k.Round():
                self._round(state, event)
            case k.NodeLeft() | k.NodeEnrolled() | k.NodeExpelled():
                self.nodes[event.node] = None
            case k.ContainersPrepared():
                self._prepared(state, event)
            case k.PolicyChanged() | k.TrustEnabled():
                self.nodes |= dict.fromkeys(known_nodes(state))
            case _:
                pass

    def _round(self, state: State, event: k.Round) -> None:
        for fact in event.events:
            match fact:
                case k.Resized():
                    for name in (*(change.app for change in fact.changes), *fact.batches):
                        self._app(state, name)
                case k.NodeLost() | k.NodeRecovered() | k.NodeLeaseEnded():
                    self._node(state, fact)
                case _:
                    name = getattr(fact, "app", "")
                    if name and not isinstance(fact, _LEAVES_PARTS):
                        self._app(state, name)

    def _app(self, state: State, name: str) -> None:
        """Nodes that have containers of the app, or had some when it was looked at last."""
        app, before = state.apps.get(name), self._of_app.get(name, ())
        now = nodes_of(app) if app is not None else []
        self.nodes |= dict.fromkeys((*before, *now))
        if now:
            self._of_app[name] = now
        else:
            self._of_app.pop(name, None)

    def _node(self, state: State, fact: k.NodeLost | k.NodeRecovered | k.NodeLeaseEnded) -> None:
        self.nodes[fact.node] = None
        if not isinstance(fact, k.NodeLost):
            return
        for name, nodes in list(self._of_app.items()):  # Nothing waits for its preparation any longer.
            app = state.apps.get(name)
            latest = app.generations.get(app.generation) if app is not None else None
            if latest is not None and fact.node in latest.preparing:
                self.nodes |= dict.fromkeys(nodes)

    def _prepared(self, state: State, event: k.ContainersPrepared) -> None:
        """Only the last node that prepares changes what the others do."""
        app = state.apps.get(event.app)
        generation = app.generations.get(event.generation) if app is not None else None
        if generation is not None and not generation.preparing:
            self._app(state, event.app)

    def taken(self) -> tuple[list[str], list[str]]:
        """Return the nodes concerned since the last call, sorted, and those of them that have joined."""
        nodes, asked = sorted(self.nodes), sorted(self.asked)
        self.nodes, self.asked = {}, {}
        return nodes, asked
