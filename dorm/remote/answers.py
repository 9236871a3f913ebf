"""The answers' types.  Each keeps the whole document, so fields that this version does not know are there too."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

A = TypeVar("A", bound="Answer")


@dataclass(frozen=True)
class Answer:
    """Base of answers."""

    document: dict[str, Any]
    """All of it, as the server sent it."""

    @classmethod
    def of(cls: type[A], document: Mapping[str, Any]) -> A:
        known = {one.name for one in fields(cls)} - {"document"}
        return cls(document=dict(document), **{name: document[name] for name in known if name in document})


@dataclass(frozen=True)
class App(Answer):
    """An app."""

    id: str = ""
    name: str = ""
    user: str = ""
    phase: str = ""
    """`waiting`, `running`, …; how it ended: `completed`, `failed` or `cancelled`."""
    containers: int = 0
    n_min: int = 0
    n_max: int = 0
    weight: float = 1.0
    step: int = 0
    loss: float | None = None
    ended_at: str | None = None
    note: str = ""
    """Why it waits or has less than it could use, or how it ended."""

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


@dataclass(frozen=True)
class Node(Answer):
    """A node."""

    name: str = ""
    address: str = ""
    condition: str = ""
    containers: int = 0


@dataclass(frozen=True)
class Event(Answer):
    """An event of the log."""

    position: str = ""
    """Where a stream resumes that is broken off after it."""
    at: str = ""
    kind: str = ""
    by: str = ""
    text: str = ""


@dataclass(frozen=True)
class Stored(Answer):
    """A request is on the log."""

    position: str = ""
    """A read with it as `min_seq` shows what follows from it."""


@dataclass(frozen=True)
class Submitted(Stored):
    """A submission is on the log."""

    id: str = ""
    name: str = ""
    user: str = ""
    idempotency_key: str = ""
    answered: bool = False
    """Whether a master has accepted it; if not, one will answer once it runs."""
