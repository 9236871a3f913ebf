"""The answers' types.  Each keeps the whole document, including fields that this version does not know."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
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
        known = {field.name for field in fields(cls)} - {"document"}
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
    """The position from which a stream that was interrupted after it resumes."""
    at: str = ""
    kind: str = ""
    by: str = ""
    text: str = ""


@dataclass(frozen=True)
class Stored(Answer):
    """A request is on the log."""

    position: str = ""
    """A read with it as `min_seq` shows the effects of the request."""


@dataclass(frozen=True)
class Submitted(Stored):
    """A submission is on the log."""

    id: str = ""
    name: str = ""
    user: str = ""
    idempotency_key: str = ""
    answered: bool = False
    """Whether a master has accepted it; if not, one will answer once it runs."""
    notes: list[str] = field(default_factory=list)
    """What its author should look at, such as `$HOME` in a command, which no shell reads."""


@dataclass(frozen=True)
class Spec(Answer):
    """The spec of an app."""

    id: str = ""
    name: str = ""
    revision: int = 1
    """Counts the app's specs."""
    tag: str = ""
    """An edit that names it is refused if someone else was faster."""
    spec: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Edited(Stored):
    """The master has accepted an edit."""

    id: str = ""
    revision: int = 1
    tag: str = ""
    restarts: bool = False
    """Whether the app now saves a checkpoint and restarts."""


@dataclass(frozen=True)
class Restarted(Stored):
    """The master has accepted a restart."""

    id: str = ""
    was: str = ""
    """The app's phase before."""
    checkpoint: int | None = None
    """The minimum step that it continues from; None if it starts from the beginning."""


@dataclass(frozen=True)
class SubmittedSweep(Stored):
    """All apps of a sweep are accepted."""

    name: str = ""
    count: int = 0
    new: int = 0
    """Apps that were submitted now."""
    before: int = 0
    """Apps that existed already."""


@dataclass(frozen=True)
class Sweep(Answer):
    """A sweep."""

    name: str = ""
    user: str = ""
    count: int = 0
    submitted: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    """The number of its apps by phase."""
    ended: bool = False
    """Whether all apps that were submitted have ended."""
    seen: str = ""
    """The position of the log that this shows; "" in a list."""
    apps: list[dict[str, Any]] = field(default_factory=list)
    """Each with `name`, `id`, `phase`, `parameters`, `step`, `loss` and more; none in a list."""


@dataclass(frozen=True)
class PastApp(Answer):
    """An app of the past.  Times are UTC nanoseconds."""

    id: str = ""
    name: str = ""
    user: str = ""
    state: str = ""
    """`completed`, `failed`, `cancelled`, or `live` if it had not ended."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Of its sweep."""
    step: int = 0
    loss: float | None = None
    submitted_at: int = 0
    ended_at: int | None = None
    core_hours: float = 0.0


@dataclass(frozen=True)
class Checkpoints(Answer):
    """What an app has saved."""

    app: str = ""
    name: str = ""
    restart_step: int | None = None
    """The step from which a restart would continue; None if it would start from the beginning."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """Each with `path`, `size`, `step`, `generation`, `modified` and `used`."""
