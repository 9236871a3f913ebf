"""What the optimizer's bench plays, what it keeps of each answer, and the goals for each size."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from dorm.bench.optimizer import judge
from dorm.policies.problem import Problem

Wanted = Literal["auto", "exact", "bound", "none"]


EXACT_UP_TO = 1_000
"""Apps times nodes for which `auto` solves exactly."""


TINY = 1e-9
"""Gaps below this are rounding, and bounds are taken to be at least this."""


class Run(msgspec.Struct, frozen=True):
    """What to play.  `events` come after the cold start of each of `sequences`, which have seeds from `seed` on."""

    apps: int
    nodes: int
    shapes: int
    events: int
    seed: int = 0
    sequences: int = 1
    policy: str = "dorm"
    params: dict[str, Any] = {}
    reference: Wanted = "auto"
    gpus: bool = True
    labels: bool = False

    def __str__(self) -> str:
        return f"{self.apps} apps × {self.nodes} nodes, {self.shapes} shapes"

    @property
    def against(self) -> Wanted:
        """`auto` made up."""
        if self.reference != "auto":
            return self.reference
        return "exact" if self.apps * self.nodes <= EXACT_UP_TO else "bound"


class Goals(NamedTuple):
    """None where nothing was promised."""

    p50_s: str | None = None
    p95_s: str | None = None
    to_exact_mean: str | None = None
    to_exact_p99: str | None = None
    to_bound_p50: str | None = None
    missed: str | None = None


def goals(run: Run) -> Goals:
    """What the optimizer should reach at this size."""
    size = (run.apps, run.nodes)
    if run.apps <= 30 and run.nodes <= 20:
        return Goals(p95_s="<= 0.5", to_exact_mean="<= 0.001", to_exact_p99="<= 0.01", missed="<= 0")
    if size == (100, 100):
        return Goals(p95_s="<= 0.3", to_bound_p50="<= 0.005")
    if size == (500, 1_000) and run.shapes <= 3:
        return Goals(p50_s="<= 0.07", to_bound_p50="<= 0.006")
    if size == (500, 1_000) and run.shapes <= 12:
        return Goals(p50_s="<= 0.15", to_bound_p50="<= 0.02")
    if size == (2_000, 10_000) and run.shapes <= 3:
        return Goals(p50_s="<= 0.4", to_bound_p50="<= 0.004")
    return Goals()


class Answer(msgspec.Struct, frozen=True):
    """What is kept of an allocation."""

    net: float
    bound: float
    excess: float
    status: str
    served: judge.Served


class Task(msgspec.Struct, frozen=True):
    """A problem to solve again, and the answer that it had."""

    problem: Problem
    counts: dict[str, dict[str, int]]


class Played(msgspec.Struct, frozen=True):
    """One event, its answer, and what it took."""

    sequence: int
    number: int
    """Of the event in its sequence; 1 is the cold start."""
    event: str
    cpu_s: float
    wall_s: float
    answer: Answer
    loss: float
    loss_budget: float
    changed: int
    moved: int
    digests: tuple[bytes, bytes]
    """Of the problem and of the answer's counts."""
    peak_mb: float
    """Most memory that the process has had so far."""
    task: Task | None
    """Only where it is to be solved again."""


class Solved(msgspec.Struct, frozen=True):
    """The reference's answer to the problem of this index in what was played."""

    index: int
    cpu_s: float
    answer: Answer
    below_floor: tuple[int, int]
    """Containers that apps lack below their soft floors: in the answer that was measured, in the reference's."""


@dataclass
class Samples:
    """What one run has given so far."""

    run: Run
    played: list[Played] = field(default_factory=list)
    solved: dict[int, Solved] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def events(self) -> list[Played]:
        """Without cold starts."""
        return [one for one in self.played if one.number > 1]

    @property
    def unlike(self) -> list[int]:
        """Indices of problems that the reference answers with other apps, or not at all."""
        return [
            index
            for index, solved in self.solved.items()
            if solved.answer.status == "fallback" or solved.answer.served != self.played[index].answer.served
        ]

    @property
    def missed(self) -> int:
        """How often the reference serves n_min better."""
        return sum(
            solved.answer.served < self.played[index].answer.served for index, solved in sorted(self.solved.items())
        )

    @property
    def missed_floors(self) -> int:
        """How often apps lack more below their soft floors than with the reference, which comes before utilization; of
        comparable problems, and equal excess."""
        unlike = set(self.unlike)
        return sum(
            solved.below_floor[0] > solved.below_floor[1]
            for index, solved in sorted(self.solved.items())
            if index not in unlike and abs(self.played[index].answer.excess - solved.answer.excess) <= TINY
        )

    def gaps_to_exact(self) -> list[float]:
        """Of comparable problems, in the order in which they were played."""
        unlike = set(self.unlike)
        return [
            gap_to_exact(self.played[index].answer, solved.answer)
            for index, solved in sorted(self.solved.items())
            if index not in unlike
        ]

    def gaps_to_bound(self) -> list[float]:
        if self.run.against == "none":
            return []
        return [gap(one.answer.bound - one.answer.net, one.answer.bound) for one in self.played]

    def digest(self, which: Literal[0, 1]) -> str:
        """Of all problems (0) or all answers (1)."""
        return hashlib.sha256(b"".join(one.digests[which] for one in self.played)).hexdigest()


def gap_to_exact(ours: Answer, exact: Answer) -> float:
    """What is missing of the bound, and what is lost beyond the reference in excess fairness loss, as a part of the bound.

    More utilization never makes up for more excess, which is the goal that comes first.
    """
    return gap(max(0.0, exact.bound - ours.net) + max(0.0, ours.excess - exact.excess), exact.bound)


def gap(missing: float, bound: float) -> float:
    """What is missing of a bound, as a part of it; 0 where that is rounding."""
    part = missing / max(bound, TINY)
    return part if part > TINY else 0.0
