"""The policy `pollux`: the fairest mean of all apps' speed-ups, measured by goodput, found by a genetic search.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, §4.2.  The fitness of an
allocation is the weighted power mean of the apps' speed-ups (p = -1, the harmonic mean, prefers fairness):

    FITNESS = (Σ w s^p / Σ w)^(1/p)        s = goodput of the allocation / goodput of a fair part of the cluster

each goodput with its best batch size (`throughput`).  A fair part is 1/J of the cluster for J apps, rounded up to whole
containers, on as few nodes as hold it.  The speed-up of an app that would have to be restarted is multiplied by

    (T - R δ) / (T + δ)        T its age, R how often it was restarted, δ the seconds that a restart costs

so a young app, or an often restarted one, is left alone.  An app without containers is started, not restarted, and pays
nothing; the public code multiplies it as well.  At most one app on each node lies on several nodes, since such apps slow each
other down (§4.2, interference avoidance).  If a node is given too much, the apps that were served least come first, as in that
code.

Fitness, fair part, restart factor, mutation and repair were compared with the public code of the paper's simulator
(`simulator/pollux.py` of petuum/adaptdl).  It differs from here in three more places: it multiplies each speed-up by the
dominant share of one container times the number of nodes, which is a constant where all apps have the same demand, and which
the paper does not have; it takes the fair part to lie on ⌈nodes · dominant share⌉ nodes; and no app gets more than 16 nodes.

The paper leaves these choices to the app: the batch size of each app, by the same model (§4.1 tunes it in the app).
An app that has been tried with n containers at most gets 2n at most (§4.1, prior-driven exploration).  Pollux does not know
types of nodes, nor does this policy: each node is as fast as `AppDemand.speed` says.

A search costs population × generations × apps × nodes; the first two are lowered if that exceeds `EFFORT`, so that a large
problem is answered in seconds, but less well.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from dorm.policies import answer, integer, laboratory
from dorm.policies.baselines.packing import Packing
from dorm.policies.speed import throughput
from dorm.policies.speed.tuning import MOST_COUNT
from dorm_lab.policies.goodput import explaining
from dorm_lab.policies.goodput.bounds import most_units, per_nodes, relative_weights, restart_factor
from dorm_lab.policies.goodput.genetic import Search, Space

if TYPE_CHECKING:
    from dorm.policies.integer import Flags, Floats, Instance, Ints, Rows
    from dorm.policies.problem import Allocation, AppDemand, Problem
    from dorm.policies.speed.throughput import Goodputs

EFFORT = 5e6
"""Population × generations × apps × nodes of one search, at most."""
LEAST = 1e-3
"""Added to each speed-up, so that the mean is defined if an app gets nothing (as in the public code)."""
EACH = 64
"""Up to this count each goodput is computed; beyond, they are interpolated."""


class PolluxPolicy:
    """Parameters:

    `p` (-1)                               exponent of the mean of speed-ups
    `adjust_s` (30)                        seconds that a restart costs if none was measured `population` (100), `generations`
                                           (100)  of the search
    """

    name = "pollux"
    version = 2

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        instance = integer.read(problem)
        tables = _tables(instance)
        rows = _Round(instance, tables, settings).rows(_seed(instance))
        allocation = answer.by_rule(instance, rows, explaining.explain(instance, rows))
        return msgspec.structs.replace(allocation, batches=_batches(instance, rows, tables))


def _tables(instance: Instance) -> list[Goodputs]:
    """Return the goodput of each app by units, from none to the most that it may have."""
    seen: dict[Any, Goodputs] = {}
    tables = []
    for i, (app, here) in enumerate(zip(instance.apps, per_nodes(instance), strict=True)):
        most, gang = max(most_units(instance, i), 1), int(instance.gang[i])
        key = (app.speed or app.speed_on.get(""), app.batch, most, gang, here)
        if key not in seen:
            seen[key] = _table(throughput.of_app(app, ""), app, min(most, MOST_COUNT), gang, here)
        tables.append(seen[key])
    return tables


def _table(points: throughput.Points, app: AppDemand, most: int, gang: int, here: int) -> Goodputs:
    each = np.arange(1, min(most, EACH) + 1)
    further = np.rint(np.geomspace(EACH, most, 32)).astype(np.int64) if most > EACH else each[:0]
    units = np.unique(np.append(each, further))
    computed = throughput.goodputs(points, app.batch, units * gang, here * gang)
    whole = np.arange(1, most + 1)
    values = np.stack([np.interp(whole, units, row) for row in computed.values])
    nearest = np.searchsorted(units, whole)
    return throughput.Goodputs(
        np.concatenate([np.zeros((2, 1)), values], axis=1),
        np.concatenate([np.zeros((2, 1), np.int64), computed.batches[:, nearest]], axis=1),
    )


def _batches(instance: Instance, rows: Rows, tables: list[Goodputs]) -> dict[str, int]:
    """Return the best batch size of each app that has a range of them and gets containers, if its speed is known."""
    batches = {}
    for i, app in enumerate(instance.apps):
        n = min(sum(rows[i].values()), tables[i].batches.shape[1] - 1)
        size = int(tables[i].batches[int(len(rows[i]) > 1), n])
        if app.batch is not None and n and size:
            batches[app.id] = size
    return batches


def _seed(instance: Instance) -> int:
    """Return a number that follows from the problem alone: from its bounds, ages and places, in sorted order."""
    known = (
        instance.nodes,
        instance.capacity.tobytes(),
        instance.demand.tobytes(),
        tuple((app.id, app.n_min, app.n_max, round(app.age_s, 3), round(app.served_s, 3)) for app in instance.apps),
        instance.rows,
    )
    return int.from_bytes(hashlib.blake2b(repr(known).encode(), digest_size=8).digest())


class _Round(NamedTuple):
    """The search for one problem's answer."""

    instance: Instance
    tables: list[Goodputs]
    settings: dict[str, Any]

    def rows(self, seed: int) -> list[dict[int, int]]:
        instance = self.instance
        order = self._order()
        rows = [dict(row) if keeps else {} for row, keeps in zip(instance.rows, instance.pinned.tolist(), strict=True)]
        if not order or not instance.nodes:
            return rows
        apps = np.array(order, np.int64)
        space = self._space(apps)
        search = Search(space, _Fitness(self, apps, space.base), seed)
        size, generations = self._effort(space.base.size)
        best = search.best(self._starts(apps, space), size, generations)
        for app, row in zip(order, integer.rows_of(best), strict=True):
            rows[app] = row
        return rows

    def _order(self) -> list[int]:
        """Return the apps that may move: those that were served least first, then by arrival."""
        instance = self.instance
        movable = [app for app in instance.arrival if instance.free_to_move[app]]
        return sorted(movable, key=lambda app: instance.apps[app].served_s)

    def _space(self, apps: Ints) -> Space:
        instance = self.instance
        holds = np.repeat(np.minimum(instance.n_max[apps], 2**31)[:, None], len(instance.nodes), axis=1)
        for kind in range(instance.demand.shape[1]):
            needs = instance.demand[apps, kind] > 0
            here = instance.room[None, :, kind] // instance.demand[apps[needs], kind][:, None]
            holds[needs] = np.minimum(holds[needs], here)
        most = np.array([most_units(instance, app) for app in apps.tolist()], np.int64)
        holds = np.where(instance.eligible[instance.requirement[apps]], np.minimum(holds, most[:, None]), 0)
        shared = np.zeros(len(instance.nodes), np.bool_)
        for app in np.flatnonzero(instance.pinned).tolist():
            if len(instance.rows[app]) > 1:
                shared[list(instance.rows[app])] = True
        return Space(
            base=integer.dense(instance, [instance.rows[app] for app in apps.tolist()]),
            holds=holds,
            demand=instance.demand[apps],
            room=instance.room,
            n_min=instance.n_min[apps],
            n_max=most,
            shared=shared,
        )

    def _effort(self, cells: int) -> tuple[int, int]:
        """Return population and generations: those of the parameters, or less of both for a large problem."""
        size, generations = int(self.settings["population"]), int(self.settings["generations"])
        part = min(1.0, (EFFORT / max(size * generations * cells, 1)) ** 0.5)
        return max(int(size * part), 4), int(generations * part)

    def _starts(self, apps: Ints, space: Space) -> Ints:
        """Return the present allocation; the same, with a fair part for each app without containers; and a fair part for
        all."""
        instance = self.instance
        moving = np.isin(np.arange(len(instance.apps)), apps)
        around = Packing(instance, instance.pinned | (moving & instance.kept))
        fair = Packing(instance, instance.pinned)
        starting = {app: None for app in apps.tolist() if not around.rows[app]}
        for app in starting:
            around.put_all(app, int(instance.n_min[app]))
        for app in apps.tolist():
            wanted = max(int(instance.n_min[app]), min(self._fair(app), most_units(instance, app)))
            fair.put_all(app, wanted)
            if app in starting and (least := around.take_back(app)) and not around.put_all(app, wanted):
                around.put_back(app, least)
        starts = [[packing.rows[app] for app in apps.tolist()] for packing in (around, fair)]
        return np.stack([space.base, *(integer.dense(instance, rows) for rows in starts)])

    def _fair(self, app: int) -> int:
        """Return 1/J of the cluster in units of the app, rounded up."""
        unit = float(self.instance.unit[app])
        if not np.isfinite(unit) or unit <= 0:
            return max(int(self.instance.n_min[app]), 1)
        return max(int(np.ceil(1 / (unit * len(self.instance.apps)) - 1e-9)), 1)

    def fair_goodput(self, app: int, here: int) -> float:
        """`here` is how many units a node holds."""
        values = self.tables[app].values
        n = min(self._fair(app), values.shape[1] - 1)
        return float(values[int(n > here), n])


