"""Which folder of checkpoints is the cluster's, and which nodes have another one: a mount is missing there.

    the operator's word      `PolicyChanged.checkpoints` names the folder, one that some node has
    what is in it            as long as an app that has not ended runs on nodes that have the folder in force, or
                             saved a checkpoint there, it stays
    the most nodes           otherwise the folder that most nodes have; of two with equally many, the one in force

A node without its mount that joins first is therefore outvoted by the others as long as nothing runs there. A node
without the cluster's folder gets nothing new. Its apps move to nodes that have the folder after `LEFT_ALONE_S`; if no
node has it (its marker was deleted, the file server is unavailable), everything keeps running in place, until
`LEFT_ALONE_S` after the first node has it again. Agents before release 0.6.0 announce no folder, and theirs is
assumed to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.effects import mark_dirty, request_rebalance, void_plans_on
from events.kinds import NO_FOLDER
from events.quantities import SECOND
from events.times import SettingRefused

if TYPE_CHECKING:
    from dorm.core.state import App, Generation, Node, State
    from events.kinds import PolicyChanged

LEFT_ALONE_S = 15
"""Time for which apps are left alone: agents look at their folders every 5 s. If the folder itself is gone, or is back,
all of them have reported that by then. Nothing is moved from one node without it to another, or to the first node that
has it back."""


def settle_folder(state: State) -> bool:
    """Called after a change of anything that determines it.  Return whether that changed nodes, and plans of any app."""
    # The node that has just joined does not count: it may be the first one that has the folder again.
    had = any(_has_folder(node) and node.up_at < state.time for node in state.nodes.values())
    changed = False
    state.checkpoints = state.settings.checkpoints or _in_use(state) or _of_most(state)
    for node in state.nodes.values():
        foreign = _is_foreign(node, state.checkpoints)
        if foreign == node.foreign:
            continue
        changed = True
        node.foreign, node.foreign_at = foreign, state.time if foreign else 0
        if foreign:
            void_plans_on(state, node)
        else:
            node.changed_seq = state.seq
            request_rebalance(state)
            mark_dirty(state)
    if not had and any(_has_folder(node) for node in state.nodes.values()):
        for node in state.nodes.values():
            if node.foreign:
                node.foreign_at = state.time
                changed = True
    return changed


def _has_folder(node: Node) -> bool:
    return node.condition == "up" and not node.foreign


def check_folder(state: State, change: PolicyChanged) -> None:
    """Refuse a change of settings that names a folder which no node has: it would take every node from every app.  Before any
    node has announced one, the operator may know better.  Raises SettingRefused."""
    folder = change.checkpoints
    if not folder or folder == state.settings.checkpoints:
        return
    mounted = [announced for announced in _announced(state) if announced != NO_FOLDER]
    if folder in mounted or (not mounted and folder != NO_FOLDER):
        return
    raise SettingRefused(
        f"checkpoints: no node has the folder {folder}, so no node would get containers; mount it on a node first, or name "
        "one of those that `dorm nodes -o wide` shows",
        code="settings.checkpoints.no_node",
    )


def _announced(state: State) -> list[str]:
    """Of the nodes that have not left."""
    return [node.checkpoints for node in state.nodes.values() if node.condition != "left" and node.checkpoints]


def left_alone_until(node: Node) -> int:
    """Until when (UTC ns) apps stay on a node without the cluster's folder; 0 if it has the folder."""
    return node.foreign_at + LEFT_ALONE_S * SECOND if node.foreign else 0


def leaves_alone(state: State, node: Node, now: int) -> bool:
    """Whether apps stay on a node without the cluster's folder at `now` (UTC ns), unless the node is drained: no
    other node has the folder, or it is not certain yet that one does."""
    if not node.foreign or node.draining:
        return False
    mounted = any(_has_folder(other) for other in state.nodes.values())
    return not mounted or now < left_alone_until(node)


def _is_foreign(node: Node, folder: str) -> bool:
    if not node.checkpoints:
        return False
    return node.checkpoints == NO_FOLDER or node.checkpoints != folder


def _in_use(state: State) -> str:
    """The folder in force, if a live app saved a checkpoint in it; "" if none did."""
    if not state.checkpoints:
        return ""
    used = any(not app.ended and state.checkpoints in _folders_of(state, app) for app in state.apps.values())
    return state.checkpoints if used else ""


def _folders_of(state: State, app: App) -> list[str]:
    """In which it saved, or has begun to work and may have saved.  A generation counts if all of its nodes have that
    folder: after an upgrade a single node without its mount may be the only one that has announced any, and must not make
    its folder the one of apps that run elsewhere."""
    running = (generation for generation in app.generations.values() if not generation.ended)
    return [app.checkpoint_in, *(begun.folder for begun in running if _all_have(state, begun))]


def _all_have(state: State, generation: Generation) -> bool:
    return all(
        (node := state.nodes.get(container.node)) is not None and node.checkpoints == generation.folder
        for container in generation.all_containers()
    )


def counts_in(state: State, app: App, generation: Generation, folder: str) -> bool:
    """Whether an app can resume from a checkpoint that a node with this folder reports. If another folder was mounted
    when the generation began, it is unknown in which folder the checkpoint is."""
    if folder == NO_FOLDER or (folder and generation.folder not in ("", folder)):
        return False
    return folder in ("", state.checkpoints, app.checkpoint_in) or app.checkpoint is None


def settle_again(state: State) -> bool:
    """An app or a generation ended that may have kept the folder in force.  Return as `settle_folder` does."""
    for node in state.nodes.values():
        if node.foreign:
            return settle_folder(state)
    return False


def _of_most(state: State) -> str:
    """Of the nodes that have not left; the one in force if none of these has any."""
    votes: dict[str, int] = {}
    for folder in _announced(state):
        if folder != NO_FOLDER:
            votes[folder] = votes.get(folder, 0) + 1
    if not votes:
        return state.checkpoints
    # The first of the largest: of equals the one in force, then the one of the node that joined first.
    return max(votes, key=lambda folder: (votes[folder], folder == state.checkpoints))


def trouble(state: State, node: Node) -> str:
    """What is wrong with a node's folder and what to do, in one line; "" if nothing is."""
    if not node.foreign:
        return ""
    if node.checkpoints == NO_FOLDER:
        return f"{node.id} gets no containers: the marker in its folder of checkpoints is gone; mount the folder again"
    return (
        f"{node.id} gets no containers: its folder of checkpoints is {node.checkpoints}, the cluster's is "
        f"{state.checkpoints}; mount the shared folder there, or, if {node.id} has the right one, "
        f"`dorm policy set checkpoints={node.checkpoints}`"
    )
