"""The policy `gavel`: max-min fairness that knows how fast each app is on each type of node, in rounds.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.  `target` solves
the policy's linear program (§4.1) for X, the part of its time that each app should spend on each type.  The mechanism (§5,
Algorithm 1) approximates X by rounds: the priority of an app on a type is

    X_mj / (part of its time that it has run there)

and by falling priority each app gets its whole count on nodes of one type, or waits for the next round.  Preempted apps
continue from their checkpoints.

If the paper leaves a choice, or its public code differs:

* The part that an app has received is measured over its time since submission (`served_on`, `age_s`).  The public code
  forgets it whenever X changes.  An app that never ran there has the priority 1e9 X_mj, as in that code.
* Pairs with X_mj = 0 come last, so no node is left idle.  Ties go to the larger X_mj, then by arrival.
* Priorities of all types are compared together; the public code takes one type after the other.
* An app has one count (`count`, `counts`), at most as many containers as one type holds.  An app whose n_min is more
  than any type holds alone waits: it never spans types.
* If the speed on some type is unknown, all are equally fast for the app (the paper's heterogeneity-agnostic LAS).
  Space sharing (§3.1) is left out.

A round is a decision: a master makes one after events, the simulator every 360 s as in the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dorm.policies import answer, integer, laboratory, reasons
from dorm.policies.baselines import fixed_counts
from dorm.policies.baselines.packing import Packing
from dorm.policies.problem import Reason
from dorm_lab.policies.baselines import preemptive, speeds
from dorm_lab.policies.gavel.target import target

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Instance, Ints
    from dorm.policies.problem import Allocation, AppDemand, Problem

NEW = 1e9
"""Priority per target of an app that has never run on a type."""


class GavelPolicy:
    """Parameters:

    `count` (1000000), `counts` ({})  containers of each app, as for `static`; by default its n_max
    """

    name = "gavel"
    version = 1

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        instance = integer.read(problem)
        kinds, groups = _types(instance)
        holds = _holds(instance, groups, len(kinds))
        wanted = np.minimum(fixed_counts.wanted(instance, self.check_params(params)), holds.max(axis=1, initial=0))
        wanted = np.maximum(wanted, instance.n_min)
        rates = _rates(instance, kinds, wanted, holds)
        weight = np.nan_to_num([max(app.weight, 0.0) for app in instance.apps], nan=0.0, posinf=integer.MOST_WEIGHT)
        capacity = np.array([instance.room[groups == group].sum(axis=0) for group in range(len(kinds))])
        solution = target(
            rates, wanted, weight, instance.demand, capacity.reshape(len(kinds), instance.room.shape[1]), holds
        )
        x = (rates > 0) / max(len(kinds), 1) if solution is None else solution
        packing = preemptive.serve(instance, wanted, _order(instance, kinds, wanted, rates, x), groups)
        made = answer.by_rule(instance, packing.rows, _explain(instance, packing, wanted, x, holds))
        return made if solution is not None else msgspec.structs.replace(made, status="fallback")


def _types(instance: Instance) -> tuple[tuple[str, ...], Ints]:
    """Return the types of nodes, sorted, and the type of each node."""
    kinds = sorted({node.type for node in instance.node_rooms})
    place = {kind: j for j, kind in enumerate(kinds)}
    return tuple(kinds), np.array([place[node.type] for node in instance.node_rooms], np.int64)


def _holds(instance: Instance, groups: Ints, kinds: int) -> Ints:
    """Return how many containers of an app each type holds next to pinned apps, at most n_max."""
    packing, holds = Packing(instance, instance.pinned), np.zeros((len(instance.apps), kinds), np.int64)
    known: dict[tuple[bytes, int], Ints] = {}
    for app in np.flatnonzero(instance.free_to_move).tolist():
        key = (instance.demand[app].tobytes(), int(instance.requirement[app]))
        if key not in known:
            here = packing.fits(app, integer.LARGEST // max(len(groups), 1), None, instance.room)
            known[key] = np.bincount(groups, weights=here, minlength=kinds).astype(np.int64)
        holds[app] = np.minimum(known[key], instance.n_max[app])
    return holds


def _rates(instance: Instance, kinds: tuple[str, ...], wanted: Ints, holds: Ints) -> Floats:
    """Return steps per second of each app with its count on each type; 0 if the type does not hold that, and 1 if the speed on
    some type is unknown."""
    runs = (holds >= wanted[:, None]) & instance.free_to_move[:, None]
    rates = np.asarray(runs, np.float64)
    for app in np.flatnonzero(runs.any(axis=1)).tolist():
        curves = [speeds.speed(instance.apps[app], kind) for kind in kinds]
        if all(curve.known for curve in curves):
            rates[app] *= [curve.one(int(wanted[app] * instance.gang[app])) for curve in curves]
    return rates


def _order(
    instance: Instance, kinds: tuple[str, ...], wanted: Ints, rates: Floats, x: Floats
) -> list[preemptive.Choice]:
    """Return apps on types by falling priority."""
    place = {app: place for place, app in enumerate(instance.arrival)}
    choices = []
    for app, kind in zip(*(part.tolist() for part in np.nonzero(rates)), strict=True):
        had = received(instance.apps[app], kinds[kind], int(wanted[app] * instance.gang[app]))
        part = float(x[app, kind])
        priority = part / had if had > 0 else part * NEW
        choices.append(((-float(f"{priority:.9g}"), -part, place[app], -rates[app, kind]), app, kind))
    return [preemptive.Choice(app, kind) for _, app, kind in sorted(choices)]


def received(app: AppDemand, kind: str, containers: int) -> float:
    """Return the part of its time since submission that the app has run on nodes of this type."""
    served = app.served_on.get(kind, 0.0) if kind else app.served_s - sum(app.served_on.values())
    ran_s = speeds.seconds(served / max(containers, 1))
    return ran_s / max(app.age_s, ran_s) if ran_s > 0 else 0.0


def _explain(instance: Instance, packing: Packing, wanted: Ints, x: Floats, holds: Ints) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if units:
            return Reason("static_count", f"the gavel policy gives it {units * int(instance.gang[app])} or nothing")
        if (holds[app] < wanted[app]).all():
            count = int(wanted[app] * instance.gang[app])
            return Reason("resources", f"no type of node holds its {count} containers alone")
        part = f"{float(x[app].sum()):.0%}"
        return reasons.no_room(instance, room, app, int(wanted[app]), "its whole count") or Reason(
            "queue", f"others have had less of their time in this round: it should run {part} of its time"
        )

    return reasons.by_rule(instance, packing.rows, why)
