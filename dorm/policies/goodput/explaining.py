"""Why an app has less than its n_max under a policy that weighs goodput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.policies import integer, reasons
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from dorm.policies.integer import Instance, Rows

WAITS = Reason("queue", "others gain more by the room that it needs")
NO_MORE = Reason("gain", "others gain more by further containers, or it gains nothing by them")


def explain(instance: Instance, rows: Rows) -> dict[str, Reason]:
    """Return the reason of each app below its n_max."""
    room = reasons.Room(instance, integer.free_room(instance, rows))
    found = {}
    for i, app in enumerate(instance.apps):
        n = sum(rows[i].values())
        if (sum(app.current.values()) if instance.pinned[i] else n * int(instance.gang[i])) >= app.n_max:
            continue
        if instance.pinned[i]:
            reason = reasons.ADJUSTING
        elif not instance.possible[i]:
            reason = reasons.impossible(instance, i)
        elif n == 0:
            reason = reasons.no_room(instance, room, i, int(instance.n_min[i]), "n_min") or WAITS
        elif n < instance.fits_empty[i] and not room.lack(i).text:
            reason = NO_MORE
        else:
            reason = reasons.no_more_room(instance, room, i, n)
        found[app.id] = reason
    return found
