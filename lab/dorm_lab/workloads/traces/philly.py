"""Microsoft's Philly cluster, 2017 (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training
Workloads", USENIX ATC 2019), as one row for each job: `timestamp,duration,num_gpus,gpu_time,cluster`.

A job becomes an app with one container for each of its GPUs; its virtual cluster is the user.  `gpu_time` is the product of
two other columns and is not read.  Rows are in no order, and do not describe the machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm_lab.workloads.traces.jobs import Collected, Job, Rules
from dorm_lab.workloads.traces.rows import Csv, count, moment, run_time

if TYPE_CHECKING:
    from pathlib import Path

    from dorm_lab.workloads.options import Options
    from events.quantities import Quantity
    from replay.simulator.workload import Workload

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
ASSUMPTIONS = (
    "One container has one GPU, and nothing is known of its cores and memory.",
    "Times are taken as UTC.",
)


def read(path: Path, options: Options, *, strict: bool = False, seed: int = 0) -> Workload:
    """Read the trace.  Besides the options of all traces, `cpu` and `memory` are a container's demand in addition to its
    GPU (default: none).

    Raises SimulationError."""
    rules = Rules.of(options)
    others = {name: amount for name in ("cpu", "memory") if (amount := options.text(name))}
    options.done()
    table = Csv(path)
    at, lasted, gpus = (table.column(name) for name in COLUMNS[:3])
    user = table.columns.index("cluster") if "cluster" in table.columns else None
    if strict:
        table.refuse_unknown(COLUMNS)
    demand: tuple[tuple[str, Quantity], ...] = (("gpu", 1), *others.items())

    def job(fields: list[str]) -> Job:
        return Job(
            at=moment(fields[at], "timestamp"),
            duration_s=run_time(fields[lasted], "duration"),
            containers=count(fields[gpus], "num_gpus"),
            demand=demand,
            user="" if user is None else fields[user],
        )

    collected = Collected(path, rules, strict=strict)
    collected.read(table.rows(), job)
    return collected.workload("philly", seed, assumptions=ASSUMPTIONS, ordered=False)
