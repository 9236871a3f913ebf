"""How much of the store of shipped folders one tenant may have.

A client counts before it sends anything.  Servers know no quota for some subjects of a stream, so another program can write
more with the same credentials: the leading master checks once a minute, and removes parts beyond a tenant's quota.  Parts that
its apps name are kept first, then those that were stored earliest.  Between two looks, such a program can still fill the store
for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.workdir.using import Removed, named, needed_parts
from events.subjects import token

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from dorm.core.state import State
    from events.log.stores import Files, StoredBlob
    from events.workdir import Limits


def room_of(limits: Limits, tenant: str, listed: Iterable[StoredBlob], *, replaced: Collection[str]) -> int:
    """Return how many bytes a tenant may still store: its quota without the blobs `listed` of it, except for those that are
    about to be `replaced`, by their names.  Negative if it exceeds its quota."""
    return limits.quota_of(token(tenant)) - sum(blob.takes for blob in listed if blob.name not in replaced)


async def enforce_quotas(files: Files, state: State, limits: Limits) -> dict[str, Removed]:
    """Remove parts beyond tenants' quotas; return them by tenant.  Raises the log's errors."""
    by_tenant: dict[str, list[StoredBlob]] = {}
    for blob in await files.listed():
        by_tenant.setdefault(blob.tenant, []).append(blob)
    over = {
        tenant: blobs
        for tenant, blobs in by_tenant.items()
        if sum(blob.takes for blob in blobs) > limits.quota_of(tenant)
    }
    if not over:
        return {}
    needed = await needed_parts(files, named(state), over)
    found: dict[str, Removed] = {}
    for tenant, blobs in sorted(over.items()):
        room = limits.quota_of(tenant)
        removed: list[StoredBlob] = []
        for blob in sorted(blobs, key=lambda blob: ((blob.tenant, blob.name) not in needed, blob.time, blob.seq)):
            if blob.takes <= room:
                room -= blob.takes
            else:
                await files.remove(blob)
                removed.append(blob)
        found[tenant] = Removed(len(removed), sum(blob.takes for blob in removed))
    return found
