"""The policy `optimus`: each further container goes to the app whose remaining time it shortens most.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys 2018.  Allocation (§4.1):
each app first gets its minimum, by arrival; then one container after the other goes to the app with the largest marginal gain,

    (Q / f(n) - Q / f(n + 1)) / δ        Q steps remaining, f steps per second, δ the dominant share of one container

until the cluster is full or no app gains.  Placement (§4.2): smallest apps first, on the nodes with most room; the paper
spreads evenly over as few nodes as hold the app, this policy fills node by node.  An app whose count stays is not moved.

The gain was compared with the `Optimus+Oracle` of Pollux's public code (`sched/adaptdl_sched/policy/optimus.py` of
petuum/adaptdl), which serves the smallest minimum first and has one kind of resource, so δ is a constant there.

Optimus fits Q and f while the app runs; here its owner declares both (`steps` and `speed` of the spec), as for the
`Optimus+Oracle` that Pollux compares with (OSDI 2021, §5.1).  For an app without them, n containers are assumed to be n times
as fast as one, with `assumed_s` of work left.  If f rises and falls the search stops at the first maximum, as in the paper.
The cost of a change is ignored: an app is restarted whenever its count differs.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, greedy, integer, laboratory, reasons
from dorm.policies.baselines.packing import Packing, within
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from dorm.policies.integer import Instance, Ints
    from dorm.policies.problem import Allocation, AppDemand, Problem


class OptimusPolicy:
    """An app without steps or speed is taken to have `assumed_s` of work left."""

    name = "optimus"
    version = 1
    summary = "each container goes where it shortens the remaining time most, as in Optimus: needs steps and speed"
    parameters = laboratory.declared(
        name,
        {
            "assumed_s": "seconds of work, on one container, assumed for an app that does not report it",
        },
    )

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        assumed_s = float(self.check_params(params)["assumed_s"])
        instance = integer.read(problem)
        wanted, last_gain = _Counting(instance, assumed_s).counts()
        packing = _place(instance, wanted)
        return answer.by_rule(instance, packing.rows, _explain(instance, packing, wanted, last_gain))


def remaining_s(app: AppDemand, containers: int, assumed_s: float) -> float:
    """Return the remaining time of the app with this many containers: linear between the counts that its owner declares,
    proportional below the first, flat beyond the last."""
    if app.remaining_steps is None or not app.speed:
        return assumed_s / containers
    counts, rates = zip((0, 0.0), *app.speed, strict=True)
    rate = float(np.interp(containers, counts, rates))
    return app.remaining_steps / rate if rate > 0 else 0.0


class _Counting:
    """How many containers each app should have, with the cluster treated as one machine."""

    def __init__(self, instance: Instance, assumed_s: float) -> None:
        self._instance = instance
        self._assumed_s = assumed_s
        self._left = instance.room.sum(axis=0)
        self._n = np.zeros(len(instance.apps), np.int64)
        units = np.where(np.isfinite(instance.unit) & (instance.unit > 0), instance.unit, 1.0)
        self._unit = units * instance.gang

    def counts(self) -> tuple[Ints, dict[int, float]]:
        """Return the counts in gangs, and the final marginal gain of each app."""
        instance = self._instance
        movable = instance.free_to_move
        gains: dict[int, float] = {}
        heap = []
        for place, app in enumerate(instance.arrival):
            if movable[app] and self._give(app, int(instance.n_min[app])):
                gains[app] = self._gain(app)
                heap.append((-gains[app], place, app))
        heapq.heapify(heap)
        while heap:
            negative, place, app = heapq.heappop(heap)
            if negative >= 0:
                break
            if self._give(app, self._step(app)):
                gains[app] = self._gain(app)
                heapq.heappush(heap, (-gains[app], place, app))
        return self._n, gains

    def _give(self, app: int, count: int) -> bool:
        if count <= 0 or not within(self._instance.demand[app], count, self._left):
            return False
        self._n[app] += count
        self._left -= self._instance.demand[app] * count
        return True

    def _step(self, app: int) -> int:
        """Return the step in gangs: one, or more for extreme counts; 0 for an app at its maximum, or one without measured
        demand."""
        instance = self._instance
        most = int(instance.fits_empty[app]) if instance.worth[app] > 0 else 0
        return min(most - int(self._n[app]), 1 + most // greedy.FINE_STEPS)

    def _gain(self, app: int) -> float:
        step = self._step(app)
        if step <= 0:
            return 0.0
        n, gang, demand = int(self._n[app]), int(self._instance.gang[app]), self._instance.apps[app]
        now = remaining_s(demand, n * gang, self._assumed_s)
        then = remaining_s(demand, (n + step) * gang, self._assumed_s)
        return (now - then) / (float(self._unit[app]) * step)


def _place(instance: Instance, wanted: Ints) -> Packing:
    """Keep apps whose count stays.  Nodes may hold less than the cluster as a whole: then an app gets as many
    containers as fit, and at least its present count or n_min."""
    packing = Packing(instance, instance.pinned | (instance.kept & (instance.count == wanted)))
    movable, kept = instance.free_to_move, instance.kept
    to_place = [app for app in instance.arrival if movable[app] and wanted[app] and not packing.rows[app]]
    for app in sorted(to_place, key=lambda app: int(wanted[app])):
        if packing.put(app, int(wanted[app])) < instance.n_min[app]:
            packing.take_back(app)
    for app in to_place:
        if kept[app] and sum(packing.rows[app].values()) == instance.count[app]:
            moved = packing.take_back(app)
            if not packing.put_back(app, instance.rows[app]):
                packing.put_back(app, moved)
    return packing


def _explain(instance: Instance, packing: Packing, wanted: Ints, gains: dict[int, float]) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if not units:
            return reasons.no_room(instance, room, app, int(instance.n_min[app]), "n_min") or Reason(
                "queue", "apps that came first hold its room"
            )
        if units >= wanted[app] and instance.worth[app] > 0 and units < instance.fits_empty[app]:
            more = (
                "others gain more by further containers" if gains[app] > 0 else "it would not be done earlier with more"
            )
            return Reason("gain", more)
        return reasons.no_more_room(instance, room, app, units)

    return reasons.by_rule(instance, packing.rows, why)
