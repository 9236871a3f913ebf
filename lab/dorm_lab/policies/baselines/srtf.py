"""The policy `srtf`: shortest remaining time first, in whole partitions, with preemption.

Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline", Operations Research 16, 1968: on
one machine it has the least mean completion time of all rules.  Schedulers of training jobs are compared with it (Tiresias,
NSDI 2019; Optimus, EuroSys 2018): an app runs with its whole count or waits.  The remaining time is that with this count,
by the app's `remaining_steps` and `speed`; Tiresias's variant that multiplies the time by the count (shortest remaining
service first) is not offered.

For an app without steps or speed, the remaining work is assumed to equal the service that it has received: the expectation for
heavy-tailed work (Tiresias, §3.2).  So a new app goes first, and falls back while it runs.

The order is that of the present decision; ties go by arrival.  The time lost by a preemption is not considered, as in the
original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.policies import answer, integer, laboratory, reasons
from dorm.policies.baselines import fixed_counts
from dorm.policies.problem import Reason
from dorm_lab.policies.baselines import preemptive, speeds

if TYPE_CHECKING:
    from dorm.policies.baselines.packing import Packing
    from dorm.policies.integer import Instance, Ints
    from dorm.policies.problem import Allocation, AppDemand, Problem


class SrtfPolicy:
    """Counts are those of `static`; by default, an app asks for its n_max."""

    name = "srtf"
    version = 1
    summary = "the app that ends soonest goes first, with all that it asks for, and preempts others"
    parameters = laboratory.declared(
        name,
        {
            **fixed_counts.MEANINGS,
        },
    )

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return laboratory.check_params(self.name, params)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        instance = integer.read(problem)
        wanted = fixed_counts.wanted(instance, self.check_params(params))
        left = [remaining_s(app, int(wanted[i] * instance.gang[i])) for i, app in enumerate(instance.apps)]
        movable = instance.free_to_move
        order = sorted((app for app in instance.arrival if movable[app]), key=lambda app: left[app])
        packing = preemptive.serve(instance, wanted, [preemptive.Choice(app) for app in order])
        return answer.by_rule(instance, packing.rows, _explain(instance, packing, wanted, left))


def remaining_s(app: AppDemand, containers: int) -> float:
    """Return the remaining time with this many containers, as declared or by the service that it has received."""
    declared = speeds.remaining_s(app, containers)
    return declared if declared is not None else speeds.seconds(app.served_s / max(containers, 1))


def _explain(instance: Instance, packing: Packing, wanted: Ints, left: list[float]) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if units:
            return Reason("static_count", f"the srtf policy gives it {units * int(instance.gang[app])} or nothing")
        if instance.running[app]:
            return Reason("queue", f"stopped for apps that end sooner: it needs {left[app]:.4g} s")
        return reasons.no_room(instance, room, app, int(wanted[app]), "its whole count") or Reason(
            "queue", f"apps that end sooner hold its room: it needs {left[app]:.4g} s"
        )

    return reasons.by_rule(instance, packing.rows, why)
