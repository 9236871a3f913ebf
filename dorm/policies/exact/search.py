"""A search through the goals of `dorm.policies.goals`: each solved as a mixed-integer program with those before it fixed.

A stage is skipped if an answer at hand already meets its goal perfectly, so a round usually solves two programs.  Every answer
is rounded, checked and scored in integers, against a greedy one; the best by that score is returned, whatever the solver did.
`dorm` calls `improve`, `outlook` and `serve` on parts of large problems.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dorm.policies import goals, greedy, integer, scoring
from dorm.policies.exact.model import NO_SUB_PROGRAMS, Model, Row, change_weight, changes, moves, wishes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Flags, Floats, Instance, Ints
    from dorm.policies.scoring import Score, Terms

LARGEST_TIES = 300
"""Apps times nodes; beyond, the last goal chooses only among ways to change the apps that change anyway: proving that no
others would do takes longer than all the rest."""

SEARCH, MOST_NODES = 300_000, 500
"""Bounds each search: its nodes times apps times nodes of the cluster, and its nodes."""

EXCESS_PRICE, FLOOR_PRICE = 10.0, 3.0
"""Prices of excess per kind of resources, and of a container below the floor in worths of the largest, if goals are one
relaxed program."""

CHUNK = 16
"""Number of apps that one program orders by arrival: weights up to 2^15 stay far above the solver's tolerance."""

SLACK = 1e-6
"""Utilization that later goals may give up, in units of the largest container's worth."""


class Improved(NamedTuple):
    """An answer that is at least as good as its start."""

    x: Ints
    """Counts, apps by nodes."""
    status: str
    """Same as `Allocation.status`."""
    bound: float
    """Upper bound on U less the price of changes, for answers that meet the earlier goals as well; of the whole instance,
    pinned apps included."""
    cells: int
    """Pairs of app and node that could be chosen."""


def improve(
    instance: Instance,
    start: Ints,
    terms: Terms,
    *,
    budget: int,
    reserved: tuple[int, Flags] | None = None,
    node_limit: int | None = None,
    gain: float | None = None,
    nodes: Flags | None = None,
) -> Improved:
    """Improve a valid answer to the best one under the same terms: everything pinned stays, shares, floors, prices and the
    target are those of `terms`, and which of the other apps run is chosen again.

    `budget` is how many of the others that may stay may change; `node_limit` bounds each of up to a dozen searches (by default
    by the size of the instance).  Work grows with apps times nodes, which the caller keeps small.  With a `gain` (in
    units of U), answers that gain less by goal 5 and ties among equals are not searched for, which is much faster.  If
    `nodes` are given, everything on the others stays as in `start`."""
    search = Search(instance, terms, start, budget=budget, reserved=reserved, node_limit=node_limit, gain=gain)
    cells = 0
    if search.has_choices():
        cells = search.model.cells()
        if nodes is not None:
            search.allow_changes_on(nodes)
        search.choose_who_runs()
        search.clear_the_way()
        search.reach_goals()
    return Improved(search.best, search.status, search.bound, cells)


class Outlook(NamedTuple):
    """The relaxed program's view of a valid answer."""

    order: list[int]
    """Apps that may stay, first those that change there, then those closest to it."""
    bound: float
    """Upper bound on U, less the price of changes, of excess and of shares missing below floors, for the same served
    apps."""


def outlook(
    instance: Instance, start: Ints, terms: Terms, *, budget: int, reserved: tuple[int, Flags] | None
) -> Outlook | None:
    """Return None if the solver failed.  Work grows with apps times nodes, which the caller keeps small."""
    search = Search(instance, terms, start, budget=budget, reserved=reserved)
    return search.outlook() if search.has_choices() else None


def serve(
    instance: Instance,
    start: Ints,
    terms: Terms,
    *,
    budget: int,
    reserved: tuple[int, Flags] | None,
    node_limit: int | None = None,
) -> Ints:
    """Improve a valid answer by goal 1 alone, if the search succeeds."""
    search = Search(instance, terms, start, budget=budget, reserved=reserved, node_limit=node_limit)
    if search.has_choices():
        search.choose_who_runs()
    return search.best


