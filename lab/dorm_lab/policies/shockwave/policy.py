"""The policy `shockwave`: a market over the next rounds, in which apps that are late have larger budgets.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023.  Apps
buy rounds of a window with budgets, and the equilibrium maximizes Nash social welfare over time: the weighted product of what
part of its work each app will have done (§4).  The weight is the predicted finish-time fairness to a power (§6, eq. 9 and 11):

    B_j = w_j ρ_j^p      ρ_j = (age + l_j / share) / ((f_j + l_j) / share)

where an app that has run for f_j seconds has l_j left, and its fair share is the part of its time in which 1/N of the cluster
holds its partition.  A regularizer keeps the makespan short.  `market` has the objective, `program` solves it, `rounds` says
which rounds an app gets.  The apps of the first round run now, each with its whole count; the others wait, and are stopped if
they ran.

The paper's text was at hand in parts only; equations are cited by the published code (uw-mad-dash/shockwave, `scheduler/`)
and by its replication (JitongZ/shockwave-replication), which names them.  If these leave a choice, or differ:

* The published code first asks for ρ_j <= 1 of every app, and weighs by ρ_j^p if that is infeasible, which it is as soon as
  one app is late.  Here all are weighed, as eq. 11 says.
* The published code divides moments since its own start; here ρ is of times since the app's submission, as the paper and
  Themis (NSDI 2020) define it.
* Its fair share is one accelerator of G for each of N jobs, whatever they need; here 1/N of the cluster's scarcest resource,
  by weight, as the paper states egalitarian sharing.  N is the number of apps now; the paper averages it over an app's time.
* How speeds change by dynamic adaptation follows there from a Dirichlet posterior over the batch sizes that a job is known to
  go through (§5).  Apps here do not declare these, so l_j follows from `dorm.policies.speed.learning`: the declaration
  is the prior, measurements are the evidence, and they count half after an hour.
* It solves when a job comes or ends, and follows the plan in between.  A policy keeps nothing between calls, so here each
  decision solves again.
* Its cluster is GPUs alone; here each kind of resource has to have room for a round.
* ρ_j^p is bounded by `MOST_BUDGET`.  There, an app in its last round has ρ_j^100.
* The four published configurations have p = 5 or 12, and λ = 1e-3, 10 or 1e5 per second.  From 1e-3 on, the apps that need
  longest go first, whatever that costs the others: on Pollux's workload 6 the mean completion time nearly doubles.  The
  defaults are those of Sia's authors for such workloads (p = 12 and λ = 1e-9, `ftf_simulator.py` of siasosp23/artifacts), with
  which the makespan decides between plans that are equal otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from dorm.policies import answer, integer, laboratory, reasons
from dorm.policies.baselines import fixed_counts
from dorm.policies.problem import Reason
from dorm.policies.speed.learning import known_of, learned
from dorm_lab.policies.baselines import preemptive, speeds
from dorm_lab.policies.shockwave.market import Market
from dorm_lab.policies.shockwave.program import close, solve
from dorm_lab.policies.shockwave.rounds import counts_in, planned, schedule

if TYPE_CHECKING:
    from dorm.policies.integer import Floats, Instance, Ints
    from dorm.policies.problem import Allocation, AppDemand, Problem

"""The first four are `time_per_iteration`, `future_rounds`, `lambda` and `k` of the published configurations and code."""
MOST_BUDGET = 1e4
"""Budgets are at most this many times the weight, and at least the inverse part of it."""
_RANGE = 1e3
"""Weights further apart than this are clipped, so that the program can be solved."""


class ShockwavePolicy:
    """Parameters: `count` (1000000) and `counts` ({}), containers of each app, as for `static`; by default its n_max; and
    its numbers in `dorm.policies.laboratory`."""

    name = "shockwave"
    version = 1

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        instance = integer.read(problem)
        wanted = fixed_counts.wanted(instance, settings)
        window = plan(instance, wanted, settings)
        # Those of the first round come first, in its order; then the others, if the cluster still has room for them.
        order = list(dict.fromkeys(app for round_ in window.rounds for app in round_))
        order += [app for app in window.apps if app not in window.first]
        packing = preemptive.serve(instance, wanted, [preemptive.Choice(app) for app in order])

        def why(app: int, units: int, room: reasons.Room) -> Reason:
            if units:
                count = units * int(instance.gang[app])
                return Reason("static_count", f"the shockwave policy gives it {count} or nothing")
            return reasons.no_room(instance, room, app, int(wanted[app]), "its whole count") or Reason(
                "queue", window.turn(app, settings["round_s"])
            )

        made = answer.by_rule(instance, packing.rows, reasons.by_rule(instance, packing.rows, why))
        return msgspec.structs.replace(made, status=window.status)


class Window(NamedTuple):
    """The plan for the next rounds."""

    apps: list[int]
    """Rows of the apps that take part."""
    rounds: list[list[int]]
    first: dict[int, int]
    """The first round of each app that has any."""
    status: str

    def turn(self, app: int, round_s: float) -> str:
        if app not in self.first:
            return f"others gain more by the next {len(self.rounds)} rounds, or are later than it"
        count = sum(app in each for each in self.rounds)
        return (
            f"its turn comes in {self.first[app] * round_s:.4g} s: it has {count} of the next {len(self.rounds)} rounds"
        )


def plan(instance: Instance, wanted: Ints, settings: dict[str, Any]) -> Window:
    """Return which apps run in which round."""
    total = instance.room.sum(axis=0)
    needs = (
        instance.demand
        * np.minimum(wanted, integer.LARGEST // np.maximum(instance.demand.max(axis=1, initial=1), 1))[:, None]
    )
    apps = np.flatnonzero(instance.free_to_move & (needs <= total).all(axis=1))
    if not len(apps):
        return Window([], [], {}, "optimal")
    use = needs[apps] / np.maximum(total, 1)
    ran_s, left_s = times(instance, apps, wanted, settings["assumed_s"])
    market = Market(
        ran_s=ran_s,
        left_s=left_s,
        budget=_budgets(instance, apps, use, (ran_s, left_s), settings["power"]),
        use=use,
        rounds=int(settings["rounds"]),
        round_s=float(settings["round_s"]),
        regularizer=float(settings["regularizer"]),
    )
    solution = solve(market)
    none = np.zeros(len(apps), np.int64)
    place = {app: at for at, app in enumerate(instance.arrival)}
    running = instance.kept[apps] & (instance.count[apps] == wanted[apps])
    turns = [place[app] for app in apps.tolist()]
    if solution is None:
        made, status = schedule(market, none, running, turns), "fallback"
    else:
        made = planned(market, solution, running, turns)
        best = close(market.value(counts_in(market, made)), solution.bound)
        status = "optimal" if best else "near" if solution.status == "optimal" else solution.status
    rounds = [[int(apps[each]) for each in round_] for round_ in made]
    first: dict[int, int] = {}
    for now, round_ in enumerate(rounds):
        for app in round_:
            first.setdefault(app, now)
    return Window(apps.tolist(), rounds, first, status)


def times(instance: Instance, apps: Ints, wanted: Ints, assumed_s: float) -> tuple[Floats, Floats]:
    """Return f and l: each app's elapsed and remaining run time, converted to its whole count."""
    ran, left = np.zeros(len(apps)), np.zeros(len(apps))
    for row, app in enumerate(apps.tolist()):
        each, count = instance.apps[app], int(wanted[app] * instance.gang[app])
        ran[row] = speeds.seconds(each.served_s / count)
        left[row] = max(_left_s(each, count, ran[row], assumed_s), 1.0)
    return ran, left


