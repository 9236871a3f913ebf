"""What every kind of event says about itself, the fields of every event, and the types that several kinds share.

A kind is declared once: its class says who may write it and by which rule, what it is about and who sees it (`Kind`); the
types of its fields say what they hold (`events.fields`).  The servers' permissions, the rules of authority, filters,
tenants' views, exports and lists of events follow from that.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from events.fields import Position, holds
from events.limits import Moment, Name

Writer = Literal["user", "operator", "admin", "reader", "deliverer", "node", "master"]
"""Those who may write a kind on a server that knows its users.  An operator writes what a user may, a user what a reader may,
and an admin everything in its own name.  A deliverer is the process that delivers webhooks."""
Rule = Literal[
    "submits", "changes_app", "releases", "operates", "delivers", "drains", "joins", "of_node", "of_app", "of_session",
    "rotates", "identity", "round",
]  # fmt: skip
"""The rule by which a record counts on a cluster that knows its users: `dorm.core.authority` has one function for
each, `events.identities` the one for identities; a fact of a round counts if its round does."""
List = Literal["news", "decisions", "failures", "apps", "nodes", "containers", "noise"]
"""Lists of events for people: what the dashboard's first page shows, its groups of kinds, and what would push everything else
off a screen."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of event says about itself."""

    writers: tuple[Writer, ...]
    """Those who may write it, its usual writer first."""
    rule: Rule
    on: Literal["app", "apps", "node", "cluster"]
    """Subject of the fact."""
    by_name: bool = False
    """Whether it names its app as the app's owner does, by name or by id."""
    answered: bool = False
    """Whether the master answers it by its id, which therefore belongs to the author's tenant."""
    folded: bool = True
    """Whether a state depends on it."""
    stored: Literal["log", "round", "reports"] = "log"
    """Storage of the kind: as a record of its own on the log, in a round, or on the stream of heartbeats."""
    shown: bool = False
    """Whether other tenants see it, without what belongs to its tenant: their apps' shares follow from it.  They see only
    the position of any other record, and the facts of a round as far as they may see the round."""
    lists: tuple[List, ...] = ()


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=True, gc=False):
    """The fields of every event.  A client may omit them all; the reader then fills in what the log knows."""

    KIND: ClassVar[Kind]

    id: Annotated[Name, holds("own")] = ""
    """Unique, prefixed with the publisher.  The Nats-Msg-Id follows from it, so a repeated publish is stored once."""
    at: Moment = 0
    """Time at which it happened, by the publisher's clock (UTC ns).  Information only: log time orders events."""
    by: Annotated[Name, holds("own")] = ""
    """Name of the publisher."""
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
"""Machine that publishes under a node's name (`events.identities`); "" from agents before 0.6.0."""
