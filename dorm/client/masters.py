"""Which master leads a cluster: by its lease, and since when by the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.leadership import Held


class Leader(msgspec.Struct, frozen=True):
    """Which master leads a cluster, by the lease, and since when, by the log."""

    leader: str
    """Name of the master that has the lease and was seen to renew it; "" for none."""
    condition: str
    """leading; taking over: it has the lease, but its election is not on the log yet; silent: the lease was not seen to be
    renewed; gone: it was given back; unknown: there is none, as with masters of releases before leases, whose last one is the
    leader."""
    last: str
    """The master that was elected last, by the log; "" if none ever was."""
    epoch: int
    """That election's number."""
    elected_at: int
    """UTC nanoseconds, by the log's clock."""
    age_s: float
    """Since then."""
    led_until: int
    """UTC nanoseconds, by the log's clock: when the lease was last written, if no master leads; else 0."""
    lease_s: float
    """The lease duration in seconds, after which another master takes over; 0 if there is no lease."""
    danger: str = ""
    """What threatens the log's copies, and what to do; "" for no known danger."""


def row_of(state: State, held: Held | None, written_at: int, now: int, *, seen: bool) -> Leader:
    """Return the row for the lease `held`, written at `written_at` (UTC ns, as `now`); `seen`: whether a renewal was
    observed."""
    if held is None:
        leader, condition = state.leader, "unknown"
    elif not held.holder:
        leader, condition = "", "gone"
    elif not seen:
        leader, condition = "", "silent"
    else:
        leader, condition = held.holder, "leading" if held.holder == state.leader else "taking over"
    return Leader(
        leader=leader,
        condition=condition,
        last=state.leader,
        epoch=state.epoch,
        elected_at=state.elected_at,
        age_s=max(0.0, (now - state.elected_at) / 1e9) if state.leader else 0.0,
        led_until=written_at if condition in ("gone", "silent") else 0,
        lease_s=held.ttl_s if held else 0.0,
    )
