"""The policy `dorm-exact`: the goals of `dorm.core.policies.goals`, each solved as a mixed-integer program with those
before it fixed.

A stage is skipped where an answer at hand already meets its goal perfectly, so a round usually solves two programs.  Every
answer is rounded, checked and scored in integers, against a greedy one; the best by that score is given, whatever the
solver did.  It is the reference for `dorm`, and good up to some 30 apps on 20 nodes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.core.policies import answer, goals, greedy, integer
from dorm.core.policies.model import Model, Row
from dorm.core.policies.parameters import OPTIMIZER, read_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.policies.integer import Flags, Floats, Instance, Ints, Score, Terms
    from dorm.core.policies.problem import Allocation, Problem

LARGEST_PROGRAM = 2_000
"""Apps times nodes; beyond, a single relaxation may take minutes and the greedy answer stands."""

LARGEST_TIES = 300
"""Apps times nodes; beyond, the last goal chooses only among ways to change the apps that are being changed anyway: to
prove that no others would do takes longer than all the rest."""

SEARCH = 30_000
"""Bounds each search: its nodes times apps times nodes of the cluster."""

CHUNK = 16
"""How many apps one program orders by arrival: weights up to 2^15 stay far above the solver's tolerance."""

SLACK = 1e-6
"""By how much, in units of the largest container's worth, later goals may give up utilization."""


class ExactPolicy:
    """Parameters: see `dorm.core.policies.parameters.OPTIMIZER`."""

    name = "dorm-exact"
    version = 1

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return dict(read_numbers(self.name, params, OPTIMIZER))

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = read_numbers(self.name, params, OPTIMIZER)
        instance = integer.read(problem)
        search = Search(instance, goals.change_budget(instance, settings), settings)
        search.run()
        return answer.allocation(
            instance,
            integer.rows_of(search.best),
            search.terms,
            status=search.status,
            bound=search.bound,
            held_back=search.held_back,
        )


