"""The policy `dorm-speed`: Dorm's promises, and containers where they finish most work.

serve    which apps get their n_min, as for `dorm`: in place, next to the others, or by shrinking a few of them; if not all
         of them can start, in the order of `queueing`
choose   how many containers each app should have, by a linear program over the counts that it may have
resize   these counts on nodes, one app after the other, and the remaining room to the apps that gain most

`dorm` counts containers; users want finished work.  So the worth of a container is its effect on the app's remaining time, by
the speed that its owner declares, or by a prior if nothing is declared (`curves`, `worth`).  For an app that accepts a range
of batch sizes, that is its goodput with the best one, which the answer names (`tuning`).  An app that is slower across
nodes is kept on one (`locality`), and on types of nodes that are about as fast for it (`types`).  θ1 bounds the fairness loss
and `floor` that of each app; θ2 bounds what is disturbed, in full restarts: a live change of milliseconds hardly counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dorm.policies import answer, goals, integer, scoring
from dorm.policies.dorm.counts import SolverFailed
from dorm.policies.dorm.placing import Draft
from dorm.policies.dorm.serving import Serving
from dorm.policies.parameters import SPEED, read_numbers
from dorm.policies.problem import Reason
from dorm.policies.speed import curves, lateness, queueing
from dorm.policies.speed.choosing import Chosen, choices, choose, pools
from dorm.policies.speed.locality import Locality
from dorm.policies.speed.placing.gathering import Gathering
from dorm.policies.speed.placing.moving import Moving
from dorm.policies.speed.tuning import Tuning
from dorm.policies.speed.types import names_of, types_of
from dorm.policies.speed.worth import Worth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.policies.integer import Flags, Instance, Ints, Rows
    from dorm.policies.problem import Allocation, AppDemand, Problem
    from dorm.policies.speed.placing.resizing import Resizing
    from dorm.policies.speed.types import Types

MIXING = 100
"""Among more apps, each is small compared with a type of nodes, so a mixture of types is hardly ever needed for θ1."""
NOT_FASTER = Reason("gain", "it would not be done earlier with more")
SLOWER_APART = Reason("gain", "with more it would be on several nodes, where it is slower")


class SpeedPolicy:
    """Parameters: see `dorm.policies.parameters.SPEED`."""

    name = "dorm-speed"
    version = 6
    assumes_pauses = False
    """Whether every unmeasured app costs `adjust_s`; here, other apps' pauses come first (`registry.assumes_pauses`)."""

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return dict(read_numbers(self.name, params, SPEED))

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = read_numbers(self.name, params, SPEED)
        tuning = Tuning(problem)
        types = names_of(problem.nodes)
        problem = _on_one_type(tuning.problem, types[0]) if len(types) == 1 else tuning.problem
        locality = Locality(problem)
        problem = locality.problem
        apps = tuple(_within_use(app, types) for app in problem.apps)
        instance = integer.read(msgspec.structs.replace(problem, apps=apps))
        answer_ = self._round(instance, settings, locality).allocation()
        for before, app in zip(problem.apps, apps, strict=True):
            if app.id not in answer_.reasons and sum(answer_.counts[app.id].values()) < before.n_max:
                answer_.reasons[app.id] = _beyond_use(before, types)
        return msgspec.structs.replace(
            answer_, reasons=dict(sorted(answer_.reasons.items())), batches=tuning.batches(answer_.counts)
        )

    def _round(self, instance: Instance, settings: dict[str, float], locality: Locality) -> Round:
        return Round(instance, settings, locality)


def _on_one_type(problem: Problem, name: str) -> Problem:
    """Return a problem whose nodes are of one type with what apps declare for that type."""
    if not any(name in app.speed_on for app in problem.apps):
        return problem
    apps = (msgspec.structs.replace(app, speed=app.speed_on.get(name, app.speed), speed_on={}) for app in problem.apps)
    return msgspec.structs.replace(problem, apps=tuple(apps))


def _within_use(app: AppDemand, types: Sequence[str]) -> AppDemand:
    """Return the app without containers that would not speed it up, or about which too little is known yet: neither its share
    nor its floor counts them."""
    most = app.n_max if app.pinned else min(curves.useful(app, types), curves.explored(app))
    return app if most == app.n_max else msgspec.structs.replace(app, n_max=most)


