"""The genetic search of `pollux` over allocation matrices: which app has how many units on which node (OSDI 2021, §4.2).

A population of matrices goes through generations of

    crossover   two parents, each the better of two drawn at random, exchange the rows of all apps behind a random one
    mutation    a row returns to the app's present one, or loses some elements; elements with free room grow at random
    repair      containers that an app may not have or a node cannot hold are removed
    selection   the fittest of parents and children survive

The paper fixes neither rates nor repair rules in numbers; these are those of its public code (`petuum/adaptdl`,
`simulator/pollux.py`), which selects by NSGA-II with a second objective that only cluster resizing uses.  The code also keeps
its population from round to round.  Here a search begins with the allocation in force and two simple ones, and stops early if
it finds nothing better for a while.

Randomness comes from a seed that follows from the problem, and from uniform numbers alone, whose stream NumPy keeps stable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.policies.integer import Flags, Floats, Ints

RESET, THIN, ZERO = 0.1, 0.1, 0.1
"""The probability that a row returns to the app's present one, that it loses elements, and that one of these is
lost."""
PATIENCE = 20
"""Generations without anything better after which a search stops."""


class Space(NamedTuple):
    """The possible allocations: apps in order of precedence as rows, nodes as columns."""

    base: Ints
    """The present allocation."""
    holds: Ints
    """Number of units of an app that a node takes while it is empty; 0 if the app may not run."""
    demand: Ints
    room: Ints
    """Room by node and kind of resource."""
    n_min: Ints
    n_max: Ints
    shared: Flags
    """Nodes on which a pinned app that lies on several nodes stands: no other such app may join it."""


class Search:
    """One search.  `fitness` rates a population; larger is better."""

    def __init__(self, space: Space, fitness: Callable[[Ints], Floats], seed: int) -> None:
        self._space = space
        self._fitness = fitness
        self._random = np.random.Generator(np.random.PCG64(seed)).random

    def best(self, starts: Ints, size: int, generations: int) -> Ints:
        """Return the fittest matrix found from these initial ones, in a population of this size."""
        states = self.repaired(starts)
        values = self._fitness(states)
        top, since = float(values.max()), 0
        for _ in range(generations):
            children = self.repaired(self._mutated(self._crossed(states, values, size)))
            values = np.concatenate([values, self._fitness(children)])
            states = np.concatenate([states, children])
            first = _distinct(states, values)
            keep = first[np.lexsort((first, -values[first]))][:size]
            states, values = states[keep], values[keep]
            since = since + 1 if float(values[0]) <= top else 0
            top = max(top, float(values[0]))
            if since > PATIENCE:
                break
        return np.asarray(states[int(np.argmax(values))])

    def _drawn(self, most: int, shape: tuple[int, ...]) -> Ints:
        return np.asarray((self._random(shape) * most).astype(np.int64))

    def _crossed(self, states: Ints, values: Floats, size: int) -> Ints:
        pairs = self._drawn(len(states), (2, size, 2))
        parents = np.where(values[pairs[..., 0]] >= values[pairs[..., 1]], pairs[..., 0], pairs[..., 1])
        apps = states.shape[1]
        first = np.arange(apps)[None, :] < self._drawn(apps + 1, (size,))[:, None]
        return np.asarray(np.where(first[:, :, None], states[parents[0]], states[parents[1]]))

    def _mutated(self, states: Ints) -> Ints:
        space = self._space
        reset = self._random(states.shape[:2]) < RESET
        states[reset] = np.broadcast_to(space.base, states.shape)[reset]
        thin = np.nonzero(self._random(states.shape[:2]) < THIN)
        kept = self._random((len(thin[0]), states.shape[2])) >= ZERO
        states[thin] *= kept
        some = _entries(states)
        fits = space.holds[None] > states
        for kind in range(space.demand.shape[1]):
            free = space.room[None, :, kind] - self._used(states, some, kind)
            fits &= space.demand[None, :, kind, None] <= free[:, None, :]
        there = fits & (states > 0)
        anywhere = 1 / np.maximum(fits.sum(axis=1), 1)
        within = 1 / np.maximum(there.sum(axis=1), 1)
        either = anywhere + within - anywhere * within
        chance = np.where(there, either[:, None, :], anywhere[:, None, :])[fits]
        grows = np.flatnonzero(self._random((len(chance),)) < chance)
        part = self._random((len(chance),))[grows]
        place = np.flatnonzero(fits)[grows]
        here = states.reshape(-1)
        here[place] += (part * (space.holds.reshape(-1)[place % space.holds.size] - here[place] + 1)).astype(np.int64)
        return states

    def repaired(self, states: Ints) -> Ints:
        """Return the matrices without entries that break a rule; earlier apps keep their entries.

        Most entries are 0 and most nodes can hold theirs, so only the others are examined."""
        space = self._space
        states = np.ascontiguousarray(np.minimum(states, space.holds))
        self._leave_apart(states)
        self._leave_most(states)
        some = _entries(states)
        for kind in range(space.demand.shape[1]):
            need = space.demand[:, kind]
            state, node = np.nonzero(self._used(states, some, kind) > space.room[None, :, kind])
            takes = np.flatnonzero(need > 0)
            columns = (state[:, None], takes[None, :], node[:, None])
            wanted = np.cumsum(states[columns] * need[takes], axis=1)
            given = np.diff(np.minimum(wanted, space.room[node, kind][:, None]), axis=1, prepend=0)
            states[columns] = given // need[takes]
        states[states.sum(axis=2) < space.n_min[None, :]] = 0
        return states

    def _used(self, states: Ints, some: tuple[Ints, Ints, Ints], kind: int) -> Ints:
        """Return how much of one kind the apps of each matrix take on each node.  `some` are places, at least all that are not
        0."""
        state, app, node = some
        used = np.zeros((len(states), states.shape[2]), np.int64)
        np.add.at(used, (state, node), states[some] * self._space.demand[app, kind])
        return used

    def _leave_most(self, states: Ints) -> None:
        """Remove containers beyond n_max from random nodes."""
        over = np.nonzero(states.sum(axis=2) > self._space.n_max[None, :])
        rows = states[over]
        drawn = self._random(rows.shape)
        row, node = np.nonzero(rows)
        order = np.lexsort((drawn[row, node], row))
        row, node = row[order], node[order]
        held = rows[row, node]
        total = np.cumsum(held)
        before = total - held
        first = np.searchsorted(row, row)
        left = np.maximum(self._space.n_max[over[1]][row] - (before - before[first]), 0)
        rows[row, node] = np.minimum(held, left)
        states[over] = rows

    def _leave_apart(self, states: Ints) -> None:
        """Leave at most one app on each node that lies on several nodes (interference avoidance): the first one."""
        distributed = np.count_nonzero(states, axis=2) > 1
        state, app, node = _entries(states)
        spread = distributed[state, app]
        state, app, node = state[spread], app[spread], node[spread]
        second = np.ones(len(state), np.bool_)  # The first entry of each node belongs to the first app.
        second[np.unique(state * states.shape[2] + node, return_index=True)[1]] = False
        second |= self._space.shared[node]
        states[state[second], app[second], node[second]] = 0


def _entries(states: Ints) -> tuple[Ints, Ints, Ints]:
    """Return matrix, app and node of all entries that are not 0, in this order."""
    place = np.flatnonzero(states)
    _, apps, nodes = states.shape
    return place // (apps * nodes), place // nodes % apps, place % nodes


def _distinct(states: Ints, values: Floats) -> Ints:
    """Return the first place of each distinct matrix.  Equal ones have equal values, so only these are compared."""
    first: dict[tuple[float, bytes], int] = {}
    often = {
        value
        for value, times in zip(*(part.tolist() for part in np.unique(values, return_counts=True)), strict=True)
        if times > 1
    }
    for place, value in enumerate(values.tolist()):
        first.setdefault((value, states[place].tobytes() if value in often else b""), place)
    return np.array(list(first.values()))
