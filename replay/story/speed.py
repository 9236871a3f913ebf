"""What is known of an app's speed, and what one more container would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.policies.speed import curves
from dorm.policies.speed.learning import known_of, learned

if TYPE_CHECKING:
    from dorm.policies.problem import AppDemand


class SpeedPoint(msgspec.Struct, frozen=True):
    """Its speed with so many containers."""

    containers: int
    steps_per_s: float | None
    """None where nothing was measured or declared: then only `speed_up` is known."""
    speed_up: float
    """Against the fewest containers that it may have."""
    uncertainty: float
    """About how far off that may be, as a part of it (one standard deviation)."""
    measured_s: float
    """How long it was measured with this many."""


class SpeedCurve(msgspec.Struct, frozen=True):
    """What `dorm-speed` decides by."""

    basis: str
    """`measured`, `declared` by its owner, `alike` (measured on an app like it), or `law` (of a usual app)."""
    points: list[SpeedPoint]
    remaining_s: float | None
    """Until it is done, with what it has; None where its remaining work is not known, or it has nothing."""
    next_saves_s: float | None
    """How much earlier it would be done with one more container, or gang, from here on; None likewise and at its n_max."""


def speed_curve(app: AppDemand) -> SpeedCurve:
    """Return what is known of the app that a policy is asked about."""
    known = learned(known_of(app))
    gang = max(app.gang, 1)
    measured: dict[int, float] = {}
    for one in app.measured:
        measured[one.containers] = measured.get(one.containers, 0.0) + one.seconds
    now = sum(app.holds.values())
    least = max(app.n_min, gang)
    shown = sorted(
        {n for n in (*(int(n) for n in known.counts[1:]), now, now + gang) if least <= n <= max(app.n_max, now)}
    )
    first = known.rate(least)
    points = [
        SpeedPoint(
            n,
            known.rate(n) if known.absolute else None,
            known.rate(n) / first if first > 0 else 0.0,
            known.uncertainty(n),
            measured.get(n, 0.0),
        )
        for n in shown
    ]
    remaining = _remaining_s(app, now)
    more = _remaining_s(app, now + gang) if now + gang <= app.n_max else None
    saves = max(0.0, remaining - more) if remaining is not None and more is not None else None
    return SpeedCurve(known.basis, points, remaining, saves)


def _remaining_s(app: AppDemand, containers: int) -> float | None:
    known = learned(known_of(app))
    rate = known.rate(containers)
    if app.remaining_steps is None or not known.absolute or containers <= 0 or rate <= 0:
        return None
    return min(app.remaining_steps / rate, curves.MOST_WORK_S)
