"""Members and the owners of chunks; announcements; answers to the script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dorm.elastic.ownership import Owners, owned_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from dorm.elastic.ledger import Entry

__all__ = [
    "Announced",
    "Answer",
    "Begin",
    "Behind",
    "Changed",
    "EpochDone",
    "Interrupted",
    "Left",
    "Packed",
    "Plan",
    "Stop",
]
__all__ += ["Summed", "View", "cause_of"]

Packed = tuple[Any, "list[npt.NDArray[Any]]"]
"""The result of `values.pack`."""


@dataclass(frozen=True)
class Plan:
    """What every member must agree on before the first step."""

    chunks: int
    steps_per_epoch: int
    valued: bool = False
    """Whether chunks have values that move with them."""


@dataclass(frozen=True)
class View:
    """A numbered list of members, with the owner of each chunk."""

    number: int
    membership: int
    members: tuple[int, ...]
    owners: Owners

    @property
    def leader(self) -> int:
        return min(self.members)

    def chunks_of(self, slot: int) -> list[int]:
        return owned_by(self.owners, slot)


@dataclass(frozen=True)
class Announced:
    """The latest membership that the agent has announced."""

    membership: int = 0
    members: tuple[int, ...] = ()
    founders: tuple[int, ...] = ()
    """Members of the generation's first membership; all others join a job that may be under way. Empty if unknown."""


class Answer:
    """Root of the answers to a waiting script."""


@dataclass(frozen=True)
class Begin(Answer):
    """Compute `step` for these chunks."""

    step: int
    chunks: list[int]
    values: Mapping[int, Packed] = field(default_factory=dict)
    """Values of chunks that have arrived."""
    gone: tuple[int, ...] = ()
    """Chunks that another member has now."""
    lost: tuple[int, ...] = ()
    """Chunks of the whole job whose values are lost, since the last step."""
    state: Packed | None = None
    """The state to load first, for a newcomer."""
    owners: tuple[int, ...] = ()
    """The member that owns each chunk."""
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Summed(Answer):
    """The sum over all members."""

    arrays: list[npt.NDArray[Any]]


@dataclass(frozen=True)
class Interrupted(Answer):
    """A member died: the whole step is repeated."""


@dataclass(frozen=True)
class Left(Answer):
    """The others continue without this member, as announced."""


@dataclass(frozen=True)
class Behind(Answer):
    """The others continue without this member, which counts as dead."""

    text: str


@dataclass(frozen=True)
class Stop(Answer):
    """Every member stops before `step`: one of them was asked to."""

    step: int


@dataclass(frozen=True)
class Changed:
    """A fact for the log: the view changed."""

    view: View
    cause: str
    step: int
    warm_up_s: float = 0.0
    barrier_s: float = 0.0
    bytes_moved: int = 0
    lost: tuple[int, ...] = ()
    repeated: bool = False


@dataclass(frozen=True)
class EpochDone:
    """A fact for the log: an epoch of the data is complete, with its ledger."""

    epoch: int
    step: int
    used: Entry


def cause_of(old: tuple[int, ...], new: tuple[int, ...], membership: int) -> str:
    """Return why the members changed: start, grow, shrink, move (both) or balance (neither)."""
    if membership == 0:
        return "start"
    came, went = set(new) - set(old), set(old) - set(new)
    return "move" if came and went else "grow" if came else "shrink" if went else "balance"
