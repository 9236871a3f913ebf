"""Exchanges that use fragmented free room: containers leave a node to others that use it better.

The count program sees no fragmentation, and placement takes nothing back, so over many rounds, nodes are left with one or two
devices that no app can use, because another app has the last cores next to them.  Here, a few containers of one app leave such
a node for another with room, and as many containers of another app as fit take their place, within θ1 and θ2, and as
long as the gain exceeds the cost of the changes.  It is a local search by exchanges, as for knapsacks with several
constraints: all exchanges on some dozens of nodes are rated at once in arrays, and the best on each node is carried
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import integer, scoring
from dorm.policies.classes import classes

if TYPE_CHECKING:
    from dorm.policies.dorm.placing import Draft
    from dorm.policies.integer import Flags, Floats, Ints
    from dorm.policies.scoring import Terms

MOST_NODES = 100
"""Nodes that are examined: those with the most unused room, at the prices of the count program."""

MOST_AWAY = 3
"""Containers of one app that leave a node together."""

REPRESENTED = 2
"""Apps of each demand that are tried as the incoming one."""

ROUNDS = 8
"""Rounds of rating all exchanges, up to the first that finds none."""

TRIES = 4
"""Exchanges per node and round that are tried: earlier ones on other nodes may have invalidated them."""

MOST_OPTIONS, MOST_COMERS = 4_000, 300
"""Limits of the options for leaving and incoming containers: clusters of many small and different containers have far more."""

MANY = 1e9
"""Means no limit: containers that need nothing."""


class _Options(NamedTuple):
    """Options of containers that leave, one row each: none, or some containers of an app from a node."""

    app: Ints
    """-1 for nothing."""
    node: Ints
    off: Ints
    lost: Ints
    """Number of them that find no room elsewhere."""


class Exchange:
    """The search on one draft, which it improves in place: no exchange makes a goal worse."""

    def __init__(self, draft: Draft, terms: Terms, may_move: Flags, left: int) -> None:
        """`left`: how many running apps may change beyond those that have changed already."""
        instance = draft.instance
        self.draft, self.terms, self.instance = draft, terms, instance
        self.may_move, self.left = may_move, left
        self.unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        self.free = integer.changed(instance, draft.rows) | ~instance.kept
        """Apps whose change has no further price."""
        self.loss = integer.loss(instance, draft.n, terms.shares)
        alike = classes(np.column_stack([instance.demand, instance.requirement]))
        self.group, self.first = alike.of, alike.first
        self.least = scoring.resolution(instance)
        self.floor_price = 3.0 * float(instance.worth[instance.possible].max(initial=0.0))
        """More than anything that a container is worth: floors come before utilization."""
        self.nodes: list[int] = []
        """Nodes still to be examined."""
        self.standing: dict[int, set[int]] = {}
        """Apps by node, of those that may move."""

    def run(self, room_price: Floats, loss_price: float) -> None:
        """`room_price` of the whole of each resource, by node; `loss_price` of a fairness loss of 1: both in units of U."""
        value = (self.draft.free / np.maximum(self.instance.totals, 1) * room_price).sum(axis=1)
        order = np.argsort(-np.round(value, 12), kind="stable")[:MOST_NODES].tolist()
        self.nodes = [j for j in order if value[j] > self.least]
        self.standing = {j: set() for j in self.nodes}
        for i in np.flatnonzero(self.may_move).tolist():
            self._note(i)
        for _ in range(ROUNDS):
            if not self.nodes or not self._round(loss_price):
                return

    def _note(self, app: int) -> None:
        for node in self.draft.rows[app].keys() & self.standing.keys():
            self.standing[node].add(app)

    def _round(self, loss_price: float) -> bool:
        """Rate all exchanges and carry out the best on each node."""
        comers = self._candidates(loss_price)
        options = self._options()
        if not len(comers) or not len(options.app):
            return False
        gain, loss = self._gains(options, comers, loss_price)
        best = gain.argmax(axis=1)
        value = gain[np.arange(len(best)), best]
        promising = np.flatnonzero(value > self.least)
        order = promising[np.argsort(-np.round(value[promising], 12), kind="stable")]
        tries = dict.fromkeys(options.node[order].tolist(), TRIES)
        full: set[int] = set()
        """Groups of apps whose room elsewhere was just taken by earlier exchanges."""
        done = False
        for at, comer in zip(order.tolist(), best[order].tolist(), strict=True):
            app, node, off = int(options.app[at]), int(options.node[at]), int(options.off[at])
            more = loss[at, comer]
            if tries[node] <= 0 or (more > 0 and self.loss + more > self.terms.loss_budget):
                continue
            moves = options.lost[at] < off
            if moves and int(self.group[app]) in full:
                continue
            if self._exchange(app, node, off, int(comers[comer])):
                tries[node], done = 0, True
            elif moves:
                full.add(int(self.group[app]))
            tries[node] -= 1
        self.nodes = [node for node in self.nodes if node in tries]
        return done

    def _prices(self) -> Floats:
        return np.where(self.free, 0.0, self.terms.prices)

    def _more_loss(self, app: Ints, count: Floats | Ints) -> Floats:
        """Return by how much F grows when apps get `count` more containers."""
        unit, share, n = self.unit[app], self.terms.shares[app], self.draft.n[app]
        return np.asarray(np.abs(unit * (n + count) - share) - np.abs(unit * n - share))

    def _more_lack(self, app: Ints, count: Floats | Ints) -> Floats:
        """Return by how much the shortfall below floors grows when apps get `count` more containers."""
        floors, n = self.terms.floors[app], self.draft.n[app]
        return np.asarray(np.maximum(floors - n - count, 0) - np.maximum(floors - n, 0))

    def _candidates(self, loss_price: float) -> Ints:
        """Return a few apps of each demand: those that gain most by one more container."""
        draft, instance = self.draft, self.instance
        may = self.may_move & (draft.n >= instance.n_min) & (draft.n < instance.n_max)
        among = np.flatnonzero(may if self.left > 0 else may & self.free)
        ones = np.ones(len(among))
        gain = -loss_price * self._more_loss(among, ones) - self.floor_price * self._more_lack(among, ones)
        gain -= self._prices()[among]
        order = among[np.lexsort((among, -np.round(gain, 12), self.group[among]))]
        group = self.group[order]
        rank = np.arange(len(order)) - np.searchsorted(group, group)
        first = np.lexsort((order, -np.round(self.instance.worth[order], 12), rank))
        return order[first[: min(int((rank < REPRESENTED).sum()), MOST_COMERS)]]

    def _options(self) -> _Options:
        draft, instance = self.draft, self.instance
        options = [(-1, node, 0) for node in self.nodes]
        for node in self.nodes:
            for app in sorted(self.standing[node]):
                if self.free[app] or self.left > 0:
                    most = min(draft.rows[app][node], MOST_AWAY)
                    options += [(app, node, off) for off in range(1, most + 1)]
        app, node, off = np.array(options[:MOST_OPTIONS], np.int64).T
        goes = app >= 0
        here = _fits_each(draft.free[node], instance.demand[app])
        room = np.where(goes, self._room(np.unique(self.group[app[goes]]))[self.group[app]] - here, 0.0)
        lost = np.where(goes, off - np.minimum(off, room), 0).astype(np.int64)
        keep = ~goes | (lost == 0) | (draft.n[app] - lost >= np.maximum(instance.n_min, self.terms.floors)[app])
        return _Options(app[keep], node[keep], off[keep], lost[keep])

    def _room(self, groups: Ints) -> Floats:
        """Return how many containers of these groups of apps the free room holds, by group."""
        draft = self.draft
        room = np.zeros(len(self.first))
        vectors, size = draft.vectors[: draft.count], draft.size[: draft.count]
        app = self.first[groups]
        fits = _fits(vectors, self.instance.demand[app])
        usable = draft.may_use[self.instance.requirement[app]][:, draft.kinds_of_bucket[: draft.count]]
        room[groups] = size @ (fits * usable.T)
        return room

    def _gains(self, options: _Options, comers: Ints, loss_price: float) -> tuple[Floats, Floats]:
        """Option × comer: return the value of the exchange, floors first, -inf if not allowed; and by how much F grows."""
        draft, instance, prices = self.draft, self.instance, self._prices()
        app, node, off, lost = options
        goes = app >= 0
        room = draft.free[node] + (off * goes)[:, None] * instance.demand[app]
        many = np.minimum(_fits(room, instance.demand[comers]), (instance.n_max - draft.n)[comers])
        usable = draft.may_use[instance.requirement[comers]][:, draft.kind_of[node]].T
        many[~usable | (app[:, None] == comers)] = 0
        loss = np.where(goes, self._more_loss(app, -lost), 0.0)[:, None] + self._more_loss(comers, many)
        gain = many * instance.worth[comers] - np.where(many > 0, prices[comers], 0.0)
        gain -= np.where(goes, lost * instance.worth[app] + prices[app], 0.0)[:, None]
        lack = self._more_lack(comers, many)
        useless = (many <= 0) | ((gain <= self.least) & (lack == 0))
        gain -= loss_price * loss + self.floor_price * lack
        gain[useless | ((loss > 0) & (loss + self.loss > self.terms.loss_budget))] = -np.inf
        return gain, loss

    def _exchange(self, goer: int, node: int, off: int, comer: int) -> bool:
        """Carry out an exchange if it is still worth it: `off` containers of the goer leave, unless the goer is -1."""
        draft = self.draft
        apps = np.array([comer] if goer < 0 else [comer, goer], np.int64)
        fresh = int((~self.free[apps]).sum())
        if fresh > self.left or (goer >= 0 and draft.rows[goer].get(node, 0) < off):
            return False
        n, change = draft.n[apps], self._expected(goer, node, off, comer)
        if change[0] <= 0 or not self._better(apps, n, n + change):
            return False
        before = {int(i): dict(draft.rows[i]) for i in apps}
        if goer >= 0:
            draft.add(goer, node, -off)
        draft.add(comer, node, int(change[0]))
        if goer >= 0:
            draft.put(goer, off)
        if not self._better(apps, n, draft.n[apps]):
            for i, row in before.items():
                draft.restore(i, row)
            return False
        self.loss += self._loss(apps, draft.n[apps]) - self._loss(apps, n)
        self.left -= fresh
        self.free[apps] = True
        if goer >= 0 and node not in draft.rows[goer]:
            self.standing[node].discard(goer)
        for i in before:
            self._note(i)
        return True

    def _expected(self, goer: int, node: int, off: int, comer: int) -> Ints:
        """Return how many more containers the comer and, unless that is -1, the goer would have."""
        draft, instance = self.draft, self.instance
        room = draft.free[[node]] + (off * instance.demand[goer] if goer >= 0 else 0)
        many = min(_fits(room, instance.demand[[comer]])[0, 0], instance.n_max[comer] - draft.n[comer])
        if goer < 0:
            return np.array([many], np.int64)
        here = _fits(draft.free[[node]], instance.demand[[goer]])[0, 0]
        elsewhere = max(0.0, self._room(self.group[[goer]])[self.group[goer]] - here)
        return np.array([many, min(off, elsewhere) - off], np.int64)

    def _loss(self, apps: Ints, n: Ints) -> float:
        return float(np.abs(self.unit[apps] * n - self.terms.shares[apps]).sum())

    def _better(self, apps: Ints, n: Ints, after: Ints) -> bool:
        """Return whether it is an improvement that apps get `after` containers instead of `n`, by the goals in order."""
        more = self._loss(apps, after) - self._loss(apps, n)
        if (after < self.instance.n_min[apps]).any() or (more > 0 and self.loss + more > self.terms.loss_budget):
            return False
        floors = self.terms.floors[apps]
        lack = int((np.maximum(floors - after, 0) - np.maximum(floors - n, 0)).sum())
        gain = float((self.instance.worth[apps] * (after - n)).sum() - self._prices()[apps].sum())
        return lack < 0 or (lack == 0 and gain > self.least)


def _fits(room: Ints, demand: Ints) -> Floats:
    """Room × demand: return how many containers fit.  Quotients of quantities up to `integer.LARGEST` are exact enough."""
    fits = np.full((len(room), len(demand)), MANY)
    for k in range(demand.shape[1]):
        needs = np.flatnonzero(demand[:, k] > 0)
        fits[:, needs] = np.minimum(fits[:, needs], np.floor(room[:, k, None] / demand[needs, k]))
    return np.asarray(np.maximum(fits, 0.0))


def _fits_each(room: Ints, demand: Ints) -> Floats:
    """The same for one demand for each room."""
    fits = np.full(len(room), MANY)
    for k in range(demand.shape[1]):
        needs = np.flatnonzero(demand[:, k] > 0)
        fits[needs] = np.minimum(fits[needs], np.floor(room[needs, k] / demand[needs, k]))
    return np.asarray(np.maximum(fits, 0.0))
