"""Pure: the permissions of containers by a node's configuration.  The default is the restricted profile; the node's
operator alone may relax it, for one tenant or for all.

A tenant is the app's tenant on a cluster that knows its users, and the app's user on an open one.  If the agent is root,
each tenant's containers run as a user of their own.  Its id follows from the tenant's name alone, so it is the same on all
nodes that share a folder of checkpoints.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, get_args

import msgspec

Freedom = Literal["writable-root", "shared-user", "core-dumps"]
"""`writable-root`: the image's files can be changed in the container, and /tmp is on its disk.  `shared-user`: containers run
as 65534:65534, as those of other tenants with this freedom.  `core-dumps`: a crash may write one."""
FREEDOMS: Final[tuple[Freedom, ...]] = get_args(Freedom)

UIDS: Final = (1_900_000_000, 2_147_000_000)
"""First and last id of tenants: above those that distributions, subuid(5) and systemd-nspawn hand out, and so many that two of
a thousand tenants share one with a probability of 0.2 %."""
NOBODY: Final = (65534, 65534)
_GIB: Final = 1024**3
DEFAULT_DISK: Final = 32 * _GIB


class Profile(msgspec.Struct, frozen=True):
    """How a node confines containers."""

    user: tuple[int, int] | None = None
    """(uid, gid) of all containers; None for one user per tenant."""
    allow: tuple[str, ...] = ()
    """`FREEDOM` for all tenants, `TENANT:FREEDOM` for one."""
    memory: int = _GIB
    """Limit in bytes for a container whose spec names none."""
    disk: int = DEFAULT_DISK
    """Bytes that a container may write to the node's disk."""
    images: tuple[str, ...] = ()
    """Patterns of the images that containers may have (`full_name`); none for any image."""

    def takes(self, image: str) -> bool:
        """Return whether containers may have this image."""
        return not self.images or any(_matches(pattern, image) for pattern in self.images)

    def allows(self, tenant: str, freedom: Freedom) -> bool:
        """Return whether the operator has given this tenant a freedom."""
        return freedom in self.allow or f"{tenant}:{freedom}" in self.allow

    def user_of(self, tenant: str) -> tuple[int, int]:
        """Return (uid, gid) of a tenant's containers.  A container without a tenant belongs to no user."""
        if self.user is not None:
            return self.user
        if not tenant or self.allows(tenant, "shared-user"):
            return NOBODY
        first, last = UIDS
        digest = hashlib.blake2b(tenant.encode(), digest_size=8, person=b"dorm uid").digest()
        uid = first + int.from_bytes(digest) % (last - first + 1)
        return uid, uid


def default_memory(capacity: int) -> int:
    """Return the limit for a container whose spec names none, on a node with this much memory for apps."""
    return max(_GIB, capacity // 4)


def is_allowance(text: str) -> bool:
    """Return whether the text is `FREEDOM` or `TENANT:FREEDOM`."""
    tenant, colon, freedom = text.rpartition(":")
    return freedom in FREEDOMS and bool(tenant) == bool(colon)


def full_name(image: str) -> str:
    """Return an image's name with the engine's defaults: `python` is `docker.io/library/python:latest`."""
    name, at, digest = image.partition("@")
    first, slash, _ = name.partition("/")
    if not slash or not (first == "localhost" or set(first) & set(".:")):
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    if not at and ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return name + at + digest


_WILD: Final = {"**": ".*", "*": "[^/@]*"}


def _matches(pattern: str, image: str) -> bool:
    """`*` stands for any text without `/` and `@`, `**` for any text: so a pattern for tags does not accept a digest, nor one
    for a registry a folder of that name on another one."""
    parts = re.split(r"(\*\*|\*)", pattern)
    expression = "".join(_WILD.get(part) or re.escape(part) for part in parts)
    return any(re.fullmatch(expression, name) is not None for name in (image, full_name(image)))
