"""Workloads by the text that names one: `paper`, `parametric,apps=50`, `philly:FILE,from=2017-10-01`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import short
from replay.simulator import SimulationError, paper, parametric
from replay.simulator.options import Options, split

if TYPE_CHECKING:
    from replay.simulator.workload import Workload

KINDS = {
    "paper": "the workload of the Dorm paper",
    "parametric": "made-up apps, such as parametric,apps=50,arrival=exponential:10m,work=lognormal:10h:1",
}
"""How a workload may begin, and what it is."""


def load(text: str, *, strict: bool = False, seed: int = 0) -> Workload:
    """The workload that a text names.  With `strict`, what would be skipped is refused.  Raises SimulationError."""
    head, given = split(text)
    kind, colon, path = head.partition(":")
    wants_path = f"{kind}:" in KINDS
    if kind not in KINDS and not wants_path:
        raise SimulationError(
            f"there is no workload {short(head)}; write {', '.join(KINDS)} with its file behind the colon"
        )
    if wants_path and not path:
        raise SimulationError(f"workload {kind}: write its file behind the colon, {kind}:FILE")
    if colon and not wants_path:
        raise SimulationError(f"workload {kind} has no file; write its options behind a comma, {kind},name=value")
    options = Options(kind, given)
    if kind == "paper":
        return _paper(options, seed)
    return parametric.workload(options, seed)


def _paper(options: Options, seed: int) -> Workload:
    hours = options.number("hours", paper.DURATION_H, above=0, most=10_000)
    arrival_s = options.seconds("arrival", paper.ARRIVAL_S)
    speed = options.speed()
    options.done()
    return paper.workload(seed, hours=hours, arrival_s=arrival_s, speed=speed)
