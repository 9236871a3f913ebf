"""Clusters for a simulation: parsed, sized for a workload, and the apps that fit into them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from events.quantities import QuantityError, capacity, humanize, short
from events.spec.requirements import is_label, requirement
from replay.simulator import SimulationError
from replay.simulator.workload import SimulatedNode, Skipped
from replay.words import containers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.simulator.workload import SimulatedApp, Workload

MOST_NODES = 100_000
_NO_ROOM = "spec.n_min.no_room"
_GROUP = re.compile(r"\s*(?:(\d{1,9})\s*x\s+)?(\S+)((?:\s+\S+)*)\s*", re.ASCII)
_EXAMPLE = "16x gpu=4,cpu=32,memory=128GiB; 4x cpu=64 zone=a"


def parse(text: str) -> tuple[SimulatedNode, ...]:
    """Parse `16x gpu=4,cpu=32,memory=128GiB; 4x cpu=64 zone=a`: groups of equal nodes, each with labels after its capacity.

    Raises SimulationError."""
    groups = []
    for part in text.split(";"):
        match = _GROUP.fullmatch(part)
        if match is None:
            raise SimulationError(f"nodes {short(text)}: a group is empty; write {_EXAMPLE}", code="nodes.malformed")
        try:
            has = capacity(match[2])
        except QuantityError as error:
            message = f"nodes {short(text)}: {error}, as in {_EXAMPLE}"
            raise SimulationError(message, code=f"nodes.{error.problem}") from None
        if not has:
            message = f"nodes {short(text)}: a node needs at least one resource; write {_EXAMPLE}"
            raise SimulationError(message, code="nodes.all_zero")
        groups.append((int(match[1] or 1), has, _labels(match[3], text)))
    count = sum(number for number, _, _ in groups)
    if not 1 <= count <= MOST_NODES or not all(number for number, _, _ in groups):
        message = f"nodes {short(text)}: expected 1 to {MOST_NODES:,} nodes, got {count:,}"
        raise SimulationError(message, code="nodes.out_of_range")
    return named([(has, labels) for number, has, labels in groups for _ in range(number)])


def _labels(text: str, whole: str) -> dict[str, str]:
    labels = {}
    for pair in text.split():
        name, separator, value = pair.partition("=")
        if not separator or not value or not is_label(name):
            message = f"nodes {short(whole)}: {short(pair)} is not a label; write name=value"
            raise SimulationError(message, code="nodes.label.malformed")
        labels[name] = value
    return labels


def named(shapes: Sequence[tuple[Mapping[str, int], Mapping[str, str]]]) -> tuple[SimulatedNode, ...]:
    """Return nodes with names that sort in the given order."""
    width = len(str(len(shapes)))
    return tuple(
        SimulatedNode(name=f"node-{number:0{width}}", capacity=dict(has), labels=dict(labels))
        for number, (has, labels) in enumerate(shapes, 1)
    )


def sized(workload: Workload, shape: Mapping[str, int], load: float = 0.8) -> tuple[SimulatedNode, ...]:
    """Return as many nodes of one shape (base units) as let the workload demand this fraction of them on average.

    The demand is the work of all apps, each at its n_min, over the time in which they are submitted; the resource that needs
    the most nodes decides.  Raises SimulationError if the shape lacks a resource, or the workload has no span.
    """
    return named([(shape, {})] * max(1, math.ceil(_clusters(workload, shape, load))))


def matched(workload: Workload, nodes: Sequence[SimulatedNode], load: float = 0.8) -> tuple[SimulatedNode, ...]:
    """Return a smaller or larger cluster with the shapes of this one, in its proportions, sized as `sized` does.

    Every shape remains, so an app that fits on a kind of node still does.  Raises SimulationError as `sized` does."""
    totals: Counter[str] = Counter()
    shapes: Counter[_Shape] = Counter()
    for node in nodes:
        totals.update(node.capacity)
        shapes[_shape(node)] += 1
    part = _clusters(workload, totals, load)
    return named(
        [(dict(has), dict(labels)) for (has, labels), count in shapes.items() for _ in range(math.ceil(part * count))]
    )


def _clusters(workload: Workload, has: Mapping[str, int], load: float) -> float:
    """Return how many times this capacity the workload needs."""
    if not 0 < load <= 100:
        raise SimulationError(f"load: expected more than 0 and at most 100, got {load:g}", code="load.out_of_range")
    if len(workload.apps) < 2 or (span_s := workload.apps[-1].at_s - workload.apps[0].at_s) <= 0:
        text = f"workload {workload.name} is too short to size a cluster for; name the nodes"
        raise SimulationError(text, code="workload.too_short")
    use: defaultdict[str, float] = defaultdict(float)
    for app in workload.apps:
        n = app.spec.n_min
        container_s = n * app.work / app.speed.rate((n,))
        for name, amount in app.spec.resources().items():
            use[name] += amount * container_s / span_s
    if lacking := sorted(name for name in use if not has.get(name)):
        text = f"workload {workload.name} needs {lacking[0]}, which these nodes lack"
        raise SimulationError(text, code="nodes.resource.missing")
    count = max(amount / (load * has[name]) for name, amount in use.items())
    if count > MOST_NODES:
        text = f"workload {workload.name} would need {count:,.0f} such nodes; at most {MOST_NODES:,} are allowed"
        raise SimulationError(text, code="nodes.out_of_range")
    return count


_Shape = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]]


def _shape(node: SimulatedNode) -> _Shape:
    return tuple(sorted(node.capacity.items())), tuple(sorted(node.labels.items()))


def fitting(workload: Workload, nodes: Sequence[SimulatedNode], *, strict: bool = False) -> Workload:
    """Return the workload without the apps whose n_min does not fit into an empty cluster; they would wait forever.

    They are skipped with their line; with `strict`, the first of them raises SimulationError."""
    room = _Room(nodes)
    apps, skipped = [], []
    for app in workload.apps:
        if not (lack := room.lack(app)):
            apps.append(app)
            continue
        if strict:
            where = f", line {app.line}" if app.line else ""
            raise SimulationError(f"workload {workload.name}{where}: {app.spec.name} {lack}", code=_NO_ROOM)
        skipped.append(Skipped(app.line, f"{app.spec.name} {lack}", _NO_ROOM))
    if not skipped:
        return workload
    in_order = tuple(sorted((*workload.skipped, *skipped), key=lambda row: row.line))
    return msgspec.structs.replace(workload, apps=tuple(apps), skipped=in_order)


class _Room:
    """How many containers of a kind an empty cluster holds, cached by kind."""

    def __init__(self, nodes: Sequence[SimulatedNode]) -> None:
        shapes = Counter(_shape(node) for node in nodes)
        self._shapes = [(dict(has), dict(labels), number) for (has, labels), number in shapes.items()]
        self._known: dict[tuple[tuple[tuple[str, int], ...], str, int], int] = {}

    def lack(self, app: SimulatedApp) -> str:
        """Return why an app fits nowhere, '' if it fits."""
        spec = app.spec
        demand = spec.resources()
        key = (tuple(demand.items()), spec.require, spec.gang)
        if key not in self._known:
            self._known[key] = self._holds(demand, spec.require, spec.gang)
        if self._known[key] >= spec.n_min:
            return ""
        each = ", ".join(humanize(name, amount) for name, amount in demand.items())
        only = f" where {spec.require}" if spec.require else ""
        return f"needs {containers(spec.n_min)} of {each}{only}; the empty cluster holds {self._known[key]}"

    def _holds(self, demand: Mapping[str, int], require: str, gang: int) -> int:
        wanted = requirement(require)
        held = 0
        for has, labels, number in self._shapes:
            if wanted.matches(labels):
                fits = min(has.get(name, 0) // amount for name, amount in demand.items())
                held += number * (fits - fits % gang)
        return held
