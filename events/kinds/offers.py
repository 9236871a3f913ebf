"""What a node offers to apps beyond its resources."""

from __future__ import annotations

from typing import Annotated

import msgspec

from events.fields import Code, Label, UserName, holds
from events.limits import Name

MOST_OFFERED = 256
"""Volumes that one node offers."""
MOST_SECRETS = 1024
"""Secrets that one node announces; a node with more announces none, and counts as one that may have any."""
MOST_UNFIT = 16
"""Reasons that one node announces."""
LONGEST_UNFIT = 240
"""Characters of one reason."""


class VolumeOffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that a node offers by name."""

    writable: bool = False
    """Whether apps may write there; most volumes are read-only."""
    tenants: Annotated[list[UserName], msgspec.Meta(max_length=1000)] = []
    """Tenants whose apps may use it; empty for all."""
    missing: bool = False
    """Whether the folder is missing now, for example because its file system is not mounted."""


class Unfit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a node takes nothing new, as its agent found."""

    code: Code
    """The kind of reason (`agents.fitness`), such as `data_bytes` or `health_program`; masters only count the reasons."""
    text: Annotated[str, msgspec.Meta(max_length=LONGEST_UNFIT), holds("text")] = ""
    """Description in words, with what to do if the agent knows it."""


class NodeOffers(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node offers."""

    volumes: Annotated[dict[Label, VolumeOffer], msgspec.Meta(max_length=MOST_OFFERED)] = {}
    """Volumes by name."""
    environments: bool = False
    """Whether the agent builds apps' environments: agents before 0.6.0 do not know that part of a spec."""
    pythons: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=16), holds("word")]], msgspec.Meta(max_length=32)
    ] = []
    """Versions of Python that apps may choose, such as 3.12; empty if images bring their own."""
    secrets: (
        Annotated[
            dict[Name, Annotated[list[Name], msgspec.Meta(max_length=MOST_SECRETS)]],
            msgspec.Meta(max_length=MOST_SECRETS),
            holds("secrets"),
        ]
        | None
    ) = None
    """The names of the secrets that it has, by user. None if they are unknown, as from agents before 0.7.0: any may be
    there. Only the users' own tenants see them (`replay.tenants`)."""
    tenant: UserName = ""
    """The only tenant that it serves; "" for all, also for a node that serves the first one that comes."""
    unfit: Annotated[list[Unfit], msgspec.Meta(max_length=MOST_UNFIT)] = []
    """Why it takes nothing new, although its agent is heard; empty if it does. What runs there is left alone."""
