"""Synthetic workloads: apps with arrivals, sizes and work drawn from the same distributions.

`parametric,apps=100,arrival=exponential:10m,work=lognormal:10h:1,cpu=2,memory=4GiB,n_max=8,speed=amdahl:0.95`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm_lab.workloads.draws import Draws
from events.spec import SpecError, check_spec
from replay.simulator import SimulationError
from replay.simulator.workload import SimulatedApp, Workload

if TYPE_CHECKING:
    from dorm_lab.workloads.draws import Distribution
    from dorm_lab.workloads.options import Options

MOST_APPS = 1_000_000
RESOURCES = {"cpu": "2", "memory": "4GiB", "gpu": None}
"""Default demand of one container."""


def workload(options: Options, seed: int = 0) -> Workload:
    """Return a workload from options, all with defaults:

    `apps` (100)                    number of apps
    `arrival` (exponential:10m)     seconds from one submission to the next
    `work` (lognormal:10h:1)        seconds that the work takes on one container
    `cpu` (2) `memory` (4GiB) `gpu` demand of one container
    `n_min` (1) `n_max` (8)         bounds; an n_max drawn below n_min is raised to it
    `weight` (1)
    `speed` (linear)                linear, amdahl:0.95 or table:1:1:4:3.5

    All but demand and speed are distributions.  Raises SimulationError.
    """
    count = options.whole("apps", 100, least=1, most=MOST_APPS)
    arrival = options.drawn("arrival", "exponential:10m", durations=True)
    work = options.drawn("work", "lognormal:10h:1", durations=True)
    demand = {name: amount for name, default in RESOURCES.items() if (amount := options.text(name) or default)}
    bounds = {name: options.drawn(name, default) for name, default in (("n_min", "1"), ("n_max", "8"), ("weight", "1"))}
    speed = options.speed()
    options.done()
    # One sequence for each, so other work leaves the arrivals unchanged.
    draws = {name: Draws(seed, name) for name in ("arrival", "work", *bounds)}
    at_s, apps = 0.0, []
    for number in range(1, (count or 0) + 1):
        at_s += arrival.draw(draws["arrival"])
        n_min = _count(bounds["n_min"], draws["n_min"])
        document = {
            "name": f"app-{number:0{len(str(count))}}",
            "command": ["train"],
            "resume": ["train", "--resume"],
            "demand": demand,
            "n_min": n_min,
            "n_max": max(n_min, _count(bounds["n_max"], draws["n_max"])),
            "weight": round(bounds["weight"].draw(draws["weight"]), 3),
        }
        try:
            spec = check_spec(document)
        except SpecError as error:
            raise SimulationError(f"workload parametric: {error}", code=error.code) from None
        # An app without any work would be done before it starts.
        apps.append(SimulatedApp(round(at_s, 3), spec, max(0.001, work.draw(draws["work"])), speed))
    return Workload(name="parametric", apps=tuple(apps))


def _count(distribution: Distribution, draws: Draws) -> int:
    return max(1, round(distribution.draw(draws)))
