"""How large a shipped folder may be, and how long the cluster keeps folders that no app names.

A cluster may have limits of its own (`dorm files limits`); beyond `MOST_FILES` and `MOST_BYTES` nothing of it works, whatever
they say.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MIB = 2**20
BLOB = 512 * 1024
"""Bytes of the largest blob before compression."""
LARGEST_MANIFEST = 896 * 1024
"""Bytes of a manifest as it is stored: it is one message, and every server accepts one MiB."""
UNPACKED_MANIFEST = 32 * MIB
MOST_FILES = 100_000
MOST_BYTES = 64 * 1024 * MIB
LONGEST_PATH = 1024
"""Bytes of a path within the folder, and of a link's target."""
DEEPEST = 64
"""Folders within each other."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of the cluster."""

    file: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 256 * MIB
    """Bytes of one file."""
    total: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 1024 * MIB
    """Bytes of all files of one folder."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_FILES)] = 20_000
    """Files, links and empty folders."""
    quota: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 512 * MIB
    """Bytes of all that one tenant has shipped, as the store keeps it."""
    quotas: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]], msgspec.Meta(max_length=10_000)
    ] = {}
    """The same for tenants with a quota of their own, by their tokens."""
    keep_s: Annotated[float, msgspec.Meta(ge=3600, le=10 * 365 * 86_400)] = 7 * 86_400.0
    """How long, in seconds, the cluster keeps a folder that no app names, since it was shipped last."""

    def quota_of(self, tenant: str) -> int:
        """Return the quota of a tenant, given as the token of a subject, in bytes."""
        return self.quotas.get(tenant, self.quota)
