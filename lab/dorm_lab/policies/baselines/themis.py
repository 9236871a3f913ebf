"""The policy `themis`: finish-time fairness, by partial allocation auctions among the apps that are worst off.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020.  The measure (§3) is ρ = T_sh / T_id: how
long an app takes here, over how long it would take with 1/N of the cluster to itself.  With G containers (its section on
single-job apps):

    T_sh(G) = age + remaining work / speed(G)
    T_id    = N · all of its work / speed(most that it can use of the cluster)

Gavel's public code has another ρ (`finish_time_fairness.py` of stanford-futuredata/gavel), which adds the age to both times.

An auction (§3) offers the room that is under no lease to the fraction 1 - f with the largest ρ.  Each bids
its V(G) = 1 / ρ(G) for every count G.

1. The proportionally fair allocation maximizes Π V_i(G_i).
2. Hidden payment: of what it has won, app i keeps the part c_i = Π_{j≠i} V_j(with i) / Π_{j≠i} V_j(without i), which makes
   lying about V useless.
3. Leftovers go to the apps that took no part.

An app holds the containers that it wins for a lease.  Apps that win nothing are stopped when their lease has ended.

If the paper leaves a choice, or needs unknown data:

* Step 1 is solved greedily by the gain in log V per dominant share, from n_min in the order of ρ: exact for concave log V
  and one kind of resource.  The room counts as one machine; `elastic` places it.  V knows counts, not places.
* The products of step 2 are over the apps that have won something.  c_i G_i is rounded down, but an app that has won keeps
  at least n_min.
* The paper gives leftovers to the others at random, one by one.  Here in the order of ρ: first what they had, or n_min;
  then one by one by the same gain, those without a lease before those that would be resized for it; at last to the bidders.
* An app without containers has an infinite ρ; among several, the one with the largest age / T_id comes first.
* A lease is of an app's whole partition and starts with its last change (`held_s`).
* N is the number of apps now; the paper averages it over the app's time.
* Work that is done follows from `served_s`, at the speed per container of the present count.  For an app without steps or
  speed, `assumed_s` is left, and n containers are n times as fast as one.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, greedy, integer, laboratory
from dorm.policies.baselines import drf, elastic
from dorm.policies.baselines.packing import within
from dorm_lab.policies.baselines import speeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.integer import Flags, Instance, Ints
    from dorm.policies.problem import Allocation, Problem


class ThemisPolicy:
    """The defaults of `fairness_knob` and `lease_s` are those of the paper's evaluation, from memory."""

    name = "themis"
    version = 1
    summary = (
        "apps that are furthest behind their fair finish time win containers at auctions, and hold them for a lease"
    )
    parameters = laboratory.declared(
        name,
        {
            "fairness_knob": "f: only the part 1 - f of the apps that is worst off takes part in an auction",
            "lease_s": "seconds for which an app holds what it has won in an auction",
            "assumed_s": "seconds of work, on one container, assumed for an app that does not report it",
        },
    )

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        instance = integer.read(problem)
        auction = Auction(instance, settings)
        packing = elastic.place(instance, auction.run(), lambda app, n: -auction.gain(app, n))
        return answer.by_rule(
            instance, packing.rows, drf.explain(instance, packing, "apps with a larger ρ, or a lease, come first")
        )


