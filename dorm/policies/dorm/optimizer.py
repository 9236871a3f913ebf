"""The policy `dorm`: the goals of `dorm.policies.goals`, near the exact optimum at any size.

serve    which apps get their n_min: in place, next to the others, or by shrinking a few of them
counts   how many containers each app should have, by a linear program over classes of nodes; the few that change
place    greedily by buckets of nodes, everything else pinned where it is; then the remaining room is filled
exchange of room in unusable pieces: a few containers give way to others that use a node better
polish   small exact programs over the apps that change, and some that could, on clusters where they are small

Each step only offers an answer; `scoring.better` chooses in exact arithmetic, so a failing solver or a bad step costs
quality but never validity.  A tiny cluster is solved exactly at once.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, goals, integer, scoring
from dorm.policies.dorm.choosing import bound_if_as_fair, choose, relax
from dorm.policies.dorm.counts import Program, SolverFailed, node_classes
from dorm.policies.dorm.exchanging import Exchange
from dorm.policies.dorm.placing import Draft
from dorm.policies.dorm.polish import GOOD_ENOUGH, effort, neighbourhoods, outlook, polish, serve
from dorm.policies.dorm.serving import Serving
from dorm.policies.exact import policy as exact
from dorm.policies.exact.search import loosest_bound
from dorm.policies.parameters import OPTIMIZER, read_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.policies.dorm.choosing import Outlook, Wanted
    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.problem import Allocation, Problem
    from dorm.policies.scoring import Score

TINY = 64
"""Apps times nodes up to which the problem is solved exactly."""

WAYS = ((False, False), (False, True), (True, True))
"""Ways of placing: by the program's classes of nodes or anywhere, and from scratch or in place."""

PASSES = 6
"""Passes of counting and placing: containers that could not be placed are not requested again."""

FINE_STEPS = 1_000
"""Apps grow by single containers unless they can have many more than this."""

MOST_GROWN = 100
"""Apps that are considered for the remaining room."""

NEAR = 0.03
"""Distance to the bound within which, on a large cluster where nothing starts, an answer needs no other counts, only better
use of the remaining pieces."""


class OptimizerPolicy:
    """Parameters: see `dorm.policies.parameters.OPTIMIZER`."""

    name = "dorm"
    version = 4

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return dict(read_numbers(self.name, params, OPTIMIZER))

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = read_numbers(self.name, params, OPTIMIZER)
        instance = integer.read(problem)
        if len(instance.apps) * len(instance.nodes) <= TINY:
            return exact.allocate(instance, settings)
        round_ = _Round(instance, settings)
        round_.run()
        return answer.allocation(
            instance,
            round_.best,
            round_.terms,
            status=round_.status,
            bound=round_.bound,
            held_back=round_.serving.held_back,
        )


