"""How large what one message says may be: bounds on numbers and texts of events, and on messages.

Numbers are bounded so that sums of them, and one more than them, stay within 64 bits; what is beyond is no event
(`events.kinds.Unreadable`).  Messages are bounded by what every supported server takes, and by nothing that differs from
server to server: an audit splits a decision as its master did.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

LEAST_MAX_PAYLOAD = 2**20
"""Bytes: the smallest `max_payload` of a NATS server that masters lead a cluster on.  It is the server's default."""
LARGEST_FACTS = LEAST_MAX_PAYLOAD - 64 * 1024
"""Bytes of a round's facts; the rest is room for the round itself and for headers."""

LONGEST_NAME = 512
"""Characters of an id or a name that others go by."""
LONGEST_TEXT = 500
"""Characters of a text that is passed on: a reason, a message."""

Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Moment = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""UTC nanoseconds, until the year 2116."""
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Of a record."""
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count or a serial number, which is exact in every language's numbers."""
Signed = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Slot = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Figure = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


def clipped(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text, or its first characters and dots."""
    return text if len(text) <= longest else text[: longest - 3] + "..."
