"""Identities: who may act on a cluster, as its log states it.

A cluster without any of these events is open: everyone who reaches its log may do everything.  From the first `TrustEnabled`
on, a record counts only if its author may publish it (`dorm.core.authority`).  The author is the last token of the
record's subject, which the server's permissions guard; users and nodes share one space of such names.

These events contain no secrets: keys are public keys, and a bearer token appears only as a digest.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from events.fields import holds
from events.kinds.base import Address, Amount, Event, Kind, Port
from events.limits import Moment, Name

Role = Literal["user", "reader", "operator", "admin"]
"""Permissions of a user.  A `reader` only reads; a `user` submits apps, and changes those of their own tenant; an `operator`
also changes those of others, nodes, settings and webhooks; an `admin` also changes identities."""
Holder = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_@+=-]+$")]
"""A name that can be used as a subject's token unchanged (`events.subjects.token`)."""
UserHolder = Annotated[Holder, holds("user")]
NodeHolder = Annotated[Holder, holds("node")]
TokenHolder = Annotated[Holder, holds("token")]
PublicKey = Annotated[str, msgspec.Meta(max_length=56, pattern=r"^([A-Z2-7]{56})?$"), holds("own")]
"""The public half of an nkey; "" for none."""
TokenDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$"), holds("secret")]
ResourceName = Annotated[str, msgspec.Meta(max_length=64), holds("resource")]
LabelText = Annotated[str, msgspec.Meta(max_length=256)]
Bounds = Annotated[dict[ResourceName, Amount], msgspec.Meta(max_length=64)]
Labels = Annotated[
    dict[Annotated[LabelText, holds("label")], Annotated[LabelText, holds("value")]], msgspec.Meta(max_length=64)
]

MOST_MASTER_KEYS = 16
MOST_ADDRESSES = 16


class TrustEnabled(Event, frozen=True):
    """Identities count from here on.  The author of the first one becomes an admin; later ones are for admins, and replace
    the masters' keys."""

    KIND: ClassVar[Kind] = Kind(writers=("admin",), rule="identity", on="cluster", shown=True)

    public_key: PublicKey = ""
    """The author's public key."""
    masters: Annotated[list[PublicKey], msgspec.Meta(max_length=MOST_MASTER_KEYS), holds("own")] = []
    """Public keys, one of which has to sign each round; empty if rounds need no signature."""
    nodes: Annotated[list[NodeHolder], msgspec.Meta(max_length=10_000)] = []
    """Nodes of a cluster that was open until now: they are enrolled at the same time, without bounds."""


class UserAdded(Event, frozen=True):
    """An admin adds a user, or changes a user's key or role."""

    KIND: ClassVar[Kind] = Kind(writers=("admin",), rule="identity", on="cluster", shown=True)

    name: UserHolder
    role: Role = "user"
    tenant: Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9_@+=-]*$"), holds("user")] = ""
    """Owns the user's apps, their names and the ids of submissions; "" for a tenant of the user's own name."""
    public_key: PublicKey = ""


class UserRemoved(Event, frozen=True):
    """An admin removes a user, whose tokens end with it.  The user's apps stay."""

    KIND: ClassVar[Kind] = Kind(writers=("admin",), rule="identity", on="cluster", shown=True)

    name: UserHolder


class NodeEnrolled(Event, frozen=True):
    """An admin admits a node, or changes its entry, and bounds what it may claim when it joins."""

    KIND: ClassVar[Kind] = Kind(writers=("admin",), rule="identity", on="node", shown=True)

    node: NodeHolder
    public_key: PublicKey = ""
    capacity: Bounds | None = None
    """The most that it may have of each resource, and no other resources; None for no bound."""
    labels: Labels | None = None
    """The labels that it may have, with their values; None for any."""
    addresses: Annotated[list[Address], msgspec.Meta(max_length=MOST_ADDRESSES)] = []
    """The allowed addresses of its containers; empty for any."""
    ports: tuple[Port, Port] | None = None
    """The allowed range of its ports; None for any."""


class NodeExpelled(Event, frozen=True):
    """An admin expels a node: from here on, its records do not count, so its containers count as gone when its lease
    has ended."""

    KIND: ClassVar[Kind] = Kind(writers=("admin",), rule="identity", on="node", shown=True)

    node: NodeHolder


class TokenAdded(Event, frozen=True):
    """An admin, or the user, adds a bearer token with which the HTTP API accepts requests as the user's."""

    KIND: ClassVar[Kind] = Kind(writers=("admin", "reader"), rule="identity", on="cluster")

    token: TokenHolder
    """Names the token; it is not the secret."""
    user: UserHolder
    digest: TokenDigest
    """SHA-256 of the secret, which holds 256 random bits, so the digest reveals nothing useful."""
    expires_at: Moment = 0
    """UTC ns; 0 for never."""


class TokenRemoved(Event, frozen=True):
    """An admin, or the user, removes a token."""

    KIND: ClassVar[Kind] = Kind(writers=("admin", "reader"), rule="identity", on="cluster")

    token: Annotated[Name, holds("token")]


OfIdentities = TrustEnabled | UserAdded | UserRemoved | NodeEnrolled | NodeExpelled | TokenAdded | TokenRemoved
