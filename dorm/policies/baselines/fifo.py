"""The policy `fifo`: first come, first served, in whole partitions, without preemption.

The app that came first starts as soon as all of its containers fit, and keeps them until it ends.  Without `backfill`, no
later app starts while an earlier one waits; with it, a later app may start wherever it fits, even if that delays the
first. (EASY backfilling, which starts a later job only if it does not delay the first, needs reliable run times:
Mu'alem and Feitelson, IEEE TPDS 12(6), 2001.)

`static` differs in its purpose and its default: it gives each app a number that an operator has fixed; this policy gives the
maximum that the app's owner asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.policies import answer, integer, reasons
from dorm.policies.baselines import fixed_counts
from dorm.policies.baselines.packing import Packing
from dorm.policies.parameters import Other, ParameterError, refuse_unknown
from dorm.policies.problem import Reason
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Instance, Ints
    from dorm.policies.problem import Allocation, Problem


class FifoPolicy:
    """Counts are those of `static`; by default, an app asks for its n_max."""

    name = "fifo"
    version = 1
    summary = "the app that came first starts first, with all that it asks for, and is never resized or stopped"
    parameters: Mapping[str, Other] = {
        **fixed_counts.parameters(fixed_counts.MOST),
        "backfill": Other(False, "whether a later app may start while an earlier one waits for room"),
    }

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        refuse_unknown(self.name, params, self.parameters)
        counts, backfill = fixed_counts.check(self.name, params, fixed_counts.MOST), params.get("backfill", False)
        if not isinstance(backfill, bool):
            raise ParameterError(f"policy fifo: backfill has to be true or false, not {short(backfill)}")
        return {**counts, "backfill": backfill}

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        instance = integer.read(problem)
        wanted = fixed_counts.wanted(instance, settings)
        packing, blocked = _serve(instance, wanted, backfill=settings["backfill"])
        return answer.by_rule(instance, packing.rows, _explain(instance, packing, wanted, blocked))


def _serve(instance: Instance, wanted: Ints, *, backfill: bool) -> tuple[Packing, dict[int, int]]:
    """Return the partitions, and for each app that was not tried, the earlier app that blocks it.  Apps whose nodes
    went away come before those that never ran."""
    packing = Packing(instance, instance.pinned | instance.kept)
    blocked: dict[int, int] = {}
    first: int | None = None
    for app in integer.queue(instance):
        if first is not None and not backfill and not instance.running[app]:
            blocked[app] = first
        elif not packing.put_all(app, int(wanted[app])) and first is None:
            first = app
    return packing, blocked


def _explain(instance: Instance, packing: Packing, wanted: Ints, blocked: dict[int, int]) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if units:
            return Reason(
                "static_count", f"it was started with {units * int(instance.gang[app])}, which it holds until it ends"
            )
        if app in blocked:
            return Reason("queue", f"{instance.apps[blocked[app]].id} came first and waits for room")
        return reasons.no_room(instance, room, app, int(wanted[app]), "its whole count") or Reason(
            "resources", f"its {int(wanted[app] * instance.gang[app])} containers did not fit when its turn came"
        )

    return reasons.by_rule(instance, packing.rows, why)