def _beyond_use(app: AppDemand, types: Sequence[str]) -> Reason:
    """Return why an app has no more, if the round did not consider more."""
    explored = curves.explored(app)
    if explored >= app.n_max or curves.useful(app, types) < explored:
        return NOT_FASTER
    return Reason("learning", f"its speed is known up to {curves.largest(app)} containers: first it gets {explored}")


class Round:
    """The search for one problem's answer."""

    def __init__(self, instance: Instance, settings: Mapping[str, float], locality: Locality) -> None:
        self.instance, self.locality = instance, locality
        # Reasons know the price of a change from `worth`, so the horizon of `dorm` plays no part here.
        self.settings = {**settings, "horizon_s": 1.0}
        self.serving = Serving(instance, settings)
        self.types = types_of(instance)
        self.status = "near"

    def allocation(self) -> Allocation:
        served, unserved, draft, left = self._served()
        if left:  # Not all can start, so it matters who comes first.
            self.instance = queueing.in_order(self.instance, self.types, self.settings["patience_s"])
            self.serving = Serving(self.instance, self.settings)
            served, unserved, draft, left = self._served()
        serving, instance = self.serving, self.instance
        target = serving.target(served, draft, unserved) if left else None
        worth = Worth(instance, self.settings, integer.changed(instance, draft.rows), self.types, self.locality)
        terms = self._terms(draft.rows, target, worth)
        rows: Rows = draft.rows
        if target is None and instance.nodes and instance.kinds:
            rows = self._resized(draft.rows, terms, worth)
        return self._answer(rows, self._terms(rows, target, worth), worth)

    def _served(self) -> tuple[Draft, list[int], Draft, list[int]]:
        """Return the draft in which apps that fit next to the others have their n_min, and those that do not fit; and the same
        once others have made room."""
        serving = self.serving
        served = Draft(self.instance, serving.staying(), np.zeros(len(self.instance.nodes), np.int64))
        unserved = serving.serve(served)
        draft = served.copy() if unserved else served
        return served, unserved, draft, serving.make_room(draft, unserved, serving.budget)

    def _terms(self, rows: Rows, target: Rows | None, worth: Worth) -> scoring.Terms:
        entitled = goals.placed(self.instance, integer.counts_of(rows)) | self.serving.held_back
        terms = goals.terms(self.instance, self.settings, self.serving.budget, entitled, target)
        late = lateness.floors(self.instance, worth, terms.shares, self.settings["rho"], entitled)
        return terms._replace(prices=np.zeros(len(self.instance.apps)), floors=np.maximum(terms.floors, late))

    def _resized(self, served: Rows, terms: scoring.Terms, worth: Worth) -> Rows:
        """Return the better of the served answer and the program's."""
        closed = self.closed(served)
        standing = self.standing(served, terms, worth)
        rows = self.improved(served, terms, worth, closed)
        few = len(self.instance.apps) <= MIXING
        if self.types is not None and few and self.standing(rows, terms, worth)[:2] < (0.0, 0):
            rows = self._mixed(rows, served, terms, worth, closed, self.types)
        if self.standing(rows, terms, worth) >= standing:
            return rows
        # The program's answer may not be placed completely, and a part of it may be worse than nothing: then apps only grow.
        resizing = self._resizing(served, terms, worth, closed)
        n = integer.counts_of(served)
        resizing.run(n, n)
        rows = resizing.parts.rows
        return rows if self.standing(rows, terms, worth) >= standing else served

    def _mixed(
        self, rows: Rows, served: Rows, terms: scoring.Terms, worth: Worth, closed: Flags | None, types: Types
    ) -> Rows:
        """Return the program's answer if apps may be on types of nodes that are not alike, or `rows` if that is no better for
        θ1 and floors."""
        types.mixing = True
        mixed = self.improved(served, terms, worth, closed)
        types.mixing = False
        return mixed if self.standing(mixed, terms, worth)[:2] > self.standing(rows, terms, worth)[:2] else rows

    def closed(self, served: Rows) -> Flags | None:
        """Return the nodes that get nothing further, because they are kept for an app that has waited too long."""
        reserved = self.serving.reserved
        return reserved[1] if reserved is not None and not served[reserved[0]] else None

    def improved(self, served: Rows, terms: scoring.Terms, worth: Worth, closed: Flags | None) -> Rows:
        """Return the linear program's answer; `closed` nodes get nothing further."""
        instance = self.instance
        resizing = self._resizing(served, terms, worth, closed)
        n = integer.counts_of(served)
        offered = choices(instance, worth, terms, served)
        fixed = np.diff(offered.first) == 0
        unit = np.where(np.isfinite(instance.unit), instance.unit, 0.0)
        fixed_loss = float(np.abs(n * unit - terms.shares)[fixed].sum())
        room = None if self.types is None else pools(instance, offered, self.types)
        try:
            chosen = choose(instance, offered, resizing.left, terms.loss_budget, fixed_loss, room)
        except SolverFailed:
            self.status, chosen = "fallback", Chosen(n, n, {}, frozenset())
        if isinstance(resizing, Moving):
            resizing.follow(chosen)
        else:
            resizing.run(chosen.low, chosen.high)
        rows: Rows = resizing.parts.rows
        return rows

    def _resizing(self, served: Rows, terms: scoring.Terms, worth: Worth, closed: Flags | None) -> Resizing:
        if self.types is None:
            return Gathering(self.instance, served, worth, terms, closed)
        return Moving(self.instance, served, worth, terms, closed, self.types)

    def standing(self, rows: Rows, terms: scoring.Terms, worth: Worth) -> tuple[float, int, float]:
        """Return θ1's excess, the shortfall below floors, and the worth; larger is better."""
        score = scoring.score(self.instance, rows, terms)
        n = integer.counts_of(rows)
        apps = [app for app in range(len(n)) if n[app] and not self.instance.pinned[app]]
        total = sum(worth.placed(app, rows[app]) for app in apps)
        return -round(score.excess, 9), -score.below_floor, float(f"{total:.9g}")

    def _answer(self, rows: Rows, terms: scoring.Terms, worth: Worth) -> Allocation:
        instance = self.instance
        changed = integer.changed(instance, rows) & instance.kept
        disturbed = worth.lately + float(worth.disturbs[changed].sum())
        # The number of changed apps, plus the full restarts that θ2 would still allow.
        budget = int(changed.sum()) + max(0, int(self.serving.budget - disturbed + 1e-9))
        allocation = answer.allocation(
            instance,
            rows,
            terms._replace(change_budget=budget),
            status=self.status,
            bound=integer.utilization(instance, integer.counts_of(rows)),
            held_back=self.serving.held_back,
        )
        n, free = integer.counts_of(rows), integer.free_room(instance, rows)
        for i, app in enumerate(instance.apps):
            reason = allocation.reasons.get(app.id)
            if reason is not None and reason.code == "solver" and n[i] >= instance.n_min[i]:
                apart = _only_apart(instance, worth, rows[i], i, free)
                allocation.reasons[app.id] = SLOWER_APART if apart else _no_gain(instance, worth, i, int(n[i]))
        return allocation


