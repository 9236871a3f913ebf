"""Bounds on numbers and texts of events, on the size of messages, and on one party's part of something shared.

Numbers are bounded so that sums and increments stay within 64 bits; an event beyond them is `events.kinds.Unreadable`.
Messages are bounded by what every supported server accepts, never by one server's setting: an audit must split a decision as
its master did.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_MAX_PAYLOAD = 2**20
"""Bytes: the smallest `max_payload` of a NATS server on which a master leads.  It is the server's default."""
LARGEST_FACTS = LEAST_MAX_PAYLOAD - 64 * 1024
"""Bytes of a round's facts; the rest is for the round itself and its headers."""

LONGEST_NAME = 512
"""Characters of an id or a name that others refer to."""
LONGEST_TEXT = 500
"""Characters of a text that is passed on: a reason, a message."""

SIGNATURE_DIGITS = 128
"""Hexadecimal digits of a signature."""

Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Moment = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""UTC nanoseconds, until the year 2116."""
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Sequence of a record."""
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count or a serial number, exact in every language's numbers."""
Signed = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Slot = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Figure = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


def clipped(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text, or as much of its beginning as fits, with the number of characters that are left out."""
    if len(text) <= longest:
        return text
    kept = longest - len(_LEFT_OUT.format(len(text)))
    return text[: max(0, kept)] + _LEFT_OUT.format(len(text) - max(0, kept))


_LEFT_OUT = "... ({:,} more characters)"


class Shares:
    """Places that several parties share.  A party has at most as many as it leaves free.  So a party that wants all of
    them gets half, two such parties get a third each, and there is room for another one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: Counter[str] = Counter()

    def has_room_for(self, party: str) -> bool:
        return self._of[party] < self._most - self._of.total()

    @contextlib.contextmanager
    def held(self, party: str) -> Iterator[None]:
        """Have one more place meanwhile; ask `has_room_for` first."""
        self.take(party)
        try:
            yield
        finally:
            self.leave(party)

    def take(self, party: str) -> None:
        self._of[party] += 1

    def leave(self, party: str) -> None:
        self._of[party] -= 1
        if self._of[party] <= 0:
            del self._of[party]
