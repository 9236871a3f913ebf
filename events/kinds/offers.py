"""What a node offers to apps beyond its resources."""

from __future__ import annotations

from typing import Annotated

import msgspec

from events.limits import Name

MOST_OFFERED = 256
"""Volumes that one node offers."""


class VolumeOffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that a node offers by name."""

    writable: bool = False
    """Whether apps may write there; most volumes are read-only."""
    tenants: Annotated[list[Name], msgspec.Meta(max_length=1000)] = []
    """Tenants whose apps may use it; empty for all."""
    missing: bool = False
    """Whether the folder is missing now, for example because its file system is not mounted."""


class NodeOffers(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node offers."""

    volumes: Annotated[dict[str, VolumeOffer], msgspec.Meta(max_length=MOST_OFFERED)] = {}
    """By name."""
    environments: bool = False
    """Whether the agent builds apps' environments: agents before 0.6.0 do not know that part of a spec."""
    pythons: Annotated[list[Annotated[str, msgspec.Meta(max_length=16)]], msgspec.Meta(max_length=32)] = []
    """Versions of Python that apps may choose, such as 3.12; empty if images bring their own."""
