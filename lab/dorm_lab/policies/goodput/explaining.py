"""Why an app has less than its n_max under a policy that weighs goodput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.policies import reasons
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from dorm.policies.integer import Instance, Rows

WAITS = Reason("queue", "others gain more by the room that it needs")
NO_MORE = Reason("gain", "others gain more by further containers, or it gains nothing by them")


def explain(instance: Instance, rows: Rows) -> dict[str, Reason]:
    """Return the reason of each app below its n_max."""

    def why(app: int, units: int, room: reasons.Room) -> Reason:
        if not units:
            return reasons.no_room(instance, room, app, int(instance.n_min[app]), "n_min") or WAITS
        if units < instance.fits_empty[app] and not room.lack(app).text:
            return NO_MORE
        return reasons.no_more_room(instance, room, app, units)

    return reasons.by_rule(instance, rows, why)
