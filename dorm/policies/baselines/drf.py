"""The policy `drf`: weighted dominant resource fairness by progressive filling, for elastic apps.

Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types", NSDI 2011.  Algorithm 1 (§4.2): as
long as something fits, the user with the lowest dominant share is given the demand of one more task; here the users are
apps, and the tasks their containers.  Weights (§4.3): the share of app i is s_i / w_i.

If the paper leaves a choice, or is about other jobs:

* Algorithm 1 ends when the next task of the user with the lowest share does not fit.  Here the others continue, as long as
  anything of theirs fits (progressive filling as in §4.2 and §6): otherwise, one large container would leave the rest idle.
* Tasks end all the time, and the share of a user shrinks by waiting.  Containers do not end by themselves, so the filling
  starts from an empty cluster at each decision, and apps shrink and grow to their new counts.  No app is stopped.
* An app needs n_min containers to run: running apps get theirs first, then those of the others that fit, by arrival.
* Equal shares: the app that came first.
* The filling treats the cluster as one machine, as the paper does; `elastic` places the counts on nodes.

The price of a change is ignored: an app is resized whenever its count differs.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, greedy, integer, reasons
from dorm.policies.baselines import elastic
from dorm.policies.baselines.packing import within
from dorm.policies.parameters import Other, refuse_unknown
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dorm.policies.baselines.packing import Packing
    from dorm.policies.integer import Instance, Ints
    from dorm.policies.problem import Allocation, Problem


class DrfPolicy:
    """It has no parameters: weights are the apps' own."""

    name = "drf"
    version = 1
    summary = "one container after the other goes to the app with the lowest weighted dominant share, as in DRF"
    parameters: Mapping[str, Other] = {}

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        refuse_unknown(self.name, params, self.parameters)
        return {}

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        self.check_params(params)
        instance = integer.read(problem)

        def level(app: int, n: int) -> float:
            return integer.level(n * float(instance.unit[app]), instance.apps[app].weight)

        wanted = fill(instance, level)
        packing = elastic.place(instance, wanted, level)
        return answer.by_rule(instance, packing.rows, explain(instance, packing, "another has a lower dominant share"))


def fill(instance: Instance, level: Callable[[int, int], float]) -> Ints:
    """Return counts: n_min for as many as possible, then one unit after the other to the app with the lowest level; extreme
    counts in larger steps."""
    n = np.zeros(len(instance.apps), np.int64)
    left = instance.room.sum(axis=0)
    place = {app: place for place, app in enumerate(instance.arrival)}
    heap = []
    for app in [*(i for i in instance.arrival if instance.kept[i]), *integer.queue(instance)]:
        least = int(instance.n_min[app])
        if instance.free_to_move[app] and within(instance.demand[app], least, left):
            n[app] = least
            left -= instance.demand[app] * least
            if instance.worth[app] > 0:
                heap.append((level(app, least), place[app], app))
    heapq.heapify(heap)
    while heap:
        _, _, app = heapq.heappop(heap)
        most = int(instance.fits_empty[app])
        step = min(most - int(n[app]), 1 + most // greedy.FINE_STEPS)
        if step > 0 and within(instance.demand[app], step, left):
            n[app] += step
            left -= instance.demand[app] * step
            heapq.heappush(heap, (level(app, int(n[app])), place[app], app))
    return n


def explain(instance: Instance, packing: Packing, others: str) -> dict[str, Reason]:
    """Return the reasons of a policy that resizes all apps: the missing resource, or else that `others` come first."""

    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if units:
            return reasons.no_more_room(instance, room, app, units)
        return reasons.no_room(instance, room, app, int(instance.n_min[app]), "n_min") or Reason("queue", others)

    return reasons.by_rule(instance, packing.rows, why)
