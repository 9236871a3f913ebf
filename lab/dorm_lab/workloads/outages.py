"""When nodes fail: a process with two parameters, drawn from a seed.

Each node is up for an exponentially distributed time and then away for another, independent of the others: failures at a
constant rate per node, as Meta models its own clusters (Kokolis et al., Revisiting Reliability in Large-Scale Machine
Learning Research Clusters, HPCA 2025).  For scale: training Llama 3 was interrupted 419 times unexpectedly in 54 days on
16,384 GPUs (The Llama 3 Herd of Models, arXiv 2407.21783, 3.3.4), which is once in 264 days for each node of 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm_lab.workloads.draws import Draws
from replay.simulator import SimulationError
from replay.simulator.scenario import Outage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.simulator.workload import SimulatedNode

DAY_S = 86_400.0
LLAMA3_MTBF_S = 54 * DAY_S * (16_384 / 8) / 419
"""Mean time between failures of one node, from the figures above."""
_MOST = 1_000_000


def poisson(
    nodes: Iterable[SimulatedNode], *, mtbf_s: float, repair_s: float, until_s: float, seed: int = 0
) -> tuple[Outage, ...]:
    """Draw outages that start before `until_s`, in order of time.  `mtbf_s` is the mean time from a repair to the next failure
    of one node, `repair_s` the mean time that it is away; with a repair of 0 it comes back at once, with nothing running.

    A node's outages depend only on its name and the seed.  Raises SimulationError."""
    if mtbf_s <= 0 or repair_s < 0:
        text = "the mean time between failures must be more than 0 seconds, and the mean repair at least 0"
        raise SimulationError(text, code="simulation.outage.out_of_range")
    outages: list[Outage] = []
    for node in nodes:
        draws = Draws(seed, f"outages of {node.name}")
        at_s = draws.exponential(mtbf_s)
        while at_s < until_s:
            if len(outages) >= _MOST:
                text = f"more than {_MOST:,} outages; choose a longer time between failures"
                raise SimulationError(text, code="simulation.outage.too_many")
            for_s = draws.exponential(repair_s)
            outages.append(Outage(node.name, at_s, for_s))
            at_s += for_s + draws.exponential(mtbf_s)
    return tuple(sorted(outages, key=lambda outage: (outage.at_s, outage.node)))
