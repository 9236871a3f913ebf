"""The policy `static`: a fixed number of containers per app, first come first served, never resized.

This is the Dorm paper's baseline, a statically partitioned cluster.  Running apps are not touched for as long as they can
stay; an app that lost a node gets its lost containers again if all of them fit, and otherwise waits at its place in the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.policies import answer, greedy, integer, reasons
from dorm.policies.baselines import fixed_counts
from dorm.policies.parameters import Other, ParameterError, refuse_unknown
from dorm.policies.problem import Reason
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.integer import Instance, Ints, Rows
    from dorm.policies.problem import Allocation, Problem


class StaticPolicy:
    """A count is clipped to n_min..n_max, and to the number that an empty cluster would hold."""

    name = "static"
    version = 1
    summary = "a fixed number of containers per app, first come first served, never resized"
    parameters: Mapping[str, Other] = {
        **fixed_counts.parameters(),
        "backfill": Other(False, "whether a later app may start while an earlier one waits for room"),
    }

    def check_params(self, params: dict[str, Any]) -> dict[str, Any]:
        refuse_unknown(self.name, params, self.parameters)
        counts, backfill = fixed_counts.check(self.name, params), params.get("backfill", False)
        if not isinstance(backfill, bool):
            raise ParameterError(f"policy static: backfill has to be true or false, not {short(backfill)}")
        return {**counts, "backfill": backfill}

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        settings = self.check_params(params)
        instance = integer.read(problem)
        wanted = fixed_counts.wanted(instance, settings)
        x, blocked = _serve(instance, wanted, backfill=settings["backfill"])
        rows = integer.rows_of(x)
        return answer.by_rule(instance, rows, _explain(instance, rows, wanted, blocked))


def _serve(instance: Instance, wanted: Ints, *, backfill: bool) -> tuple[Ints, dict[int, int]]:
    """Return the counts, and for each app that was not tried, the earlier app that blocks it."""
    x = np.where((instance.kept | instance.pinned)[:, None], instance.current, 0)
    free = integer.free_room(instance, integer.rows_of(x))
    blocked: dict[int, int] = {}
    first: int | None = None
    for app in integer.queue(instance):
        if first is not None and not backfill and not instance.running[app]:
            blocked[app] = first
            continue
        greedy.keep_in_place(instance, free, x, app)
        lacks = int(wanted[app] - x[app].sum())
        if lacks > 0 and greedy.put(instance, free, x, app, lacks) < lacks:
            free += x[app][:, None] * instance.demand[app]
            x[app] = 0
            first = app if first is None else first
    return x, blocked


def _explain(instance: Instance, rows: Rows, wanted: Ints, blocked: dict[int, int]) -> dict[str, Reason]:
    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if units or wanted[app] == 0:
            return Reason(
                "static_count", f"the static policy gives it {units * int(instance.gang[app])} and never resizes"
            )
        if app in blocked:
            return Reason("queue", f"{instance.apps[blocked[app]].id} came first and waits for room")
        return reasons.no_room(instance, room, app, int(wanted[app]), "its fixed count") or Reason(
            "resources", f"its {int(wanted[app] * instance.gang[app])} containers did not fit when its turn came"
        )

    return reasons.by_rule(instance, rows, why)
