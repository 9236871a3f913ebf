"""Ids of messages, by which a server drops duplicates, and which nobody else can know in advance.

A stream compares the ids of all its messages.  A stranger could use up an id that follows from the published content
before its owner needs it: the server would then acknowledge the owner's message as a repeat, and store nothing.
`events.appending` notices that and takes another id; a keyed id cannot be taken in the first place.  It still follows
from the event alone, so that a publisher that sends again after a crash sends the same id.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from events.nats.access.credentials import Credentials

_PURPOSE = b"dorm message ids"
_HEX = 32


def message_id(id: str, credentials: Credentials | None) -> str:
    """Return the id under which an identity publishes: a code over the event's id, keyed by the identity's seed (HMAC-SHA256,
    128 bits, in hex).  Without credentials it is the event's id itself."""
    if credentials is None:
        return id
    key = hmac.digest(credentials.seed, _PURPOSE, "sha256")
    return hmac.digest(key, id.encode(), "sha256").hex()[:_HEX]
