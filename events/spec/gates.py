"""When an app may run: what it waits for.

After   another app, and how that has to end

`after` holds maps, or names alone, which mean `when: completed`; `awaited` gives both as maps.  `in_order` sorts specs that are
submitted together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from events.spec.faults import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.spec.spec import AppSpec

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


class After(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another app that it waits for."""

    app: AppReference
    when: Annotated[When, msgspec.Meta(description="how that app has to end; ended: in any way")] = "completed"


def awaited(spec: AppSpec) -> list[After]:
    """Return what the app waits for, short forms written out."""
    return [one if isinstance(one, After) else After(one) for one in spec.after]


def check_gates(spec: AppSpec) -> None:
    """Refuse an app that waits for itself, or twice for the same.  Raises SpecError."""
    seen: dict[str, None] = {}
    for one in awaited(spec):
        if one.app.endswith("\n"):
            raise SpecError("after: the name of an app can't hold a line end", code="spec.after.malformed")
        if one.app == spec.name:
            text = f"after: {spec.name} can't wait for itself; name an earlier app of this name by its id (`dorm ps -a`)"
            raise SpecError(text, code="spec.after.itself")
        if one.app in seen:
            raise SpecError(f"after: {one.app} is listed twice; list it once", code="spec.after.repeated")
        seen[one.app] = None


def in_order(specs: Sequence[AppSpec]) -> list[int]:
    """Return the indexes of specs in an order in which each comes after those that it waits for, otherwise as they are.

    Raises SpecError where some wait for each other."""
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


def _missing(spec: AppSpec, names: set[str], done: set[str]) -> list[str]:
    return [one.app for one in awaited(spec) if one.app in names and one.app not in done and one.app != spec.name]


def _cycle(specs: Sequence[AppSpec]) -> str:
    """`after: prep waits for train, which waits for prep; remove one of these`"""
    names = {spec.name: spec for spec in specs}
    way, at = list[str](), specs[0].name
    while at not in way:
        way.append(at)
        at = _missing(names[at], set(names), set())[0]
    way = [*way[way.index(at) :], at]
    return f"after: {way[0]} waits for {', which waits for '.join(way[1:])}; remove one of these"