def _only_apart(instance: Instance, worth: Worth, row: Mapping[int, int], app: int, free: Ints) -> bool:
    """Return whether one more unit would be on another node than the rest, and the app slower with it."""
    n = sum(row.values())
    pace = worth.pace(app, row)
    if not worth.on_one(app, n + 1, pace) or worth.across_speed(app, n + 1, pace) > worth.speed(app, row):
        return False
    demand, usable = instance.demand[app], instance.eligible[instance.requirement[app]]
    elsewhere = (free[usable] >= demand * (n + 1)).all(axis=1).any()
    here = any((free[node] >= demand * (n + 1 - units)).all() for node, units in row.items())
    return not (elsewhere or here)


def _no_gain(instance: Instance, worth: Worth, app: int, n: int) -> Reason:
    """Return why an app with room for more does not get it."""
    if not worth.speeds_up(app, n, int(instance.fits_empty[app])):
        return NOT_FASTER
    if worth.count[app] == n:
        if worth.rests[app]:
            rest = f"{worth.rest_s[app]:.3g} s after a change, because each one stops it for {worth.pause[app]:.3g} s"
            return Reason("price", f"it keeps what it has for {rest}")
        often = f"{worth.caution[app]:.3g} times " if worth.caution[app] != 1 else ""
        return Reason("price", f"more would save less time than {often}its pause of {worth.pause[app]:.3g} s")
    return Reason("gain", "one more would save too little time")
