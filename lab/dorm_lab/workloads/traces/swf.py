"""The Standard Workload Format of the Parallel Workloads Archive (Chapin et al., "Benchmarks and Standards for the Evaluation
of Parallel Job Schedulers", JSSPP 1999; version 2.2): comments that start with `;`, then 18 numbers for each job, -1 for
unknown.

A job becomes an app with as many containers as hold the processors that it asked for (or else had).  Its wait is not used,
since a simulation computes its own; memory is demanded only if the header says how much a node has.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from dorm_lab.workloads.nodes import fitting, named
from dorm_lab.workloads.options import NUMBER
from dorm_lab.workloads.traces.jobs import Collected, Job, Rules
from dorm_lab.workloads.traces.rows import (
    LATEST_S,
    LONGEST_S,
    MOST_CONTAINERS,
    BrokenRow,
    LeftOutRow,
    lines,
    number,
)
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dorm_lab.workloads.options import Options
    from events.quantities import Quantity
    from replay.simulator.workload import SimulatedNode, Workload

FIELDS = 18
SUBMIT, RUN, ALLOCATED, USED_MEMORY, REQUESTED, REQUESTED_MEMORY, STATUS, USER = 1, 3, 4, 6, 7, 9, 10, 11
"""Indexes of the fields that are read, from 0."""
PARTIAL = {"2", "3", "4"}
"""Statuses of rows that are only a part of a job, which has a row of its own."""
CANCELLED = "5"
KIB = 1024
_HEADER = re.compile(r";\s*(UnixStartTime|MaxNodes|MaxProcs|MaxMemory)\s*:\s*(\d{1,12})\b", re.ASCII)
ASSUMPTIONS = (
    "Jobs that failed, or were cancelled while they ran, have the work of the time that they ran.",
    "What a job says of those before it (preceding job, think time) is not followed.",
)


def read(path: Path, options: Options, *, strict: bool = False, seed: int = 0) -> Workload:
    """Read the trace.  Besides the options of all traces, `cores` (1) is a container's number of processors.  Raises
    SimulationError."""
    rules = Rules.of(options)
    cores = options.whole("cores", 1, least=1, most=MOST_CONTAINERS) or 1
    options.done()
    header: dict[str, int] = {}
    collected = Collected(path, rules, strict=strict)
    collected.read(_rows(path, header), _reader(header, cores))
    nodes = _nodes(header)
    workload = collected.workload("swf", seed, nodes=nodes, assumptions=ASSUMPTIONS)
    return fitting(workload, nodes, strict=strict) if nodes else workload


def _rows(path: Path, header: dict[str, int]) -> Iterator[tuple[int, list[str] | BrokenRow]]:
    """Yield rows, and collect the header from the comments on the way."""
    for line, text in lines(path):
        if text.lstrip().startswith(";"):
            if match := _HEADER.match(text.lstrip()):
                header.setdefault(match[1], int(match[2]))
            continue
        fields = text.split()
        wrong = next((field for field in fields if not NUMBER.fullmatch(field)), None)
        if wrong is not None:
            yield line, BrokenRow(f"{short(wrong)} is not a number", code="trace.value.malformed")
        elif fields:
            yield line, fields if len(fields) == FIELDS else BrokenRow(f"{len(fields)} fields instead of {FIELDS}")


def _reader(header: dict[str, int], cores: int) -> Callable[[list[str]], Job]:
    def job(fields: list[str]) -> Job:
        at = number(fields[SUBMIT], "the submit time", most=LATEST_S)
        if fields[STATUS] in PARTIAL:
            raise LeftOutRow("it is part of a job that has its own row", code="trace.job.partial")
        if fields[RUN] == "-1" and fields[STATUS] == CANCELLED:
            raise LeftOutRow("it never ran", code="trace.job.never_ran")
        if fields[RUN] == "-1":
            raise BrokenRow("the run time is unknown", code="trace.value.missing")
        duration_s = number(fields[RUN], "the run time", most=LONGEST_S)
        if not duration_s:  # Rounded, by the format; cancelled jobs have it too.
            raise LeftOutRow("it ran for less than half a second, or not at all", code="trace.job.too_short")
        processors = _known(fields[REQUESTED]) or _known(fields[ALLOCATED])
        if processors is None:
            raise BrokenRow("neither the requested nor the allocated processors are known", code="trace.value.missing")
        demand: list[tuple[str, Quantity]] = [("cpu", cores)]
        if "MaxMemory" in header and (memory := _known(fields[REQUESTED_MEMORY]) or _known(fields[USED_MEMORY])):
            demand.append(("memory", memory * KIB * cores))
        return Job(
            at=at + header.get("UnixStartTime", 0),
            duration_s=duration_s,
            containers=math.ceil(processors / cores),
            demand=tuple(demand),
            user=fields[USER] if fields[USER] != "-1" else "",
        )

    return job


def _known(text: str) -> int | None:
    """Return a whole number, None for -1 and 0."""
    if text == "-1":
        return None
    value = number(text, "a field", most=1e12)
    if value != int(value):
        raise BrokenRow(f"expected a whole number, got {short(text)}", code="trace.value.malformed")
    return int(value) or None


def _nodes(header: dict[str, int]) -> tuple[SimulatedNode, ...]:
    """Return the machine if the header has its nodes; each is one processor if it does not say how many there are."""
    nodes = header.get("MaxNodes", 0)
    processors = header.get("MaxProcs", nodes)
    if not 1 <= nodes <= min(processors, MOST_CONTAINERS):
        return ()
    memory = {"memory": header["MaxMemory"] * KIB} if header.get("MaxMemory") else {}
    each, more = divmod(processors, nodes)
    return named([({"cpu": 1000 * (each + (index < more))} | memory, {}) for index in range(nodes)])