class _Fitness:
    """The fitness of a population of allocations."""

    def __init__(self, round_: _Round, apps: Ints, base: Ints) -> None:
        instance, settings = round_.instance, round_.settings
        here = per_nodes(instance)
        tables = [round_.tables[app].values / round_.fair_goodput(app, here[app]) for app in apps.tolist()]
        self._most = np.array([table.shape[1] - 1 for table in tables], np.int64)
        self._speed_ups = np.zeros((len(apps), 2, int(self._most.max()) + 1))
        for row, table in enumerate(tables):
            self._speed_ups[row, :, : table.shape[1]] = table
        demands = [instance.apps[app] for app in apps.tolist()]
        weights = relative_weights(demands)
        self._weights = weights / weights.sum()
        usual = float(settings["adjust_s"])
        self._factors = np.array([restart_factor(app, usual) for app in demands], np.float64)
        self._factors[~instance.kept[apps]] = 1.0
        self._base, self._p = base, float(settings["p"])

    def __call__(self, states: Ints) -> Floats:
        n = np.minimum(states.sum(axis=2), self._most)
        across = (np.count_nonzero(states, axis=2) > 1).astype(np.int64)
        speed_ups = self._speed_ups[np.arange(states.shape[1])[None, :], across, n]
        changed: Flags = (states != self._base).any(axis=2)
        speed_ups = speed_ups * np.where(changed, self._factors, 1.0) + LEAST
        if self._p == 0:
            mean = np.exp((self._weights * np.log(speed_ups)).sum(axis=1))
        else:
            mean = (self._weights * speed_ups**self._p).sum(axis=1) ** (1 / self._p)
        return np.asarray(np.round(mean, 12))
