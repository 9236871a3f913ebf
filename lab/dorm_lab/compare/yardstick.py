"""Pollux's workloads as its public simulator runs them, to compare policies with published results of others.

The simulator of Pollux (OSDI 2021, §5.3; `petuum/adaptdl`, folder `simulator`) decides every 60 s and charges 30 s for every
start and restart, during which the GPUs are held and nothing is done.  `scenario` runs its workloads the same way here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm_lab.workloads.traces.pollux import NODES, bounded
from replay.simulator.contenders import BY_TIME
from replay.simulator.scenario import DecisionTime, Rounds, Scenario
from replay.simulator.timings import Timings

if TYPE_CHECKING:
    from dorm_lab.workloads.traces.pollux import Bounds
    from replay.simulator.contenders import Contender
    from replay.simulator.workload import SimulatedApp, SimulatedNode, Workload

PUBLISHED = {"tiresias": 3469.69375, "optimus": 5301.875, "pollux": 2446.13125}
"""Mean completion time (s) on workload 6, by the public simulator's README; `pollux` also tunes batch sizes."""
DIFFERENCES = (
    "There, work is counted by epochs, each rounded to whole seconds; here in steps, each worth the mean over all epochs.",
    "There, Optimus knows what is left by whole epochs; here to the step, as last reported (every 60 s).",
    "There, apps of the second queue of Tiresias go by when they left the first; here by arrival, as in the first.",
    "There, a job that keeps its GPUs is charged nothing; here too, and every other change, including a move between equal "
    "nodes, costs a restart of 30 s.",
    "There, Optimus and Pollux give one GPU to every job of ncf; here as many as make it faster.",
    "There, Pollux learns each job's speed while it runs, at first on one GPU; here it is told the speed with the batch size "
    "of the workload's row, and the gradient noise as last reported.",
)
"""Differences between the two models, each a sentence for a report."""
ROUND_S = 60.0
RESTART_S = 30.0
QUIET_S, QUIET_LIMIT_S = 0.2, 1.0
"""Seconds that `at_events` waits after something happened, at least and at most, as a master does by default."""

_BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(("tiresias", "static", "fifo", "srtf", "gavel", "shockwave"), "rigid"),
    **dict.fromkeys(("optimus", "pollux", "sia"), "wide"),
}
"""Policies whose workload gets the bounds of Pollux's simulator; the others get it unchanged."""

_ALWAYS = ("dorm-speed", *BY_TIME)
"""Policies whose answer may change although nothing has happened."""


def scenario(workload: Workload, contender: Contender) -> Scenario:
    """Return one run of a workload that `traces.pollux` has read, with bounds `requested` to be compared with Pollux's."""
    bounds = _BOUNDS.get(contender.policy)
    apps = workload.apps if bounds is None else tuple(bounded(app, bounds) for app in workload.apps)
    return simulated(apps, workload.nodes, contender)


def simulated(apps: tuple[SimulatedApp, ...], nodes: tuple[SimulatedNode, ...], contender: Contender) -> Scenario:
    """Return one run of apps whose bounds are set."""
    base = Scenario(
        apps=apps,
        nodes=nodes or NODES,
        quiet_s=0.0,
        quiet_limit_s=0.0,
        idle_s=ROUND_S,
        rounds=Rounds(ROUND_S, always=contender.policy in _ALWAYS),
        timings=Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=RESTART_S, resume_s=RESTART_S),
        decision_time=DecisionTime(0.0, 0.0),
        progress_s=ROUND_S,
    )
    return contender.of(base)


def at_events(scenario: Scenario) -> Scenario:
    """Return the same run with decisions when something happens, as a master decides, and not in rounds."""
    return msgspec.structs.replace(scenario, rounds=None, quiet_s=QUIET_S, quiet_limit_s=QUIET_LIMIT_S)