class Search:
    """One problem's way through the goals.  `best` is at each moment the best valid answer seen."""

    def __init__(self, instance: Instance, budget: int, settings: dict[str, float]) -> None:
        self.instance = instance
        self.settings = settings
        self.budget = budget
        self.aged = integer.aged(instance, settings["patience_s"])
        self.reserved = goals.reserved(instance, self.aged)
        self.best = greedy.start(instance, self.aged, self.reserved)
        self.terms = self._terms(self._placed(self.best))
        self.status = "optimal"
        self.held_back: Flags = np.zeros(len(instance.apps), np.bool_)
        """Waits only because θ2 lets too few others shrink in this round."""
        self.bound = _loosest_bound(instance)

    def run(self) -> None:
        instance = self.instance
        if len(instance.apps) * len(instance.nodes) > LARGEST_PROGRAM:
            self._offer(greedy.fill(instance, self.best, self.terms, self._closed()))
            self.status = "fallback"
            return
        if not instance.free_to_move.any() or not instance.nodes:
            self.bound = self._score().net
            return
        model = Model(instance, self.budget, self._node_limit())
        self._choose_who_runs(model)
        placed = self._placed(self.best)
        target = self._target(placed)
        self.terms = self._terms(placed | self.held_back, target)
        self._offer(greedy.fill(instance, self.best, self.terms, self._closed()))
        if target is not None:
            self._clear_the_way(model, target)
        self._be_fair(model)
        self._reach_floors(model)
        self._use(model)
        self._disturb_least(model)

    # Goal 1

    def _choose_who_runs(self, model: Model) -> None:
        """Fixes every `run` column of the model."""
        queue = [app for app in integer.queue(self.instance) if app in model.run]
        self._serve_the_aged(model, queue)
        if self._short(queue):
            n_min = self.instance.n_min
            weight = 1 + int(n_min[[app for app in queue if not self.instance.running[app]]].sum())
            wish: Row = []
            for app in queue:
                each = int(n_min[app]) * (weight if self.instance.running[app] else 1)
                wish.append((model.run[app], -float(each)))
            self._solve(model, wish)
            reached = self._gained(wish, queue)
            model.add_row(wish, upper=reached + 0.5)
            self._order(model, queue)
        short = self._short(queue)
        for app in queue:
            model.fix(model.run[app], float(app not in short))

    def _serve_the_aged(self, model: Model, queue: Sequence[int]) -> None:
        """Those that waited too long, each by itself before the next; if the first can't start, its nodes are closed."""
        aged = [app for app in queue if self.aged[app]]
        if not aged or not self._short(queue):
            return
        hit = [app for app in queue if self.instance.running[app]]
        if self._short(hit):
            wish: Row = [(model.run[app], -float(self.instance.n_min[app])) for app in hit]
            self._solve(model, wish)
            model.add_row(wish, upper=-self._gained(wish, hit) + 0.5)
        self._order(model, aged)
        closed = self._closed()
        for (app, node), column in model.x.items():
            if closed is not None and closed[node] and not self.instance.forced[app]:
                model.cap(column, float(self.instance.current[app, node]))

    def _closed(self) -> Flags | None:
        """Nodes where nobody gets more, since they are kept for an app that can't start yet."""
        if self.reserved is None or self.best[self.reserved[0]].any():
            return None
        return self.reserved[1]

    def _order(self, model: Model, queue: Sequence[int]) -> None:
        """Among equals, who came first: weights of powers of two, a chunk of the queue at a time."""
        for start in range(0, len(queue), CHUNK):
            chunk = queue[start : start + CHUNK]
            wish = [(model.run[app], -float(2 ** (CHUNK - 1 - place))) for place, app in enumerate(chunk)]
            self._solve(model, wish)
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

    def _target(self, placed: Flags) -> Ints | None:
        """Where everything would be if θ2 held nobody back, with the fewest changes; None if it holds nobody back.

        Where lifting θ2 would start other apps instead of those that start now, the next round finds another state
        anyway, and there is nothing to prepare for.
        """
        instance = self.instance
        kept = int(instance.kept.sum())
        if self.budget >= kept or not (instance.free_to_move & ~placed & (instance.n_min > 0)).any():
            return None
        free = Search(instance, kept, self.settings)
        model = Model(instance, kept, self._node_limit())
        free._choose_who_runs(model)
        gets = free._placed(free.best)
        if not (gets & ~placed).any() or (placed & ~gets).any():
            return None
        self.held_back = gets & ~placed
        moves = _moves(model, both_ways=True)
        solved = model.solve(_changes(model, moves))
        usable = solved.x is not None and not integer.faults(instance, integer.rows_of(solved.x), kept)
        if solved.x is not None and usable and (free._placed(solved.x) == gets).all():
            return solved.x
        return free.best

    def _clear_the_way(self, model: Model, target: Ints) -> None:
        over = [
            (model.add_positive_part(column, float(target[app, node])), 1.0)
            for (app, node), column in model.x.items()
            if target[app, node] < self.instance.holds[app, node]
        ]
        if self._score().in_the_way > 0:
            self._solve(model, over)
        model.add_row(over, upper=self._score().in_the_way + 0.5)

    # Goals 3 and 4

    def _be_fair(self, model: Model) -> None:
        excess = model.add_fairness(self.terms)
        if self._score().excess > 0:
            self._solve(model, [(excess, 1.0 / _scale(self.instance.unit))])
        model.cap(excess, self._score().excess + integer.LOSS_TOLERANCE / 2)

    def _reach_floors(self, model: Model) -> None:
        floors, placed = self.terms.floors, self._placed(self.best)
        wanting = [app for app in model.apps if placed[app] and floors[app] > self.instance.n_min[app]]
        if self._score().below_floor == 0:
            for app in wanting:
                model.add_row([(model.n[app], 1.0)], lower=float(floors[app]))
            return
        missing: Row = []
        for app in wanting:
            lack = model.add_column(0, math.inf, integral=False)
            model.add_row([(model.n[app], 1.0), (lack, 1.0)], lower=float(floors[app]))
            missing.append((lack, 1.0))
        self._solve(model, missing)
        model.add_row(missing, upper=self._score().below_floor + 0.5)

    # Goals 5 and 6

    def _use(self, model: Model) -> None:
        instance = self.instance
        scale = _scale(instance.worth)
        wish: Row = [(column, -float(instance.worth[app]) / scale) for app, column in model.n.items()]
        wish += [(column, float(self.terms.prices[app]) / scale) for app, column in model.r.items()]
        fixed = integer.utilization(instance, np.where(instance.pinned, instance.count, 0))
        bound = self._solve(model, wish)
        self.bound = min(self.bound, max(fixed - bound * scale, self._score().net))
        model.add_row(wish, upper=(fixed - self._score().net) / scale + SLACK)

    def _disturb_least(self, model: Model) -> None:
        score, instance = self._score(), self.instance
        if score.changed or score.moved:
            if len(instance.apps) * len(instance.nodes) > LARGEST_TIES:
                touched = integer.changed(instance, integer.rows_of(self.best))
                for app, column in model.r.items():
                    model.cap(column, float(touched[app]))
            self._solve(model, _changes(model, _moves(model, both_ways=False)))

    # What all stages share

    def _solve(self, model: Model, objective: Row) -> float:
        """One stage; keeps the answer if it is valid and better, and gives the proven bound on the objective."""
        solved = model.solve(objective)
        if solved.status != "optimal":
            self.status = solved.status if solved.status in ("node_limit", "guard") else "fallback"
        if solved.x is not None:
            self._offer(solved.x)
        return solved.bound

    def _offer(self, x: Ints) -> None:
        rows = integer.rows_of(x)
        if integer.faults(self.instance, rows, self.budget, self.reserved):
            return
        if integer.better(self.instance, integer.score(self.instance, rows, self.terms), self._score()):
            self.best = x

    def _score(self) -> Score:
        return integer.score(self.instance, integer.rows_of(self.best), self.terms)

    def _placed(self, x: Ints) -> Flags:
        """Apps that have what they need to run."""
        return goals.placed(self.instance, x.sum(axis=1))

    def _node_limit(self) -> int:
        return max(1, SEARCH // max(1, len(self.instance.apps) * len(self.instance.nodes)))

    def _terms(self, entitled: Flags, target: Ints | None = None) -> Terms:
        rows = None if target is None else integer.rows_of(target)
        return goals.terms(self.instance, self.settings, self.budget, entitled, rows)


def _moves(model: Model, *, both_ways: bool) -> Row:
    """One for each container that an app which ran starts on a node (and, both ways, for each that it stops)."""
    instance = model.instance
    moves: Row = []
    for (app, node), column in model.x.items():
        if instance.running[app]:
            was = int(instance.current[app, node])
            if was < instance.holds[app, node]:
                moves.append((model.add_positive_part(column, was), 1.0))
            if both_ways and was > 0:
                moves.append((model.add_positive_part(column, was, sign=-1), 1.0))
    return moves


def _changes(model: Model, moves: Row) -> Row:
    """Changed apps first: one weighs more than all containers that can move."""
    movers = model.instance.running & model.instance.free_to_move
    most = np.minimum(model.instance.n_max, model.instance.holds.sum(axis=1)) + model.instance.current.sum(axis=1)
    weight = 1.0 + float(most[movers].sum())
    return [*((column, weight) for column in model.r.values()), *moves]


def _scale(values: Floats) -> float:
    """The largest, so that objectives have coefficients of about one."""
    largest = float(values[np.isfinite(values)].max(initial=0.0))
    return largest if largest > 0 else 1.0


def _loosest_bound(instance: Instance) -> float:
    """No answer uses more of a resource than there is, nor than all apps at n_max would."""
    if not instance.kinds:
        return 0.0
    wanted = [
        [min(float(n) * float(f), 1.0) for f in row] for n, row in zip(instance.n_max, instance.fractions, strict=True)
    ]
    return math.fsum(min(1.0, math.fsum(column)) for column in zip(*wanted, strict=True))
