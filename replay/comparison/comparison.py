"""Two apps side by side.

found = await compare(log, "resnet-a", "resnet-b")
found = await compare(log, "resnet", "resnet", other=yesterdays)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.state import State
from replay.comparison.side import Side, Watched
from replay.moments import AtSequence
from replay.story.app import AppTeller
from replay.story.story import StoryError, base_of, together
from replay.travel.travel import fold_on, state_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.moments import Moment

__all__ = ["Comparison", "Differs", "FieldOfSeveral", "Side", "compare", "differing", "sides"]


class Differs(msgspec.Struct, frozen=True):
    """A field of the two specs with different values; None if a spec does not have it."""

    field: str
    """Such as `demand.cpu`."""
    a: Any
    b: Any


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dorm compare -o json`."""

    a: Side
    b: Side
    spec: list[Differs]
    """By field."""


async def compare(
    log: ReadableLog,
    a: str,
    b: str,
    moment: Moment | None = None,
    *,
    other: ReadableLog | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two apps (names or ids) as they are at a moment, by default at the log's end; `other` is the log of `b`, which
    is read to its end.

    Raises StoryError if there is no such app, and as `replay.travel.travel.state_at`.
    """
    if other is None:
        one, two = await sides(log, (a, b), moment, progress)
    else:
        (one,) = await sides(log, (a,), moment, progress)
        (two,) = await sides(other, (b,), None, progress)
    return Comparison(a=one[0], b=two[0], spec=differences(one[1], two[1]))


async def sides(
    log: ReadableLog, names: Sequence[str], moment: Moment | None = None, progress: Progress | None = None
) -> list[tuple[Side, dict[str, Any]]]:
    """Return apps (names or ids) at a moment, by default at the log's end, each with its spec.  One fold follows them, from
    the submission of the first one on if they are in the state, else from the log's start.

    Raises StoryError if there is no such app, and as `replay.travel.travel.state_at`."""

    async def at(seq: int) -> State:
        return await state_at(log, AtSequence(seq), progress=progress) if seq else State()

    final = await state_at(log, moment, progress=progress)
    apps, start = [final.find_app(name) for name in names], await log.start()
    known = [app.seq for app in apps if app is not None]
    state = await base_of(log, min(known), start, at) if len(known) == len(names) else await at(start)
    watched = [Watched(AppTeller(name)) for name in names]
    for one in watched:
        one.begin(state)
    await fold_on(log, state, final.seq, progress=progress, seen=together(watched))
    found = []
    for name, one in zip(names, watched, strict=True):
        side = one.side(state)
        if side is None or one.app is None:
            text = f"there was no app {name!r} up to sequence {state.seq}; `dorm ps --all` and `dorm state` list apps"
            raise StoryError(text, code="app.not_found")
        found.append((side, msgspec.to_builtins(one.app.spec)))
    return found


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[Differs]:
    """Return the fields that differ between two specs, without the name."""
    one, other = flat(a), flat(b)
    names = sorted({*one, *other} - {"name"})
    return [Differs(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)]


class FieldOfSeveral(msgspec.Struct, frozen=True):
    """A field that is not the same in all specs."""

    field: str
    """Such as `demand.cpu`."""
    values: list[Any]
    """By app; None if a spec does not have it."""


def differing(specs: Sequence[dict[str, Any]]) -> list[FieldOfSeveral]:
    """Return the fields that are not the same in all specs, without the name."""
    plain = [flat(spec) for spec in specs]
    fields = sorted({name for one in plain for name in one} - {"name"})
    found = [FieldOfSeveral(name, [one.get(name) for one in plain]) for name in fields]
    return [one for one in found if any(value != one.values[0] for value in one.values)]


def flat(document: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return a document's values by their paths, such as `demand.cpu`."""
    values: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            values |= flat(value, f"{before}{name}.")
        else:
            values[f"{before}{name}"] = value
    return values
