"""The genetic search of `pollux` over allocation matrices: which app has how many units on which node (OSDI 2021, §4.2.1).

A population of matrices goes through generations of

    crossover   two parents, each the better of two drawn at random, exchange the rows of all apps behind a random one
    mutation    a row returns to what the app has now, or loses some elements; elements with free room grow at random
    repair      what an app may not have or a node does not hold is taken away
    selection   the fittest of parents and children survive

The paper fixes neither rates nor repair rules in numbers; these are those of its public code (`petuum/adaptdl`,
`simulator/pollux.py`), which selects by NSGA-II with a second objective that only cluster resizing uses.  The code also keeps
its population from round to round.  Here a search begins with the allocation in force and two simple ones, and stops early
once nothing better was found for a while.

Randomness comes from a seed that follows from the problem, and from uniform numbers alone, whose stream NumPy keeps stable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.policies.integer import Flags, Floats, Ints

RESET, THIN, ZERO = 0.1, 0.1, 0.1
"""The probability that a row returns to what the app has, that it loses elements, and that one of these is lost."""
PATIENCE = 20
"""Generations without anything better after which a search stops."""


class Space(NamedTuple):
    """What may be allocated: apps in order of precedence as rows, nodes as columns."""

    base: Ints
    """What the apps have now."""
    holds: Ints
    """How many units of an app a node takes while it is empty; 0 where the app may not run."""
    demand: Ints
    room: Ints
    """By node and kind of resource."""
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
        """Return the fittest matrix that is found, from these first ones, in a population of this size."""
        states = self.repaired(starts)
        values = self._fitness(states)
        top, since = float(values.max()), 0
        for _ in range(generations):
            children = self.repaired(self._mutated(self._crossed(states, values, size)))
            values = np.concatenate([values, self._fitness(children)])
            states = np.concatenate([states, children])
            first = np.array(list({state.tobytes(): place for place, state in reversed([*enumerate(states)])}.values()))
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
        fits = space.holds[None] > states
        for kind in range(space.demand.shape[1]):
            free = space.room[None, :, kind] - np.tensordot(states, space.demand[:, kind], axes=(1, 0))
            fits &= space.demand[None, :, kind, None] <= free[:, None, :]
        there = fits & (states > 0)
        anywhere = 1 / np.maximum(fits.sum(axis=1), 1)
        beside = 1 / np.maximum(there.sum(axis=1), 1)
        places = np.nonzero(fits)
        one, two = anywhere[places[0], places[2]], beside[places[0], places[2]] * there[places]
        grows = self._random((len(places[0]),)) < one + two - one * two
        states[places] += (
            grows * self._random((len(places[0]),)) * (space.holds[places[1:]] - states[places] + 1)
        ).astype(np.int64)
        return states

    def repaired(self, states: Ints) -> Ints:
        """Return the matrices without what breaks a rule; apps that come first keep what they have."""
        space = self._space
        states = np.minimum(states, space.holds)
        self._leave_apart(states)
        self._leave_most(states)
        for kind in range(space.demand.shape[1]):
            need = space.demand[:, kind]
            used = np.minimum(np.cumsum(states * need[None, :, None], axis=1), space.room[None, None, :, kind])
            given = np.diff(used, axis=1, prepend=0)
            takes = need > 0
            states[:, takes] = given[:, takes] // need[takes][None, :, None]
        states[states.sum(axis=2) < space.n_min[None, :]] = 0
        return states

    def _leave_most(self, states: Ints) -> None:
        """Take away what exceeds n_max, from random nodes."""
        over = np.nonzero(states.sum(axis=2) > self._space.n_max[None, :])
        rows = states[over]
        order = np.argsort(self._random(rows.shape), axis=1, kind="stable")
        mixed = np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1)
        mixed = np.diff(np.minimum(mixed, self._space.n_max[over[1]][:, None]), axis=1, prepend=0)
        np.put_along_axis(rows, order, mixed, axis=1)
        states[over] = rows

    def _leave_apart(self, states: Ints) -> None:
        """Leave at most one app on each node that lies on several nodes (interference avoidance): the first one."""
        distributed = np.count_nonzero(states, axis=2) > 1
        there = (states > 0) & distributed[:, :, None]
        second = np.cumsum(there, axis=1, dtype=np.int32) + self._space.shared[None, None, :] > 1
        states[there & second] = 0
