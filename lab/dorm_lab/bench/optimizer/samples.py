"""What the optimizer's bench plays, the samples it keeps of each answer, and the goals for each size."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from dorm.policies.problem import Problem
from dorm_lab.bench.optimizer import judge
from dorm_lab.policies.market.answers import Division

Wanted = Literal["auto", "exact", "bound", "none"]


EXACT_UP_TO = 1_000
"""Apps times nodes for which `auto` solves exactly."""


TINY = 1e-9
"""Gaps below this are rounding errors, and bounds are at least this."""


class Run(msgspec.Struct, frozen=True):
    """A run to play.  `events` come after the cold start of each of `sequences`, whose seeds start at `seed`."""

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
    types: int = 0
    """Types of nodes, and apps with speeds, if this is not 0."""

    def __str__(self) -> str:
        return f"{self.apps} apps × {self.nodes} nodes, {self.shapes} shapes"

    @property
    def against(self) -> Wanted:
        """The reference, with `auto` resolved."""
        if self.reference != "auto":
            return self.reference
        return "exact" if self.apps * self.nodes <= EXACT_UP_TO else "bound"


class Goals(NamedTuple):
    """Goals; None if there is none."""

    p50_s: str | None = None
    p95_s: str | None = None
    to_exact_mean: str | None = None
    to_exact_p99: str | None = None
    to_bound_p50: str | None = None
    missed: str | None = None


def goals(run: Run) -> Goals:
    """Return the optimizer's goals at this size."""
    size = (run.apps, run.nodes)
    if run.types:
        return Goals(p50_s="<= 0.5") if size == (2_000, 10_000) else Goals()
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
    """The part of an allocation that is kept."""

    net: float
    bound: float
    excess: float
    status: str
    served: judge.Served


class Task(msgspec.Struct, frozen=True):
    """A problem to solve again, and its answer."""

    problem: Problem
    counts: dict[str, dict[str, int]]


class Played(msgspec.Struct, frozen=True):
    """One event, its answer, and its cost."""

    sequence: int
    number: int
    """Number of the event in its sequence; 1 is the cold start."""
    event: str
    cpu_s: float
    wall_s: float
    answer: Answer
    loss: float
    loss_budget: float
    changed: int
    moved: int
    digests: tuple[bytes, bytes]
    """Digests of the problem and of the answer's counts."""
    peak_mb: float
    """Peak memory of the process so far."""
    task: Task | None
    """Only if it will be solved again."""
    division: Division | None = None
    """The quality of the answer as a division of nodes among apps (`dorm_lab.policies.market.answers`)."""


class Solved(msgspec.Struct, frozen=True):
    """The reference's answer to the problem of this index."""

    index: int
    cpu_s: float
    answer: Answer
    below_floor: tuple[int, int]
    """Containers that apps lack below their soft floors: in the answer that was measured, in the reference's."""


@dataclass
class Samples:
    """Samples of one run so far."""

    run: Run
    played: list[Played] = field(default_factory=list)
    solved: dict[int, Solved] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def events(self) -> list[Played]:
        """All but the cold starts."""
        return [played for played in self.played if played.number > 1]

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
        """How often apps lack more below their soft floors than with the reference; floors come before utilization.  Among
        comparable problems with equal excess."""
        unlike = set(self.unlike)
        return sum(
            solved.below_floor[0] > solved.below_floor[1]
            for index, solved in sorted(self.solved.items())
            if index not in unlike and abs(self.played[index].answer.excess - solved.answer.excess) <= TINY
        )

    def gaps_to_exact(self) -> list[float]:
        """Return the gaps of comparable problems, in the order in which they were played."""
        unlike = set(self.unlike)
        return [
            gap_to_exact(self.played[index].answer, solved.answer)
            for index, solved in sorted(self.solved.items())
            if index not in unlike
        ]

    def gaps_to_bound(self) -> list[float]:
        if self.run.against == "none":
            return []
        return [gap(played.answer.bound - played.answer.net, played.answer.bound) for played in self.played]

    def digest(self, which: Literal[0, 1]) -> str:
        """Return the digest of all problems (0) or all answers (1)."""
        return hashlib.sha256(b"".join(played.digests[which] for played in self.played)).hexdigest()


def gap_to_exact(ours: Answer, exact: Answer) -> float:
    """Return the distance to the bound, plus the excess beyond the reference's, as a fraction of the bound.

    More utilization never makes up for more excess, which is an earlier goal.
    """
    return gap(max(0.0, exact.bound - ours.net) + max(0.0, ours.excess - exact.excess), exact.bound)


def gap(missing: float, bound: float) -> float:
    """Return the distance to a bound as a fraction of it; 0 if that is a rounding error."""
    part = missing / max(bound, TINY)
    return part if part > TINY else 0.0
