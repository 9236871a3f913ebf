"""What owners declare about their apps: nothing, or everything that a simulation knows.

Policies that use remaining work or speed (`optimus`, `dorm-speed`) need both from the spec.  Real owners seldom know them, so
a workload declares nothing by default; then the declarations are exact, the best case for such a policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from replay.simulator.speed import Speed
    from replay.simulator.workload import SimulatedApp, Workload

ASSUMPTION = "Owners declare exactly how much work their apps have and how fast they are."
_EACH = 16
"""Up to this many containers, a curve has a point for each number; beyond, for every doubling and the last."""


def declare_all(workload: Workload) -> Workload:
    """Return the same workload with `steps` and `speed` in every spec that has none."""
    curves: dict[tuple[Speed, float, int], list[tuple[int, float]]] = {}
    return msgspec.structs.replace(
        workload,
        apps=tuple(_declared(app, curves) for app in workload.apps),
        assumptions=(*workload.assumptions, ASSUMPTION),
    )


def _declared(app: SimulatedApp, curves: dict[tuple[Speed, float, int], list[tuple[int, float]]]) -> SimulatedApp:
    if app.spec.steps and app.spec.speed:
        return app
    key = (app.speed, app.steps_per_unit, app.spec.n_max)
    if key not in curves:
        rates = [(n, app.speed.rate((n,)) * app.steps_per_unit) for n in _counts(app.spec.n_max)]
        curves[key] = [(n, rate) for n, rate in rates if rate >= 1e-9]
    steps = max(1, round(app.work * app.steps_per_unit))
    speed_on = {kind: [(n, rate * times) for n, rate in curves[key]] for kind, times in app.faster_on.items()}
    spec = msgspec.structs.replace(app.spec, steps=steps, speed=curves[key], speed_on=speed_on)
    return msgspec.structs.replace(app, spec=spec)


def _counts(n_max: int) -> list[int]:
    doubled = [2**power for power in range(n_max.bit_length())]
    return sorted({*range(1, min(n_max, _EACH) + 1), *doubled, n_max})
