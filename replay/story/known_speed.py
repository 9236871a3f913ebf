"""An app's known speed, and the saving of one more container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.policies.problem import Problem
from dorm.policies.speed import curves
from dorm.policies.speed.by_type import by_type, typed_of
from dorm.policies.speed.learning import known_of, learned
from dorm.policies.speed.locality import Locality
from dorm.policies.speed.types import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.policies.problem import AppDemand, Measured, NodeRoom
    from dorm.policies.speed.by_type import ByType
    from dorm.policies.speed.learning import Learned


class SpeedPoint(msgspec.Struct, frozen=True):
    """Its speed with this many containers."""

    containers: int
    steps_per_s: float | None
    """None if nothing was measured or declared: then only `speed_up` is known."""
    speed_up: float
    """Against the fewest containers that it may have."""
    uncertainty: float
    """Relative error (one standard deviation)."""
    measured_s: float
    """Seconds for which it was measured with this many."""


class TypeCurve(msgspec.Struct, frozen=True):
    """Its speed on nodes of one type (the label `type`)."""

    type: str
    """"" for nodes without a type."""
    basis: str
    """Basis, as for `SpeedCurve`."""
    times: float
    """Factor by which it is faster than on the slowest type, with the fewest containers that it may have."""
    points: list[SpeedPoint]


class SpeedCurve(msgspec.Struct, frozen=True):
    """What `dorm-speed` decides by."""

    basis: str
    """`measured`, `declared` by its owner, `alike` (measured on an app like it), or `law` (of a usual app)."""
    points: list[SpeedPoint]
    remaining_s: float | None
    """Time until it is done with its current containers; None if its remaining work is unknown, or it has none."""
    next_saves_s: float | None
    """Seconds by which it would be done earlier with one more container, or gang, from here on; None likewise and at its
    n_max."""
    types: list[TypeCurve] = []
    """Speed by type of node, fastest first; empty if no difference between the cluster's types is known."""
    across: list[SpeedPoint] = []
    """Speed on several nodes with counts that one node could hold, on its present type if types matter; empty if it is not
    known to be slower there.  The other points are on as few nodes as possible."""


def speed_curve(app: AppDemand, nodes: Sequence[NodeRoom] = ()) -> SpeedCurve:
    """Return the known speed of an app of a policy's problem, on the cluster's nodes."""
    names = names_of(nodes)
    if len(names) == 1 and names[0] in app.speed_on:
        app = msgspec.structs.replace(app, speed=app.speed_on[names[0]])
    local = Locality(Problem(tuple(nodes), (app,)))
    near = local.problem.apps[0]
    known = learned(known_of(near))
    now, gang = sum(app.holds.values()), max(app.gang, 1)
    typed = typed_of(near, names)
    typed_curves = by_type(typed) if typed is not None else None
    pace, kept = known, local.across(near)
    if typed_curves is not None:
        type_of = {node.id: node.type for node in nodes}
        on = sorted({type_of.get(node, "") for node in app.holds} & typed_curves.curves.keys()) or sorted(
            typed_curves.curves
        )
        slowest = min(on, key=lambda name: typed_curves.curves[name].rate(max(now, gang)))
        pace, kept = typed_curves.curves[slowest], local.across_on(near, names).get(slowest)
    across = _across(app, local, pace, kept) if kept is not None else []
    remaining = _remaining_s(app, pace, now)
    if len(app.holds) > 1 and (
        slower := next((point.steps_per_s for point in across if point.containers == now), None)
    ):
        remaining = None if app.remaining_steps is None else min(app.remaining_steps / slower, curves.MOST_WORK_S)
    more = _remaining_s(app, pace, now + gang) if now + gang <= app.n_max else None
    saves = max(0.0, remaining - more) if remaining is not None and more is not None else None
    types = _types(app, typed_curves) if typed_curves is not None else []
    return SpeedCurve(known.basis, _points(app, known, near.measured), remaining, saves, types, across)


def _across(app: AppDemand, local: Locality, known: Learned, kept: Sequence[float]) -> list[SpeedPoint]:
    """Return its speed on several nodes, where that is lower: the part of its speed on one that it keeps."""
    gang, least = max(app.gang, 1), max(app.n_min, app.gang, 1)
    first = known.rate(least)
    seen: dict[int, float] = {}
    for each in local.spread.get(app.id, ()):
        seen[each.containers] = seen.get(each.containers, 0.0) + each.seconds
    curves = []
    for units in range(2, len(kept)):
        n = units * gang
        rate = known.rate(n) * kept[units]
        if least <= n <= app.n_max:
            times = rate / first if first > 0 else 0.0
            curves.append(
                SpeedPoint(n, rate if known.absolute else None, times, known.uncertainty(n), seen.get(n, 0.0))
            )
    return curves


def _types(app: AppDemand, typed_curves: ByType) -> list[TypeCurve]:
    least = max(app.n_min, app.gang, 1)
    rates = {name: curve.rate(least) for name, curve in typed_curves.curves.items()}
    slowest = min(rates.values())
    return [
        TypeCurve(
            name,
            typed_curves.curves[name].basis,
            rates[name] / slowest if slowest > 0 else 0.0,
            _points(app, typed_curves.curves[name], [point for point in app.measured if point.type == name]),
        )
        for name in sorted(rates, key=lambda name: (-rates[name], name))
    ]


def _points(app: AppDemand, known: Learned, seen: Sequence[Measured]) -> list[SpeedPoint]:
    """Return the points of a curve, each with how long it was `seen`."""
    gang = max(app.gang, 1)
    measured: dict[int, float] = {}
    for point in seen:
        measured[point.containers] = measured.get(point.containers, 0.0) + point.seconds
    now = sum(app.holds.values())
    least = max(app.n_min, gang)
    shown = sorted(
        {n for n in (*(int(n) for n in known.counts[1:]), now, now + gang) if least <= n <= max(app.n_max, now)}
    )
    first = known.rate(least)
    return [
        SpeedPoint(
            n,
            known.rate(n) if known.absolute else None,
            known.rate(n) / first if first > 0 else 0.0,
            known.uncertainty(n),
            measured.get(n, 0.0),
        )
        for n in shown
    ]


def _remaining_s(app: AppDemand, known: Learned, containers: int) -> float | None:
    rate = known.rate(containers)
    if app.remaining_steps is None or not known.absolute or containers <= 0 or rate <= 0:
        return None
    return min(app.remaining_steps / rate, curves.MOST_WORK_S)
