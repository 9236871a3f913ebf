"""The last step on small clusters: exact programs over a few apps, with all others pinned where they are.

Greedy placement loses a few per cent on a small cluster, where one container is a large part of a node.  The apps that can
make up for it are those that change anyway, those that start, and those that the count program would have changed next: large
neighborhood search (Shaw 1998), with the neighborhoods in a fixed order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import integer
from dorm.policies.dorm.making_room import by_help
from dorm.policies.dorm.placing import Draft
from dorm.policies.exact import search as exact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.scoring import Terms

LARGEST, LARGEST_OF_MANY = 110, 80
"""Apps times nodes of one program, the second on clusters of more than `FEW_NODES`."""

FEW_NODES = 24
"""Number of nodes above which a program has about a third of them: few nodes and many apps do better than the reverse."""

MOST_APPS, COLD_APPS = 40, 70
"""Per cent of all apps in one program, the second if nothing runs yet: with few apps, each has so many containers that the
program is hard."""

MOST_CELLS = 20_000
"""Apps times nodes of a cluster on which answers are polished: dense matrices beyond that cost more time than they gain."""

SERVED = 800
"""Apps times nodes up to which room for waiting apps is searched over all apps."""

SERVE_SEARCH = 30_000
"""Bounds that search: its nodes times apps times nodes."""

MOST = 7
"""Programs in one round."""

SMALL = 300
"""Apps times nodes of a cluster where programs are so fast that twice as many are solved."""

CLOSER, CLOSER_MOST, CLOSER_FRUITLESS = 1_000, 10, 5
"""Apps times nodes of a cluster where at least this many are solved, and this many may fail in a row, once apps run: only a
few of them may change, and the choice of them decides the quality."""

USUAL, HARD, EFFORT = 45, 3, 12
"""There, the work of a program grows with the square of its cells; a program of the usual size counts as 1, an
unfinished one as `HARD`, and all of them together are limited to `EFFORT`."""

OTHERS, WIDEST = 2, 6
"""Number of apps of each program in addition to those that change, so that one can take another's place, as
long as it has at most `WIDEST` in all."""

HELPING = 3
"""Interval of the programs over apps that could make room, if an app waits; the others improve the present answer."""

FRUITLESS = 4
"""Number of programs without a gain after which no more are tried."""

COLD_CELLS, COLD_TRIES = 1.5, 6
"""Factors if nothing runs yet: everything is open then, and it happens once."""

SEARCH = 3
"""Nodes of each search."""

GOOD_ENOUGH = 5e-4
"""An answer this close to the bound is not polished."""


def serve(instance: Instance, rows: Rows, terms: Terms, *, reserved: tuple[int, Flags] | None) -> Rows:
    """If greedy placement left an app waiting on a small cluster, search for room over all apps."""
    if len(instance.apps) * len(instance.nodes) > SERVED:
        return rows
    x = exact.serve(
        instance,
        integer.dense(instance, rows),
        terms,
        budget=terms.change_budget,
        reserved=reserved,
        node_limit=max(1, SERVE_SEARCH // max(1, len(instance.apps) * len(instance.nodes))),
    )
    return integer.rows_of(x)


def outlook(
    instance: Instance, rows: Rows, terms: Terms, *, reserved: tuple[int, Flags] | None
) -> exact.Outlook | None:
    """Relax the program of the whole cluster, if that is small and there is a choice: unlike the count program, it sees
    fragmentation."""
    if not terms.change_budget or len(instance.apps) * len(instance.nodes) > CLOSER:
        return None
    return exact.outlook(instance, integer.dense(instance, rows), terms, budget=terms.change_budget, reserved=reserved)


class Polished(NamedTuple):
    rows: Rows
    status: str
    """Name of the way in which the search ended."""
    cells: int
    """Pairs of app and node in it."""


def polish(
    instance: Instance,
    rows: Rows,
    terms: Terms,
    chosen: Sequence[int],
    *,
    reserved: tuple[int, Flags] | None,
    gain: float,
    nodes: Flags | None = None,
) -> Polished:
    """Return a better answer than `rows`, by at least `gain` or by an earlier goal, or the same, in which only `chosen` apps
    differ, only on `nodes` if given.  Changes of other apps already count against θ2."""
    touched = integer.changed(instance, rows) & instance.kept
    free = np.zeros(len(rows), np.bool_)
    free[list(chosen)] = True
    free &= instance.free_to_move
    around = [was if free[i] else rows[i] for i, was in enumerate(instance.rows)]
    staying = [{} if free[i] else row for i, row in enumerate(rows)]
    part = replace(
        instance,
        rows=tuple(around),
        pinned=~free,
        room=np.maximum(integer.free_room(instance, staying), 0),
    )
    improved = exact.improve(
        part,
        integer.dense(instance, rows),
        terms,
        budget=terms.change_budget - int((touched & ~free).sum()),
        reserved=reserved if reserved is not None and free[reserved[0]] else None,
        node_limit=SEARCH,
        gain=gain,
        nodes=nodes,
    )
    better = integer.rows_of(improved.x)
    return Polished([better[i] if free[i] else row for i, row in enumerate(rows)], improved.status, improved.cells)


class Part(NamedTuple):
    """The part that one program may change."""

    apps: list[int]
    nodes: Flags | None
    """None for all."""


def neighbourhoods(
    instance: Instance,
    node_class: Ints,
    kept: Flags,
    best: Callable[[], Rows],
    ranking: Sequence[int],
    budget: int,
) -> Iterator[Part]:
    """Yield apps (and nodes) to choose together, one set after the other; ends when the last few have not changed `best`."""
    if not len(instance.nodes) or len(instance.nodes) * len(instance.apps) > MOST_CELLS:
        return
    wider, longer = (1.0, 1) if kept.any() else (COLD_CELLS, COLD_TRIES)
    if len(instance.nodes) * len(instance.apps) <= SMALL:
        longer *= 2
    tries, in_vain = MOST * longer, FRUITLESS * longer
    if kept.any() and len(instance.nodes) * len(instance.apps) <= CLOSER:
        tries, in_vain = max(tries, CLOSER_MOST), max(in_vain, CLOSER_FRUITLESS)
    largest = LARGEST_OF_MANY if len(instance.nodes) > FEW_NODES else LARGEST
    failed_trials = 0
    for attempt in range(tries):
        before = best()
        yield _part(instance, node_class, kept, before, ranking if budget else (), attempt, int(largest * wider))
        failed_trials = 0 if best() is not before else failed_trials + 1
        if failed_trials >= in_vain:
            return


def effort(instance: Instance, kept: Flags, polished: Polished) -> float:
    """Return the part of a round's work that a program was."""
    if not kept.any() or len(instance.apps) * len(instance.nodes) > CLOSER:
        return 0.0
    return max(1.0, (polished.cells / USUAL) ** 2) * (HARD if polished.status == "node_limit" else 1) / EFFORT


