"""The policy `dorm-exact`: the goals of `dorm.policies.goals`, searched through with terms that may depend on the outcome.

It is the reference for `dorm`, and practical up to about 30 apps on 20 nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, goals, greedy, integer, scoring
from dorm.policies.exact.search import Search
from dorm.policies.parameters import OPTIMIZER, read_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.problem import Allocation, Problem

LARGEST_PROGRAM = 2_000
"""Apps times nodes; beyond, a single relaxation may take minutes, and the greedy answer stands."""


class ExactPolicy:
    """Parameters: see `dorm.policies.parameters.OPTIMIZER`."""

    name = "dorm-exact"
    version = 2

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return dict(read_numbers(self.name, params, OPTIMIZER))

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = read_numbers(self.name, params, OPTIMIZER)
        return allocate(integer.read(problem), settings)


def allocate(instance: Instance, settings: Mapping[str, float]) -> Allocation:
    """Solve a problem, given as numbers."""
    reference = Reference(instance, settings)
    reference.run()
    search = reference.search
    return answer.allocation(
        instance,
        integer.rows_of(search.best),
        search.terms,
        status=search.status,
        bound=search.bound,
        held_back=reference.held_back,
    )


class Reference:
    """A round of `dorm-exact`: which terms hold depends itself on which apps can run."""

    def __init__(self, instance: Instance, settings: Mapping[str, float]) -> None:
        self.instance = instance
        self.settings = settings
        self.aged = integer.aged(instance, settings["patience_s"])
        self.reserved = goals.reserved(instance, self.aged)
        self.budget = goals.change_budget(instance, settings)
        self.target: Rows | None = None
        """Placement of all apps if θ2 held no app back, with the fewest changes; None if it holds none back."""
        self.held_back: Flags = np.zeros(len(instance.apps), np.bool_)
        """Apps that wait only because θ2 lets too few others shrink in this round."""
        start = greedy.start(instance, self.aged, self.reserved)
        self.search = self._search(start, self.budget, self.reserved)

    def _search(self, start: Ints, budget: int, reserved: tuple[int, Flags] | None) -> Search:
        terms = goals.terms(self.instance, self.settings, budget, goals.placed(self.instance, start.sum(axis=1)))
        return Search(self.instance, terms, start, budget=budget, reserved=reserved)

    def run(self) -> None:
        search, instance = self.search, self.instance
        if len(instance.apps) * len(instance.nodes) > LARGEST_PROGRAM:
            search.fill()
            search.status = "fallback"
        elif search.has_choices():
            search.choose_who_runs()
            placed = search.placed()
            if not self._clear_for_held_back(placed):
                search.terms = goals.terms(instance, self.settings, self.budget, placed)
                search.fill()
                search.reach_goals()

    def _clear_for_held_back(self, placed: Flags) -> bool:
        """Goal 2.  Return False if there is no app to make room for, or no way to.

        If lifting θ2 would start other apps instead of those that start now, the next round finds another state anyway, and
        there is nothing to prepare for.  But an app that has waited too long cannot be overtaken endlessly: while only θ2
        holds it back, no app starts that would not start next to it, and the target replaces the nodes reserved for it.
        """
        instance = self.instance
        kept = int(instance.kept.sum())
        if self.budget >= kept or not (instance.free_to_move & ~placed & (instance.n_min > 0)).any():
            return False
        lifted = self._search(greedy.start(instance, self.aged, self.reserved), kept, self.reserved)
        lifted.choose_who_runs()
        gets = lifted.placed()
        self.held_back = gets & ~placed
        waits_long = bool((self.held_back & self.aged).any())
        if not self.held_back.any() or self.budget == 0 or ((placed & ~gets).any() and not waits_long):
            return False
        lifted.change_least()
        self.target = integer.rows_of(lifted.best)
        start, reserved = self.search.best, self.reserved
        if waits_long:
            start = np.where((gets | instance.running)[:, None], start, 0)
        if reserved is not None and gets[reserved[0]]:
            reserved = None
        search = self._search(start, self.budget, reserved)
        search.choose_who_runs(None if not waits_long else gets | instance.running)
        entitled = search.placed() | self.held_back
        search.terms = goals.terms(instance, self.settings, self.budget, entitled, self.target)
        search.fill()
        search.clear_the_way()
        untouched = [row if stays else {} for row, stays in zip(instance.rows, instance.kept, strict=True)]
        if search.score().in_the_way >= scoring.score(instance, untouched, search.terms).in_the_way:
            return False
        search.reach_goals()
        self.search = search
        return True
