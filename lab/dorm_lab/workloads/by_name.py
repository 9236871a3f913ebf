"""Workloads by the text that names one: `paper`, `parametric,apps=50`, `philly:FILE,from=2017-10-01`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dorm_lab.workloads import paper, parametric
from dorm_lab.workloads.declared import declare_all
from dorm_lab.workloads.options import Options, WrongOption, split
from dorm_lab.workloads.traces import alibaba, philly, pollux, swf, table
from dorm_lab.workloads.traces.jobs import out_of_order
from events.quantities import short
from replay.simulator import SimulationError
from replay.words import containers

if TYPE_CHECKING:
    from replay.simulator.workload import Workload

KINDS = {
    "paper": "the workload of the Dorm paper",
    "parametric": "made-up apps, such as parametric,apps=50,arrival=exponential:10m,work=lognormal:10h:1",
    "philly:": "Microsoft's Philly trace, such as philly:philly.csv,from=2017-10-01,to=2017-11-01",
    "alibaba:": "the folder of Alibaba's GPU trace, such as alibaba:openb,from=119d,to=126d",
    "swf:": "a log in the Standard Workload Format, such as swf:log.swf.gz,cores=8",
    "csv:": "any CSV file, such as csv:jobs.csv,submit=created,duration=runtime,containers=gpus,gpu=1",
    "pollux:": "a workload of Pollux's simulator, such as pollux:workload-6.csv,profiles=DIR",
}
"""Names of workloads, or their beginnings, with descriptions."""


def load(text: str, *, strict: bool = False, seed: int = 0) -> Workload:
    """Return the workload that a text names.  With `strict`, rows that would be skipped are refused.  Raises SimulationError.

    All kinds have the options `told` (no): whether owners declare the work and the speed of their apps; and `faster`, such as
    `fast:3:0.5`: a type of nodes, how many times as fast apps are there, and the part of the apps to which that applies."""
    head, given = split(text)
    kind, colon, path = head.partition(":")
    wants_path = f"{kind}:" in KINDS
    if kind not in KINDS and not wants_path:
        raise WrongOption(f"unknown workload {short(head)}; write {_choices()}", code="workload.unknown")
    if wants_path and not path:
        raise WrongOption(f"workload {kind}: write its file after a colon: {kind}:FILE", code="workload.file.missing")
    if colon and not wants_path:
        text = f"workload {kind} takes no file; write its options after a comma: {kind},name=value"
        raise WrongOption(text, code="workload.file.not_taken")
    options = Options(kind, given)
    tells = options.choice("told", ["no", "yes"], "no") == "yes"
    faster = options.faster("faster")
    workload = _read(kind, Path(path), options, strict=strict, seed=seed)
    _refuse_endless(workload)
    workload = _with_types(workload, *faster) if faster else workload
    return declare_all(workload) if tells else workload


def _with_types(workload: Workload, name: str, times: float, part: float) -> Workload:
    """Return the workload with apps that are faster on one type of nodes: evenly spread over all of them.

    They have their own command, because apps with the same image and command learn their speed from each other."""
    apps = tuple(
        msgspec.structs.replace(
            app,
            faster_on={name: times},
            spec=msgspec.structs.replace(app.spec, command=[*app.spec.command, f"faster-on-{name}"]),
        )
        if math.floor((number + 1) * part + 1e-9) > math.floor(number * part + 1e-9)
        else app
        for number, app in enumerate(workload.apps)
    )
    assumption = f"{part:.0%} of the apps are {times:g} times as fast on nodes with the label type={name}."
    return msgspec.structs.replace(workload, apps=apps, assumptions=(*workload.assumptions, assumption))


LONGEST_S = 100 * 365.25 * 86400
"""The longest workload; virtual time is nanoseconds in 64 bits, which span only a few hundred years."""


def _refuse_endless(workload: Workload) -> None:
    for app in workload.apps:
        rate = app.speed.rate((app.spec.n_min,))
        if app.at_s > LONGEST_S or app.work > LONGEST_S * rate:
            what = "is submitted after" if app.at_s > LONGEST_S else f"would run with {containers(app.spec.n_min)} for"
            text = f"workload {workload.name}: {app.spec.name} {what} more than a hundred years"
            raise SimulationError(text, code="workload.too_long")


def _read(kind: str, path: Path, options: Options, *, strict: bool, seed: int) -> Workload:
    if kind == "paper":
        return _paper(options, seed)
    if kind == "parametric":
        return parametric.workload(options, seed)
    if kind == "pollux":
        return _pollux(path, options, strict=strict)
    return _TRACES[kind](path, options, strict=strict, seed=seed)


_TRACES = {"philly": philly.read, "alibaba": alibaba.read, "swf": swf.read, "csv": table.read}


def _choices() -> str:
    *first, last = (f"{kind}FILE" if kind.endswith(":") else kind for kind in KINDS)
    return f"{', '.join(first)} or {last}"


def _paper(options: Options, seed: int) -> Workload:
    hours = options.number("hours", paper.DURATION_H, above=0, most=10_000)
    arrival_s = options.seconds("arrival", paper.ARRIVAL_S)
    speed = options.speed()
    options.done()
    return paper.workload(seed, hours=hours, arrival_s=arrival_s, speed=speed)


def _pollux(path: Path, options: Options, *, strict: bool) -> Workload:
    profiles = options.text("profiles")
    bounds = options.choice("bounds", [*pollux.BOUNDS], "requested")
    batches = options.choice("batches", [*pollux.BATCHES], "fixed")
    options.done()
    if profiles is None:
        raise options.error(
            "profiles", "missing; write profiles=DIR, the folder with its applications' profiles", "missing"
        )
    workload = pollux.read(path, Path(profiles), bounds=bounds, batches=batches)
    if strict and workload.skipped:
        first = workload.skipped[0]
        raise SimulationError(f"{path}:{first.line}: {first.reason}", code=first.code)
    if strict and workload.unsorted:
        raise out_of_order(path, workload.unsorted[0])
    return workload
