"""Compares two facts, field by field, in words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 20
"""Differences reported at most; more would not help."""
_LONGEST = 200
_ABSENT = object()


class Difference(msgspec.Struct, frozen=True):
    """One place where two facts differ.  Values are shown as Python writes them, `nothing` if one is missing."""

    path: str
    recorded: str
    again: str


class AppDifference(msgspec.Struct, frozen=True):
    """An app to which two decisions give different places: containers by node, with those that it had before."""

    app: str
    before: dict[str, int]
    recorded: dict[str, int]
    again: dict[str, int]


def differences(recorded: Any, again: Any, path: str = "") -> list[Difference]:
    """Return the first places at which two values differ, in the order of their fields; none if they are equal.

    Numbers of different types differ (1 is not 1.0), since their bytes differ.
    """
    return [difference for _, difference in zip(range(MOST), _walk(recorded, again, path), strict=False)]


def _walk(recorded: Any, again: Any, path: str) -> Iterator[Difference]:
    if type(recorded) is not type(again):
        yield Difference(path, _shown(recorded), _shown(again))
    elif isinstance(recorded, msgspec.Struct):
        for name in recorded.__struct_fields__:
            yield from _walk(getattr(recorded, name), getattr(again, name), f"{path}.{name}" if path else name)
    elif isinstance(recorded, dict):
        for key in sorted({*recorded, *again}, key=repr):
            yield from _walk(recorded.get(key, _ABSENT), again.get(key, _ABSENT), f"{path}[{key!r}]")
    elif isinstance(recorded, list | tuple):
        for index in range(max(len(recorded), len(again))):
            written, repeated = (items[index] if index < len(items) else _ABSENT for items in (recorded, again))
            yield from _walk(written, repeated, f"{path}[{index}]")
    elif recorded != again:
        yield Difference(path, _shown(recorded), _shown(again))


def _shown(value: object) -> str:
    if value is _ABSENT:
        return "nothing"
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