class Auction:
    """One auction, and the bid of each app."""

    def __init__(self, instance: Instance, settings: dict[str, Any]) -> None:
        self.instance, self._settings = instance, settings
        self._curves = [speeds.speed(app) for app in instance.apps]
        self._unit = np.where(np.isfinite(instance.unit) & (instance.unit > 0), instance.unit, 1.0)
        self._left = [self._work(app)[0] for app in range(len(instance.apps))]
        self._alone = [self._alone_s(app) for app in range(len(instance.apps))]
        leased = [app.held_s is not None and app.held_s < settings["lease_s"] for app in instance.apps]
        self.leased: Flags = instance.kept & np.array(leased, np.bool_)
        self.n: Ints = np.where(self.leased, instance.count, 0)
        self.room: Ints = instance.room.sum(axis=0) - (self.n[:, None] * instance.demand).sum(axis=0)

    def run(self) -> Ints:
        """Return the counts of all apps that may move."""
        movable = [app for app in self.instance.arrival if self.instance.free_to_move[app]]
        worst = sorted(movable, key=lambda app: (-self.rho(app, int(self.instance.count[app])), -self._lost(app)))
        bidders = worst[: math.ceil((1 - self._settings["fairness_knob"]) * len(worst) - 1e-9)]
        self._auction(bidders)
        others = worst[len(bidders) :]
        for app in others:
            if not self.n[app]:
                least = int(self.instance.n_min[app])
                had = int(self.instance.count[app]) if self.instance.kept[app] else least
                if not self._give(app, had):
                    self._give(app, least)
        self._share([app for app in others if not self.leased[app]])
        self._share([app for app in others if self.leased[app]])
        self._share(bidders)
        return self.n

    def rho(self, app: int, n: int) -> float:
        """Return ρ with n units, infinite for 0."""
        return self._shared_s(app, n) / self._alone[app] if n else math.inf

    def gain(self, app: int, n: int) -> float:
        """Return the gain in log V of the next unit, per dominant share."""
        return math.log(self._shared_s(app, n) / self._shared_s(app, n + 1)) / float(self._unit[app])

    def _auction(self, bidders: Sequence[int]) -> None:
        for app in bidders:
            if not self.n[app]:
                self._give(app, int(self.instance.n_min[app]))
        winners = [app for app in bidders if self.n[app]]
        before = np.where(self.leased, self.instance.count, 0)
        self._share(winners)
        fair, room = self.n.copy(), self.room.copy()
        kept = {app: self._payment(app, winners, int(before[app])) for app in winners if fair[app] > before[app]}
        self.n, self.room = fair, room
        for app, part in kept.items():
            won = int(part * (fair[app] - before[app]) + 1e-9)
            self._give(app, max(int(before[app]) + won, int(self.instance.n_min[app])) - int(fair[app]))

    def _payment(self, app: int, winners: Sequence[int], before: int) -> float:
        """Return c_i.  Without app i, the others would have their own containers and share its room."""
        n, room = self.n.copy(), self.room.copy()
        self._give(app, before - int(self.n[app]))
        others = [other for other in winners if other != app]
        self._share(others)
        lost = sum(
            math.log(self._shared_s(other, int(self.n[other])) / self._shared_s(other, int(n[other])))
            for other in others
            if self.n[other] != n[other]
        )
        self.n, self.room = n, room
        return min(math.exp(lost), 1.0)

    def _share(self, apps: Sequence[int]) -> None:
        """Give one unit after the other to the app that gains most; extreme counts in larger steps."""
        heap = [(-self.gain(app, int(self.n[app])), place, app) for place, app in enumerate(apps) if self.n[app]]
        heapq.heapify(heap)
        while heap:
            negative, place, app = heapq.heappop(heap)
            most = int(self.instance.fits_empty[app]) if self.instance.worth[app] > 0 else 0
            step = min(most - int(self.n[app]), 1 + most // greedy.FINE_STEPS)
            if negative < 0 and step > 0 and self._give(app, step):
                heapq.heappush(heap, (-self.gain(app, int(self.n[app])), place, app))

    def _give(self, app: int, count: int) -> bool:
        """Give this many units, or take them if negative; return whether there was room."""
        if count > 0 and not within(self.instance.demand[app], count, self.room):
            return False
        self.n[app] += count
        self.room = self.room - self.instance.demand[app] * count
        return True

    def _shared_s(self, app: int, n: int) -> float:
        """T_sh, in seconds, with at least one unit."""
        rate = self._curves[app].one(max(n, 1) * int(self.instance.gang[app]))
        return max(speeds.seconds(self.instance.apps[app].age_s) + speeds.seconds(self._left[app] / rate), 1e-3)

    def _alone_s(self, app: int) -> float:
        """T_id, in seconds."""
        most = max(int(self.instance.fits_empty[app]), 1) * int(self.instance.gang[app])
        curve = self._curves[app]
        fastest = float(curve.at(np.minimum(np.append(curve.counts[1:], most), most)).max())
        return max(len(self.instance.apps) * speeds.seconds(sum(self._work(app)) / fastest), 1e-3)

    def _lost(self, app: int) -> float:
        return speeds.seconds(self.instance.apps[app].age_s) / self._alone[app]

    def _work(self, app: int) -> tuple[float, float]:
        """Return the remaining and the completed work, in steps, or in container-seconds if nothing is declared."""
        each, curve = self.instance.apps[app], self._curves[app]
        if each.remaining_steps is None or not curve.known:
            self._curves[app] = speeds.UNKNOWN
            return float(self._settings["assumed_s"]), speeds.seconds(each.served_s)
        count = sum(each.holds.values()) or max(each.n_min, 1)
        return speeds.seconds(each.remaining_steps), speeds.seconds(each.served_s * curve.one(count) / count)