class Search:
    """A search through the goals under given terms.  `best` is always the best valid answer so far."""

    def __init__(
        self,
        instance: Instance,
        terms: Terms,
        start: Ints,
        *,
        budget: int,
        reserved: tuple[int, Flags] | None,
        node_limit: int | None = None,
        gain: float | None = None,
    ) -> None:
        self.gain = gain
        self.instance = instance
        self.terms = terms
        self.budget = budget
        self.reserved = reserved
        self.best = start
        self.status = "optimal"
        self.bound = loosest_bound(instance)
        size = max(1, len(instance.apps) * len(instance.nodes))
        self.node_limit = max(1, min(MOST_NODES, SEARCH // size)) if node_limit is None else node_limit

    @cached_property
    def model(self) -> Model:
        effort = None if self.gain is None else NO_SUB_PROGRAMS
        return Model(self.instance, self.budget, self.node_limit, effort)

    def has_choices(self) -> bool:
        """Return False if everything is pinned, or there are no nodes: the start is the only answer, and its worth the
        bound."""
        if self.instance.free_to_move.any() and self.instance.nodes:
            return True
        self.bound = self.score().net
        return False

    def fill(self) -> None:
        """Offer the best answer after greedy growth."""
        self._offer(greedy.fill(self.instance, self.best, self.terms, self._closed()))

    def placed(self) -> Flags:
        """Return apps that have the containers that they need to run."""
        return goals.placed(self.instance, self.best.sum(axis=1))

    def reach_goals(self) -> None:
        """Reach goals 3 to 6, once the running apps and the obstacles are fixed."""
        self._be_fair()
        self._reach_floors()
        if self.gain is not None:
            self._gain(self.gain)
        else:
            self._use()
            self._disturb_least()

    def allow_changes_on(self, nodes: Flags) -> None:
        """Allow changes only on these nodes."""
        for (app, node), column in self.model.x.items():
            if not nodes[node]:
                self.model.fix(column, float(self.best[app, node]))

    # Goal 1

    def choose_who_runs(self, may: Flags | None = None) -> None:
        """Fix every `run` column of the model.  Only apps in `may` start (all, if it is None)."""
        model = self.model
        for app, column in model.run.items():
            if may is not None and not may[app]:
                model.fix(column, 0.0)
        queue = [app for app in integer.queue(self.instance) if app in model.run]
        hit = [app for app in queue if self.instance.running[app]]
        aged = [app for app in queue if self.terms.aged[app]]
        self._keep_reserved()
        if aged and self._short(queue):
            self._serve(hit)
            self._order(aged)
        if self._short(queue):
            self._serve(hit)
            self._serve([app for app in queue if not self.instance.running[app]])
            self._order(queue)
        short = self._short(queue)
        for app in queue:
            model.fix(model.run[app], float(app not in short))

    def _serve(self, apps: Sequence[int]) -> None:
        """Serve as many containers of n_min as possible, over all of these apps."""
        if not self._short(apps):
            return
        model = self.model
        wish: Row = [(model.run[app], -float(self.instance.n_min[app] * self.instance.gang[app])) for app in apps]
        self._solve(wish)
        model.add_row(wish, upper=self._gained(wish, apps) + 0.5)

    def _keep_reserved(self) -> None:
        """Give apps that were not hit no more on nodes reserved for an app, if that one can't start."""
        if self.reserved is None:
            return
        model, instance, (first, closed) = self.model, self.instance, self.reserved
        for (app, node), column in model.x.items():
            more = float(instance.holds[app, node] - instance.current[app, node])
            if closed[node] and app != first and not instance.forced[app] and more > 0:
                row: Row = [(column, 1.0)]
                if first in model.run:
                    row.append((model.run[first], -more))
                model.add_row(row, upper=float(instance.current[app, node]))

    def _closed(self) -> Flags | None:
        """Return the nodes that get nothing more, as they are reserved for an app that can't start yet."""
        if self.reserved is None or self.best[self.reserved[0]].any():
            return None
        return self.reserved[1]

    def _order(self, queue: Sequence[int]) -> None:
        """Order equals by arrival: weights of powers of two, a chunk of the queue at a time."""
        model = self.model
        for start in range(0, len(queue), CHUNK):
            chunk = queue[start : start + CHUNK]
            wish = [(model.run[app], -float(2 ** (CHUNK - 1 - place))) for place, app in enumerate(chunk)]
            self._solve(wish)
            short = self._short(chunk)
            for app in chunk:
                model.fix(model.run[app], float(app not in short))

    def _short(self, apps: Sequence[int]) -> list[int]:
        n = self.best.sum(axis=1)
        return [app for app in apps if n[app] < self.instance.n_min[app]]

    def _gained(self, wish: Row, queue: Sequence[int]) -> float:
        short = self._short(queue)
        return math.fsum(value for (_, value), app in zip(wish, queue, strict=True) if app not in short)

    # Goal 2

    def clear_the_way(self) -> None:
        if self.terms.target is None:
            return
        model, target = self.model, integer.dense(self.instance, self.terms.target)
        over = [
            (model.add_positive_part(column, float(target[app, node])), float(self.instance.gang[app]))
            for (app, node), column in model.x.items()
            if target[app, node] < self.instance.holds[app, node]
        ]
        if self.score().in_the_way > 0:
            self._solve(over)
        model.add_row(over, upper=self.score().in_the_way + 0.5)

    def change_least(self) -> None:
        """With the same apps running, minimize changes and moves."""
        served = self.placed()
        solved = self.model.solve(changes(self.model, moves(self.model, both_ways=True)))
        if solved.x is None or scoring.faults(self.instance, integer.rows_of(solved.x), self.budget, self.reserved):
            return
        if (goals.placed(self.instance, solved.x.sum(axis=1)) == served).all():
            self.best = solved.x

    # Goals 3 and 4

    def _be_fair(self) -> None:
        model = self.model
        excess = model.add_fairness(self.terms)
        if self.score().excess > 0:
            self._solve([(excess, 1.0 / _scale(self.instance.unit))])
        n, tolerance = self.best.sum(axis=1), integer.LOSS_TOLERANCE
        over = integer.loss(self.instance, n, self.terms.shares) - self.terms.loss_budget
        model.cap(excess, over + tolerance / 2 if over > tolerance else max(over, 0.999 * tolerance))

    def _reach_floors(self) -> None:
        model = self.model
        floors, placed = self.terms.floors, self.placed()
        wanting = [app for app in model.apps if placed[app] and floors[app] > self.instance.n_min[app]]
        if self.score().below_floor == 0:
            for app in wanting:
                model.keep_above(app, float(floors[app]))
            return
        missing: Row = []
        for app in wanting:
            missing.append((model.add_lack(app, float(floors[app])), float(self.instance.gang[app])))
        self._solve(missing)
        model.add_row(missing, upper=self.score().below_floor + 0.5)

    # Goals 5 and 6

    def _use(self) -> None:
        model = self.model
        instance = self.instance
        scale = _scale(instance.worth)
        wish = self._worth(scale)
        fixed = integer.utilization(instance, np.where(instance.pinned, instance.count, 0))
        bound = self._solve(wish)
        self.bound = min(self.bound, max(fixed - bound * scale, self.score().net))
        model.add_row(wish, upper=(fixed - self.score().net) / scale + SLACK)

    def _gain(self, least: float) -> None:
        """Solve goal 5 again, for answers that are better by at least `least`."""
        instance = self.instance
        scale = _scale(instance.worth)
        fixed = integer.utilization(instance, np.where(instance.pinned, instance.count, 0))
        solved = self.model.solve_below(self._worth(scale), (fixed - self.score().net - least) / scale)
        if solved.x is not None:
            self._offer(solved.x)
        if solved.status in ("node_limit", "guard"):
            self.status = solved.status
        elif solved.x is None and solved.status == "failed":
            self.status = "fallback"

    def outlook(self) -> Outlook | None:
        """Solve goals 3 to 5 at once, for the apps that run now."""
        model, instance = self.model, self.instance
        placed, floors = self.placed(), self.terms.floors
        for app, column in model.run.items():
            model.fix(column, float(placed[app]))
        self._keep_reserved()
        scale = _scale(instance.worth)
        wish = self._worth(scale)
        wish.append((model.add_fairness(self.terms), EXCESS_PRICE * max(len(instance.kinds), 1) / scale))
        for app in model.apps:
            if placed[app] and floors[app] > instance.n_min[app]:
                wish.append((model.add_lack(app, float(floors[app])), FLOOR_PRICE))
        relaxed = model.relax(wish)
        if relaxed is None:
            return None
        changes = {
            i: (-round(float(relaxed.values[r]), 6), round(float(relaxed.reduced[r]), 9)) for i, r in model.r.items()
        }
        fixed = integer.utilization(instance, np.where(instance.pinned, instance.count, 0))
        return Outlook(sorted(changes, key=lambda i: (*changes[i], i)), fixed - relaxed.bound * scale)

    def _worth(self, scale: float) -> Row:
        """Return the objective of goal 5."""
        wish: Row = [(column, -float(self.instance.worth[app]) / scale) for app, column in self.model.n.items()]
        return wish + [(column, float(self.terms.prices[app]) / scale) for app, column in self.model.r.items()]

    def _disturb_least(self) -> None:
        score, instance, model = self.score(), self.instance, self.model
        small = len(instance.apps) * len(instance.nodes) <= LARGEST_TIES
        least = changes(model, moves(model, both_ways=False))
        if score.changed or score.moved:
            if not small:
                touched = integer.changed(instance, integer.rows_of(self.best))
                for app, column in model.r.items():
                    model.cap(column, float(touched[app]))
            self._solve(least)
        if small and self.score().misplaced:
            score = self.score()
            model.add_row(least, upper=change_weight(instance) * score.changed + score.moved + 0.5)
            self._solve(wishes(model))

    # What all stages share

    def _solve(self, objective: Row) -> float:
        """Solve one stage; keep the answer if it is valid and better, and return the proven bound on the objective."""
        solved = self.model.solve(objective)
        usable = solved.x is not None and self._offer(solved.x)
        if solved.status in ("node_limit", "guard"):
            self.status = solved.status if self.status != "fallback" else "fallback"
        elif solved.status == "infeasible" and self.gain is not None:
            pass  # By rounding, against an existing answer: nothing better was found.
        elif solved.status != "optimal" or not usable:
            self.status = "fallback"
        return solved.bound

    def _offer(self, x: Ints) -> bool:
        """Keep the answer if it is better; return whether it is valid."""
        rows = integer.rows_of(x)
        if scoring.faults(self.instance, rows, self.budget, self.reserved):
            return False
        if scoring.better(self.instance, scoring.score(self.instance, rows, self.terms), self.score()):
            self.best = x
        return True

    def score(self) -> Score:
        return scoring.score(self.instance, integer.rows_of(self.best), self.terms)


def _scale(values: Floats) -> float:
    """Return the largest value, so that objectives have coefficients of about one."""
    largest = float(values[np.isfinite(values)].max(initial=0.0))
    return largest if largest > 0 else 1.0


def loosest_bound(instance: Instance) -> float:
    """Return a bound: no answer uses more of a resource than there is, nor than all apps at n_max would."""
    if not instance.kinds:
        return 0.0
    wanted = [
        [min(float(n) * float(f), 1.0) for f in row] for n, row in zip(instance.n_max, instance.fractions, strict=True)
    ]
    return math.fsum(min(1.0, math.fsum(column)) for column in zip(*wanted, strict=True))
