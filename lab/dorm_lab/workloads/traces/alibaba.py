"""Alibaba's GPU cluster, 2023 (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023): a list of nodes and one of pods.

A pod becomes an app of one container, and its GPUs, which it may share, are counted in thousandths: the resource `gpu_milli`,
of which a node has 1,000 for each of its GPUs.  It ran from when it was scheduled until it was deleted; its wait is not used,
since a simulation computes its own.  A pod that was never scheduled did no known work, and is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm_lab.workloads.nodes import fitting
from dorm_lab.workloads.traces.jobs import Collected, Job, Rules
from dorm_lab.workloads.traces.rows import LATEST_S, LONGEST_S, BrokenRow, Csv, LeftOutRow, count, number
from replay.simulator import SimulationError
from replay.simulator.workload import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm_lab.workloads.options import Options
    from events.quantities import Quantity
    from replay.simulator.workload import Workload

NODES, PODS = "openb_node_list_all_node.csv", "openb_pod_list_default.csv"
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
MIB = 2**20
ASSUMPTIONS = (
    "A pod is one container, whose run time is from when it was scheduled until it was deleted.",
    "GPU shares are summed over a node's GPUs, so three pods of two thirds of a GPU fit two GPUs here, and would not there.",
    "Pods that were never scheduled are left out; {cut_off} that still ran when the trace ends are assumed to end then.",
)


def read(path: Path, options: Options, *, strict: bool = False, seed: int = 0) -> Workload:
    """Read the trace in the folder `path`.  Besides the options of all traces, `nodes` and `pods` name the files in it.

    Raises SimulationError."""
    rules = Rules.of(options)
    nodes_file, pods_file = options.text("nodes") or NODES, options.text("pods") or PODS
    options.done()
    nodes = read_nodes(path / nodes_file)
    table = Csv(path / pods_file)
    if strict:
        table.refuse_unknown(POD_COLUMNS)
    collected = Collected(table.path, rules, strict=strict)
    collected.read(table.rows(), _reader(table))
    ends = [job.at + job.duration_s for job, _, _ in collected.jobs]
    last = max(ends, default=0.0)
    assumptions = [text.format(cut_off=f"{ends.count(last):,}") for text in ASSUMPTIONS]
    return fitting(collected.workload("alibaba", seed, nodes=nodes, assumptions=assumptions), nodes, strict=strict)


def _reader(table: Csv) -> Callable[[list[str]], Job]:
    name, cpu, memory, gpus, share, models, created, deleted, scheduled = (
        table.column(column) for column in POD_COLUMNS if column not in ("qos", "pod_phase")
    )

    def job(fields: list[str]) -> Job:
        at = number(fields[created], "creation_time", most=LATEST_S)
        if not fields[scheduled].strip():
            raise LeftOutRow("it was never scheduled", code="trace.job.never_ran")
        begin = number(fields[scheduled], "scheduled_time", most=LATEST_S)
        end = number(fields[deleted], "deletion_time", most=LATEST_S)
        if not at <= begin <= end <= begin + LONGEST_S:
            text = f"times must ascend, but it was created at {at:g}, scheduled at {begin:g} and deleted at {end:g}"
            raise BrokenRow(text, code="trace.times.not_ascending")
        if begin == end:
            raise LeftOutRow("it was deleted as soon as it was scheduled", code="trace.job.too_short")
        demand: list[tuple[str, Quantity]] = [
            ("cpu", number(fields[cpu], "cpu_milli", most=1e9) / 1000),
            ("memory", int(number(fields[memory], "memory_mib", most=1e12) * MIB)),
        ]
        if wanted := count(fields[gpus], "num_gpu", least=0):
            demand.append(("gpu_milli", wanted * count(fields[share], "gpu_milli")))
        return Job(
            at=at,
            duration_s=end - begin,
            containers=1,
            demand=tuple(demand),
            name=fields[name],
            require=_require(fields[models]),
        )

    return job


def _require(models: str) -> str:
    """Convert `V100M16|V100M32` into a requirement on a node's label."""
    wanted = [model.strip() for model in models.split("|") if model.strip()]
    if any('"' in model or "\\" in model for model in wanted):
        raise BrokenRow(f"gpu_spec is {models!r}, which is not a list of models", code="trace.value.malformed")
    quoted = ", ".join(f'"{model}"' for model in wanted)
    return f"gpu_type in [{quoted}]" if wanted else ""


def _unnamed(name: str) -> BrokenRow:
    """Return the error of a node without a name of its own."""
    if not name:
        return BrokenRow("the node has no name", code="trace.name.missing")
    return BrokenRow(f"node {name} appears twice", code="trace.name.given_twice")


def read_nodes(path: Path) -> tuple[SimulatedNode, ...]:
    """Read the cluster.  A broken row is always refused, since a missing node changes the cluster.  Raises SimulationError."""
    table = Csv(path)
    name, cpu, memory, gpus, model = (table.column(column) for column in NODE_COLUMNS)
    nodes: dict[str, SimulatedNode] = {}
    for line, fields in table.rows():
        try:
            if isinstance(fields, BrokenRow):
                raise fields
            if not fields[name] or fields[name] in nodes:
                raise _unnamed(fields[name])
            has = {
                "cpu": int(number(fields[cpu], "cpu_milli", most=1e9)),
                "memory": int(number(fields[memory], "memory_mib", most=1e12) * MIB),
                "gpu_milli": 1000 * count(fields[gpus], "gpu", least=0),
            }
        except BrokenRow as error:
            raise SimulationError(f"{path}:{line}: {error}", code=error.code) from None
        labels = {"gpu_type": fields[model]} if fields[model] else {}
        nodes[fields[name]] = SimulatedNode(fields[name], {key: n for key, n in has.items() if n}, labels)
    if not nodes:
        raise SimulationError(f"{path}: the file lists no nodes", code="trace.no_nodes")
    return tuple(nodes.values())