def _part(
    instance: Instance, node_class: Ints, kept: Flags, rows: Rows, ranking: Sequence[int], attempt: int, cells: int
) -> Part:
    """Return the apps that change or start, and others; each time another part of both.  On larger clusters, the nodes with
    most free room, in turns."""
    count = len(instance.nodes)
    nodes = None
    if count > FEW_NODES:
        free = integer.free_room(instance, rows) / np.maximum(instance.totals, 1)
        order = np.argsort(-np.round(free.sum(axis=1), 12), kind="stable")
        count = FEW_NODES // 3
        nodes = np.zeros(len(instance.nodes), np.bool_)
        nodes[np.roll(order, -attempt * count)[:count]] = True
    share = MOST_APPS if kept.any() else COLD_APPS
    most = max(2, min(cells // count, share * len(instance.apps) // 100))
    n = integer.counts_of(rows)
    touched = integer.changed(instance, rows)
    first = np.flatnonzero(instance.free_to_move & (touched | ~kept)).tolist()
    waits = [i for i in integer.queue(instance) if n[i] < instance.n_min[i]]
    if waits and ranking and attempt % HELPING == 0:
        ranking = by_help(Draft(instance, rows, node_class), waits[0], kept)
        nodes = None
    others = [i for i in ranking if not touched[i]]
    if others and (touched & kept).any() and len(instance.apps) * len(instance.nodes) <= CLOSER:
        most = max(most, min(len(first) + OTHERS, WIDEST))
    if len(first) >= most:
        stride = 1 + attempt % max(1, len(first) // 2)
        turned = dict.fromkeys(first[(attempt + k * stride) % len(first)] for k in range(len(first)))
        return Part(list(turned)[:most], nodes)
    room = most - len(first)
    start = (attempt * room) % max(1, len(others))
    return Part([*first, *[*others[start:], *others[:start]][:room]], nodes)
