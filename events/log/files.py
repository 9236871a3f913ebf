"""The store of shipped folders, beside a cluster's log: blobs by tenant and hash (`events.workdir`).

Each tenant has blobs of its own, so that a server can keep tenants from each other's.  A name identifies the content,
so a blob is written once, and again only to renew its time.  A full store refuses; no stored blob is dropped for a
later one.

Each tenant has a quota (`Limits.quota_of`).  Clients keep to it (`dorm.workdir.shipping`), and the leading master removes
what another program has written beyond it (`dorm.workdir.keeping`).  Tenants may write and not remove, which servers can't
allow for single subjects: a tenant that gives up a blob writes an empty one in its place, which counts as none, and masters
remove it.

Implementations: `MemoryFiles` here, `events.nats.beside.files`.  A log without such a store has `NoFiles`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from events.log.records import LogRefused
from events.subjects import token
from events.workdir.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

EVERYONE = "*"


class StoredBlob(NamedTuple):
    """A blob of the store, without its content."""

    tenant: str
    """As a token of a subject."""
    name: str
    size: int
    """Bytes of its content as it is stored; 0 for a blob that its tenant has given up."""
    time: int
    """UTC nanoseconds, when it was stored last."""
    seq: int
    """Changes with every write."""
    head: int = 0
    """Bytes that the store keeps in addition to the content."""

    @property
    def takes(self) -> int:
        """Bytes that count against its tenant's quota."""
        return self.size + self.head


class Files(Protocol):
    """Blobs to read and to write.  Each method raises LogUnavailable, and LogRefused if the cluster has no such store or
    forbids it."""

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        """Store a blob, or renew its time. Raises LogFull if there is no room."""
        ...

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        """Return a blob as it is stored, and when that was (UTC ns); None if it is not there.  A server that is a moment
        behind may not have one yet that was stored just now."""
        ...

    async def listed(self, tenant: str = EVERYONE) -> list[StoredBlob]:
        """Return all blobs of a tenant, or of all, sorted by tenant and name; also those that were given up."""
        ...

    async def remove(self, blob: StoredBlob) -> None:
        """Remove a blob, unless it was stored again since it was listed.  For masters and operators."""
        ...

    async def give_up(self, blob: StoredBlob) -> None:
        """Empty a blob, unless it was stored again since it was listed.  For its tenant."""
        ...

    async def limits(self) -> Limits:
        """Return what the cluster takes."""
        ...

    async def set_limits(self, limits: Limits) -> None: ...


class NoFiles(Files):
    """For logs that have none."""

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        raise _no_store()

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        raise _no_store()

    async def listed(self, tenant: str = EVERYONE) -> list[StoredBlob]:
        raise _no_store()

    async def remove(self, blob: StoredBlob) -> None:
        raise _no_store()

    async def give_up(self, blob: StoredBlob) -> None:
        raise _no_store()

    async def limits(self) -> Limits:
        return Limits()

    async def set_limits(self, limits: Limits) -> None:
        raise _no_store()


def _no_store() -> LogRefused:
    return LogRefused("this log keeps no shipped folders", code="files.no_store")


class MemoryFiles(Files):
    """Blobs within one process, for tests."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stored: dict[tuple[str, str], tuple[StoredBlob, bytes]] = {}
        self._limits = Limits()
        self._seq = 0

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        self._seq += 1
        blob = StoredBlob(token(tenant), name, len(body), self._clock(), self._seq)
        self._stored[blob.tenant, name] = blob, body

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        found = self._stored.get((token(tenant), name))
        return (found[1], found[0].time) if found is not None and found[1] else None

    async def listed(self, tenant: str = EVERYONE) -> list[StoredBlob]:
        wanted = {token(tenant)} if tenant != EVERYONE else {owner for owner, _ in self._stored}
        return [blob for (owner, _), (blob, _) in sorted(self._stored.items()) if owner in wanted]

    async def remove(self, blob: StoredBlob) -> None:
        found = self._stored.get((blob.tenant, blob.name))
        if found is not None and found[0].seq == blob.seq:
            del self._stored[blob.tenant, blob.name]

    async def give_up(self, blob: StoredBlob) -> None:
        found = self._stored.get((blob.tenant, blob.name))
        if found is not None and found[0].seq == blob.seq:
            await self.put(blob.tenant, blob.name, b"")

    async def limits(self) -> Limits:
        return self._limits

    async def set_limits(self, limits: Limits) -> None:
        self._limits = limits
