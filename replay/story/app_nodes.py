"""How its nodes affect one app, as chapters of its story: they are drained, leave, are lost, come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.query.views import sizes
from events import kinds as k
from replay.story import words
from replay.story.settings import blaming, lease_ended_because, lost_because
from replay.words import containers, moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import App, State
    from replay.story.chapters import Cause, Places


class AppNodes:
    """Follows the nodes of one app that has not ended; `tell` appends a chapter.  Each call has the app after the record was
    folded, and its `partition` before."""

    def __init__(self, tell: Callable[..., Cause]) -> None:
        self._tell = tell
        self._latest: dict[str, Cause] = {}
        """The latest event of each node."""
        self._suspected: dict[str, Cause] = {}
        """By node that is suspect, since when."""

    def event(
        self,
        state: State,
        event: k.NodeJoined | k.NodeLeft | k.NodeDrainRequested | k.NodeTrustRequested,
        app: App,
        partition: Places,
    ) -> None:
        """Follow the events of a node or an operator."""
        node = event.node
        if isinstance(event, k.NodeTrustRequested):
            self._trusted(state, str(state.seq), node, words.trust_requested(event), app, partition, by=event.by)
            return
        ended = _ended_with(state, app, node) if isinstance(event, k.NodeLeft) else 0
        if not ended and not _on(app, node, partition):
            return
        if isinstance(event, k.NodeDrainRequested):
            what = "node_drained" if event.drain else "node_undrained"
            text = f"{words.drain(event)}; {words.has(_on(app, node, partition))} there"
        elif isinstance(event, k.NodeLeft):
            what, text = "node_left", f"{node} left" + _and_ended(ended)
        elif sizes(app) != partition:
            what, text = "node_rejoined", f"{node} rejoined, not as it was before"
        else:
            return
        self._latest[node] = self._tell(
            state, str(state.seq), what, text + _void_place(app, partition), by=getattr(event, "by", "")
        )

    def fact(
        self,
        state: State,
        position: str,
        fact: k.NodeLost | k.NodeRecovered | k.NodeLeaseEnded | k.NodeSuspected | k.NodeTrusted,
        app: App,
        partition: Places,
    ) -> None:
        """Follow the master's conclusions about a node."""
        if isinstance(fact, k.NodeSuspected):
            self._suspect(state, position, fact, app, partition)
            return
        if isinstance(fact, k.NodeTrusted):
            self._trusted(state, position, fact.node, f"{fact.node} is {words.trusted(fact)}", app, partition)
            return
        ended = _ended_with(state, app, fact.node) if isinstance(fact, k.NodeLeaseEnded) else 0
        count = _on(app, fact.node, partition)
        if not ended and not count:
            return
        before, changed = self._latest.get(fact.node), None
        if isinstance(fact, k.NodeLost):
            what, changed = "node_lost", lost_because(state, fact)
            text = (
                f"{fact.node}, where {words.has(count)}, has not been heard since {moment(fact.last_heard)}; "
                "whether they run is unknown"
            )
        elif isinstance(fact, k.NodeRecovered):
            what, text = "node_recovered", f"{fact.node}, where {words.has(count)}, was heard again"
        else:
            what, text = "node_lease_ended", f"the lease of {fact.node} ended" + _and_ended(ended)
            changed = lease_ended_because(state, fact)
        text = blaming(text + _void_place(app, partition), changed)
        self._latest[fact.node] = self._tell(state, position, what, text, [before, changed])

    def _suspect(self, state: State, position: str, fact: k.NodeSuspected, app: App, partition: Places) -> None:
        """Name no other app: it may be another tenant's."""
        count = _on(app, fact.node, partition)
        if app.id in fact.apps:
            others = len(fact.apps) - 1
            text = (
                f"{fact.node} is suspect, because {others} other app{'' if others == 1 else 's'} failed there as well"
            )
            text = f"{text}; what failed there is the node's fault" if others else f"{fact.node} is suspect again"
        elif count:
            text = f"{fact.node}, where {words.has(count)}, is suspect and takes nothing new; what runs there stays"
        else:
            return
        self._suspected[fact.node] = self._tell(state, position, "node_suspected", text + _void_place(app, partition))

    def _trusted(
        self, state: State, position: str, node: str, text: str, app: App, partition: Places, by: str = ""
    ) -> None:
        before = self._suspected.pop(node, None)
        if before is not None or _on(app, node, partition):
            self._tell(state, position, "node_trusted", text, [before], by=by)

    def why_lost(self, app: App, number: int) -> Cause | None:
        """Return the latest event of a node that took containers of this generation with it."""
        lost = [c.node for c in app.generations[number].containers.values() if c.reason == "lost"]
        return next((self._latest[node] for node in lost if node in self._latest), None)


def _on(app: App, node: str, partition: Places) -> int:
    """Return how many of its containers are, or may be, on a node."""
    may_run = [
        container
        for generation in app.generations.values()
        if generation.released
        for container in generation.containers.values()
        if container.node == node and container.state != "exited"
    ]
    return max(len(may_run), partition.get(node, 0))


def _void_place(app: App, partition: Places) -> str:
    lost = partition and not sizes(app)
    return "; its placement is void, and it is placed again" if lost else ""


def _ended_with(state: State, app: App, node: str) -> int:
    """Return how many of its containers this record ended because of their node."""
    return sum(
        container.node == node and container.reason == "lost" and container.exited_at == state.time
        for generation in app.generations.values()
        for container in generation.containers.values()
    )


def _and_ended(count: int) -> str:
    return f", which ended the app's {containers(count)} there" if count else ""
