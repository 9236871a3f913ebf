"""Lists in pages.  A page starts after an item, never at an offset, so its cost does not depend on what came before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")
U = TypeVar("U")

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000, description="Most items of the page.")]


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list."""

    items: list[T]
    next: str | None
    """What to pass as `after` for the next page; null on the last one."""
    previous: str | None
    """What to pass as `before` for the page before; null on the first one, or if a list has no way back."""
    position: str
    """The position of the log that the page is of."""


def paged(found: Iterable[U], key: Callable[[U], str], limit: int) -> tuple[list[U], str | None]:
    """Return the first items, and what the next page starts after."""
    items: list[U] = []
    for one in found:
        if len(items) == limit:
            return items, key(items[-1])
        items.append(one)
    return items, None
