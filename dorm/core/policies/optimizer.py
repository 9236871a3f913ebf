"""The policy `dorm`: the goals of `dorm.core.policies.goals`, near the exact optimum at any size.

    serve    who gets its n_min: in place, beside the others, or by shrinking a few of them
    counts   how many containers each app should have, by a linear program over classes of nodes; the few that change
    place    greedily by buckets of nodes, everything else pinned where it is; then what is left over is filled
    polish   a small exact program over the apps that change, and some that could, on clusters where that is small

Each step only offers an answer; `integer.better` chooses, in exact arithmetic, so a solver that fails or a step that goes
wrong costs quality and never validity.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.core.policies import answer, goals, integer
from dorm.core.policies.choosing import choose
from dorm.core.policies.counts import Program, node_classes
from dorm.core.policies.making_room import by_help, make_room
from dorm.core.policies.parameters import OPTIMIZER, read_numbers
from dorm.core.policies.placing import Draft
from dorm.core.policies.polish import polish

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.core.policies.choosing import Wanted
    from dorm.core.policies.integer import Flags, Instance, Ints, Rows, Score
    from dorm.core.policies.problem import Allocation, Problem

MOST_POLISHED = 140
"""Apps times nodes of the exact program that polishes an answer."""

POLISHES = 8
"""Of these programs in one round."""

POLISH_SEARCH = 3
"""Nodes of each of its searches."""

GOOD_ENOUGH = 5e-4
"""An answer this near to the bound is not polished."""

PASSES = 3
"""Of counting and placing: what could not be placed is not asked for again."""

MOST_TRIES = 16
"""Waiting apps for which room is sought among the running ones in one round."""


class OptimizerPolicy:
    """Parameters: see `dorm.core.policies.parameters.OPTIMIZER`."""

    name = "dorm"
    version = 2

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return dict(read_numbers(self.name, params, OPTIMIZER))

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = read_numbers(self.name, params, OPTIMIZER)
        instance = integer.read(problem)
        search = Search(instance, settings)
        search.run()
        return answer.allocation(
            instance,
            search.best,
            search.terms,
            status=search.status,
            bound=search.bound,
            held_back=search.held_back,
        )


class Search:
    def __init__(self, instance: Instance, settings: Mapping[str, float]) -> None:
        self.instance = instance
        self.settings = settings
        self.kept = instance.kept
        self.budget = goals.change_budget(instance, settings)
        self.aged = integer.aged(instance, settings["patience_s"])
        self.reserved = goals.reserved(instance, self.aged)
        self.status = "near"
        self.held_back: Flags = np.zeros(len(instance.apps), np.bool_)

    def run(self) -> None:
        instance = self.instance
        staying: Rows = [
            row if kept or pinned else {}
            for row, kept, pinned in zip(instance.rows, self.kept, instance.pinned, strict=True)
        ]
        self.nodes = node_classes(instance)
        beside = Draft(instance, staying, self.nodes.of)
        unserved = self._serve(beside)
        draft = beside.copy() if unserved else beside
        self._make_room(draft, unserved)
        self.terms = goals.terms(instance, self.settings, self.budget, goals.placed(instance, draft.n))
        self.best: Rows = list(draft.rows)
        self.score = integer.score(instance, self.best, self.terms)
        self.bound = self.score.net
        self.ranking: Sequence[int] = ()
        if not instance.nodes or not instance.kinds or not self._movable(draft).any():
            return
        victims = integer.changed(instance, draft.rows) & self.kept
        if victims.any():
            # Who shrinks for whom is chosen by the program first; the draft's own choice is there if that can't be placed.
            bound = self._improve(beside, self._movable(draft) & ~self.kept, self.kept)
            self._improve(draft, (self._movable(draft) & ~self.kept) | victims, self.kept & ~victims)
        else:
            bound = self._improve(draft, self._movable(draft) & ~self.kept, self.kept)
        self.bound = bound
        self._polish()

    def _movable(self, draft: Draft) -> Flags:
        """Apps that run in this draft and may be elsewhere."""
        return self.instance.free_to_move & goals.placed(self.instance, draft.n)

    # Serve

    def _serve(self, draft: Draft) -> list[int]:
        """n_min for those that were hit and those that wait, in place or beside the others; gives who has to go without."""
        instance = self.instance
        unserved = []
        for app in sorted(integer.queue(instance), key=lambda i: (not instance.running[i], not self.aged[i])):
            draft.keep_in_place(app)
            lacking = int(instance.n_min[app] - draft.n[app])
            if lacking > 0 and draft.put(app, lacking) < lacking:
                draft.clear(app)
                unserved.append(app)
                if self.reserved and app == self.reserved[0]:
                    draft.close(self.reserved[1])
        return unserved

    def _make_room(self, draft: Draft, unserved: Sequence[int]) -> None:
        """Shrink some that run for those that wait, as far as θ2 goes."""
        instance = self.instance
        unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        for app in unserved[:MOST_TRIES]:
            changed = integer.changed(instance, draft.rows) & self.kept
            left = self.budget - int(changed.sum())
            if left <= 0 and not changed.any():
                return
            entitled = goals.placed(instance, draft.n)
            entitled[app] = True
            over = draft.n * unit - integer.theoretical_shares(instance, entitled)
            if self.reserved and app == self.reserved[0]:
                draft.close(np.zeros(len(instance.nodes), np.bool_))
            served = make_room(draft, app, self.kept, changed, left, over)
            if self.reserved and app == self.reserved[0] and served is None:
                draft.close(self.reserved[1])

    # Counts and places

    def _improve(self, draft: Draft, free: Flags, may_change: Flags) -> float:
        """Ask how many each should have, place that, and ask again without what could not be placed; gives a bound on
        what any answer is worth that starts from this draft."""
        left = self.budget - int((integer.changed(self.instance, draft.rows) & self.kept).sum())
        program = Program(self.instance, self.nodes, self.terms, draft.rows, free, may_change, left)
        bound = np.inf
        for _ in range(PASSES):
            wanted = choose(program)
            if wanted is None:
                self.status = "fallback"
                break
            bound = bound if np.isfinite(bound) else wanted.bound  # Later ones are of what is left of the program.
            self.ranking = self.ranking or wanted.ranking
            placed = self._try(draft, wanted, free)
            missing = wanted.n > placed
            if not missing.any():
                break
            program.limit(np.where(missing, placed, program.high))
        if not np.isfinite(bound):
            return self.score.net
        return float(
            bound + program.loss_price * self.score.excess + program.floor_price * self.score.below_floor
        )

    def _try(self, draft: Draft, wanted: Wanted, free: Flags) -> Ints:
        """Place it in several ways, which cost little, and offer each.  Gives the counts of the best of them."""
        movers = sorted([*np.flatnonzero(free).tolist(), *wanted.changing])
        best: tuple[Score, Ints] | None = None
        for by_class in (False, True):
            for anew in (False, True):
                trial = draft.copy()
                self._place(trial, wanted, movers, by_class=by_class, anew=anew)
                placed = trial.n.copy()
                self._fill(trial, movers)
                score = self._offer(trial.rows)
                if best is None or integer.better(self.instance, score, best[0]):
                    best = score, placed
        assert best is not None
        return best[1]

    def _place(self, draft: Draft, wanted: Wanted, movers: Sequence[int], *, by_class: bool, anew: bool) -> None:
        """Bring the movers to their counts: in place or anew, the largest containers first; `by_class` as the count program
        had it, which helps where shapes differ and hurts where they only look different."""
        for app in movers:
            if anew:
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
        """What is left over, to apps that change anyway: the one furthest below its share first, within θ1."""
        instance, terms = self.instance, self.terms
        loss = integer.loss(instance, draft.n, terms.shares)
        heap = [(self._fullness(draft, app), app) for app in movers if instance.worth[app] > 0]
        heapq.heapify(heap)
        while heap:
            _, app = heapq.heappop(heap)
            unit, share, n = float(instance.unit[app]), float(terms.shares[app]), int(draft.n[app])
            after = loss + abs((n + 1) * unit - share) - abs(n * unit - share)
            if n >= instance.n_max[app] or (after > loss and after > terms.loss_budget):
                continue
            if draft.put(app, 1):
                loss = after
                heapq.heappush(heap, (self._fullness(draft, app), app))

    def _fullness(self, draft: Draft, app: int) -> float:
        share = float(self.terms.shares[app])
        return round(float(draft.n[app] * self.instance.unit[app]) / share, 9) if share > 0 else float("inf")

    def _polish(self) -> None:
        """Exact programs over a few apps at a time, each from the best so far."""
        nodes = len(self.instance.nodes)
        most = MOST_POLISHED // nodes
        if most < 2:
            return
        fruitless = 0
        for attempt in range(POLISHES):
            if self._good_enough() or fruitless >= 3:
                return
            chosen = self._neighbourhood(attempt, most)
            rows, status = polish(
                self.instance,
                self.best,
                self.terms,
                chosen,
                reserved=self.reserved,
                node_limit=POLISH_SEARCH,
                gain=GOOD_ENOUGH * self.bound / 3,
            )
            if status in ("guard", "fallback"):
                self.status = status
            before = self.score
            self._offer(rows)
            fruitless = 0 if self.score.net > before.net + GOOD_ENOUGH / 10 or self.score[:7] != before[:7] else fruitless + 1

    def _good_enough(self) -> bool:
        score = self.score
        unmet = sum(score.order) or score.excess or score.below_floor
        return not unmet and self.bound - score.net <= GOOD_ENOUGH * self.bound

    def _neighbourhood(self, attempt: int, most: int) -> list[int]:
        """The apps that change or start, and others by what changing them would be worth; each time another part."""
        instance = self.instance
        touched = integer.changed(instance, self.best)
        first = [i for i in range(len(instance.apps)) if instance.free_to_move[i] and (touched[i] or not self.kept[i])]
        others = [i for i in self._others() if not touched[i]] if self.budget else []
        if len(first) > most - 1:
            stride = 1 + attempt % max(1, len(first) // 2)
            turned = [first[(attempt + k * stride) % len(first)] for k in range(len(first))]
            return sorted(dict.fromkeys(turned))[:most] if attempt == 0 else list(dict.fromkeys(turned))[:most]
        room = most - len(first)
        start = (attempt * room) % max(1, len(others))
        return [*first, *[*others[start:], *others[:start]][:room]]

    def _others(self) -> Sequence[int]:
        """Apps that run, by what changing them would be worth: to the first that waits, where one does."""
        n = integer.counts_of(self.best)
        waits = [i for i in integer.queue(self.instance) if n[i] < self.instance.n_min[i]]
        if not waits:
            return self.ranking
        return by_help(Draft(self.instance, self.best, self.nodes.of), waits[0], self.kept)

    def _offer(self, rows: Rows) -> Score:
        """Keeps the answer if it is valid and better."""
        score = integer.score(self.instance, rows, self.terms)
        if integer.better(self.instance, score, self.score) and not integer.faults(
            self.instance, rows, self.budget, self.reserved
        ):
            self.best, self.score = list(rows), score
        return score
