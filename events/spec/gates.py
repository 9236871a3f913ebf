"""When an app may run, and from what it starts: `after`, `start_after` and `from`.

After       another app, and how that has to end
starts_at   from `start_after` to a moment: a time, or a delay from the submission on
Origin      from `from` to the app from whose checkpoint this one starts

`after` holds maps, or names alone, which mean `when: completed`; `awaited` gives both as maps.  `in_order` sorts specs
that are submitted together.

    from: APP         its last checkpoint
    from: APP@STEP    the one of this step, which has to be in the folder under a name with that number
    from: APP@STEP+   the one of this step or of a later one

Specs on the log have an app's id and a step: the master finds the app, and writes what it found (`AppAccepted`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

import msgspec

from events.instants import InstantError, day, read
from events.quantities import SECOND, Quantity, QuantityError, duration, short
from events.spec.faults import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence


# --- after and start_after --------------------------------------------------------------------------------------------

When = Literal["completed", "failed", "ended"]
AppReference = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$",
        description="the name or id of an app of the same tenant",
        examples=["prep"],
    ),
]
MOST_AWAITED = 100
_DATE = re.compile(r"\s*\d{4}-")
_EARLIEST, _LATEST = 2000, 2100
"""Years: moments of a log end in 2116."""


class After(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another app that it waits for."""

    app: AppReference
    when: Annotated[When, msgspec.Meta(description="how that app has to end; ended: in any way")] = "completed"


class Gated(Protocol):
    """The fields of a spec that say when the app may run (`events.spec.spec.AppSpec`)."""

    @property
    def name(self) -> str: ...

    @property
    def after(self) -> list[After | str]: ...

    @property
    def start_after(self) -> Quantity: ...

    @property
    def max_runtime_s(self) -> float | None: ...


def awaited(spec: Gated) -> list[After]:
    """Return what the app waits for, short forms written out."""
    return [entry if isinstance(entry, After) else After(entry) for entry in spec.after]


@lru_cache(maxsize=4096)
def _start(text: Quantity) -> tuple[int, int]:
    """Return a time (UTC ns; 0 for none) and a delay (ns).  Raises QuantityError."""
    if not isinstance(text, str) or not _DATE.match(text):
        try:
            return 0, int(duration(text) * SECOND)
        except QuantityError as error:
            how = "write a delay such as 2h, or a time such as 2026-11-24T08:00Z or 2026-11-24T08:00+01:00"
            raise QuantityError(f"{short(text)} is neither a delay nor a time; {how}", code=error.code) from None
    try:
        instant = read(text)
    except InstantError:
        raise QuantityError(f"{short(text)} is not a time; write 2026-11-24T08:00Z or 2026-11-24T08:00+01:00") from None
    if not instant.zoned:
        text = f"{short(text)} has no time zone; add Z for UTC, or an offset such as +01:00"
        raise QuantityError(text, code="quantity.no_zone")
    if not _EARLIEST <= int(day(instant.time)[:4]) <= _LATEST:
        raise QuantityError(f"{short(text)} is not between {_EARLIEST} and {_LATEST}", code="quantity.out_of_range")
    return instant.time, 0


def starts_at(spec: Gated, submitted_at: int) -> int:
    """Return before when an app that was submitted at `submitted_at` gets no containers; both in UTC ns.  0 if its spec says
    nothing.  Raises QuantityError."""
    if spec.start_after == "":
        return 0
    time, delay = _start(spec.start_after)
    return time or submitted_at + delay


def check_gates(spec: Gated) -> None:
    """Refuse an invalid start, and an app that waits for itself, or twice for the same app. Raises SpecError."""
    try:
        starts_at(spec, 0)
    except QuantityError as error:
        raise SpecError.at("start_after", error) from None
    if spec.max_runtime_s == 0:
        text = "max_runtime: 0 would end it at once; write a time such as 2h, or leave it out"
        raise SpecError(text, code="spec.max_runtime.zero")
    seen: dict[str, None] = {}
    for gate in awaited(spec):
        if gate.app.endswith("\n"):
            raise SpecError("after: the name of an app can't hold a line end", code="spec.after.malformed")
        if gate.app == spec.name:
            text = (
                f"after: {spec.name} can't wait for itself; name an earlier app of this name by its id (`dorm ps -a`)"
            )
            raise SpecError(text, code="spec.after.itself")
        if gate.app in seen:
            raise SpecError(f"after: {gate.app} is listed twice; list it once", code="spec.after.repeated")
        seen[gate.app] = None


def in_order(specs: Sequence[Gated]) -> list[int]:
    """Return the indexes of specs in an order in which each comes after those that it waits for, otherwise as they are.

    Raises SpecError if some wait for each other."""
    names = {spec.name for spec in specs}
    left, ordered, done = list(range(len(specs))), list[int](), set[str]()
    while left:
        able = [index for index in left if not _missing(specs[index], names, done)]
        if not able:
            raise SpecError(_cycle([specs[index] for index in left]), code="spec.after.cycle")
        ordered.append(able[0])
        done.add(specs[able[0]].name)
        left.remove(able[0])
    return ordered


def _missing(spec: Gated, names: set[str], done: set[str]) -> list[str]:
    return [gate.app for gate in awaited(spec) if gate.app in names and gate.app not in done and gate.app != spec.name]


def _cycle(specs: Sequence[Gated]) -> str:
    """`after: prep waits for train, which waits for prep; remove one of these`"""
    names = {spec.name: spec for spec in specs}
    way, at = list[str](), specs[0].name
    while at not in way:
        way.append(at)
        at = _missing(names[at], set(names), set())[0]
    way = [*way[way.index(at) :], at]
    return f"after: {way[0]} waits for {', which waits for '.join(way[1:])}; remove one of these"


# --- from -------------------------------------------------------------------------------------------------------------

PATTERN = r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?(@[0-9]{1,15}\+?)?$"
OriginText = Annotated[
    str,
    msgspec.Meta(
        pattern=PATTERN,
        description="starts from a copy of this app's checkpoint, with `resume`: APP for the last one, or APP@STEP",
        examples=["digits-mlp", "digits-mlp@120"],
    ),
]
_PATTERN = re.compile(PATTERN)


class Origin(NamedTuple):
    """A checkpoint of an app."""

    app: str
    """Name or id."""
    step: int | None
    """None for its last one."""
    later: bool
    """Whether a later checkpoint is acceptable too."""

    @property
    def text(self) -> str:
        return self.app if self.step is None else f"{self.app}@{self.step}{'+' if self.later else ''}"


def origin_of(text: str) -> Origin | None:
    """Return the checkpoint that the text names; None for an empty text."""
    if not text or _PATTERN.fullmatch(text) is None:
        return None
    app, _, step = text.partition("@")
    return Origin(app, int(step.rstrip("+")) if step else None, not step or step.endswith("+"))
