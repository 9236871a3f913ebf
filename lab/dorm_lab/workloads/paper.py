"""The workload of the Dorm paper's evaluation (Sun, Wen, Ta, Yan, arXiv 1704.06738, §V), and its static baseline.

50 apps of seven types arrive at a mean of one in 20 minutes on 20 nodes, which have 240 CPU cores, 5 GPUs and 2.5 TB of memory
together, and are observed for 24 hours.  These values were fixed before any policy was run on them; `ASSUMPTIONS` lists
the paper's open questions, and every choice that could favor a policy is an argument of `workload`, for sensitivity
tables.

**How long apps run** is the choice that matters most, since it sets the load.  One distribution for all types: lognormal, a
mean of 3 h, and a standard deviation of 0.5 of the logarithm (95 of 100 between 1 h and 7 h), with the static baseline's
count.  An app has 15.7 cores there on average (40 × 16 and 6 × 16 cores, and 50 of the four with GPUs, over 50 apps), three
arrive in an hour, so the static counts demand 3/h × 3 h × 15.7 = 141 of 240 cores, 59 %, while apps arrive.  That is a heavy
load that a fixed partition still serves with little waiting (some nine apps at once, and room for fifteen).  Both extremes
would be unfair: at 6 h the static counts alone demand 118 %, and the comparison is mostly of their queue; below 1 h there is
seldom more than one app at a time, and the difference is only that one app can get the whole cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm_lab.workloads.draws import Draws
from events.spec import check_spec
from replay.simulator.speed import Linear
from replay.simulator.workload import SimulatedApp, SimulatedNode, Workload

if TYPE_CHECKING:
    from replay.simulator.speed import Speed

GIB = 2**30
HOUR_S = 3600.0
ARRIVAL_S = 1200.0
"""Mean time between two submissions (§V: 20 minutes, Poisson)."""
HORIZON_S = 24 * HOUR_S
"""Time for which the paper observes."""
DURATION_H = 3.0
DURATION_SIGMA = 0.5


class AppType(NamedTuple):
    """One row of the paper's table of applications."""

    name: str
    cpu: int
    gpu: int
    memory_gib: int
    weight: float
    n_max: int
    n_min: int
    apps: int
    static: int
    """Containers of the app in the static baseline."""


APP_TYPES = (
    AppType("lr", 2, 0, 8, 1.0, 32, 1, 20, 8),  # logistic regression, Criteo
    AppType("mf", 2, 0, 6, 2.0, 32, 1, 20, 8),  # matrix factorization, MovieLens
    AppType("caffenet", 4, 0, 6, 1.0, 8, 1, 6, 4),
    AppType("vgg-16", 4, 1, 32, 1.0, 5, 1, 1, 2),
    AppType("googlenet", 6, 1, 16, 2.0, 5, 1, 1, 2),
    AppType("alexnet", 6, 1, 16, 2.0, 5, 1, 1, 3),
    AppType("resnet-50", 4, 1, 32, 4.0, 5, 1, 1, 3),
)

ASSUMPTIONS = (
    "The abstract and §V give the number of apps, arrivals and the cluster's sums; the table of the seven types and of the "
    "static counts is written down from memory of the paper and was not checked against its text.",
    "Nodes are equal but for GPUs: 12 cores and 128 GiB each (240 cores and 2.5 TiB over 20), one GPU on each of the first 5.",
    "GB of the table are taken as GiB.",
    "The order of the types is drawn by seed; the paper gives none.",
    "How long apps run is not in the paper: lognormal, mean 3 h, sigma 0.5, one distribution for all types, as it takes with "
    "the static counts; they then ask for 59 % of the cores while apps arrive.",
    "Speed grows in proportion to containers up to n_max, which the paper's bounds suggest; Amdahl's law is the sensitivity.",
    "Every app does a fixed amount of work; the paper's own stopping rules are not known.",
)


def nodes() -> tuple[SimulatedNode, ...]:
    """The testbed: 20 machines, 240 cores, 5 GPUs, 2.5 TiB."""
    return tuple(
        SimulatedNode(
            name=f"node-{index:02}",
            capacity={"cpu": 12_000, "memory": 128 * GIB} | ({"gpu": 1} if index <= 5 else {}),
        )
        for index in range(1, 21)
    )


def workload(
    seed: int = 0, *, hours: float = DURATION_H, arrival_s: float = ARRIVAL_S, speed: Speed | None = None
) -> Workload:
    """Return the paper's apps, with order, times and durations drawn from `seed`.

    `hours` is the mean duration with the static count, `speed` the speed of one app by containers (default: linear).
    With any speed, an app alone takes its duration with its static count, so the baseline is the same under all of
    them.
    """
    speed = speed or Linear()
    times, durations = Draws(seed, "arrivals"), Draws(seed, "durations")
    kinds = Draws(seed, "types").shuffled(kind for kind in APP_TYPES for _ in range(kind.apps))
    numbers = dict.fromkeys(kinds, 0)
    at_s = 0.0
    apps = []
    for kind in kinds:
        at_s += times.exponential(arrival_s)
        duration_s = durations.lognormal(hours * HOUR_S, DURATION_SIGMA)
        numbers[kind] += 1
        apps.append(_app(kind, numbers[kind], at_s, duration_s, speed))
    return Workload(name="paper", apps=tuple(apps), nodes=nodes(), assumptions=ASSUMPTIONS)


def _app(kind: AppType, number: int, at_s: float, duration_s: float, speed: Speed) -> SimulatedApp:
    demand = {"cpu": kind.cpu, "memory": f"{kind.memory_gib}GiB"} | ({"gpu": kind.gpu} if kind.gpu else {})
    spec = {
        "name": f"{kind.name}-{number:02}",
        "command": ["train"],
        "resume": ["train", "--resume"],
        "demand": demand,
        "n_min": kind.n_min,
        "n_max": kind.n_max,
        "weight": kind.weight,
        "labels": {"type": kind.name},
    }
    return SimulatedApp(
        at_s=round(at_s, 3),
        spec=check_spec(spec),
        work=duration_s * speed.rate((kind.static,)),
        speed=speed,
    )
