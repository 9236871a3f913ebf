"""Which nodes' parts a record may have changed.

The fold says which apps and nodes a record touched, and whether agents have to know (`dorm.core.folded`), so the cost of a
decision depends only on its changes.  A node's own reports of starts and exits concern no part: the node knows them, and
they are in the next part that the master writes.
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


class Concerned:
    """Follows a fold (`Observer`); `nodes` are those whose parts may differ from the ones stored last."""

    def __init__(self) -> None:
        self.nodes: dict[str, None] = {}
        self.joined: dict[str, None] = {}
        """Nodes that have joined, and wait for a part that is derived from a later record, even if nothing else differs."""
        self._of_app: dict[str, list[str]] = {}
        """Nodes whose parts may mention an app, by app."""

    def start(self, state: State) -> None:
        """Begin with a state whose parts are known to be stored."""
        self.nodes, self.joined = {}, {}
        self._of_app = {app.id: nodes for app in state.apps.values() if (nodes := nodes_of(app))}

    def see(self, state: State, record: Record, folded: Folded) -> None:
        event = folded.event
        if isinstance(event, k.NodeJoined) and subjects.who_of(record.subject) == subjects.token(event.node):
            # Whatever became of it, the node waits for an answer.
            self.nodes[event.node] = self.joined[event.node] = None
        for fact, effect in folded.steps():
            if effect.parts == "all":
                self.nodes |= dict.fromkeys(known_nodes(state))
            elif effect.parts:
                self.nodes |= dict.fromkeys(effect.nodes_of(fact))
                for name in effect.apps_of(fact):
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

    def taken(self) -> tuple[list[str], list[str]]:
        """Return the nodes concerned since the last call, sorted, and those of them that have joined."""
        nodes, joined = sorted(self.nodes), sorted(self.joined)
        self.nodes, self.joined = {}, {}
        return nodes, joined
