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

__all__ = ["Comparison", "Differs", "Side", "compare"]


class Differs(msgspec.Struct, frozen=True):
    """A field of the two specs with different values; None where a spec does not have it."""

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

    Raises StoryError where there is no such app, and as `replay.travel.travel.state_at`.
    """
    if other is None:
        one, two = await _watch(log, (a, b), moment, progress)
    else:
        (one,) = await _watch(log, (a,), moment, progress)
        (two,) = await _watch(other, (b,), None, progress)
    return Comparison(a=one[0], b=two[0], spec=differences(one[1], two[1]))


async def _watch(
    log: ReadableLog, names: Sequence[str], moment: Moment | None, progress: Progress | None
) -> list[tuple[Side, dict[str, Any]]]:
    """Follow apps by one fold, from the submission of the first one on if they are in the state, else from the log's start."""

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
    one, other = _flat(a), _flat(b)
    names = sorted({*one, *other} - {"name"})
    return [Differs(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)]


def _flat(document: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = value
    return flat
