"""The policy `app-level`: two-level sharing: free room is offered to one app after the other; each keeps what it takes.

This is how Mesos shares a cluster among frameworks (Hindman et al., NSDI 2011, §3: resource offers), with the order of offers
by DRF (Ghodsi et al., NSDI 2011, §4.2, Algorithm 1; §4.3 for weights): the app with the lowest weighted dominant share is
offered room for its next container.  An app takes all that it can use, up to n_max, when it launches, and holds it
until it ends: later apps get the rest.

Choices that the sources leave to the framework: an app launches with at least n_min containers, or takes nothing.  Of the
offered nodes it picks the one that suits it best, as with the other policies, so that policies differ in sharing instead of
packing.  Once launched it takes no further offers unless `grow` is set, since its partition would have to be restarted for
each.  Nothing is revoked: Mesos revokes tasks only if an operator has set guarantees.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, greedy, integer, laboratory, reasons
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Instance
    from dorm.policies.problem import Allocation, Problem


class AppLevelPolicy:
    """Once launched, an app takes no further offers unless `grow` is set."""

    name = "app-level"
    version = 1
    summary = "room is offered to one app after the other, and an app keeps what it takes, as in Mesos with DRF"
    parameters = laboratory.declared(
        name,
        {
            "grow": "whether apps that run take further offers, each of which restarts them",
        },
    )

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        grow: bool = self.check_params(params)["grow"]
        instance = integer.read(problem)
        offers = _Offers(instance)
        launched = [app for app in integer.queue(instance) if offers.launch(app)]
        growing = np.flatnonzero(instance.kept).tolist() if grow else []
        offers.make([*launched, *growing])
        return answer.by_rule(instance, offers.rows, _explain(instance, offers, grow=grow))


class _Offers:
    """Free room, and the part that each app has taken."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        stays = instance.kept | instance.pinned
        self.rows = [dict(row) if stay else {} for row, stay in zip(instance.rows, stays.tolist(), strict=True)]
        self.free = integer.free_room(instance, self.rows)
        self._scale = np.maximum(instance.capacity.max(axis=0, initial=1), 1)
        self._place = {app: place for place, app in enumerate(instance.arrival)}
        self._refused: set[tuple[bytes, int, int]] = set()
        """Demand, requirement and n_min of apps that found no room: room only shrinks, so equal apps need not try."""

    def launch(self, app: int) -> bool:
        """Take n_min containers or none; an app that was hit keeps as many containers as possible in place.  Return
        whether it runs now."""
        instance = self.instance
        n_min = int(instance.n_min[app])
        key = (instance.demand[app].tobytes(), int(instance.requirement[app]), n_min)
        if not instance.running[app] and key in self._refused:
            return False
        self._keep(app)
        lacks = n_min - sum(self.rows[app].values())
        if self._take(app, lacks) < lacks:
            for node, count in self.rows[app].items():
                self.free[node] += count * instance.demand[app]
            self.rows[app] = {}
            self._refused.add(key)
            return False
        return True

    def _keep(self, app: int) -> None:
        instance = self.instance
        demand = instance.demand[app]
        needed = demand > 0
        left = int(instance.n_max[app])
        for node, count in instance.rows[app].items():
            if not instance.eligible[instance.requirement[app], node]:
                continue
            fits = int((self.free[node][needed] // demand[needed]).min(initial=count))
            here = max(min(fits, count, left), 0)
            if here:
                self._put(app, node, here)
                left -= here

    def make(self, apps: Sequence[int]) -> None:
        """Give one container after the other to the app with the lowest weighted dominant share; ties go to the earlier app.
        Extreme counts go in larger steps."""
        heap = [(self._share(app), self._place[app], app) for app in apps if self._wants(app) > 0]
        heapq.heapify(heap)
        while heap:
            _, place, app = heapq.heappop(heap)
            step = min(self._wants(app), 1 + int(self.instance.fits_empty[app]) // greedy.FINE_STEPS)
            if self._take(app, step) == step and self._wants(app) > 0:
                heapq.heappush(heap, (self._share(app), place, app))

    def _wants(self, app: int) -> int:
        """Return how many more containers it can use; none for an app without measured demand."""
        if not self.instance.worth[app] > 0:
            return 0
        return int(self.instance.fits_empty[app]) - sum(self.rows[app].values())

    def _share(self, app: int) -> float:
        """Return s_i / w_i; apps without weight come last."""
        held = sum(self.rows[app].values()) * float(self.instance.unit[app])
        return integer.level(held, self.instance.apps[app].weight)

    def _take(self, app: int, count: int) -> int:
        """Take up to `count` more containers; return how many found room."""
        instance = self.instance
        demand = instance.demand[app]
        needed = demand > 0
        if instance.lacking[app]:
            return 0
        allowed = np.where(instance.eligible[instance.requirement[app]], 1, 0)
        done = 0
        while done < count:
            node = greedy.best_node(self.free, demand, self._scale, most=allowed)
            if node is None:
                break
            fits = int((self.free[node][needed] // demand[needed]).min(initial=count - done))
            here = min(1 if count <= greedy.FINE_STEPS else fits, fits, count - done)
            self._put(app, node, here)
            done += here
        return done

    def _put(self, app: int, node: int, count: int) -> None:
        self.free[node] -= count * self.instance.demand[app]
        self.rows[app][node] = self.rows[app].get(node, 0) + count


def _explain(instance: Instance, offers: _Offers, *, grow: bool) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if not units:
            least = int(instance.n_min[app])
            return reasons.no_room(instance, room, app, least, "n_min") or Reason(
                "resources", f"its {least * int(instance.gang[app])} containers did not fit when its turn came"
            )
        if instance.kept[app] and not grow:
            count = units * int(instance.gang[app])
            return Reason("not_resized", f"it took {count} when it was launched, and holds them until it ends")
        return reasons.no_more_room(instance, room, app, units)

    return reasons.by_rule(instance, offers.rows, why)