class _Round:
    """The search for one problem's answer.  `best` is always the best valid answer so far, under `terms`."""

    def __init__(self, instance: Instance, settings: Mapping[str, float]) -> None:
        self.instance = instance
        self.settings = settings
        self.serving = Serving(instance, settings)
        self.kept, self.budget, self.reserved = self.serving.kept, self.serving.budget, self.serving.reserved
        self.large = self.serving.large
        self.status = "near"
        self.bound = np.inf
        self.nodes = node_classes(instance)
        self.ranking: Sequence[int] = ()
        """Running apps by the value of changing them."""
        self.outlook: Outlook | None = None
        """The outlook of the first count program that had one."""
        self.topped_up: Rows | None = None
        """The best answer as of the last top-up."""

    def run(self) -> None:
        instance = self.instance
        staying = self.serving.staying()
        served = Draft(instance, staying, self.nodes.of)
        unserved = self.serving.serve(served)
        draft = served.copy() if unserved else served
        left = self.serving.make_room(draft, unserved, self.budget)
        if left:
            self._start_from(draft.rows, None)
            self._offer(serve(instance, self.best, self.terms, reserved=self.reserved))
            draft = Draft(instance, self.best, self.nodes.of)
            left = [i for i in left if draft.n[i] < instance.n_min[i]]
        target = self.serving.target(served, draft, unserved) if left else None
        self._start_from(draft.rows, target)
        if target is not None or not self._movable().any() or not instance.nodes or not instance.kinds:
            self.bound = self.score.net
            return
        self.bound = np.inf
        victims = integer.changed(instance, draft.rows) & self.kept
        if victims.any():
            # The program first decides which apps shrink; the draft's own choice stands if that can't be placed.
            free = goals.placed(instance, draft.n) & instance.free_to_move & ~self.kept
            if not self._improve(served, free, self.kept, PASSES) or not self.large:
                self._improve(draft, free | victims, self.kept & ~victims, 1)
        else:
            self._improve(draft, self._movable() & ~self.kept, self.kept, PASSES)
        self._polish()
        self._top_up()
        self._prove(staying)

    def _start_from(self, rows: Rows, target: Rows | None) -> None:
        self.best: Rows = list(rows)
        entitled = goals.placed(self.instance, integer.counts_of(rows)) | self.serving.held_back
        self.terms = goals.terms(self.instance, self.settings, self.budget, entitled, target)
        self.score = scoring.score(self.instance, self.best, self.terms)

    def _movable(self) -> Flags:
        """Return apps that run in the best answer and may be elsewhere."""
        return self.instance.free_to_move & goals.placed(self.instance, integer.counts_of(self.best))

    # Counts and places

    def _improve(self, draft: Draft, free: Flags, may_change: Flags, passes: int) -> bool:
        """Compute counts, place them, and repeat without the containers that could not be placed.  Return whether the
        best answer improved."""
        instance, before = self.instance, self.best
        left = self.budget - int((integer.changed(instance, draft.rows) & self.kept).sum())
        program = Program(instance, self.nodes, self.terms, draft.rows, free, may_change, left)
        wanted: Wanted | None = None
        for turn in range(1 if self.large else passes):
            try:
                if turn == 0:
                    relaxed = relax(program)
                    if relaxed is not None and not np.isfinite(self.bound):  # Later programs have fewer choices.
                        self.bound = relaxed.bound
                        self.outlook = relaxed
                        if self.large and not free.any() and self._needs_no_other_counts(relaxed):
                            return True
                    wanted = choose(program, relaxed.changing) if relaxed else None
                elif wanted is not None:
                    wanted = choose(program, wanted.changing)
            except SolverFailed:
                self.status, wanted = "fallback", None
            if wanted is None:
                trial = draft.copy()
                self._fill(trial, np.flatnonzero(free).tolist())
                self._grow_others(trial)
                self._offer(trial.rows)
                return self.best is not before
            self.ranking = self.ranking or wanted.ranking
            ways = WAYS[:2] if turn else WAYS
            placed = self._try(draft, wanted, free, ways=WAYS[:1] if self.large and self.kept.any() else ways)
            missing = wanted.n > placed
            if not missing.any():
                break
            program.limit(np.where(missing, placed, program.high))
        return self.best is not before

    def _needs_no_other_counts(self, outlook: Outlook) -> bool:
        """Return whether a large cluster needs no other counts: if nothing starts and the answer is fair, gains from counts
        are lost to fragmentation, and better use of the pieces is worth more."""
        if self.score.excess:
            return False
        self.ranking = self.ranking or outlook.ranking
        self._top_up()
        unmet = self.score.excess or self.score.below_floor
        return not unmet and self.bound - self.score.net <= NEAR * abs(self.bound)

    def _try(self, draft: Draft, wanted: Wanted, free: Flags, ways: Sequence[tuple[bool, bool]]) -> Ints:
        """Place the counts in several inexpensive ways, fill the remaining room in the best of them, and offer that.  Return
        its counts before the filling."""
        movers = sorted([*np.flatnonzero(free).tolist(), *wanted.changing])
        trials = []
        for by_class, from_scratch in ways:
            trial = draft.copy()
            self._place(trial, wanted, movers, by_class=by_class, from_scratch=from_scratch)
            trials.append((scoring.score(self.instance, trial.rows, self.terms), trial))
        score, best = trials[0]
        for other, trial in trials[1:]:
            if scoring.better(self.instance, other, score):
                score, best = other, trial
        placed = best.n.copy()
        if not self.large:
            self._exchange(best)
        self._fill(best, movers)
        self._grow_others(best)
        self._offer(best.rows)
        return placed

    def _place(
        self, draft: Draft, wanted: Wanted, movers: Sequence[int], *, by_class: bool, from_scratch: bool
    ) -> None:
        """Bring the movers to their counts: in place or from scratch, the largest containers first; `by_class` follows the
        count program's classes, which helps if shapes really differ and hurts if the difference does not matter."""
        for app in movers:
            if from_scratch:
                draft.clear(app)
            elif draft.n[app] > wanted.n[app]:
                draft.take(app, int(draft.n[app] - wanted.n[app]))
        size = (self.instance.demand / draft.scale).max(axis=1)
        order = sorted(movers, key=lambda i: (-round(float(size[i]), 9), i))
        for app in order:
            draft.put(app, int(self.instance.n_min[app] - draft.n[app]))
        for app in order:
            for group, share in wanted.by_class.get(app, ()) if by_class else ():
                missing = int(wanted.n[app] - draft.n[app])
                here = sum(count for node, count in draft.rows[app].items() if draft.node_class[node] == group)
                draft.put(app, min(missing, int(share + 1e-6) - here), group)
            draft.put(app, int(wanted.n[app] - draft.n[app]))

    def _fill(self, draft: Draft, movers: Sequence[int]) -> None:
        """Give the remaining room to apps that change anyway: the one furthest below its share first, within θ1."""
        instance, terms = self.instance, self.terms
        loss = integer.loss(instance, draft.n, terms.shares)
        heap = [(self._fullness(draft, app), app) for app in movers if instance.worth[app] > 0]
        heapq.heapify(heap)
        while heap:
            _, app = heapq.heappop(heap)
            unit, share, n = float(instance.unit[app]), float(terms.shares[app]), int(draft.n[app])
            step = 1 + int(instance.n_max[app]) // FINE_STEPS
            after = loss + abs((n + step) * unit - share) - abs(n * unit - share)
            if n >= instance.n_max[app] or n < instance.n_min[app] or (after > loss and after > terms.loss_budget):
                continue
            done = draft.put(app, min(step, int(instance.n_max[app]) - n))
            if done:
                loss += abs((n + done) * unit - share) - abs(n * unit - share)
                heapq.heappush(heap, (self._fullness(draft, app), app))

    def _grow_others(self, draft: Draft) -> None:
        """Give what remains after that to apps that did not change so far, as θ1 and θ2 allow: the count program does not see
        fragmentation, and this step does."""
        instance, terms = self.instance, self.terms
        left = self.budget - int((integer.changed(instance, draft.rows) & self.kept).sum())
        if left <= 0:
            return
        loss = integer.loss(instance, draft.n, terms.shares)
        among = [i for i in self.ranking if draft.rows[i] == instance.rows[i] and self.kept[i]][:MOST_GROWN]
        while left > 0:
            best, who, many = scoring.resolution(instance), -1, 0
            for app in among:
                more = self._fair_growth(app, int(draft.n[app]), loss)
                if more * instance.worth[app] - terms.prices[app] > best:
                    more = min(more, draft.takes(app))
                    gain = float(more * instance.worth[app] - terms.prices[app])
                    if gain > best:
                        best, who, many = gain, app, more
            if who < 0:
                return
            n, unit, share = int(draft.n[who]), float(instance.unit[who]), float(terms.shares[who])
            done = draft.put(who, many)
            loss += abs((n + done) * unit - share) - abs(n * unit - share)
            among.remove(who)
            left -= 1

    def _fair_growth(self, app: int, n: int, loss: float) -> int:
        """Return how many more containers θ1 allows the app: up to its share, and beyond it within the loss budget."""
        unit, share = float(self.instance.unit[app]), float(self.terms.shares[app])
        if unit <= 0:
            return 0
        slack = max(0.0, self.terms.loss_budget - loss)
        below = max(0.0, share - n * unit)
        most = int((2 * below + slack) / unit + 1e-9) if loss <= self.terms.loss_budget else int(below / unit)
        return max(0, min(most, int(self.instance.n_max[app]) - n))

    def _fullness(self, draft: Draft, app: int) -> float:
        share = float(self.terms.shares[app])
        return round(float(draft.n[app] * self.instance.unit[app]) / share, 9) if share > 0 else float("inf")

    # Polish

    def _polish(self) -> None:
        """Solve exact programs over a few apps at a time, each from the best answer so far, until several brought no gain."""
        self._refine()
        parts = neighbourhoods(self.instance, self.nodes.of, self.kept, lambda: self.best, self.ranking, self.budget)
        done = 0.0
        for apps, nodes in parts:
            if done >= 1 or self._good_enough():
                return
            polished = polish(
                self.instance,
                self.best,
                self.terms,
                apps,
                reserved=self.reserved,
                gain=GOOD_ENOUGH * max(self.score.net, 1e-6) / 3,
                nodes=nodes,
            )
            if polished.status in ("guard", "fallback"):
                self.status = polished.status
            self._offer(polished.rows)
            done += effort(self.instance, self.kept, polished)

    def _refine(self) -> None:
        if self._good_enough():
            return
        seen = outlook(self.instance, self.best, self.terms, reserved=self.reserved)
        if seen is not None:
            self.ranking = seen.order
            self.bound = min(self.bound, seen.bound)

    def _top_up(self) -> None:
        """Use the remaining room better: first by exchanges, then by apps that change anyway, then by others."""
        if self.topped_up is self.best:
            return
        draft = Draft(self.instance, self.best, self.nodes.of)
        if self.reserved is not None and draft.n[self.reserved[0]] == 0:
            draft.close(self.reserved[1])
        self._exchange(draft)
        touched = integer.changed(self.instance, draft.rows)
        self._fill(draft, np.flatnonzero(self._movable() & (touched | ~self.kept)).tolist())
        self._grow_others(draft)
        self._offer(draft.rows)
        self.topped_up = self.best

    def _exchange(self, draft: Draft) -> None:
        """Use the pieces better, at the prices of the first count program."""
        if self.outlook is not None:
            left = self.budget - int((integer.changed(self.instance, draft.rows) & self.kept).sum())
            search = Exchange(draft, self.terms, self._movable(), left)
            search.run(self.outlook.room_price[self.nodes.of], self.outlook.loss_price)

    def _good_enough(self) -> bool:
        score = self.score
        unmet = sum(score.order) or score.excess or score.below_floor
        return not unmet and self.bound - score.net <= GOOD_ENOUGH * abs(self.bound)

    def _offer(self, rows: Rows) -> Score:
        """Keep the answer if it is valid and better.  If other apps run in it than before, shares are computed again."""
        instance = self.instance
        score = scoring.score(instance, rows, self.terms)
        if scoring.better(instance, score, self.score) and not scoring.faults(
            instance, rows, self.budget, self.reserved
        ):
            others = score.order != self.score.order or score.aged != self.score.aged
            self.best, self.score = list(rows), score
            if others:
                self._start_from(rows, self.terms.target)
                self.bound = np.inf
        return score

    def _prove(self, staying: Rows) -> None:
        """Compute the bound for the final answer: for the apps that run in it, and for answers that are at least as fair."""
        score = self.score
        if not (score.excess or score.below_floor) and np.isfinite(self.bound):
            self.bound = max(self.bound, score.net)
            return
        free = self._movable() & ~self.kept
        program = Program(self.instance, self.nodes, self.terms, staying, free, self.kept, self.budget)
        start = self.outlook.candidates if self.outlook is not None else ()
        try:
            bound = bound_if_as_fair(program, score.excess, float(score.below_floor), start)
        except SolverFailed:
            self.status, bound = "fallback", None
        self.bound = max(loosest_bound(self.instance) if bound is None else bound, score.net)
