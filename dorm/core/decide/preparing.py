"""How long a generation works on while the next one is prepared: images pulled, containers created and not started.

Stopping first would leave the app idle for as long as a pull takes, so a restart that nothing forces waits until all its nodes
report `ContainersPrepared`.  It waits for no node longer than `PREPARE_S`, and does not wait if that costs more than it
gains: if one of the app's own nodes is drained, lost, or without the folder of checkpoints, if a container of it has
ended, or if an agent is too old to report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import App, State
    from events.kinds import Placed

PREPARE_S = 30.0
"""Enough for an image of some gigabytes on a local network, and for most partly cached images; an app that waits for
this one's room waits at most this long."""


def prepare_s(state: State, app: App, placement: Iterable[Placed]) -> float:
    """Return for how many seconds the app's current generation may keep working, 0 if it has to stop at once."""
    current = app.current
    if current is None or not current.released or not current.settled:
        return 0.0
    leaves = [state.nodes.get(container.node) for container in current.containers.values()]
    enters = [state.nodes.get(placed.node) for placed in placement]
    undisturbed = all(node is not None and node.usable for node in leaves)
    reported = bool(enters) and all(node is not None and node.takes_new and node.prepares for node in enters)
    return PREPARE_S if undisturbed and reported else 0.0