def _left_s(app: AppDemand, count: int, ran_s: float, assumed_s: float) -> float:
    """For an app with unknown work, the rest equals the service that it has received, and is at least the assumption."""
    curve = learned(known_of(app))
    if app.remaining_steps is not None and curve.absolute and (rate := curve.rate(count)) > 0:
        return speeds.seconds(app.remaining_steps / rate)
    return max(ran_s, assumed_s / count)


def _budgets(instance: Instance, apps: Ints, use: Floats, time: tuple[Floats, Floats], power: float) -> Floats:
    ran_s, left_s = time
    weight = np.nan_to_num(
        [max(instance.apps[app].weight, 0.0) for app in apps.tolist()], nan=0.0, posinf=integer.MOST_WEIGHT
    )
    weight = np.clip(weight / (weight.max(initial=0.0) or 1.0), 1 / _RANGE, 1.0)
    share = np.minimum(weight / weight.sum() / np.maximum(use.max(axis=1, initial=0.0), 1e-12), 1.0)
    age = np.array([speeds.seconds(instance.apps[app].age_s) for app in apps.tolist()])
    late = (np.maximum(age, ran_s) + left_s / share) / ((ran_s + left_s) / share)
    return np.asarray(weight * np.clip(np.clip(late, 1e-9, 1e9) ** power, 1 / MOST_BUDGET, MOST_BUDGET))
