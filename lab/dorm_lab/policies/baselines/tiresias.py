"""The policy `tiresias`: least attained service first, in whole partitions of a fixed size, with preemption.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, without knowledge of jobs' run times
(§3.2, discretized two-dimensional least attained service).  An app's attained service is its containers times the time that
they ran, here in container-seconds.  It determines the app's queue: the first has apps below the first of `thresholds`, and so
on.  Within a queue the order is by arrival, so apps of similar service don't preempt each other in turns.  In this order, each
app that fits the remaining cluster runs with its whole count; the others wait, and are stopped if they ran.  They continue
from their checkpoint later.

One threshold of 16 container-hours is what Pollux's simulator sets for Tiresias (OSDI 2021, §5.1; `simulator/tiresias.py` of
petuum/adaptdl), so it is the default.  There, apps of the second queue go by when they left the first.  As there, starved apps
are not promoted (the paper's PromoteKnob), and every app is placed on the nodes with most room, so on few nodes; Tiresias
decides by a profile whether an app needs that (§3.3).

A master runs the policy after events; an app that crossed a threshold in between is noticed then.

The paper's cluster is GPUs alone.  With several kinds of resources, or fragmentation, an app may fit the cluster and not its
nodes: then the apps behind it are stopped, last first, until it fits.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from dorm.policies import answer, integer, laboratory, reasons
from dorm.policies.baselines import fixed_counts
from dorm.policies.problem import Reason
from dorm_lab.policies.baselines import preemptive

if TYPE_CHECKING:
    from dorm.policies.baselines.packing import Packing
    from dorm.policies.integer import Instance, Ints
    from dorm.policies.problem import Allocation, Problem

HOUR = 3600.0


class TiresiasPolicy:
    """Counts are those of `static`; an app with n_min = n_max has those in any case."""

    name = "tiresias"
    version = 1
    summary = "the app with the least attained service goes first and preempts others, as in Tiresias"
    parameters = laboratory.declared(
        name,
        {
            **fixed_counts.MEANINGS,
            "thresholds": "attained service (container-seconds) at which an app leaves one queue for the next",
        },
    )

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        instance = integer.read(problem)
        wanted = fixed_counts.wanted(instance, settings)
        order = [preemptive.Choice(app) for app in _order(instance, settings["thresholds"])]
        packing = preemptive.serve(instance, wanted, order)
        return answer.by_rule(instance, packing.rows, _explain(instance, packing, wanted))


def _order(instance: Instance, thresholds: list[float]) -> list[int]:
    """Return apps that may run, by queue, then by arrival."""
    movable = instance.free_to_move
    queue = [bisect_right(thresholds, app.served_s) for app in instance.apps]
    return sorted((app for app in instance.arrival if movable[app]), key=lambda app: queue[app])


def _explain(instance: Instance, packing: Packing, wanted: Ints) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if units:
            return Reason("static_count", f"the tiresias policy gives it {units * int(instance.gang[app])} or nothing")
        served = _hours(instance.apps[app].served_s)
        if instance.running[app]:
            return Reason("queue", f"stopped for apps that come first: it has had {served}")
        return reasons.no_room(instance, room, app, int(wanted[app]), "its fixed count") or Reason(
            "queue", f"apps that come first hold its room: it has had {served}"
        )

    return reasons.by_rule(instance, packing.rows, why)


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.4g} container-hours"
