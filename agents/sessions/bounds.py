"""How many sessions and connections one person, and all of them, may have on a node at once."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final

from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_SESSIONS: Final = 64
MOST_OF_ONE: Final = 16
MOST_CONNECTIONS: Final = 128
MOST_CONNECTIONS_OF_ONE: Final = 64


class TooMany(DormError):
    """There are too many already."""

    code = "session.too_many"


class Bound:
    """Counts what exists at once, for each person and for all.  `what` names it in the plural."""

    def __init__(self, what: str, most: int, most_of_one: int) -> None:
        self._what = what
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, who: str) -> Iterator[None]:
        """Count one more of this person's while this is open.  Raises TooMany."""
        if self._of[who] >= self._most_of_one:
            raise TooMany(f"{who} has {self._most_of_one} {self._what} on this node already; end one of them first")
        if self._of.total() >= self._most:
            raise TooMany(f"this node has {self._most} {self._what} already; try again later")
        self._of[who] += 1
        try:
            yield
        finally:
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]
