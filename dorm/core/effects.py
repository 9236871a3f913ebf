"""Consequences of a fact beyond itself, shared by all of the fold: what is computed again, void plans, dropped apps.

A decision is made from a state, its basis, and reaches the log some records later.  Everything here exists because the
state may have moved on meanwhile, or because room that one plan counts on has gone:

    dirty       `mark_dirty`: something could change the allocation, so it is computed again after the quiet time
    rebalance   `request_rebalance`: room became free that one decision may not use up (θ2), so idle ticks look again
    overtaken   `Node.changed_seq`, `App.changed_seq`: decisions with an earlier basis than this record assumed another
                node or app, and the fold voids them when they arrive (`dorm.core.rounds`)
    void        a planned generation of which a container has no place any more is never released; its app keeps nothing
                and is placed again.  Without this it would wait forever for room that never becomes free
    drop        a live change whose newcomers lost their place is dropped: before its release it holds nothing

Voiding spreads (`void_plans`).  A dropped change keeps members that were to leave, so plans for their room are void as
well, and so on from node to node, each visited once.  Without it, two apps each waited for room that the other,
unchanged, still held.

An app that loses its place here has not failed: it is interrupted (`interrupt`) and comes back before apps that never
ran.  One that had no partition before is only placed again; its wait is not restarted (`mark_wait`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.settings import kept_until

if TYPE_CHECKING:
    from dorm.core.state import App, Generation, Node, State
    from events.kinds import Resized

SWEEPS = 16
"""Number of scans of ended apps within one retention."""


def mark_dirty(state: State) -> None:
    """Note an event that could change the allocation."""
    state.dirty_seq, state.dirty_at = state.seq, state.time


def request_rebalance(state: State) -> None:
    """θ2 may prevent one round from using all freed capacity: an idle tick computes the allocation again once the log is quiet
    (`dorm.core.timing`)."""
    state.rebalance_from = state.time


def mark_wait(state: State, app: App) -> None:
    """Note since when the app waits, after a change that may have taken its place away."""
    if not app.waiting_since and not app.ended and app.current is None:
        app.waiting_since = max(state.time, app.retry_at)


def interrupt(state: State, app: App) -> None:
    """The app lost its partition without its own fault: it comes back before apps that never ran
    (`dorm.core.claims`)."""
    app.interrupted_at = app.interrupted_at or state.time


def void_plans_on(state: State, node: Node) -> None:
    """The node is not what decisions assumed.  Decisions in progress are overtaken; placements there that are not released yet
    are void, so their apps are placed again instead of waiting for room that never becomes free."""
    void_plans(state, [node.id])


def drop_change(state: State, app: App, generation: Generation) -> None:
    """Drop a live adjustment that was not released. Plans on the nodes that its members were to leave may count on
    that room, so they are void as well: otherwise they would wait for room that is never freed."""
    void_plans(state, _dropped(generation))


def _dropped(generation: Generation) -> list[str]:
    """Return the nodes on which its members stay after all."""
    change, generation.change = generation.change, None
    stay = change.stay if change is not None else []
    return [member.node for slot, member in sorted(generation.containers.items()) if slot not in stay]


def void_plans(state: State, nodes: list[str]) -> None:
    """Void all plans on these nodes, and on the nodes whose room those plans would have given up in turn. Empties
    `nodes`."""
    seen: dict[str, None] = {}
    while nodes:
        name = nodes.pop(0)
        if name in seen or name not in state.nodes:
            continue
        seen[name] = None
        # Decisions that have not arrived yet are overtaken; those that have are voided below.
        state.nodes[name].changed_seq = state.seq
        for app in state.apps.values():
            generation = app.generations.get(app.generation)
            if generation is None:
                continue
            # A released change stands: its members have heard of it, and a newcomer on a node that is gone ends as lost.
            change = generation.change
            if change and not change.released_at and any(c.node == name for c in change.newcomers.values()):
                nodes += _dropped(generation)
            # So does a released generation: its containers may run, and end by their own reports or by the node's lease.
            if not generation.released and any(c.node == name for c in generation.containers.values()):
                generation.void = True
                if not app.waiting_since and not app.ended:  # It ran until now.
                    interrupt(state, app)
                mark_wait(state, app)
    mark_dirty(state)


def dissolve(generation: Generation) -> None:
    """The generation ends: no members join it any more, and released new members are stopped with the rest."""
    change, generation.change = generation.change, None
    generation.untold, generation.accused = 0, []
    if change is not None and change.released_at:
        generation.leaving |= {
            slot: newcomer for slot, newcomer in change.newcomers.items() if newcomer.state != "exited"
        }


def adjust_counts(generation: Generation) -> None:
    """Count its members by state again."""
    states = [container.state for container in generation.containers.values()]
    generation.running, generation.exited = states.count("running"), states.count("exited")


def forget_ended(app: App) -> None:
    """Drop earlier generations that have ended; the latest one is kept for inspection."""
    if len(app.generations) > 1:
        for number in [n for n, g in app.generations.items() if n != app.generation and g.ended]:
            del app.generations[number]


def plan_drop(state: State, app: App) -> None:
    """Schedule the drop of an ended app after the retention, but never while something of it may still take room."""
    due = _drop_at(state, app)
    if due:
        state.next_drop_at = min(state.next_drop_at or due, due)


def plan_drops(state: State) -> None:
    """Schedule the next drop again, after an ended app has resumed."""
    state.next_drop_at = min((due for app in state.apps.values() if (due := _drop_at(state, app))), default=0)


def drop_ended(state: State) -> list[str]:
    """Drop apps whose retention is over, and return their ids.  One scan of all apps serves many: the next is a part of the
    retention away, so on a long log each app is scanned a few times instead of once for every other app that ends."""
    due = {app.id: _drop_at(state, app) for app in state.apps.values()}
    over = [name for name, at in due.items() if at and at <= state.time]
    for name in over:
        del state.apps[name]
    later = min((at for at in due.values() if at > state.time), default=0)
    state.next_drop_at = later and max(later, state.time + int(state.settings.retention_s * 1e9) // SWEEPS)
    return over


def _drop_at(state: State, app: App) -> int:
    if not app.ended:
        return 0
    for generation in app.generations.values():
        if not generation.ended:
            return 0
    return kept_until(state.settings, app)


def note_figures(state: State, event: Resized) -> None:
    """Note the figures of a decision, for views."""
    figures = state.figures
    figures.seq = state.seq
    figures.utilization = event.utilization
    figures.fairness_loss = event.fairness_loss
    figures.overhead = event.overhead
    figures.decisions += 1
