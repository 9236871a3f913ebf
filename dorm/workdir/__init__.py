"""Shipping a project folder: from a folder of this machine to a hash that every node can start containers in.

scanning   which files a folder has, within the cluster's limits, and what is left out
ignoring   by which rules, git's own among them
leaving    what is left out, in words, and which failures that explains
shipping   files into blobs and a manifest, consistently; sends what the cluster does not have yet, and gets a folder back
keeping    the stored parts that no app names or that exceed a tenant's quota, removed next to a master

async with await Client.open(url, cluster) as client:
    spec["workdir"] = await ship(client, Path("."))
    await client.submit(spec)

Unshippable    (`errors`) the folder can't be shipped as it is; the message names the file, or the largest folders
"""

from __future__ import annotations

from dorm.workdir.errors import Unshippable
from dorm.workdir.leaving import look_at
from dorm.workdir.shipping import Shipped, folder_as_shipped, ship, ship_folder, tenant_of

__all__ = ["Shipped", "Unshippable", "folder_as_shipped", "look_at", "ship", "ship_folder", "tenant_of"]
