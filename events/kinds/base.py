"""The fields of every event, and the types that several kinds share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from events.fields import Position, holds
from events.limits import Moment, Name


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True, gc=False):
    """The fields of every event.  A client may omit them all; the reader then fills in what the log knows."""

    id: Annotated[Name, holds("own")] = ""
    """Unique, prefixed with the publisher.  The Nats-Msg-Id follows from it, so a repeated publish is stored once."""
    at: Moment = 0
    """When the publisher says it happened (UTC ns).  Information only: log time orders events."""
    by: Annotated[Name, holds("own")] = ""
    """Who published it."""
    cause: Position = ""
    """Position (`seq` or `seq.index`) or id of the event that caused it."""
    v: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] = 1
    """Schema version of this kind."""


Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A step of a program's work, small enough to be exact in every language's numbers."""
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
PortOrNone = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Address = Annotated[str, msgspec.Meta(max_length=255), holds("address")]
FolderId = Annotated[str, msgspec.Meta(max_length=64), holds("folder")]
"""Id of a shared folder of checkpoints, as its marker file states it."""
NO_FOLDER = "missing"
"""Replaces the id if there is no marker: the folder is not mounted, or was never a checkpoint folder."""
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32 - 1)]
Identity = Annotated[str, msgspec.Meta(max_length=64), holds("identity")]
"""Which machine publishes under a node's name (`events.identities`); "" from agents before 0.6.0."""
