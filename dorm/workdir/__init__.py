"""Shipping a project folder: from a folder of this machine to a hash that every node can start containers in.

scanning   which files a folder has, within the cluster's limits, and what is left out;  ignoring: by which rules;
           git: what git says about it
leaving    what is left out, in words, and which failures that explains
packing    files into blobs and a manifest, consistently
revision   the git commit that the folder is at
shipping   sends what the cluster does not have yet
getting    a shipped folder back on this machine
using      the stored parts of shipped folders by tenant, and those that no app names
quotas     how much one tenant may store, and what exceeds that;  keeping: removes both, next to a master

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
